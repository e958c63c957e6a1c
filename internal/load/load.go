// Package load sends requests from many concurrent callers, and records how long each took.
package load

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Load is what to send: a closed loop of callers, or requests at a rate.
type Load struct {
	// Callers is the number of callers in a closed loop: each sends a request when its last one was answered.
	Callers int
	// Rate is the number of requests per second in an open loop. They are due at random moments (a Poisson process),
	// independent of earlier answers. The time of a request counts from when it was due, so that a service that stops
	// for a second is charged with all requests of that second (coordinated omission).
	Rate float64
	// Most is the number of requests; 0: until Halt.
	Most int
	// Caller creates the i-th caller. send sends the n-th request and returns its error; end is called after the last
	// one. Both numbers begin with 0.
	Caller func(i int) (send func(n int) error, end func())
}

// Running is a load that has been started.
type Running struct {
	Load
	began   time.Time
	halted  atomic.Bool
	sent    atomic.Int64
	callers []*caller
	working sync.WaitGroup
}

type caller struct {
	answers []answer
	errors  int
	first   error
}

// answer is a request that succeeded.
type answer struct{ at, took time.Duration } // at is on the clock of the load

// Start begins sending. The caller must Wait.
func (l Load) Start() *Running {
	r := &Running{Load: l, began: time.Now()}
	if l.Rate > 0 {
		r.working.Go(r.offer)
		return r
	}
	for i := range l.Callers {
		c := r.newCaller()
		r.working.Go(func() {
			send, end := l.Caller(i)
			defer end()
			for n, more := r.next(); more; n, more = r.next() {
				if !c.send(r, n, r.Since(), send) {
					time.Sleep(5 * time.Millisecond) // so that a service that is down is not hammered
				}
			}
		})
	}
	return r
}

func (r *Running) newCaller() *caller {
	c := &caller{answers: make([]answer, 0, 1<<8)}
	r.callers = append(r.callers, c)
	return c
}

// next is the number of the next request, if there is one.
func (r *Running) next() (n int, more bool) {
	n = int(r.sent.Add(1)) - 1
	return n, !r.halted.Load() && (r.Most == 0 || n < r.Most)
}

func (c *caller) send(r *Running, n int, due time.Duration, send func(int) error) bool {
	if err := send(n); err != nil {
		c.errors++
		c.first = cmp.Or(c.first, err)
		return false
	}
	now := r.Since()
	c.answers = append(c.answers, answer{at: now, took: now - due})
	return true
}

// request is one of an open loop.
type request struct {
	n   int
	due time.Duration
}

// offer passes due requests to idle callers, and adds a caller if none is idle.
func (r *Running) offer() {
	due := make(chan request)
	defer close(due)
	for at := r.gap(); ; at += r.gap() {
		time.Sleep(at - r.Since())
		n, more := r.next()
		if !more {
			return
		}
		select {
		case due <- request{n, at}:
		default:
			r.add(request{n, at}, due)
		}
	}
}

func (r *Running) gap() time.Duration {
	return time.Duration(rand.ExpFloat64() / r.Rate * float64(time.Second))
}

func (r *Running) add(first request, due <-chan request) {
	i, c := len(r.callers), r.newCaller()
	r.working.Go(func() {
		send, end := r.Caller(i)
		defer end()
		c.send(r, first.n, first.due, send)
		for next := range due {
			c.send(r, next.n, next.due, send)
		}
	})
}

// Since is the time since the start of the load.
func (r *Running) Since() time.Duration { return time.Since(r.began) }

// Halt stops sending. Wait waits for the requests that were sent.
func (r *Running) Halt() { r.halted.Store(true) }

// Wait waits until all requests have ended.
func (r *Running) Wait() { r.working.Wait() }

// Outcome is what the callers saw. Latencies are in ascending order: in a closed loop of the requests that succeeded in
// the window, in an open one of those that were due in it, including slow ones that ended later.
type Outcome struct {
	Latencies []time.Duration
	Succeeded int // in the window
	All       int // succeeded in all; All and Errors count the whole load
	Errors    int
	First     error // one of the first errors
}

// Outcome returns the outcome of a window on the clock of the load. Call it after Wait.
func (r *Running) Outcome(from, to time.Duration) Outcome {
	var out Outcome
	for _, c := range r.callers {
		out.All += len(c.answers)
		out.Errors += c.errors
		out.First = cmp.Or(out.First, c.first)
		for _, a := range c.answers {
			if a.at >= from && a.at < to {
				out.Succeeded++
			}
			counts := a.at
			if r.Rate > 0 {
				counts = a.at - a.took
			}
			if counts >= from && counts < to {
				out.Latencies = append(out.Latencies, a.took)
			}
		}
	}
	slices.Sort(out.Latencies)
	return out
}

// Percentile is the percentile of a sorted list by the nearest rank, and 0 for an empty list.
func Percentile(sorted []time.Duration, p float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(int(p/100*float64(len(sorted))), len(sorted)-1)]
}
