package faults

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"pawl/internal/pgembed"
)

const (
	startLimit = 60 * time.Second // on a busy machine, with a database to make
	endLimit   = 60 * time.Second
)

// process is a run of the program. It ends with its test at the latest.
type process struct {
	t      testing.TB
	cmd    *exec.Cmd
	dir    string          // holds what it prints
	exited <-chan struct{} // closed when it has ended
}

// launch starts the program. Settings of the machine do not reach it: env is added to an environment without any.
func launch(t testing.TB, env []string, args ...string) *process {
	t.Helper()
	return launchProgram(t, program(), env, args...)
}

// launchProgram starts a build of the program.
func launchProgram(t testing.TB, path string, env []string, args ...string) *process {
	t.Helper()
	p := &process{t: t, dir: t.TempDir()}
	p.cmd = exec.Command(path, args...)
	p.cmd.Env = append(neutral(os.Environ()), env...)
	p.cmd.Dir = p.dir
	out, errs := p.create("stdout"), p.create("stderr")
	defer out.Close()
	defer errs.Close()
	p.cmd.Stdout, p.cmd.Stderr = out, errs
	var err error
	if p.exited, err = pgembed.Launch(p.cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.cleanup)
	return p
}

// neutral leaves out what the program and its database driver would listen to.
func neutral(environ []string) (kept []string) {
	for _, entry := range environ {
		name, _, _ := strings.Cut(entry, "=")
		if name != "PORT" && name != "DATABASE_URL" && !strings.HasPrefix(name, "PAWL_") && !strings.HasPrefix(name, "PG") && !strings.HasPrefix(name, "OTEL_") {
			kept = append(kept, entry)
		}
	}
	return kept
}

func (p *process) create(name string) *os.File {
	p.t.Helper()
	file, err := os.Create(filepath.Join(p.dir, name))
	if err != nil {
		p.t.Fatal(err)
	}
	return file
}

// never are words that the log must not hold, whatever happens: GOFLAGS=-race builds a program that can say the last.
var never = []string{`"level":"ERROR"`, "panic", "DATA RACE"}

func (p *process) cleanup() {
	p.kill()
	said := p.stderr()
	for _, words := range never {
		if strings.Contains(said, words) {
			p.t.Errorf("process %d logged %s", p.cmd.Process.Pid, words)
		}
	}
	if p.t.Failed() {
		p.t.Logf("process %d (%s) said:\n%s", p.cmd.Process.Pid, p.cmd.ProcessState, said[max(0, len(said)-3000):])
	}
}

func (p *process) stdout() string { return p.read("stdout") }
func (p *process) stderr() string { return p.read("stderr") }

func (p *process) read(name string) string {
	text, err := os.ReadFile(filepath.Join(p.dir, name))
	if err != nil {
		p.t.Error(err)
	}
	return string(text)
}

func (p *process) signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) }

// kill ends the process as the out-of-memory killer does.
func (p *process) kill() {
	p.signal(syscall.SIGKILL)
	<-p.exited
}

// running tells whether the process has not ended yet.
func (p *process) running() bool {
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// exitCode waits for the end of the process. It is -1 after a signal.
func (p *process) exitCode() int {
	p.t.Helper()
	select {
	case <-p.exited:
	case <-time.After(endLimit):
		p.t.Fatalf("process %d does not end", p.cmd.Process.Pid)
	}
	return p.cmd.ProcessState.ExitCode()
}

// terminate asks the process to end and returns its exit code.
func (p *process) terminate() int {
	p.t.Helper()
	p.signal(syscall.SIGTERM)
	return p.exitCode()
}

// announcement is a line of the log: standard error is no terminal, so the log is JSON.
var announcement = regexp.MustCompile(`"msg":"pawl serves","url":"([^"]+)","docs":"[^"]+","data":"([^"]+)"`)

// url waits until the process says that it serves, and where.
func (p *process) url() string {
	p.t.Helper()
	url, _ := p.announced()
	return url
}

func (p *process) announced() (url, place string) {
	p.t.Helper()
	var match []string
	eventually(p.t, startLimit, "the program serves", func() bool {
		running := p.running()
		match = announcement.FindStringSubmatch(p.stderr())
		if match == nil && !running {
			p.t.Fatalf("the program has ended: %s\n%s", p.cmd.ProcessState, p.stderr())
		}
		return match != nil
	})
	return match[1], match[2]
}

// run runs a command of the program to its end.
func run(t testing.TB, args ...string) (code int, output string) {
	t.Helper()
	p := launch(t, nil, args...)
	code = p.exitCode()
	return code, p.stdout() + p.stderr()
}
