// Package clocks has wall clocks that tests can set: of Go programs, and of PostgreSQL. The monotonic clock, and with
// it timers, time-outs and durations, goes on as if nothing had happened, as it does on a real machine.
package clocks

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
	"pawl/test/assert"
)

// Wall is the wall clock of a machine, which a test can set. Replicas on such a machine are the program as it is, but
// linked with another time.Now: what intercepts the calls of C programs does nothing to those of Go. The monotonic clock,
// and with it timers, time-outs and durations, goes on as if nothing had happened, as it does on a real machine.
type Wall struct {
	path  string
	wrong *atomic.Int64 // by so many seconds; memory that the file is mapped to, here and in the replicas
}

// New makes a clock that is right, with a file in folder. It is there until the end of the test.
func New(t testing.TB, folder string) *Wall {
	t.Helper()
	file, err := os.Create(filepath.Join(folder, "wall-clock"))
	assert.NoError(t, err)
	defer file.Close()
	assert.NoError(t, file.Truncate(8))
	memory, err := syscall.Mmap(int(file.Fd()), 0, 8, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	assert.NoError(t, err)
	t.Cleanup(func() { _ = syscall.Munmap(memory) })
	return &Wall{file.Name(), (*atomic.Int64)(unsafe.Pointer(&memory[0]))}
}

// Step sets the clock to be wrong by so much, to the second.
func (c *Wall) Step(by time.Duration) { c.wrong.Store(int64(by / time.Second)) }

// Env is the environment of a program whose clock it is.
func (c *Wall) Env() []string { return []string{stepVariable + "=" + c.path} }

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

// Build links a main package, in the folder of its module, with a wall clock that can be set.
func Build(t testing.TB, module, path string) {
	t.Helper()
	archive := strings.TrimSpace(run(t, "go", "list", "-export", "-f", "{{.Export}}", "time"))
	compiled, err := os.ReadFile(archive)
	assert.NoError(t, err)
	n := bytes.Count(compiled, []byte(clockRead))
	assert.Require(t, n == 1, archive, "names", clockRead, n, "times: look how time.Now reads the clock")
	module, err = filepath.Abs(module)
	assert.NoError(t, err)
	dir := t.TempDir()
	patched, source := filepath.Join(dir, "time.a"), filepath.Join(dir, "step.go")
	overlay, tool := filepath.Join(dir, "overlay.json"), filepath.Join(dir, "tool")
	added, err := json.Marshal(map[string]any{"Replace": map[string]string{filepath.Join(module, "step.go"): source}})
	assert.NoError(t, err)
	write(t, patched, strings.Replace(string(compiled), clockRead, steppedRead, 1))
	write(t, source, steppedSource)
	write(t, overlay, string(added))
	write(t, tool, fmt.Sprintf(useStepped, patched))
	run(t, "go", "build", "-C", module, "-ldflags=-s -w -checklinkname=0", "-overlay", overlay, "-toolexec", "sh "+tool, "-o", path, ".")
}

// Database is the wall clock of a PostgreSQL server, which a test can set. The server is run with a library before the
// one of C.
type Database struct {
	*Wall
	Bin string // the folder of the server's programs
}

// NewDatabase makes a clock that is right. Folder can be read by the user of the server.
func NewDatabase(t testing.TB, folder string) *Database {
	t.Helper()
	c := &Database{New(t, folder), folder}
	source, library := filepath.Join(t.TempDir(), "clock.c"), filepath.Join(c.Bin, "clock.so")
	write(t, source, fmt.Sprintf(librarySource, c.path))
	run(t, "cc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl")
	installed, err := pgembed.Look(t.Context(), pgembed.Config{Dir: t.TempDir()})
	assert.Require(t, err == nil && installed.Dir != "", "no PostgreSQL is installed", err)
	for _, program := range []string{"postgres", "initdb"} {
		script := fmt.Sprintf("#!/bin/sh\nLD_PRELOAD='%s' exec '%s' \"$@\"\n", library, filepath.Join(installed.Dir, program))
		if err := os.WriteFile(filepath.Join(c.Bin, program), []byte(script), 0o755); err != nil { //nolint:gosec // it is to be run
			t.Fatal(err)
		}
	}
	return c
}

// librarySource asks for the time by the system call, and adds what the file says. The other clocks are left as they are.
const librarySource = `
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

func write(t testing.TB, path, text string) {
	t.Helper()
	assert.NoError(t, os.WriteFile(path, []byte(text), 0o600))
}

func run(t testing.TB, name string, arguments ...string) (printed string) {
	t.Helper()
	said, err := exec.CommandContext(t.Context(), name, arguments...).CombinedOutput()
	assert.NoError(t, err, name, arguments, said)
	return string(said)
}
