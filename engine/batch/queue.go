// Package batch groups work: items that wait for the same statement gather in a queue, and are flushed together.
// There is one flush at a time. While it commits, the next batch gathers, so batches grow with the load, and each
// commit does more work. There is no timer: a lone item is flushed at once.
//
// The engine has a queue for each statement that takes many orders. Queues may take turns with each other: see Turn.
// This package knows nothing about orders, and starts no goroutine that lasts.
package batch

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// Options are the settings of a queue.
type Options struct {
	Most int // items in one flush; 0: no limit

	// Pace returns the minimum time between the beginnings of two flushes; nil: none. An item that comes to a queue
	// that was idle for that time does not wait.
	Pace func() time.Duration

	// Turn is shared with the queues that this one takes turns with; nil: it takes none.
	Turn *Turn

	// Alone reports whether the next flush goes without a turn, because it waits for the disk; nil: none does.
	Alone func() bool

	// NoBacklog keeps Behind false, for queues in which a long wait is no sign of load, such as one that waits for
	// locks.
	NoBacklog bool
}

// Queue gathers items and passes them to its flush in batches, in the order in which they were added. Its methods are
// safe for concurrent use.
type Queue[T any] struct {
	options Options
	flush   func([]T)
	made    time.Time // times are counted from here, by the monotonic clock

	mu      sync.Mutex
	waiting []T
	spare   []T // the array of the last batch, for reuse
	wake    chan struct{}
	oldest  atomic.Int64 // since when the oldest item waits; 0: none waits
	began   atomic.Int64 // when the current flush began; 0: there is none
}

// New returns a queue that flushes nothing until Run. flush must not keep its slice, which is reused.
func New[T any](options Options, flush func([]T)) *Queue[T] {
	return &Queue[T]{options: options, flush: flush, made: time.Now(), wake: make(chan struct{}, 1)}
}

// Add never blocks. The queue has no limit: callers limit what they add.
func (q *Queue[T]) Add(items ...T) {
	if len(items) == 0 {
		return
	}
	q.mu.Lock()
	if len(q.waiting) == 0 {
		q.oldest.Store(q.now())
	}
	q.waiting = append(q.waiting, items...)
	q.mu.Unlock()
	select {
	case q.wake <- struct{}{}:
	default: // it is awake
	}
}

// Len is the number of waiting items, without those of the current flush.
func (q *Queue[T]) Len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.waiting)
}

// Behind reports whether an item has waited longer than limit although the queue moves, that is, work arrives faster
// than it is done. A flush that hangs doesn't count: it delays only its own queue.
func (q *Queue[T]) Behind(limit time.Duration) bool {
	return !q.options.NoBacklog && q.since(&q.oldest) > limit && q.since(&q.began) < limit/2
}

// Run flushes batches until ctx ends. Items that wait then stay in the queue.
func (q *Queue[T]) Run(ctx context.Context) {
	for began := int64(0); ; {
		select {
		case <-ctx.Done():
			return
		case <-q.wake:
		}
		for q.oldest.Load() != 0 {
			q.gather(ctx, began)
			turn := q.turn()
			if !turn.wait(ctx) {
				return
			}
			began = q.now()
			q.flushAll(ctx, turn, q.take())
		}
	}
}

func (q *Queue[T]) turn() *Turn {
	if q.options.Alone != nil && q.options.Alone() {
		return nil
	}
	return q.options.Turn
}

// gather waits until the pace allows another flush.
func (q *Queue[T]) gather(ctx context.Context, began int64) {
	if q.options.Pace == nil || began == 0 {
		return
	}
	wait := q.options.Pace() - time.Duration(q.now()-began)
	if wait <= 0 {
		return
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// take returns the waiting items, and gives the queue the empty array of the batch before.
func (q *Queue[T]) take() []T {
	q.mu.Lock()
	defer q.mu.Unlock()
	batch := q.waiting
	clear(q.spare[:cap(q.spare)]) // so that flushed items can be freed
	q.waiting, q.spare = q.spare[:0], batch
	q.oldest.Store(0)
	return batch
}

// flushAll flushes a batch in parts of at most Options.Most. The caller has the turn for the first. Once ctx has
// ended, the others are flushed without one: they have left the queue.
func (q *Queue[T]) flushAll(ctx context.Context, turn *Turn, batch []T) {
	for most := q.options.Most; most > 0 && len(batch) > most; batch = batch[most:] {
		turn.during(func() { q.flushOne(batch[:most:most]) })
		if !turn.wait(ctx) {
			turn = nil
		}
	}
	turn.during(func() { q.flushOne(batch) })
}

func (q *Queue[T]) flushOne(batch []T) {
	q.began.Store(q.now())
	q.flush(batch)
	q.began.Store(0)
}

// now is never 0.
func (q *Queue[T]) now() int64 { return int64(time.Since(q.made)) + 1 }

func (q *Queue[T]) since(at *atomic.Int64) time.Duration {
	if t := at.Load(); t != 0 {
		return time.Duration(q.now() - t)
	}
	return 0
}
