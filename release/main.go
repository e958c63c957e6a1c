// Command release builds what a release of Pawl consists of, from the commit that is checked out: archives, packages for
// Debian and RPM, an OCI image, a Helm chart, the TypeScript client, a bill of materials for each program, and
// checksums. The same commit gives the same bytes, in any folder and at any time.
//
//	go -C release run . -out ../dist
package main

import (
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"pawl/internal/version"
)

// platform is one that programs are built for.
type platform struct{ os, arch string }

// platforms of a release. Packages and the image are for Linux only.
var platforms = []platform{{"linux", "amd64"}, {"linux", "arm64"}, {"darwin", "amd64"}, {"darwin", "arm64"}}

// release is what is being built.
type release struct {
	source    string // the root of a clean work tree
	out       string // an empty folder
	work      string // for what is not part of it
	commit    string
	time      time.Time // of the commit: the time of every file
	documents []file    // manual pages, completions, licenses
}

func main() {
	out := flag.String("out", "../dist", "folder for the release; it must not exist")
	notice := flag.Bool("notice", false, "write ../NOTICE instead: the licenses of what is in the programs")
	flag.Parse()
	if err := run(*out, *notice); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(out string, notice bool) error {
	if notice {
		text, err := noticeOf("..")
		if err != nil {
			return err
		}
		return os.WriteFile("../NOTICE", text, 0o644)
	}
	if err := build("..", out, platforms); err != nil {
		return err
	}
	if err := packClient("..", out); err != nil {
		return err
	}
	return writeChecksums(out)
}

// build builds everything but the TypeScript client and the checksums.
func build(source, out string, platforms []platform) error {
	r, err := open(source, out)
	if err != nil {
		return err
	}
	defer os.RemoveAll(r.work)
	var images []platformImage
	for _, p := range platforms {
		program, err := r.compile(p)
		if err != nil {
			return err
		}
		if err := errors.Join(r.archive(p, program), r.billOfMaterials(p, program)); err != nil {
			return fmt.Errorf("%s/%s: %w", p.os, p.arch, err)
		}
		if p.os != "linux" {
			continue
		}
		image, err := r.image(p, program)
		if err := errors.Join(err, r.packages(p, program)); err != nil {
			return fmt.Errorf("%s/%s: %w", p.os, p.arch, err)
		}
		images = append(images, image)
	}
	return errors.Join(r.imageLayout(images), r.chart())
}

func open(source, out string) (*release, error) {
	r := &release{source: source, out: out}
	status, err := r.git("status", "--porcelain")
	if err != nil {
		return nil, err
	}
	if status != "" {
		return nil, fmt.Errorf("a release is built from a commit, and these files differ from it:\n%s", status)
	}
	head, err := r.git("log", "-1", "--format=%H %ct")
	if err != nil {
		return nil, err
	}
	commit, seconds, _ := strings.Cut(head, " ")
	unix, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil {
		return nil, fmt.Errorf("time of the commit: %w", err)
	}
	r.commit, r.time = commit, time.Unix(unix, 0).UTC()
	if err := os.Mkdir(out, 0o755); err != nil {
		return nil, err
	}
	if r.work, err = os.MkdirTemp("", "pawl-release-*"); err != nil {
		return nil, err
	}
	r.documents, err = r.makeDocuments()
	return r, err
}

func (r *release) git(arguments ...string) (string, error) {
	return output(exec.Command("git", append([]string{"-C", r.source}, arguments...)...))
}

// output is what a command prints, without the last line break.
func output(command *exec.Cmd) (string, error) {
	var complaints strings.Builder
	command.Stderr = &complaints
	text, err := command.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w\n%s%s", strings.Join(command.Args, " "), err, complaints.String(), text)
	}
	return strings.TrimSuffix(string(text), "\n"), nil
}

var toolchain = regexp.MustCompile(`(?m)^toolchain (\S+)$`)

// compile builds the program for a platform, and returns its path. The environment of the caller changes nothing in it.
func (r *release) compile(p platform) (string, error) {
	module, err := os.ReadFile(filepath.Join(r.source, "go.mod"))
	if err != nil {
		return "", err
	}
	named := toolchain.FindSubmatch(module)
	if named == nil {
		return "", errors.New("go.mod names no toolchain")
	}
	program := filepath.Join(r.work, p.os+"_"+p.arch, "pawl")
	command := exec.Command("go", "build", "-trimpath", "-buildvcs=true", "-mod=readonly", "-ldflags=-s -w", "-o", program, ".")
	command.Dir = r.source
	command.Env = append(os.Environ(), "GOOS="+p.os, "GOARCH="+p.arch, "GOAMD64=v1", "GOARM64=v8.0", "CGO_ENABLED=0",
		"GOFLAGS=", "GOEXPERIMENT=", "GOFIPS140=off", "GOWORK=off", "GOTOOLCHAIN="+string(named[1]))
	_, err = output(command)
	return program, err
}

// name is the name of a file of the release.
func (r *release) name(format string, arguments ...any) string {
	return filepath.Join(r.out, fmt.Sprintf(format, arguments...))
}

// packClient adds the TypeScript client, as npm would publish it. It needs npm and its registry.
func packClient(source, out string) error {
	dir, err := os.MkdirTemp("", "pawl-client-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := os.CopyFS(dir, os.DirFS(filepath.Join(source, "client/typescript"))); err != nil {
		return err
	}
	out, err = filepath.Abs(out)
	if err != nil {
		return err
	}
	for _, arguments := range [][]string{
		{"ci", "--ignore-scripts", "--no-audit", "--no-fund"}, {"run", "build"}, {"pack", "--ignore-scripts", "--pack-destination", out},
	} {
		command := exec.Command("npm", arguments...)
		command.Dir = dir
		if _, err := output(command); err != nil {
			return err
		}
	}
	return nil
}

// writeChecksums writes SHA256SUMS, for sha256sum -c.
func writeChecksums(out string) error {
	entries, err := os.ReadDir(out)
	if err != nil {
		return err
	}
	var sums strings.Builder
	for _, entry := range entries {
		content, err := os.ReadFile(filepath.Join(out, entry.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(content), entry.Name())
	}
	return os.WriteFile(filepath.Join(out, "SHA256SUMS"), []byte(sums.String()), 0o644)
}

const number = version.Number
