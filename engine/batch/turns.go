package batch

import (
	"context"
	"sync"
	"time"
)

// Turns has the queues that share it flush one batch at a time, where that is better. Then a batch has longer to grow, and
// the database does less for each item: with 64 callers two thirds of the work. But while a batch waits for
// its commit, the processors are idle. Where commits take long, each queue is better off by itself. So both are tried now and then.
// A batch that takes much longer than usual, because of a lock or a connection that fell silent, loses its turn, so that
// it does not hold up the others.
//
// Turns go round in the order in which the queues were made. Where that is the order in which items pass them, the items
// that wait in one queue are joined by those that come from the queue before it.
//
// Safe for concurrent use.
type Turns struct {
	mu       sync.Mutex
	together bool // the queues flush all at the same time
	flushing int  // queues that have a turn
	places   []*place
	last     int           // who was given the last turn
	usual    time.Duration // mean duration of a flush, of the last dozen or so
	trial    trial
}

// NewTurns returns turns that are kept until a trial says that they should not be.
func NewTurns() *Turns {
	now := time.Now()
	return &Turns{trial: trial{window: now, at: now}}
}

// AtOnce is how many batches may be flushed at the same time now: one, or one of each queue.
func (t *Turns) AtOnce() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.together {
		return len(t.places)
	}
	return 1
}

// place is what a queue has of its turns. A nil place needs none.
type place struct {
	turns *Turns
	eager bool          // wants a turn as soon as it has items: it does not pace its flushes
	wants bool          // a turn
	busy  bool          // it was given a turn, and its flush has not ended
	holds bool          // its turn has not ended: it does not take too long
	left  bool          // it takes no more turns
	turn  chan struct{} // a token when it is given a turn
	late  *time.Timer   // ends a turn that takes too long
}

// join adds a queue.
func (t *Turns) join(eager bool) *place {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	p := &place{turns: t, eager: eager, turn: make(chan struct{}, 1)}
	p.late = time.AfterFunc(time.Hour, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		p.end()
	})
	p.late.Stop() // each flush starts it
	t.places = append(t.places, p)
	return p
}

// give gives turns to those who want one.
func (t *Turns) give() {
	most := 1
	if t.together != t.trial.other {
		most = len(t.places)
	}
	for i := 1; i <= len(t.places) && t.flushing < most; i++ {
		next := (t.last + i) % len(t.places)
		if p := t.places[next]; p.wants && !p.busy {
			p.wants, p.busy, p.holds = false, true, true
			p.turn <- struct{}{} // never blocks: the queue is busy until it has taken the one before, and flushed
			t.flushing++
			t.last, i = next, 0
		}
	}
}

// ask asks for a turn, unless the queue has one.
func (p *place) ask() {
	if !p.busy && !p.left {
		p.wants = true
		p.turns.give()
	}
}

// end ends the turn, if the queue still holds it.
func (p *place) end() {
	if p.holds {
		p.holds = false
		p.turns.flushing--
	}
	p.turns.give()
}

// added notes that n items have come into the queue.
func (p *place) added(n int) {
	if p == nil {
		return
	}
	p.turns.mu.Lock()
	defer p.turns.mu.Unlock()
	p.turns.trial.count(n, time.Now())
	if p.eager {
		p.ask()
	}
}

// wait blocks until the queue has its turn. It reports false if ctx ended before that; then the queue takes no more turns.
func (p *place) wait(ctx context.Context) bool {
	if p == nil {
		return true
	}
	t := p.turns
	t.mu.Lock()
	p.ask()
	t.mu.Unlock()
	select {
	case <-p.turn:
		return true
	case <-ctx.Done():
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if p.wants, p.left = false, true; p.busy { // it was given one meanwhile
		<-p.turn
		p.busy = false
		p.end()
	}
	return false
}

// tooLong is how many times the usual duration a turn may last; leastPatience is how long it may in any case, so that
// the small differences between small batches do not count.
const (
	tooLong       = 4
	leastPatience = 10 * time.Millisecond
)

// during flushes a batch of n items, and ends the turn of the queue.
func (p *place) during(n int, flush func()) {
	if p == nil {
		flush()
		return
	}
	t, began := p.turns, time.Now()
	patience := t.patience()
	p.late.Reset(patience)
	flush()
	p.late.Stop() // if it fires all the same, another queue has its turn early
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.usual += (min(now.Sub(began), patience) - t.usual) / 16 // an outage says nothing about what is usual
	t.trial.left(n, now)
	if t.trial.decided(now, t.usual) {
		t.together = t.trial.end(t.together, now)
	}
	p.busy = false
	p.end()
}

func (t *Turns) patience() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return max(tooLong*t.usual, leastPatience)
}
