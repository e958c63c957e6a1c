package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// server is a target that runs.
type server struct {
	address string
	token   string // that it wants of callers, if any
	ready   string
	pid     int
	process *exec.Cmd
	log     string
	ended   chan struct{}
}

// start runs the target on a free port and waits until it is ready.
func (t target) start(ctx context.Context, databaseURL, folder string) (*server, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	log, err := os.CreateTemp(folder, filepath.Base(t.binary)+"-*.log")
	if err != nil {
		return nil, err
	}
	defer log.Close()
	// The baseline has no flags, and the simulator reads no PORT.
	cmd := exec.Command(t.binary, append(slices.Clone(t.args), "--port", strconv.Itoa(port))...)
	cmd.Env = append(inherited(), "DATABASE_URL="+databaseURL, "PAWL_LISTEN=127.0.0.1", "PORT="+strconv.Itoa(port))
	cmd.Dir, cmd.Stdout, cmd.Stderr = folder, log, log
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start server: %w", err)
	}
	s := &server{
		address: net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), pid: cmd.Process.Pid, ready: cmp.Or(t.ready, "/health"),
		process: cmd, log: log.Name(), ended: make(chan struct{}),
	}
	go func() { // ends with the server, which stop waits for
		_ = cmd.Wait() // how it ended is in ProcessState
		close(s.ended)
	}()
	if err := s.wait(ctx); err != nil {
		return nil, errors.Join(err, s.stop())
	}
	return s, nil
}

// inherited is the environment without the settings of the service: what is measured
// are its defaults.
func inherited() []string {
	return slices.DeleteFunc(os.Environ(), func(line string) bool { return strings.HasPrefix(line, "PAWL_") })
}

func (s *server) wait(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for !s.healthy(ctx) {
		select {
		case <-s.ended:
			return fmt.Errorf("server ended at its start (%s): %s", s.process.ProcessState, s.tail())
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w: %s", s.ready, ctx.Err(), s.tail())
		case <-time.After(20 * time.Millisecond):
		}
	}
	return nil
}

func (s *server) healthy(ctx context.Context) bool {
	body, err := s.get(ctx, s.ready, anything)
	if err != nil {
		return false
	}
	_ = body.Close()
	return true
}

// anything is a kind of answer.
const anything = "*/*"

// get asks for an answer of a kind, which must be 200, and returns its body.
func (s *server) get(ctx context.Context, path, accept string) (io.ReadCloser, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.address+path, http.NoBody)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept", accept)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		response.Body.Close()
		return nil, errors.New(response.Status)
	}
	return response.Body, nil
}

// stop asks the server to end, and makes it end after half a minute.
func (s *server) stop() error {
	_ = s.process.Process.Signal(syscall.SIGTERM)
	select {
	case <-s.ended:
		return nil
	case <-time.After(30 * time.Second):
		_ = s.process.Process.Kill()
		<-s.ended
		return errors.New("server did not stop within 30 s")
	}
}

func (s *server) tail() string {
	text, _ := os.ReadFile(s.log)
	return string(text[max(0, len(text)-2000):])
}

func freePort() (int, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("find free port: %w", err)
	}
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port, nil
}
