package pgembed

import (
	"path/filepath"
	"syscall"
	"testing"
)

// A descriptor that a forked child has not closed yet must not keep the folder locked.
func TestUnlockWhileAChildHoldsTheFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lock")
	first, err := flock(path)
	if err != nil {
		t.Fatal(err)
	}
	inherited, err := syscall.Dup(int(first.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(inherited)
	unlock(first)
	second, err := flock(path)
	if err != nil {
		t.Fatalf("locked still: %v", err)
	}
	unlock(second)
}
