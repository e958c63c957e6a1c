package engine

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// line gathers the runs that wait for one move and hands them to flush in sets. There
// is one flush at a time: while it commits, the next set gathers. Under load sets grow
// by themselves, and so does the work done by one commit.
type line struct {
	flush func([]*run)
	most  int
	apart bool          // excluded from the overload check: its orders go one by one, or wait for a lock
	pace  time.Duration // between the beginnings of two flushes at least; a lone order waits for nothing

	mu      sync.Mutex
	waiting []*run
	spare   []*run // the last set's array, used again
	wake    chan struct{}
	oldest  atomic.Int64 // uptime since which somebody waits; 0: nobody
	began   atomic.Int64 // uptime at which the flush under way began; 0: there is none
}

var processStart = time.Now()

// uptime is a time of the monotonic clock, which nobody sets. It is never 0.
func uptime() int64 { return int64(time.Since(processStart)) + 1 }

func newLine(most int, flush func([]*run)) *line {
	return &line{flush: flush, most: most, wake: make(chan struct{}, 1)}
}

// add never blocks: what bounds the memory is the number of orders admitted.
func (l *line) add(runs ...*run) {
	if len(runs) == 0 {
		return
	}
	l.mu.Lock()
	if len(l.waiting) == 0 {
		l.oldest.Store(uptime())
	}
	l.waiting = append(l.waiting, runs...)
	l.mu.Unlock()
	select {
	case l.wake <- struct{}{}:
	default: // it is awake
	}
}

// age is how long the first in the line has waited.
func (l *line) age() time.Duration { return ageOf(&l.oldest) }

func ageOf(since *atomic.Int64) time.Duration {
	at := since.Load()
	if at == 0 {
		return 0
	}
	return time.Duration(uptime() - at)
}

// behind reports that somebody has waited for longer than the limit, although the line moves.
func (l *line) behind(limit time.Duration) bool { return l.age() > limit && ageOf(&l.began) < limit/2 }

func (l *line) loop(ctx context.Context) {
	var began time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.wake:
			l.gather(ctx, began)
		}
		for set := l.take(); len(set) > 0 && ctx.Err() == nil; set = l.next(ctx, began) {
			began = time.Now()
			for len(set) > l.most {
				l.flushOne(set[:l.most:l.most])
				set = set[l.most:]
			}
			l.flushOne(set)
		}
	}
}

func (l *line) flushOne(set []*run) {
	l.began.Store(uptime())
	l.flush(set)
	l.began.Store(0)
}

func (l *line) next(ctx context.Context, began time.Time) []*run {
	if l.pace > 0 && l.age() > 0 {
		l.gather(ctx, began)
	}
	return l.take()
}

// gather waits until the pace allows another flush.
func (l *line) gather(ctx context.Context, began time.Time) {
	wait := l.pace - time.Since(began)
	if l.pace == 0 || wait <= 0 {
		return
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// take swaps the waiting runs for the empty array of the set before. flush must not
// keep the slice it was given.
func (l *line) take() []*run {
	l.mu.Lock()
	defer l.mu.Unlock()
	set := l.waiting
	clear(l.spare[:cap(l.spare)]) // let go of runs that have ended
	l.waiting, l.spare = l.spare[:0], set
	l.oldest.Store(0)
	return set
}
