package pgembed

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	fastShutdownLimit      = 20 * time.Second
	immediateShutdownLimit = 10 * time.Second
)

// process is a child and the goroutine that waits for it. err and asked are valid once exited is closed.
type process struct {
	cmd      *exec.Cmd
	exited   chan struct{}
	err      error // what Wait returned
	asked    bool  // the end came after a call of stop
	stopping atomic.Bool
}

// command prepares a program of the server. Its environment is a short list: PG* variables would redirect it, and the
// secrets in ours are none of its business. It gets its own process group, because ^C in a terminal must not
// stop the database before the service has drained, and starts in /, because the server's user may not enter our folder.
func (s *Server) command(name string, args ...string) *exec.Cmd {
	return command(filepath.Join(s.bin.dir, name), s.account, args...)
}

func command(path string, a *account, args ...string) *exec.Cmd {
	cmd := exec.Command(path, args...)
	cmd.Dir = "/"
	cmd.Env = append(environment("PATH", "HOME", "TZ", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"), "LC_ALL=C")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: a.credential()}
	dieWithParent(cmd.SysProcAttr, syscall.SIGKILL)
	return cmd
}

// Launch starts a program of ours in a process group of its own, so that ^C in a terminal reaches us alone. On Linux it dies
// with this process, however that ends. exited is closed when the program has ended; cmd.ProcessState then says how.
func Launch(cmd *exec.Cmd) (exited <-chan struct{}, err error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	dieWithParent(cmd.SysProcAttr, syscall.SIGKILL)
	p, err := launch(cmd)
	if err != nil {
		return nil, err
	}
	return p.exited, nil
}

// launch starts cmd. The kernel sends the death signal when the *thread* that started the child ends, so the goroutine
// keeps its thread until the child is gone, and the thread ends with it.
func launch(cmd *exec.Cmd) (*process, error) {
	p := &process{cmd: cmd, exited: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer close(p.exited)
		err := cmd.Start()
		started <- err
		if err == nil {
			p.err = cmd.Wait()
			p.asked = p.stopping.Load()
		}
	}()
	if err := <-started; err != nil {
		<-p.exited
		return nil, err
	}
	return p, nil
}

// output runs cmd to its end, or kills it at the end of ctx, and returns what it printed.
func output(ctx context.Context, cmd *exec.Cmd) (string, error) {
	var printed bytes.Buffer
	cmd.Stdout, cmd.Stderr = &printed, &printed
	cmd.WaitDelay = 10 * time.Second // a grandchild that outlives cmd keeps the pipe open; a busy machine takes seconds to read it
	p, err := launch(cmd)
	if err != nil {
		return "", err
	}
	select {
	case <-p.exited:
		return printed.String(), p.err
	case <-ctx.Done():
		cmd.Process.Kill()
		<-p.exited
		return printed.String(), ctx.Err()
	}
}

// stop ends a server as Server.Stop says. It is nil if the process has ended before.
func (p *process) stop(ctx context.Context) error {
	p.stopping.Store(true)
	limited, cancel := context.WithTimeout(ctx, fastShutdownLimit)
	defer cancel()
	p.signal(syscall.SIGINT)
	select {
	case <-p.exited:
		return nil
	case <-limited.Done():
	}
	p.signal(syscall.SIGQUIT)
	defer time.AfterFunc(immediateShutdownLimit, func() { p.signal(syscall.SIGKILL) }).Stop()
	<-p.exited
	return fmt.Errorf("stop PostgreSQL: process %d was ended before its checkpoint, the next start recovers", p.cmd.Process.Pid)
}

// signal leaves out the error: it can only be that the process has ended, which exited tells.
func (p *process) signal(sig syscall.Signal) { _ = p.cmd.Process.Signal(sig) }
