package main

import (
	"math/rand/v2"
	"time"
)

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
