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

// folders are the places of one server. All but the socket's lie in base.
type folders struct {
	base, data, log, socket string
	temporary               bool // socket lies outside base, because base's path is too long for one
}

// openFolders creates base where it is missing. Its path is resolved, so that a left-over server is recognised by the
// data folder in its command line whichever way base was named.
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
	return folders{base: base, data: filepath.Join(base, "data"), log: filepath.Join(base, "log"), socket: filepath.Join(base, "run")}, nil
}

// makeFolder creates dir and its missing parents. As root they are opened to all, whatever the umask: the server's user
// has to pass through them; what is private in them has a closed folder of its own.
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

// prepare makes the folders of socket and log, private to the server's user.
func (f *folders) prepare(a *account) error {
	if len(f.socket)+len("/.s.PGSQL."+port) > socketPathLimit {
		short, err := os.MkdirTemp("/tmp", "pawl-postgres-")
		if err != nil {
			return fmt.Errorf("make socket folder: %w", err)
		}
		f.socket, f.temporary = short, true
	}
	for _, dir := range []string{f.socket, f.log} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("prepare data folder: %w", err)
		}
		if err := a.own(dir); err != nil {
			return fmt.Errorf("prepare data folder: %w", err)
		}
	}
	return nil
}

func (f *folders) startupLog() string { return filepath.Join(f.base, "startup.log") }

// openStartupLog opens an empty file for what the server says before its own log begins. It is not in the log folder:
// the server's user can put a link there, to a file that root would then empty. For the same reason it is always a new file.
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

// socketPathLimit is the size of sockaddr_un.sun_path less its final NUL where it is shortest: on macOS and BSD (unix(4)).
const socketPathLimit = 103

// major is the PostgreSQL major the data folder was made by, 0 where there is none yet. A folder with something else in
// it is an error: it is not ours to write to.
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
		return 0, fmt.Errorf("%s holds files but no PostgreSQL data: empty it or choose another folder", f.data)
	}
	return 0, nil
}

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

// As root we meet files in the data folder that the server's user made. That user can put a link to any other file in
// their place, so reads refuse links and writes make a new file beside and rename it (as CVE-2017-12172 was mended).

const ownedLimit = 64 << 10 // bytes; the files that are read here have a few lines

// readOwned reads a small regular file that the server's user can replace.
func readOwned(path string) ([]byte, error) {
	// Without O_NONBLOCK a FIFO would hold us up for ever.
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

// replaceOwned puts a file of the account's in place of what is there, be that a link.
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
