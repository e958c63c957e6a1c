package campaign

import (
	"context"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"pawl/test/dbtest"
)

// TestMain fails the run if a goroutine is left.
func TestMain(m *testing.M) { dbtest.Main(m) }

// number reads a setting.
func number(t *testing.T, variable string, usual int) int {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return usual
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		t.Fatalf("%s=%s: want a number", variable, text)
	}
	return n
}

// lookAtSources reads the folders of the module. The go command notes what a test has read and runs it again when that has
// changed; of the program, which is built by a command, it would not know.
func lookAtSources(t *testing.T) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() && path != root && (strings.HasPrefix(entry.Name(), ".") || entry.Name() == "bin") {
			return fs.SkipDir
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// root is the folder of the module.
const root = "../.."

// dice are random choices of one goroutine.
type dice struct{ *rand.Rand }

func newDice(seed int, stream uint64) dice { return dice{rand.New(rand.NewPCG(uint64(seed), stream))} }

// chance is true in so many of a hundred cases.
func (d dice) chance(percent float64) bool { return d.Float64()*100 < percent }

func (d dice) between(least, most time.Duration) time.Duration {
	return least + time.Duration(d.Int64N(int64(most-least)+1))
}

// pause waits, and tells whether it was for the whole time: not if the context has ended.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// await asks until there is an answer, for so long at most.
func await(ctx context.Context, limit time.Duration, answered func() bool) bool {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for !answered() {
		if !pause(ctx, 20*time.Millisecond) {
			return false
		}
	}
	return true
}
