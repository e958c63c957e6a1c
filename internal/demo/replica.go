package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"
	"time"

	"pawl/internal/console"
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

// errNobodyServes is told to whoever looks at the console.
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

// aimed is a request to another address. It keeps its Host: whoever gets it looks whether that is a name of this machine.
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
