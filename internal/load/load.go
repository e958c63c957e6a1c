// Package load sends requests as many callers do, and records how long each of them took.
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
	// Callers send one request after the other, each when the one before was answered.
	Callers int
	// Rate is how many requests a second are due, at random moments (a Poisson process), whatever became of those before,
	// as from callers who know nothing of each other. The time of a request counts from when it was due, so that a
	// service that stops for a second is charged with everyone who came in that second (coordinated omission).
	Rate float64
	// Most is how many requests there are; 0: until Halt.
	Most int
	// Caller makes the i-th caller, which may have a connection of its own. Its send sends the n-th request and returns why
	// it failed, end is called after the last one. Both numbers begin with 0.
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

// offer hands requests that are due to callers that wait for one, and adds a caller when none does.
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

// Since is the time on the clock of the load, which starts with it.
func (r *Running) Since() time.Duration { return time.Since(r.began) }

// Halt has no more requests sent. Those that were sent are waited for by Wait.
func (r *Running) Halt() { r.halted.Store(true) }

// Wait returns when every request that was sent has ended.
func (r *Running) Wait() { r.working.Wait() }

// Outcome is what the callers saw. Latencies are in ascending order: in a closed loop those of the requests that
// succeeded in the window; in an open one those of the requests that were due in it, so that slow ones that ended later
// are counted.
type Outcome struct {
	Latencies []time.Duration
	Succeeded int // in the window
	All       int // that succeeded; this and Errors are of the whole load
	Errors    int
	First     error // of the callers' first ones
}

// Outcome is that of a window on the clock of the load. It may be called after Wait.
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

// Percentile is that of the nearest rank in a sorted list, and 0 in an empty one.
func Percentile(sorted []time.Duration, p float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(int(p/100*float64(len(sorted))), len(sorted)-1)]
}
