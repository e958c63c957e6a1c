package faults

import (
	"bytes"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
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

var (
	labLink = regexp.MustCompile(`(http://127\.0\.0\.1:\d+)/console/lab\?key=\S+`)
	dead    = regexp.MustCompile(`<th scope="row">1<td>[^/]*dead`)
	serves  = regexp.MustCompile(`<th scope="row">1<td>[^/]*serves`)
)

// person uses the lab of a demonstration with a browser.
type person struct {
	t       *testing.T
	address string
	browser *http.Client
}

func (p *person) ask(method, path string, form url.Values) (status int, body string) {
	p.t.Helper()
	r, err := http.NewRequestWithContext(p.t.Context(), method, p.address+path, strings.NewReader(form.Encode()))
	assert.NoError(p.t, err)
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	answer, err := p.browser.Do(r)
	assert.NoError(p.t, err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	assert.NoError(p.t, err)
	return answer.StatusCode, string(text)
}

// press sends a form of the lab.
func (p *person) press(form url.Values) {
	p.t.Helper()
	status, body := p.ask(http.MethodPost, "/console/lab", form)
	assert.Require(p.t, status == http.StatusOK, form, status, body)
}

// sees waits until a page has a text.
func (p *person) sees(path string, what *regexp.Regexp) {
	p.t.Helper()
	var body string
	eventually(p.t, patience, path+" has "+what.String(), func() bool {
		_, body = p.ask(http.MethodGet, path, nil)
		return what.MatchString(body)
	})
}

// TestDemoByHand breaks things in the lab: both replicas and the provider. In the end the books of both sides balance
// all the same.
func TestDemoByHand(t *testing.T) {
	build(t)
	t.Parallel()
	folder := dbtest.Folder(t)
	demo := launch(t, []string{"TMPDIR=" + folder}, "demo", "--seconds", "0")
	eventually(t, startLimit, "it has a console", func() bool { return labLink.MatchString(demo.stdout()) || !demo.running() })
	link := labLink.FindStringSubmatch(demo.stdout())
	assert.Require(t, link != nil, demo.stdout())
	jar, err := cookiejar.New(nil)
	assert.NoError(t, err)
	p := &person{t, link[1], &http.Client{Jar: jar}}
	if status, _ := p.ask(http.MethodGet, "/console/lab", nil); status != http.StatusForbidden {
		t.Errorf("without the key: %d", status)
	}
	if status, body := p.ask(http.MethodGet, strings.TrimPrefix(link[0], link[1]), nil); status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	p.press(url.Values{"do": {"provider"}, "rules": {"answer-twice,fraction=0.5\nslow:200ms,fraction=0.2"}})
	p.sees("/console/lab", regexp.MustCompile(`[1-9]\d*<td class="number">[1-9]`)) // both have charged
	p.sees("/console/lab", regexp.MustCompile(`The books balance:`))
	p.press(url.Values{"do": {"stop"}, "replica": {"2"}})
	p.press(url.Values{"do": {"kill"}, "replica": {"1"}})
	p.sees("/console/lab", dead) // though no replica serves
	status, body := p.ask(http.MethodPost, "/console/lab", url.Values{"do": {"kill"}, "replica": {"1"}})
	assert.Equal(t, status, http.StatusConflict, "killed twice", body)
	p.press(url.Values{"do": {"start"}, "replica": {"1"}})
	p.sees("/console/lab", serves)
	p.sees("/console", regexp.MustCompile(`<bdi>local</bdi>`))
	p.sees("/health", regexp.MustCompile(`.`)) // the replica that serves, at the one address
	if said := demo.stdout(); strings.Contains(said, "ms  the provider is slow") || !strings.Contains(said, "lab: replica 1 is killed (SIGKILL)") {
		t.Error("a fault came by itself, or one of the lab is not printed")
	}
	p.press(url.Values{"do": {"kill"}, "replica": {"2"}}) // and is left so
	p.press(url.Values{"do": {"provider"}})               // Works is no fault
	demo.signal(syscall.SIGINT)
	eventually(t, 3*patience, "it ends", func() bool { return !demo.running() })
	code := demo.exitCode()
	assert.True(t, code == 0 && strings.Contains(demo.stdout(), "no more orders and faults") && strings.Contains(demo.stdout(), " orders through 4 faults: ") &&
		strings.Contains(demo.stdout(), "The books balance, on both sides."), "ended with", code)
	eventually(t, endLimit, "no process is left", func() bool { return !mentioned(t, folder) })
	left, err := os.ReadDir(folder)
	assert.True(t, err == nil && len(left) == 0, "left behind", left, err)
	if t.Failed() {
		t.Log(demo.stdout())
	}
}
