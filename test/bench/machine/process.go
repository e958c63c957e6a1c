package machine

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Process is a program that is measured. Its methods are safe for concurrent use.
type Process struct {
	PID     int
	command *exec.Cmd
	log     string
	ended   chan struct{}
}

// Start starts a command in folder, where its output goes to a file, and waits until ready returns nil or ctx ends. A
// process that does not get ready is killed, and the error ends with its last output.
func Start(ctx context.Context, command *exec.Cmd, folder string, ready func(context.Context) error) (*Process, error) {
	log, err := os.CreateTemp(folder, filepath.Base(command.Path)+"-*.log")
	if err != nil {
		return nil, err
	}
	defer log.Close()
	command.Dir, command.Stdout, command.Stderr = folder, log, log
	if err := command.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", command.Path, err)
	}
	p := &Process{PID: command.Process.Pid, command: command, log: log.Name(), ended: make(chan struct{})}
	go func() { // ends with the process, for which Stop and Kill wait
		_ = command.Wait() // ProcessState has the result
		close(p.ended)
	}()
	if err := p.wait(ctx, ready); err != nil {
		p.Kill()
		return nil, fmt.Errorf("%s: %w (%s): %s", command.Path, err, command.ProcessState, p.tail())
	}
	return p, nil
}

func (p *Process) wait(ctx context.Context, ready func(context.Context) error) error {
	for err := ready(ctx); err != nil; err = ready(ctx) {
		select {
		case <-p.ended:
			return errors.New("ended at its start")
		case <-ctx.Done():
			return fmt.Errorf("wait until it is ready: %w", err)
		case <-time.After(20 * time.Millisecond):
		}
	}
	return nil
}

// Stop asks the process to end. After the limit it kills it, and returns an error.
func (p *Process) Stop(limit time.Duration) error {
	_ = p.command.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.ended:
		return nil
	case <-time.After(limit):
		p.Kill()
		return fmt.Errorf("%s did not stop within %s", p.command.Path, limit)
	}
}

// Kill ends the process with SIGKILL.
func (p *Process) Kill() {
	_ = p.command.Process.Kill()
	<-p.ended
}

func (p *Process) tail() string {
	text, _ := os.ReadFile(p.log)
	return string(text[max(0, len(text)-2000):])
}

// Answers returns a function that succeeds when a GET is answered with 200.
func Answers(url string) func(context.Context) error {
	return func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
		if err != nil {
			return err
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return err
		}
		response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return errors.New(response.Status)
		}
		return nil
	}
}

// Inherited is the environment without the settings of the service, so that its defaults are measured.
func Inherited() []string {
	return slices.DeleteFunc(os.Environ(), func(line string) bool { return strings.HasPrefix(line, "PAWL_") })
}
