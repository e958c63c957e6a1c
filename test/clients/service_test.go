package clients

import (
	"bufio"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sync"
	"syscall"
	"testing"
)

// folder makes a folder that the account can enter, too, under which root's PostgreSQL runs.
func folder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "pawl-clienttest-*") // not os.TempDir, whose path can be too long for a socket
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

var announcement = regexp.MustCompile(`^pawl serves (http://[^\s,]+)`)

// service is a running service with a database of its own.
type service struct {
	url, program, data string

	mu      sync.Mutex
	ending  bool
	command *exec.Cmd
	out     io.Reader
	starter sync.WaitGroup
}

// serve builds and starts the service on a database of its own. It ends with the test.
func serve(t *testing.T) *service {
	t.Helper()
	dir := folder(t)
	s := &service{program: filepath.Join(dir, "pawl"), data: filepath.Join(dir, "data")}
	run(t, "../..", "go", "build", "-ldflags=-s -w", "-o", s.program, ".")
	t.Cleanup(func() { s.stop(t) })
	if err := s.start("0"); err != nil {
		t.Fatal(err)
	}
	return s
}

// start starts the service on a port and returns when it serves.
func (s *service) start(port string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ending {
		return nil
	}
	s.command = exec.Command(s.program, "serve", "--listen", "127.0.0.1", "--port", port,
		"--data-dir", s.data, "--policy", "testdata/policy.yaml", "--log-format", "text", "--log-level", "warn")
	s.command.Stderr = os.Stderr
	out, err := s.command.StdoutPipe()
	if err != nil {
		return err
	}
	if err := s.command.Start(); err != nil {
		return err
	}
	s.out = out
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if match := announcement.FindStringSubmatch(lines.Text()); match != nil {
			if s.url == "" { // the same ever after
				s.url = match[1]
			}
			return nil
		}
	}
	return io.ErrUnexpectedEOF
}

// restart kills the service and starts it again at the same address, while the caller goes on.
func (s *service) restart(t *testing.T) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	address, err := url.Parse(s.url)
	if err != nil {
		t.Error(err)
		return
	}
	_ = s.command.Process.Kill()
	_ = s.command.Wait()
	s.starter.Go(func() {
		if err := s.start(address.Port()); err != nil {
			t.Errorf("start the service again: %v", err)
		}
	})
}

// stop asks the service to end, and waits for it.
func (s *service) stop(t *testing.T) {
	t.Helper()
	s.starter.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ending = true
	if s.command == nil || s.command.Process == nil {
		return
	}
	_ = s.command.Process.Signal(syscall.SIGTERM)
	_, _ = io.Copy(io.Discard, s.out)
	if err := s.command.Wait(); err != nil {
		t.Errorf("the service ended with %v", err)
	}
}

func write(t *testing.T, file string, text []byte) {
	t.Helper()
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
}
