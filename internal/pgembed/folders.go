package pgembed

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
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
