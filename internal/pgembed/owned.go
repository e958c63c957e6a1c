package pgembed

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
)

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
