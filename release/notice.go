package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// dependency is a module with packages in a program.
type dependency struct {
	path     string
	dir      string   // in the module cache
	packages []string // their folders
}

var licenseFile = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|patents)([-.].*)?$`)

// noticeOf is the file NOTICE: the licenses of all modules with packages in the programs, and Go's own. Equal texts are
// printed once.
func noticeOf(source string) ([]byte, error) {
	modules, err := dependencies(source)
	if err != nil {
		return nil, err
	}
	holders, texts := map[string][]string{}, []string{}
	for _, m := range modules {
		found, err := m.licenses()
		if err != nil {
			return nil, err
		}
		for _, text := range found {
			if !slices.Contains(texts, text) {
				texts = append(texts, text)
			}
			holders[text] = append(holders[text], m.path)
		}
	}
	var out bytes.Buffer
	out.WriteString("Pawl\nCopyright 2026 The Pawl authors\n\nThe programs contain the following software, under these licenses.\n")
	for _, text := range texts {
		fmt.Fprintf(&out, "\n%s\n\n%s\n\n%s\n", strings.Repeat("-", 80), strings.Join(holders[text], "\n"), text)
	}
	return out.Bytes(), nil
}

// licenses are the texts of a module, and of packages in it that have other ones.
func (d dependency) licenses() (texts []string, err error) {
	dirs := []string{d.dir}
	for _, dir := range d.packages {
		for ; dir != d.dir && !slices.Contains(dirs, dir); dir = filepath.Dir(dir) {
			dirs = append(dirs, dir)
		}
	}
	slices.Sort(dirs[1:])
	for _, dir := range dirs {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return nil, err
		}
		for _, entry := range entries {
			if entry.IsDir() || !licenseFile.MatchString(entry.Name()) || filepath.Ext(entry.Name()) == ".go" {
				continue
			}
			content, err := os.ReadFile(filepath.Join(dir, entry.Name()))
			if err != nil {
				return nil, err
			}
			text := withoutApache(strings.ReplaceAll(string(content), "\r\n", "\n"))
			if !slices.Contains(texts, text) {
				texts = append(texts, text)
			}
		}
	}
	if len(texts) == 0 {
		return nil, fmt.Errorf("%s has no license", d.path)
	}
	return texts, nil
}

var (
	apacheTerms    = regexp.MustCompile(`(?s)[ \t]*Apache License\s+Version 2\.0, January 2004.*?END OF TERMS AND CONDITIONS`)
	apacheAppendix = regexp.MustCompile(`(?s)[ \t]*APPENDIX: How to apply the Apache License.*?(\n[ \t]*Copyright [^\n]+).*?limitations under the License\.`)
	apacheTemplate = regexp.MustCompile(`\n[ \t]*Copyright [\[{]yyyy[\]}] [\[{]name of copyright owner[\]}]`)
)

// withoutApache is a text with the name of the Apache License in the place of its terms, which are in LICENSE.
func withoutApache(text string) string {
	text = apacheTerms.ReplaceAllString(text, "Apache License, Version 2.0: see the file LICENSE")
	text = apacheAppendix.ReplaceAllString(text, "$1")
	return strings.Trim(apacheTemplate.ReplaceAllString(text, ""), "\n \t")
}

// dependencies are the modules that the programs of all platforms have packages of, by path, and Go's library at first.
func dependencies(source string) ([]dependency, error) {
	root, err := output(exec.Command("go", "env", "GOROOT"))
	if err != nil {
		return nil, err
	}
	all := []dependency{{path: "Go's standard library", dir: root}}
	for _, p := range platforms {
		command := exec.Command("go", "list", "-deps", "-json=Dir,Module", ".")
		command.Dir = source
		command.Env = append(os.Environ(), "GOOS="+p.os, "GOARCH="+p.arch, "CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off")
		listed, err := output(command)
		if err != nil {
			return nil, err
		}
		for decoder := json.NewDecoder(strings.NewReader(listed)); ; {
			var found struct {
				Dir    string
				Module *struct {
					Path, Dir string
					Main      bool
				}
			}
			err := decoder.Decode(&found)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return nil, err
			}
			m := found.Module
			if m == nil || m.Main {
				continue
			}
			at := slices.IndexFunc(all, func(d dependency) bool { return d.path == m.Path })
			if at < 0 {
				at = len(all)
				all = append(all, dependency{path: m.Path, dir: m.Dir})
			}
			all[at].packages = append(all[at].packages, found.Dir)
		}
	}
	slices.SortFunc(all[1:], func(a, b dependency) int { return strings.Compare(a.path, b.path) })
	return all, nil
}
