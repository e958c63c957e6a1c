package pgembed

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// lockFolder takes the lock of a base folder, or returns ErrInUse. The kernel drops the lock when we die, however that
// happens; PostgreSQL's own postmaster.pid does not know about us.
func lockFolder(base string) (*os.File, error) {
	path := filepath.Join(base, "lock")
	file, err := flock(path)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		holder, _ := os.ReadFile(path) // empty between taking the lock and writing the holder down
		return nil, fmt.Errorf("%w: %s is held by process %s", ErrInUse, base, cmp.Or(strings.TrimSpace(string(holder)), "unknown"))
	}
	if err != nil {
		return nil, fmt.Errorf("lock data folder: %w", err)
	}
	if err := writeHolder(file); err != nil {
		unlock(file)
		return nil, fmt.Errorf("lock data folder: %w", err)
	}
	return file, nil
}

// awaitLock takes the lock file at path, as soon as nobody else has it.
func awaitLock(ctx context.Context, path string) (*os.File, error) {
	for {
		file, err := flock(path)
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return file, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// unlock gives the lock back. To close the file would not do: a child that was forked meanwhile and has not come to its
// exec yet holds the same open file, and with it the lock (flock(2)).
func unlock(file *os.File) {
	_ = syscall.Flock(int(file.Fd()), syscall.LOCK_UN) // it can only fail for what is no lock
	file.Close()
}

// flock locks the file at path without waiting. The lock belongs to the open file.
func flock(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

func writeHolder(file *os.File) error {
	if err := file.Truncate(0); err != nil {
		return err
	}
	_, err := file.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	return err
}
