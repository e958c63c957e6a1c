package main

import (
	"bufio"
	"context"
	"errors"
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

// load is a closed loop: each caller has one connection, sends an order, reads the
// answer and sends the next.
type load struct {
	address string
	items   int
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

// startLoad begins sending. The load runs until stop.
func startLoad(address string, callers, items int) *load {
	l := &load{address: address, items: items, began: time.Now()}
	for range callers {
		c := &caller{answers: make([]answer, 0, 1<<12)}
		l.callers = append(l.callers, c)
		l.running.Go(func() { l.run(c) })
	}
	return l
}

func (l *load) run(c *caller) {
	w := newWire(l.address)
	defer w.close()
	for !l.stopped.Load() {
		w.next(l.items)
		sent := time.Now()
		err := w.open()
		if err == nil {
			err = w.send()
		}
		if err == nil {
			now := time.Now()
			c.answers = append(c.answers, answer{at: now.Sub(l.began), took: now.Sub(sent)})
			continue
		}
		c.fail(err)
		if _, ok := errors.AsType[*refused](err); !ok {
			w.close()
		}
		time.Sleep(5 * time.Millisecond) // a server that is down is not to be hammered
	}
}

func (c *caller) fail(err error) {
	c.errors++
	if c.first == nil {
		c.first = err
	}
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

// stop lets every caller finish its order.
func (l *load) stop() {
	l.stopped.Store(true)
	l.running.Wait()
}

// outcome is what the callers saw. Latencies are of the window only, in ascending
// order; Answered and Errors are of the whole load.
type outcome struct {
	latencies []time.Duration
	answered  int
	errors    int
	first     error
}

// outcome may be called after stop.
func (l *load) outcome(from, to time.Duration) outcome {
	var out outcome
	for _, c := range l.callers {
		out.answered += len(c.answers)
		out.errors += c.errors
		if out.first == nil {
			out.first = c.first
		}
		for _, a := range c.answers {
			if a.at >= from && a.at < to {
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
