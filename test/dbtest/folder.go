package dbtest

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

const (
	folderPattern = "pawl-dbtest-*"
	memoryFolder  = "/dev/shm"
	diskFolder    = "/tmp" // not os.TempDir, whose path can be too long for a socket
	memoryNeeded  = 4 << 30
)

// Folder makes an empty folder for a server that a test runs itself, and removes it when the test ends. Other users can
// enter it, and so can the one whom root runs PostgreSQL as.
func Folder(t testing.TB) string {
	t.Helper()
	return folder(t, "pawl-test-*") // removeStale leaves it alone: nothing in it is locked
}

func folder(t testing.TB, pattern string) string {
	t.Helper()
	dir, err := newFolder(pattern)
	require(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// newFolder makes a folder for a server. It is open because root's server runs as another user; what it holds is closed.
func newFolder(pattern string) (string, error) {
	dir, err := os.MkdirTemp(parentFolder(), pattern)
	if err != nil {
		return "", fmt.Errorf("make server folder: %w", err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return "", fmt.Errorf("open server folder: %w", err)
	}
	return dir, nil
}

// parentFolder is in memory where there is plenty: a database is some 300 files, and copying them there takes a third of
// the time and none of the disk. Containers often have only 64 MiB of it.
func parentFolder() string {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(memoryFolder, &fs); err == nil && fs.Bavail*uint64(fs.Bsize) >= memoryNeeded {
		return memoryFolder
	}
	return diskFolder
}

// removeStale removes the folders of test binaries that ended without Main: by a panic, a time-out, a kill. A live
// server's folder is locked; a young one may not be locked yet.
func removeStale() {
	inMemory, _ := filepath.Glob(filepath.Join(memoryFolder, folderPattern))
	onDisk, _ := filepath.Glob(filepath.Join(diskFolder, folderPattern))
	for _, dir := range append(inMemory, onDisk...) {
		info, err := os.Stat(dir)
		if err != nil || time.Since(info.ModTime()) < time.Minute || inUse(dir) {
			continue
		}
		os.RemoveAll(dir)
	}
}

// inUse tells whether a pgembed server holds dir, or it is not ours to look at.
func inUse(dir string) bool {
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR, 0)
	if err != nil {
		return !os.IsNotExist(err)
	}
	defer lock.Close()
	return syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil
}
