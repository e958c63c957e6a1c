package demo

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"

	"pawl/internal/pgembed"
)

// endLimit is how long a process may take to end before it is killed.
const endLimit = 30 * time.Second

// child is a command of this program that runs as a process of its own.
type child struct {
	cmd    *exec.Cmd
	url    string // where it serves
	out    said   // standard output
	exited <-chan struct{}
}

// said is what a process has printed.
type said struct {
	mu   sync.Mutex
	text bytes.Buffer
	url  chan string // gets the address that the process says it serves at
}

var address = regexp.MustCompile(`(http://127\.0\.0\.1:\d+).*\n`)

// Write is called by one goroutine at a time.
func (s *said) Write(text []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text.Write(text)
	if found := address.FindSubmatch(s.text.Bytes()); found != nil && s.url != nil {
		s.url <- string(found[1])
		s.url = nil
	}
	return len(text), nil
}

func (s *said) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// launch starts a command that serves, and returns when it does. What it logs is added to a file.
func (s *stage) launch(ctx context.Context, command string, args ...string) (*child, error) {
	file := s.file(command + ".log")
	log, err := os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	defer log.Close()
	url := make(chan string, 1)
	c := &child{cmd: s.command(append([]string{command}, args...)...), out: said{url: url}}
	c.cmd.Stdout, c.cmd.Stderr = &c.out, log
	if c.exited, err = pgembed.Launch(c.cmd); err != nil {
		return nil, fmt.Errorf("start pawl %s: %w", command, err)
	}
	select {
	case c.url = <-url:
		return c, nil
	case <-ctx.Done():
		c.end()
		return nil, ctx.Err()
	case <-c.exited:
		text, _ := os.ReadFile(file) // what can be told is told
		return nil, fmt.Errorf("pawl %s has ended: %s\n%s", command, c.cmd.ProcessState, text[max(0, len(text)-2000):])
	}
}

// command prepares a command of this program. It gets none of the settings of the environment, which are those of another
// service.
func (s *stage) command(args ...string) *exec.Cmd {
	cmd := exec.Command(s.Program, args...)
	for _, entry := range os.Environ() {
		name, _, _ := strings.Cut(entry, "=")
		if name != "PORT" && name != "DATABASE_URL" && !strings.HasPrefix(name, "PAWL_") && !strings.HasPrefix(name, "PG") {
			cmd.Env = append(cmd.Env, entry)
		}
	}
	cmd.Dir = s.Dir
	return cmd
}

// verify runs pawl verify on the books of both sides, as anybody could, until ctx ends. It returns what that has complained of,
// and whether it found nothing wrong.
func (s *stage) verify(ctx context.Context, out io.Writer, args ...string) (complaint string, holds bool, err error) {
	var said bytes.Buffer
	c := &child{cmd: s.command(append([]string{"verify", "--database-url", s.databaseURL(), "--provider", s.provider.url}, args...)...)}
	c.cmd.Stdout, c.cmd.Stderr = out, &said
	if c.exited, err = pgembed.Launch(c.cmd); err != nil {
		return "", false, fmt.Errorf("start pawl verify: %w", err)
	}
	defer context.AfterFunc(ctx, func() { c.signal(syscall.SIGKILL) })()
	<-c.exited
	state := c.cmd.ProcessState
	return cmp.Or(strings.TrimSpace(said.String()), "pawl verify has ended: "+state.String()), state.Success(), nil
}

// ended says whether the process has.
func (c *child) ended() bool {
	select {
	case <-c.exited:
		return true
	default:
		return false
	}
}

func (c *child) signal(s syscall.Signal) { _ = c.cmd.Process.Signal(s) }

// end asks the process to end, and sees to it. A stopped one has to be woken first.
func (c *child) end() {
	c.signal(syscall.SIGCONT)
	c.signal(syscall.SIGTERM)
	defer time.AfterFunc(endLimit, func() { c.signal(syscall.SIGKILL) }).Stop()
	<-c.exited
}
