package demo

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"

	"pawl/internal/console"
	"pawl/internal/pgembed"
)

// replica is a place for a process that serves. Its fields are guarded by stage.mu.
type replica struct {
	*child
	starting bool // another process is being started
	halted   context.Context
	halt     context.CancelFunc // ends halted: the process has stopped or was killed, and requests to it are given up
}

// startReplica starts a replica in the place of the i-th. It notices soon when the other one has gone. Both are known to the provider
// under one address: a request that is sent again must have the same body.
func (s *stage) startReplica(ctx context.Context, i int) error {
	c, err := s.launch(ctx, "serve", "--database-url", s.databaseURL(), "--policy", s.file("policy.yaml"), "--listen", "127.0.0.1", "--port", "0",
		"--public-url", s.front.Address(), "--lease", "2s", "--recovery-interval", "200ms", "--log-format", "text")
	s.mu.Lock()
	defer s.mu.Unlock()
	s.replicas[i].starting = false
	if err == nil {
		s.replicas[i].child = c
		s.replicas[i].goOn()
	}
	return err
}

// startLimit is how long a replica may take to serve again.
const startLimit = time.Minute

// restart starts the i-th again once it has ended, in the background: s.restarted hears of it.
func (s *stage) restart(i int) {
	s.starting++
	s.mu.Lock()
	s.replicas[i].starting = true
	last := s.replicas[i].child
	s.mu.Unlock()
	go func() {
		<-last.exited
		ctx, cancel := context.WithTimeout(context.Background(), startLimit)
		defer cancel()
		s.restarted <- restart{i + 1, s.startReplica(ctx, i)}
	}()
}

// restart is a replica that was started again.
type restart struct {
	number int // from 1 on
	err    error
}

func (r *replica) goOn() { r.halted, r.halt = context.WithCancel(context.Background()) }

// state is what it is doing.
func (r *replica) state() string {
	switch {
	case r.starting:
		return console.LabStarting
	case r.ended():
		return console.LabDead
	case r.halted.Err() != nil:
		return console.LabStopped
	}
	return console.LabServes
}

// replica is the i-th process, which may be dead.
func (s *stage) replica(i int) *child {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.replicas[i].child
}

func (s *stage) states() (all []console.LabReplica) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.replicas {
		all = append(all, console.LabReplica{Number: i + 1, URL: s.replicas[i].url, State: s.replicas[i].state()})
	}
	return all
}

// signal sends one to the i-th, and notes what it does to it.
func (s *stage) signal(i int, what syscall.Signal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := &s.replicas[i]
	r.child.signal(what)
	switch {
	case what != syscall.SIGCONT:
		r.halt()
	case r.halted.Err() != nil:
		r.goOn()
	}
}

// errNobodyServes is shown in the console.
var errNobodyServes = errors.New("no replica serves: start one in the lab")

// serving is a replica that serves.
func (s *stage) serving() (target string, halted context.Context, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.replicas {
		if r := &s.replicas[i]; r.state() == console.LabServes {
			return r.url, r.halted, nil
		}
	}
	return "", nil, errNobodyServes
}

// steady sends requests to a replica that serves, and gives up those to one that has stopped.
type steady struct {
	*stage
	transport http.Transport
}

// RoundTrip sends a request to one of the replicas, whatever its address says.
func (t *steady) RoundTrip(r *http.Request) (*http.Response, error) {
	target, halted, err := t.serving()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	forget := context.AfterFunc(halted, func() { cancel(errors.New("the replica has stopped")) })
	answer, err := t.transport.RoundTrip(aimed(ctx, r, target))
	if err != nil {
		forget()
		cancel(nil)
		return nil, fmt.Errorf("ask %s: %w", target, err)
	}
	answer.Body = &body{answer.Body, func() { forget(); cancel(nil) }}
	return answer, nil
}

// aimed is a request to another address. It keeps its Host, which the service compares with the names of this machine.
func aimed(ctx context.Context, r *http.Request, address string) *http.Request {
	r = r.Clone(ctx)
	r.URL.Scheme, r.URL.Host, _ = strings.Cut(address, "://")
	return r
}

// body is that of an answer. done is called when it was read.
type body struct {
	io.ReadCloser
	done func()
}

// Close ends the reading.
func (b *body) Close() error {
	defer b.done()
	return b.ReadCloser.Close()
}

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

// verify runs pawl verify on the books of both sides, until ctx ends. It returns what that has complained of,
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
