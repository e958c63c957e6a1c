package faults

import (
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"pawl/test/assert"
	"pawl/test/dbtest"
)

// More of these tests wait than of others, and for longer: for processes that start, and for leases.
func TestMain(m *testing.M) { dbtest.MainOf(m, 5) }

// built is the program under test. It goes when the last test that uses it has ended.
var built struct {
	sync.Mutex
	users   int
	path    string
	stepped string // the same with a wall clock that can be set; empty: it was not needed yet
}

// build makes the program available until the end of the test. It belongs before t.Parallel: so all tests have
// taken their share before the first one ends, and the program is built once.
func build(t *testing.T) {
	t.Helper()
	built.Lock()
	defer built.Unlock()
	if built.users == 0 {
		dir, err := os.MkdirTemp("", "pawl-faulttest-*")
		assert.NoError(t, err)
		built.path = filepath.Join(dir, "pawl")
		dbtest.ReadSources(t)
		cmd := exec.CommandContext(t.Context(), "go", "build", "-ldflags=-s -w", "-o", built.path, "pawl")
		if said, err := cmd.CombinedOutput(); err != nil {
			os.RemoveAll(dir)
			t.Fatalf("go build: %v\n%s", err, said)
		}
	}
	built.users++
	t.Cleanup(func() {
		built.Lock()
		defer built.Unlock()
		if built.users--; built.users == 0 {
			os.RemoveAll(filepath.Dir(built.path))
			built.stepped = ""
		}
	})
}

// program is where build put it.
func program() string {
	built.Lock()
	defer built.Unlock()
	return built.path
}

// rounds is how often to repeat a fault.
func rounds(t *testing.T, usual int) int {
	t.Helper()
	return number(t, "PAWL_FAULT_ROUNDS", usual)
}

// repeated tells whether PAWL_FAULT_ROUNDS is set. Then a matrix meets every fault at every step, with one replica and
// with three, and every moment twice; without it each fault comes once for every executor, at one of the steps, and
// each moment once.
func repeated() bool { return os.Getenv("PAWL_FAULT_ROUNDS") != "" }

// several is how many replicas a matrix has where there is not one alone.
func several() int {
	if repeated() {
		return 3
	}
	return 2
}

// seed is where the random choices of a test come from.
func seed(t *testing.T) uint64 {
	t.Helper()
	s := number(t, "PAWL_FAULT_SEED", rand.IntN(1_000_000_000))
	t.Logf("PAWL_FAULT_SEED=%d", s)
	return uint64(s)
}

func number(t *testing.T, variable string, usual int) int {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return usual
	}
	n, err := strconv.Atoi(text)
	assert.Require(t, err == nil && n >= 1, variable, "=", text, "a number from 1 on")
	return n
}

// eventually waits for a condition and fails the test where it does not come true in time. It looks less and less often.
func eventually(t testing.TB, limit time.Duration, what string, condition func() bool) time.Duration {
	t.Helper()
	began := time.Now()
	for pause := 2 * time.Millisecond; !condition(); pause = min(pause*5/4, 100*time.Millisecond) {
		assert.Require(t, time.Since(began) <= limit, "not within", limit, what)
		<-time.After(pause)
	}
	return time.Since(began)
}
