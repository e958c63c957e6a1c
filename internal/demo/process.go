package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
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

const (
	startLimit = time.Minute      // for a replica to serve again
	endLimit   = 30 * time.Second // for a process to end before it is killed
)

type process struct {
	cmd    *exec.Cmd
	url    string // its address
	out    output // standard output
	exited <-chan struct{}
}

// output can be read while it is written.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(text []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(text)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// command prepares a command of this program, without the settings in the environment, which are for another service.
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

var address = regexp.MustCompile(`(http://127\.0\.0\.1:\d+).*\n`)

// launch starts a command that serves, and waits until it does. Its log is appended to a file.
func (s *stage) launch(ctx context.Context, command string, args ...string) (*process, error) {
	file := s.file(command + ".log")
	log, err := os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	defer log.Close()
	p := &process{cmd: s.command(append([]string{command}, args...)...)}
	p.cmd.Stdout, p.cmd.Stderr = &p.out, log
	if p.exited, err = pgembed.Launch(p.cmd); err != nil {
		return nil, fmt.Errorf("start pawl %s: %w", command, err)
	}
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	for {
		select {
		case <-look.C:
			if found := address.FindStringSubmatch(p.out.String()); found != nil {
				p.url = found[1]
				return p, nil
			}
		case <-ctx.Done():
			p.end()
			return nil, ctx.Err()
		case <-p.exited:
			text, _ := os.ReadFile(file) // as much of the reason as there is
			return nil, fmt.Errorf("pawl %s has ended: %s\n%s", command, p.cmd.ProcessState, text[max(0, len(text)-2000):])
		}
	}
}

func (p *process) ended() bool {
	select {
	case <-p.exited:
		return true
	default:
		return false
	}
}

func (p *process) signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) }

// end ends the process, and kills it if it does not. A frozen one must continue first.
func (p *process) end() {
	p.signal(syscall.SIGCONT)
	p.signal(syscall.SIGTERM)
	defer time.AfterFunc(endLimit, func() { p.signal(syscall.SIGKILL) }).Stop()
	<-p.exited
}

// replica is a place for a process. Its fields are guarded by stage.mu.
type replica struct {
	*process
	starting bool // a new process is starting
	halted   context.Context
	halt     context.CancelFunc // ends halted, and with it the requests to a frozen or killed process
}

// startReplica starts replica i. Its short lease lets the other replica notice soon if it dies. The provider knows both
// replicas by one address, because a repeated request must have the same body.
func (s *stage) startReplica(ctx context.Context, i int) error {
	p, err := s.launch(ctx, "serve", "--database-url", s.databaseURL(), "--policy", s.file("policy.yaml"),
		"--listen", "127.0.0.1", "--port", "0", "--public-url", s.front.Address(),
		"--lease", "2s", "--recovery-interval", "200ms", "--log-format", "text")
	s.mu.Lock()
	defer s.mu.Unlock()
	r := &s.replicas[i]
	r.starting = false
	if err == nil {
		r.process = p
		r.halted, r.halt = context.WithCancel(context.Background())
	}
	return err
}

// restart starts replica i in the background, once its process has ended.
func (s *stage) restart(i int) {
	s.mu.Lock()
	s.replicas[i].starting = true
	last := s.replicas[i].process
	s.mu.Unlock()
	s.restarts.Go(func() {
		<-last.exited
		ctx, cancel := context.WithTimeout(context.Background(), startLimit)
		defer cancel()
		err := s.startReplica(ctx, i)
		s.acting.Lock()
		defer s.acting.Unlock()
		if err != nil {
			s.fail(err)
			return
		}
		s.table.row(fmt.Sprintf("replica %d serves again", i+1))
	})
}

func (s *stage) states() (all []console.LabReplica) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.replicas {
		r := &s.replicas[i]
		all = append(all, console.LabReplica{Number: i + 1, URL: r.url, State: r.state()})
	}
	return all
}

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

// signal sends a signal to replica i, and returns its process.
func (s *stage) signal(i int, what syscall.Signal) *process {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := &s.replicas[i]
	r.process.signal(what)
	switch {
	case what != syscall.SIGCONT:
		r.halt()
	case r.halted.Err() != nil:
		r.halted, r.halt = context.WithCancel(context.Background())
	}
	return r.process
}

// errNoneServes is shown in the console.
var errNoneServes = errors.New("no replica serves: start one in the lab")

func (s *stage) serving() (target string, halted context.Context, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.replicas {
		if r := &s.replicas[i]; r.state() == console.LabServes {
			return r.url, r.halted, nil
		}
	}
	return "", nil, errNoneServes
}

// steady sends requests to a replica that serves, and cancels them when it is frozen or killed. The context of a
// request ends when its answer was read.
type steady struct {
	*stage
	transport http.Transport
}

// RoundTrip sends a request to a replica, whatever its address is.
func (t *steady) RoundTrip(r *http.Request) (*http.Response, error) {
	target, halted, err := t.serving()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	stop := context.AfterFunc(halted, func() { cancel(errors.New("the replica has stopped")) })
	context.AfterFunc(r.Context(), func() { stop() })
	answer, err := t.transport.RoundTrip(aimed(ctx, r, target))
	if err != nil {
		return nil, fmt.Errorf("ask %s: %w", target, err)
	}
	return answer, nil
}

// aimed sends a request to another address. It keeps the Host, which the service compares with the names of this
// machine.
func aimed(ctx context.Context, r *http.Request, address string) *http.Request {
	r = r.Clone(ctx)
	r.URL.Scheme, r.URL.Host, _ = strings.Cut(address, "://")
	return r
}

// balancer sends each request to any replica, even a dead one, as a load balancer does for a while.
type balancer struct {
	*stage
	transport http.Transport
}

// RoundTrip sends a request to a replica, whatever its address is.
func (b *balancer) RoundTrip(r *http.Request) (*http.Response, error) {
	return b.transport.RoundTrip(aimed(r.Context(), r, b.states()[rand.IntN(len(b.replicas))].URL))
}
