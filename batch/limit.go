package batch

import (
	"context"
	"sync"
	"time"
)

// Limit is how many batches are flushed at a time, over all the queues that share it. With fewer at a time a batch has
// longer to grow, and the database does less for each item; with more, one computes while another waits for its commit.
// Which is better depends on the cores and on the disk, so the limit finds out: it tries one more or one less in turn with
// what it has, and keeps what lets items through sooner. A batch that takes much longer than usual, because of a lock or a
// connection that fell silent, is no longer counted, so that it holds up nobody else.
//
// The queues have their turn in the order in which they were made, round and round. Where that is the order in which items
// pass them, the items that wait in one queue are joined by those that come from the queue before it.
//
// Safe for concurrent use.
type Limit struct {
	most int

	mu       sync.Mutex
	allowed  int
	flushing int // but for those that take too long
	places   []*place
	last     int           // who had the last turn
	usual    time.Duration // mean duration of a flush, of the last dozen or so
	trial    trial
}

// NewLimit returns a limit that begins with one batch at a time and never allows more than most.
func NewLimit(most int) *Limit {
	return &Limit{most: most, allowed: 1, trial: trial{change: 1, window: time.Now(), at: time.Now()}}
}

// Allowed is how many batches may be flushed at a time now.
func (l *Limit) Allowed() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.allowed
}

// place is what a queue has of a limit. A nil place is without limit.
type place struct {
	limit *Limit
	eager bool          // wants a turn as soon as it has items: it does not pace its flushes
	wants bool          // a turn
	holds bool          // has been given a turn, and has not ended it
	turn  chan struct{} // a token when it has been given one
}

// join adds a queue; nil for a limit of nil.
func (l *Limit) join(eager bool) *place {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	p := &place{limit: l, eager: eager, turn: make(chan struct{}, 1)}
	l.places = append(l.places, p)
	return p
}

// current is the limit at this moment: that of the trial.
func (l *Limit) current() int {
	if l.trial.other {
		return l.allowed + l.trial.change
	}
	return l.allowed
}

// hand gives turns to those who want one.
func (l *Limit) hand() {
	for i := 1; i <= len(l.places) && l.flushing < l.current(); i++ {
		next := (l.last + i) % len(l.places)
		if p := l.places[next]; p.wants && !p.holds {
			p.wants, p.holds = false, true
			p.turn <- struct{}{}
			l.flushing++
			l.last, i = next, 0
		}
	}
}

// added notes that n items have come into the queue.
func (p *place) added(n int) {
	if p == nil {
		return
	}
	l := p.limit
	l.mu.Lock()
	defer l.mu.Unlock()
	l.trial.count(n, time.Now())
	if p.eager && !p.holds {
		p.wants = true
		l.hand()
	}
}

// wait blocks until the queue has its turn. It reports false if ctx ended before that.
func (p *place) wait(ctx context.Context) bool {
	if p == nil {
		return true
	}
	l := p.limit
	l.mu.Lock()
	if !p.holds {
		p.wants = true
		l.hand()
	}
	l.mu.Unlock()
	select {
	case <-p.turn:
		return true
	case <-ctx.Done():
		return false // the others end as well
	}
}

// share is how many items of a batch are flushed at a time: of all items in the queues, so many that each turn has
// some. All items could be in step otherwise, and one flush would take them all, however many are allowed.
func (p *place) share(n int) int {
	if p == nil {
		return n
	}
	l := p.limit
	l.mu.Lock()
	defer l.mu.Unlock()
	turns := l.current()
	return min(n, (max(l.trial.inside, n)+turns-1)/turns)
}

// tooLong is how many times the usual duration a flush is counted; leastPatience is how long it is in any case, so that
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
	l, began := p.limit, time.Now()
	late := time.AfterFunc(l.patience(), func() { l.uncount() })
	flush()
	counted, now := late.Stop(), time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	p.holds = false
	l.usual += (now.Sub(began) - l.usual) / 16
	l.trial.left(n, now)
	if l.trial.decided(now, l.usual) {
		change := l.trial.verdict()
		l.allowed += change
		l.trial.begin(change != 0, l.allowed, l.most, now)
	}
	if counted {
		l.flushing--
	}
	l.hand()
}

func (l *Limit) patience() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return max(tooLong*l.usual, leastPatience)
}

func (l *Limit) uncount() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.flushing--
	l.hand()
}
