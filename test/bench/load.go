package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// answer is one order that was answered as completed.
type answer struct {
	at   time.Duration // since the load began
	took time.Duration
}

// load is a closed loop, in which each caller has one connection, sends an order, reads
// the answer and sends the next, or an open one (see offer).
type load struct {
	setup
	to      *server
	began   time.Time
	stopped atomic.Bool
	callers []*caller
	running sync.WaitGroup
}

type caller struct {
	answers []answer
	errors  int
	first   error
}

// startLoad begins sending to a server. The load runs until stop.
func startLoad(to *server, s setup) *load {
	l := &load{setup: s, to: to, began: time.Now()}
	if l.Rate > 0 {
		l.running.Go(l.offer)
		return l
	}
	for range s.Callers {
		c := &caller{answers: make([]answer, 0, 1<<12)}
		l.callers = append(l.callers, c)
		l.running.Go(func() { l.run(c) })
	}
	return l
}

func (l *load) run(c *caller) {
	w := newWire(l.to.address, l.to.token, l.Target == keyedName)
	defer w.close()
	for !l.stopped.Load() {
		if !l.order(w, c, l.since()) {
			time.Sleep(5 * time.Millisecond) // a server that is down is not to be hammered
		}
	}
}

// order sends a new order and keeps how long after it was due it was completed.
func (l *load) order(w *wire, c *caller, due time.Duration) (done bool) {
	w.next(l.Items, l.Ordered)
	err := w.open()
	if err == nil {
		err = w.send()
	}
	if err != nil {
		c.errors++
		c.first = cmp.Or(c.first, err)
		if _, ok := errors.AsType[*refused](err); !ok {
			w.close()
		}
		return false
	}
	now := l.since()
	c.answers = append(c.answers, answer{at: now, took: now - due})
	return true
}

func (w *wire) open() error {
	if w.conn != nil {
		return nil
	}
	dialer := net.Dialer{Timeout: 5 * time.Second}
	conn, err := dialer.DialContext(context.Background(), "tcp", w.address)
	if err != nil {
		return err
	}
	w.conn, w.reader = conn, bufio.NewReaderSize(conn, 4096)
	return nil
}

func (w *wire) close() {
	if w.conn != nil {
		_ = w.conn.Close()
		w.conn = nil
	}
}

// since is the time on the load's clock, that of the answers.
func (l *load) since() time.Duration { return time.Since(l.began) }

// stop lets every order that was begun finish.
func (l *load) stop() {
	l.stopped.Store(true)
	l.running.Wait()
}

// outcome is what the callers saw. Latencies are in ascending order: in a closed loop
// of the orders completed in the window; in an open one of those due in it, so that the
// slow ones that end after it are not left out.
type outcome struct {
	latencies []time.Duration
	completed int // in the window
	answered  int // these and the errors are of the whole load
	errors    int
	first     error
}

// outcome may be called after stop.
func (l *load) outcome(from, to time.Duration) outcome {
	var out outcome
	for _, c := range l.callers {
		out.answered += len(c.answers)
		out.errors += c.errors
		out.first = cmp.Or(out.first, c.first)
		for _, a := range c.answers {
			if a.at >= from && a.at < to {
				out.completed++
			}
			counts := a.at
			if l.Rate > 0 {
				counts = a.at - a.took
			}
			if counts >= from && counts < to {
				out.latencies = append(out.latencies, a.took)
			}
		}
	}
	slices.Sort(out.latencies)
	return out
}

// percentile is that of the nearest rank; 0 of nothing is 0.
func percentile(sorted []time.Duration, p float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	rank := int(p / 100 * float64(len(sorted)))
	return sorted[min(rank, len(sorted)-1)]
}

// offer is an open loop: orders are due at random moments (a Poisson process of the
// load's rate), whatever became of those before, as from callers who know nothing of
// each other. The time of an order counts from when it was due, so that a service that
// stops for a second is charged with everyone who came in that second, and not with one
// caller (coordinated omission).
func (l *load) offer() {
	due := make(chan time.Duration)
	defer close(due)
	for next := l.gap(); ; next += l.gap() {
		time.Sleep(next - l.since())
		if l.stopped.Load() {
			return
		}
		select {
		case due <- next: // to a connection that waits for one
		default:
			l.connect(next, due)
		}
	}
}

func (l *load) gap() time.Duration {
	return time.Duration(rand.ExpFloat64() / l.Rate * float64(time.Second))
}

// connect adds a connection. It sends the order that is due and then takes others.
func (l *load) connect(first time.Duration, due <-chan time.Duration) {
	c := &caller{}
	l.callers = append(l.callers, c)
	l.running.Go(func() {
		w := newWire(l.to.address, l.to.token, l.Target == keyedName)
		defer w.close()
		l.order(w, c, first)
		for next := range due {
			l.order(w, c, next)
		}
	})
}
