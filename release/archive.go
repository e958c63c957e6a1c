package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"pawl/internal/cli"
)

// file is one that goes into archives and packages.
type file struct {
	name string // with slashes
	mode fs.FileMode
	data []byte
}

// writeTar writes files and their folders. Nothing in it depends on the machine.
func writeTar(w io.Writer, at time.Time, files []file) error {
	out := tar.NewWriter(w)
	known := map[string]bool{".": true}
	for _, f := range files {
		var parents []string
		for dir := path.Dir(f.name); !known[dir]; dir = path.Dir(dir) {
			known[dir] = true
			parents = append(parents, dir)
		}
		for i := len(parents) - 1; i >= 0; i-- {
			header := &tar.Header{Typeflag: tar.TypeDir, Name: parents[i] + "/", Mode: 0o755, ModTime: at, Format: tar.FormatPAX}
			if err := out.WriteHeader(header); err != nil {
				return err
			}
		}
		header := &tar.Header{Typeflag: tar.TypeReg, Name: f.name, Mode: int64(f.mode), Size: int64(len(f.data)), ModTime: at, Format: tar.FormatPAX}
		if err := out.WriteHeader(header); err != nil {
			return err
		}
		if _, err := out.Write(f.data); err != nil {
			return err
		}
	}
	return out.Close()
}

func writeTarGz(name string, at time.Time, files []file) error {
	var packed bytes.Buffer
	compressor, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	if err != nil {
		return err
	}
	if err := writeTar(compressor, at, files); err != nil {
		return err
	}
	if err := compressor.Close(); err != nil {
		return err
	}
	return os.WriteFile(name, packed.Bytes(), 0o644)
}

// archive writes the archive of a platform: the program, and everything to read, in one folder.
func (r *release) archive(p platform, program string) error {
	binary, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	folder := fmt.Sprintf("pawl_%s_%s_%s", number, p.os, p.arch)
	files := []file{{folder + "/pawl", 0o755, binary}}
	documents := r.documents
	for _, name := range []string{"README.md", "CHANGELOG.md"} {
		text, err := os.ReadFile(filepath.Join(r.source, name))
		if err != nil {
			return err
		}
		documents = append(documents, file{name, 0o644, text})
	}
	if p.os == "linux" {
		unit, err := os.ReadFile(filepath.Join(r.source, "release/files/pawl.service"))
		if err != nil {
			return err
		}
		documents = append(documents, file{"pawl.service", 0o644, unit})
	}
	for _, f := range documents {
		files = append(files, file{folder + "/" + f.name, f.mode, f.data})
	}
	return writeTarGz(r.name("%s.tar.gz", folder), r.time, files)
}

// makeDocuments returns the licenses, the manual pages in man1/, and the completions.
func (r *release) makeDocuments() (files []file, err error) {
	for _, name := range []string{"LICENSE", "NOTICE"} {
		text, err := os.ReadFile(filepath.Join(r.source, name))
		if err != nil {
			return nil, err
		}
		files = append(files, file{name, 0o644, text})
	}
	root := cli.Command(nil)
	root.InitDefaultCompletionCmd("completion")
	root.DisableAutoGenTag = true
	for _, c := range []struct {
		name  string
		write func(io.Writer) error
	}{
		{"completions/pawl.bash", func(w io.Writer) error { return root.GenBashCompletionV2(w, true) }},
		{"completions/_pawl", root.GenZshCompletion},
		{"completions/pawl.fish", func(w io.Writer) error { return root.GenFishCompletion(w, true) }},
	} {
		var text bytes.Buffer
		if err := c.write(&text); err != nil {
			return nil, err
		}
		files = append(files, file{c.name, 0o644, text.Bytes()})
	}
	return r.addManual(files, root)
}

func (r *release) addManual(files []file, command *cobra.Command) ([]file, error) {
	var text bytes.Buffer
	header := &doc.GenManHeader{Section: "1", Date: &r.time, Source: "Pawl " + number, Manual: "Pawl"}
	if err := doc.GenMan(command, header, &text); err != nil {
		return nil, err
	}
	name := strings.ReplaceAll(command.CommandPath(), " ", "-")
	files = append(files, file{"man1/" + name + ".1", 0o644, text.Bytes()})
	for _, sub := range command.Commands() {
		if !sub.IsAvailableCommand() || sub.IsAdditionalHelpTopicCommand() {
			continue
		}
		var err error
		if files, err = r.addManual(files, sub); err != nil {
			return nil, err
		}
	}
	return files, nil
}
