package faulttest

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"
)

// wallClock is the wall clock of a machine, which a test can set. Replicas on such a machine are the program as it is, but
// built with another time.Now: what intercepts the calls of C programs does nothing to those of Go. The monotonic clock,
// and with it timers, time-outs and durations, goes on as if nothing had happened, as it does on a real machine.
type wallClock struct {
	path  string
	wrong *atomic.Int64 // by so many seconds; memory that the file is mapped to, here and in the replicas
}

// newWallClock makes a clock that is right. buildStepped belongs before t.Parallel.
func newWallClock(t testing.TB) *wallClock {
	t.Helper()
	file, err := os.Create(filepath.Join(t.TempDir(), "wall-clock"))
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

// stepVariable names the file of a clock. Without it the clock is right.
const stepVariable = "PAWL_FAULT_WALL_CLOCK"

// The lines of package time that are replaced, and what is added. The runtime calls time.Now for timers where no system
// call may be made, so the file is not read: it is mapped once.
const (
	clockRead = "	sec, nsec, mono := runtimeNow()\n	if mono == 0 {\n"
	steppedBy = "	sec, nsec, mono := runtimeNow()\n	sec += *wallStep\n	if mono == 0 {\n"
	stepFile  = `
var wallStep = mapWallStep()

func mapWallStep() *int64 {
	name, ok := syscall.Getenv("` + stepVariable + `")
	if !ok {
		return new(int64)
	}
	file, err := syscall.Open(name, syscall.O_RDONLY, 0)
	if err != nil {
		panic("open " + name + ": " + err.Error())
	}
	memory, err := syscall.Mmap(file, 0, 8, syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		panic("map " + name + ": " + err.Error())
	}
	return (*int64)(unsafe.Pointer(&memory[0]))
}
`
)

// buildStepped makes the program available as build does, and with a wall clock that can be set as well. The first time
// it takes minutes: with package time everything is compiled anew, into the cache of the go command.
func buildStepped(t *testing.T) {
	t.Helper()
	build(t)
	built.Lock()
	defer built.Unlock()
	if built.stepped == "" {
		built.stepped = filepath.Join(filepath.Dir(built.path), "pawl-stepped")
		compileStepped(t, built.stepped)
	}
}

// stepped is where buildStepped put it.
func stepped() string {
	built.Lock()
	defer built.Unlock()
	return built.stepped
}

func compileStepped(t testing.TB, path string) {
	t.Helper()
	dir := t.TempDir()
	said, err := exec.CommandContext(t.Context(), "go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	original := filepath.Join(strings.TrimSpace(string(said)), "src", "time", "time.go")
	text, err := os.ReadFile(original)
	if err != nil {
		t.Fatal(err)
	}
	source := strings.Replace(string(text), clockRead, steppedBy, 1)
	source = strings.Replace(source, "import (\n", "import (\n	\"syscall\"\n	\"unsafe\"\n", 1)
	if strings.Count(string(text), clockRead) != 1 || strings.Count(source, "*wallStep") != 1 || strings.Count(source, "	\"unsafe\"\n") != 1 {
		t.Fatalf("%s is not as it was: look there how Now reads the clock, and change clockRead", original)
	}
	patched, overlay := filepath.Join(dir, "time.go"), filepath.Join(dir, "overlay.json")
	replace, err := json.Marshal(map[string]any{"Replace": map[string]string{original: patched}})
	if err != nil {
		t.Fatal(err)
	}
	write(t, patched, source+stepFile)
	write(t, overlay, string(replace))
	if said, err := exec.CommandContext(t.Context(), "go", "build", "-ldflags=-s -w", "-overlay", overlay, "-o", path, "pawl").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, said)
	}
}

func write(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
