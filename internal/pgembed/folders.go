package pgembed

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// folders has the folders of a server. All are in base, except perhaps socket.
type folders struct {
	base, data, log, socket string
	temporary               bool // socket is outside base, whose path is too long for a socket
}

// openFolders creates base if it is missing, and resolves its path, because a left-over server is recognized by the
// data folder in its command line.
func openFolders(base string) (folders, error) {
	base, err := filepath.Abs(base)
	if err == nil {
		err = makeFolder(base)
	}
	if err == nil {
		base, err = filepath.EvalSymlinks(base)
	}
	if err != nil {
		return folders{}, fmt.Errorf("open data folder: %w", err)
	}
	in := func(name string) string { return filepath.Join(base, name) }
	return folders{base: base, data: in("data"), log: in("log"), socket: in("run")}, nil
}

// makeFolder creates dir and its missing parents. As root it opens them to all, whatever the umask, because the user of
// the server has to pass through them; private files have closed folders of their own.
func makeFolder(dir string) error {
	mode := fs.FileMode(0o700)
	if os.Geteuid() == 0 {
		mode = 0o755
	}
	var missing []string
	for d := dir; ; d = filepath.Dir(d) {
		if _, err := os.Stat(d); !errors.Is(err, fs.ErrNotExist) {
			break
		}
		missing = append(missing, d)
	}
	for _, d := range slices.Backward(missing) {
		if err := os.Mkdir(d, mode); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		if err := os.Chmod(d, mode); err != nil {
			return err
		}
	}
	return nil
}

// prepare creates the folders of socket and log, private to the user of the server.
func (f *folders) prepare(a *account) error {
	if len(f.socket)+len("/.s.PGSQL."+port) > socketPathLimit {
		short, err := os.MkdirTemp("/tmp", "pawl-postgres-")
		if err != nil {
			return fmt.Errorf("create socket folder: %w", err)
		}
		f.socket, f.temporary = short, true
	}
	for _, dir := range []string{f.socket, f.log} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("create folders of PostgreSQL: %w", err)
		}
		if err := a.own(dir); err != nil {
			return fmt.Errorf("create folders of PostgreSQL: %w", err)
		}
	}
	return nil
}

func (f *folders) startupLog() string { return filepath.Join(f.base, "startup.log") }

// openStartupLog creates the file for what the server prints before its own log begins. It is not in the log folder,
// where the user of the server could put a link to a file that root would then empty. For the same reason it is always
// a new file.
func (f *folders) openStartupLog() (*os.File, error) {
	if err := os.Remove(f.startupLog()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("open server log: %w", err)
	}
	file, err := os.OpenFile(f.startupLog(), os.O_RDWR|os.O_CREATE|os.O_EXCL|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open server log: %w", err)
	}
	return file, nil
}

// socketPathLimit is the size of sockaddr_un.sun_path without the final NUL where it is shortest, on macOS and BSD
// (unix(4)).
const socketPathLimit = 103

// major is the PostgreSQL major of the data folder; 0: there is none yet. A folder with other files is an error.
func (f *folders) major() (major int, err error) {
	text, err := readOwned(filepath.Join(f.data, "PG_VERSION"))
	if err == nil {
		major, err = strconv.Atoi(strings.TrimSpace(string(text)))
	}
	if err == nil {
		return major, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return 0, fmt.Errorf("read version of data folder: %w", err)
	}
	entries, err := os.ReadDir(f.data)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, fmt.Errorf("read data folder: %w", err)
	}
	if len(entries) > 0 {
		return 0, fmt.Errorf("%s has files but no PostgreSQL data: empty it or choose another folder", f.data)
	}
	return 0, nil
}

// lockFolder locks a base folder, or returns ErrInUse. The kernel releases the lock when this process dies;
// PostgreSQL's own postmaster.pid does not know this process.
func lockFolder(base string) (*os.File, error) {
	path := filepath.Join(base, "lock")
	file, err := flock(path)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		holder, _ := os.ReadFile(path) // empty until the holder has written its process ID
		return nil, fmt.Errorf("%w: %s is held by process %s", ErrInUse, base, cmp.Or(strings.TrimSpace(string(holder)), "unknown"))
	}
	if err != nil {
		return nil, fmt.Errorf("lock data folder: %w", err)
	}
	err = file.Truncate(0)
	if err == nil {
		_, err = file.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	if err != nil {
		unlock(file)
		return nil, fmt.Errorf("lock data folder: %w", err)
	}
	return file, nil
}

// awaitLock locks the file at path, as soon as it is free.
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

// unlock releases the lock. Closing the file is not enough: a child that was forked meanwhile, and has not called exec
// yet, has the same open file, and with it the lock (flock(2)).
func unlock(file *os.File) {
	_ = syscall.Flock(int(file.Fd()), syscall.LOCK_UN) // can't fail on a locked file
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

// Files in the data folder belong to the user of the server, who could replace them by links to other files. So root
// does not follow links when it reads, and writes to a new file that it then renames (as in the fix of CVE-2017-12172).

const ownedLimit = 64 << 10 // bytes; the files have only a few lines

// readOwned reads a small regular file that the user of the server can replace.
func readOwned(path string) ([]byte, error) {
	// Without O_NONBLOCK, opening a FIFO would block.
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, &fs.PathError{Op: "read", Path: path, Err: fmt.Errorf("is not a regular file: %s", info.Mode())}
	}
	return io.ReadAll(io.LimitReader(file, ownedLimit))
}

// replaceOwned replaces a file, or a link, by a file of the account.
func replaceOwned(dir, name string, content []byte, a *account) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	fresh := name + ".new"
	if err := root.RemoveAll(fresh); err != nil {
		return err
	}
	file, err := root.OpenFile(fresh, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	if a != nil {
		err = errors.Join(err, file.Chown(int(a.uid), int(a.gid)))
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return err
	}
	return root.Rename(fresh, name)
}
