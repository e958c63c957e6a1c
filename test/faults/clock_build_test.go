package faults

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"pawl/internal/pgembed"
	"pawl/test/dbtest"
)

// wallClock is the wall clock of a machine, which a test can set. Replicas on such a machine are the program as it is, but
// linked with another time.Now: what intercepts the calls of C programs does nothing to those of Go. The monotonic clock,
// and with it timers, time-outs and durations, goes on as if nothing had happened, as it does on a real machine.
type wallClock struct {
	path  string
	wrong *atomic.Int64 // by so many seconds; memory that the file is mapped to, here and in the replicas
}

// newWallClock makes a clock that is right. buildStepped belongs before t.Parallel.
func newWallClock(t testing.TB) *wallClock {
	t.Helper()
	return newWallClockIn(t, t.TempDir())
}

func newWallClockIn(t testing.TB, folder string) *wallClock {
	t.Helper()
	file, err := os.Create(filepath.Join(folder, "wall-clock"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := file.Truncate(8); err != nil {
		t.Fatal(err)
	}
	memory, err := syscall.Mmap(int(file.Fd()), 0, 8, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Munmap(memory) })
	return &wallClock{file.Name(), (*atomic.Int64)(unsafe.Pointer(&memory[0]))}
}

// step sets the clock to be wrong by so much, to the second.
func (c *wallClock) step(by time.Duration) { c.wrong.Store(int64(by / time.Second)) }

func (c *wallClock) env() []string { return []string{stepVariable + "=" + c.path} }

// stepVariable names the file of a clock.
const stepVariable = "PAWL_FAULT_WALL_CLOCK"

// Package time reads the clocks by a function of the runtime, and calls it by the first name. In the program it calls the
// second one, which is as long: what is compiled can be changed so, and nothing that uses package time is compiled anew.
const (
	clockRead   = "time.runtimeNow"
	steppedRead = "main.runtimeNow"
)

// steppedSource is added to the program. The runtime calls time.Now for timers where no system call may be made, so the
// file is not read: it is mapped once.
const steppedSource = `package main

import (
	"os"
	"syscall"
	"unsafe"
)

var (
	right int64
	step  = &right
)

//go:linkname machineNow time.runtimeNow
func machineNow() (sec int64, nsec int32, mono int64)

//go:norace
func runtimeNow() (sec int64, nsec int32, mono int64) {
	sec, nsec, mono = machineNow()
	return sec + *step, nsec, mono
}

func init() {
	file, err := os.Open(os.Getenv("` + stepVariable + `"))
	if err != nil {
		panic(err)
	}
	defer file.Close()
	memory, err := syscall.Mmap(int(file.Fd()), 0, 8, syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		panic(err)
	}
	step = (*int64)(unsafe.Pointer(&memory[0]))
}
`

// useStepped runs a tool of the go command. The linker is told last where package time is, and goes by that.
const useStepped = `for word; do
	case "$word" in */importcfg.link) echo "packagefile time=%s" >>"$word" ;; esac
done
exec "$@"
`

// buildStepped makes the program available as build does, and with a wall clock that can be set as well.
func buildStepped(t *testing.T) {
	t.Helper()
	build(t)
	built.Lock()
	defer built.Unlock()
	if built.stepped == "" {
		built.stepped = filepath.Join(filepath.Dir(built.path), "pawl-stepped")
		linkStepped(t, built.stepped)
	}
}

// stepped is where buildStepped put it.
func stepped() string {
	built.Lock()
	defer built.Unlock()
	return built.stepped
}

func linkStepped(t testing.TB, path string) {
	t.Helper()
	archive := strings.TrimSpace(command(t, "go", "list", "-export", "-f", "{{.Export}}", "time"))
	compiled, err := os.ReadFile(archive)
	if err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(compiled, []byte(clockRead)); n != 1 {
		t.Fatalf("%s names %s %d times: look how time.Now reads the clock", archive, clockRead, n)
	}
	module, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	patched, source, overlay, tool := filepath.Join(dir, "time.a"), filepath.Join(dir, "step.go"), filepath.Join(dir, "overlay.json"), filepath.Join(dir, "tool")
	added, err := json.Marshal(map[string]any{"Replace": map[string]string{filepath.Join(module, "step.go"): source}})
	if err != nil {
		t.Fatal(err)
	}
	write(t, patched, strings.Replace(string(compiled), clockRead, steppedRead, 1))
	write(t, source, steppedSource)
	write(t, overlay, string(added))
	write(t, tool, fmt.Sprintf(useStepped, patched))
	command(t, "go", "build", "-ldflags=-s -w -checklinkname=0", "-overlay", overlay, "-toolexec", "sh "+tool, "-o", path, "pawl")
}

func command(t testing.TB, name string, arguments ...string) (printed string) {
	t.Helper()
	said, err := exec.CommandContext(t.Context(), name, arguments...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", name, arguments, err, said)
	}
	return string(said)
}

func write(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// databaseClock is the wall clock of a PostgreSQL server, which a test can set. The server is run with a library before the one of C.
type databaseClock struct {
	*wallClock
	bin string // the folder of its programs
}

// newDatabaseClock makes a clock that is right.
func newDatabaseClock(t testing.TB) *databaseClock {
	t.Helper()
	bin := dbtest.Folder(t) // where the user of the server can read it
	c := &databaseClock{newWallClockIn(t, bin), bin}
	source, library := filepath.Join(t.TempDir(), "clock.c"), filepath.Join(c.bin, "clock.so")
	write(t, source, fmt.Sprintf(databaseClockSource, c.path))
	if out, err := exec.CommandContext(t.Context(), "cc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	installed, err := pgembed.Look(t.Context(), pgembed.Config{Dir: t.TempDir()})
	if err != nil || installed.Dir == "" {
		t.Fatalf("no PostgreSQL is installed: %v", err)
	}
	for _, program := range []string{"postgres", "initdb"} {
		script := fmt.Sprintf("#!/bin/sh\nLD_PRELOAD='%s' exec '%s' \"$@\"\n", library, filepath.Join(installed.Dir, program))
		if err := os.WriteFile(filepath.Join(c.bin, program), []byte(script), 0o755); err != nil { //nolint:gosec // it is to be run
			t.Fatal(err)
		}
	}
	return c
}

// databaseClockSource asks for the time by the system call, and adds what the file says. The other clocks are left as they are.
const databaseClockSource = `
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile long *wrong;

__attribute__((constructor)) static void begin(void) {
	int file = open("%s", O_RDONLY);
	void *memory = file < 0 ? MAP_FAILED : mmap(0, 8, PROT_READ, MAP_SHARED, file, 0);
	if (memory == MAP_FAILED) _exit(99);
	close(file);
	wrong = memory;
}

int clock_gettime(clockid_t id, struct timespec *at) {
	long failed = syscall(SYS_clock_gettime, id, at);
	if (!failed && id == CLOCK_REALTIME && wrong) at->tv_sec += *wrong;
	return failed;
}

int gettimeofday(struct timeval *at, void *zone) {
	struct timespec now;
	if (clock_gettime(CLOCK_REALTIME, &now)) return -1;
	at->tv_sec = now.tv_sec;
	at->tv_usec = now.tv_nsec / 1000;
	return 0;
}

time_t time(time_t *at) {
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	if (at) *at = now.tv_sec;
	return now.tv_sec;
}
`
