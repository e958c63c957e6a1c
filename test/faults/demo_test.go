package faults

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"pawl/internal/demo"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

// TestDemo runs the demonstration as a person does, who lets it come to its end, or closes the terminal.
func TestDemo(t *testing.T) {
	build(t)
	t.Parallel()
	for name, c := range map[string]struct {
		seconds string
		when    string         // it says this,
		signal  syscall.Signal // it gets this; 0: nothing
		code    int
		says    []string
	}{
		"to its end": {"7", "", 0, 0, []string{"the provider is slow", "replica 1 is killed", "replica 1 serves again", "the provider is silent",
			"every order has ended", " checks hold.", "None was lost or charged twice.", "The books balance, on both sides."}},
		"killed": {"600", "send orders", syscall.SIGKILL, -1, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			folder := dbtest.Folder(t)
			p := launch(t, []string{"TMPDIR=" + folder}, "demo", "--seconds", c.seconds)
			if c.signal != 0 {
				eventually(t, startLimit, c.when, func() bool { return strings.Contains(p.stdout(), c.when) || !p.running() })
				p.signal(c.signal)
			}
			eventually(t, 3*patience, "it ends", func() bool { return !p.running() })
			code, said := p.exitCode(), p.stdout()
			for _, words := range c.says {
				assert.Contains(t, said, words)
			}
			assert.True(t, code == c.code && !strings.Contains(said, "\x1b"), "ended with", code)
			eventually(t, endLimit, "no process is left", func() bool { return !mentioned(t, folder) })
			left, err := os.ReadDir(folder)
			assert.True(t, c.code != 0 || err == nil && len(left) == 0, "left behind", left, err)
			if t.Failed() {
				t.Log(said)
			}
		})
	}
}

// TestDemoWhoseReaderLeaves closes the pipe that the demonstration prints to: it ends, and leaves nothing behind.
func TestDemoWhoseReaderLeaves(t *testing.T) {
	build(t)
	t.Parallel()
	folder := dbtest.Folder(t)
	p := launchProgram(t, "/bin/sh", []string{"TMPDIR=" + folder}, "-c", `"$0" demo --seconds 600 | head -n 2`, program())
	eventually(t, 3*patience, "it ends", func() bool { return !p.running() && !mentioned(t, folder) })
	left, err := os.ReadDir(folder)
	assert.True(t, err == nil && len(left) == 0, "left behind", left, err)
}

// TestDemoThatDoesNotBalance has a program that finds the books wrong.
func TestDemoThatDoesNotBalance(t *testing.T) {
	build(t)
	t.Parallel()
	folder := dbtest.Folder(t)
	script := filepath.Join(t.TempDir(), "pawl")
	text := "#!/bin/sh\nif [ \"$1\" = verify ]; then echo they are wrong >&2; exit 1; fi\nexec " + program() + " \"$@\"\n"
	assert.NoError(t, os.WriteFile(script, []byte(text), 0o700))
	var said bytes.Buffer
	opt := demo.Options{Program: script, Length: time.Second, Out: &said, Dir: folder}
	err := demo.Run(t.Context(), opt)
	assert.True(t, err != nil && err.Error() == "pawl verify: they are wrong" && !strings.Contains(said.String(), "The books balance"),
		"error", err, "printed", said.String())
	assert.ErrorIs(t, demo.Run(t.Context(), opt), demo.ErrNotEmpty, "a second one in the same folder")
}

// mentioned tells whether the command line of any process has a text. All that a demo starts has the path of its folder.
func mentioned(t *testing.T, text string) bool {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	assert.NoError(t, err)
	for _, file := range files {
		if line, err := os.ReadFile(file); err == nil && strings.Contains(string(line), text) {
			return true
		}
	}
	return false
}
