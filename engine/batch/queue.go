// Package batch commits in groups: what waits for the same statement gathers in a queue and is handed over together.
// There is one flush at a time. While it commits, the next batch gathers, so under load batches grow by themselves,
// and so does the work done by one commit. There is no timer: what comes alone goes alone, and at once.
//
// The engine has a queue for each statement that takes many orders. Queues may take turns with each other: see Turn. This
// package knows nothing of orders, and starts no goroutine that lasts.
package batch

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// Options is what a queue can be told.
type Options struct {
	Most int // items in one flush; 0: all that wait

	// Pace returns how much time there is at least between the beginnings of two flushes; nil: none. An item that comes
	// to a queue that was idle for as long does not wait.
	Pace func() time.Duration

	// Turn is shared with the queues that this one takes turns with; nil: it flushes whenever it can.
	Turn *Turn

	// NoBacklog: a long wait says nothing about the load, as where items wait for a lock. The queue is never behind.
	NoBacklog bool
}

// Queue gathers items and hands them to its flush in batches, in the order in which they came. Its methods
// are safe for concurrent use.
type Queue[T any] struct {
	options Options
	flush   func([]T)
	made    time.Time // times are counted from here, by the monotonic clock, which cannot be set

	mu      sync.Mutex
	waiting []T
	spare   []T // the last batch's array, used again
	wake    chan struct{}
	oldest  atomic.Int64 // since when an item waits; 0: none does
	began   atomic.Int64 // when the flush under way began; 0: there is none
}

// New returns a queue that hands nothing over until Run. flush must not keep the slice it is given, which is used
// again.
func New[T any](options Options, flush func([]T)) *Queue[T] {
	return &Queue[T]{options: options, flush: flush, made: time.Now(), wake: make(chan struct{}, 1)}
}

// Add never blocks. The queue is not bounded: callers limit what they add.
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

// Len is how many items wait. Those of the flush under way do not.
func (q *Queue[T]) Len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.waiting)
}

// Behind reports that an item has waited for longer than the limit although the queue moves: more comes than gets done. A
// flush that hangs says nothing about the load, and holds up only what is in its own queue.
func (q *Queue[T]) Behind(limit time.Duration) bool {
	return !q.options.NoBacklog && q.since(&q.oldest) > limit && q.since(&q.began) < limit/2
}

// Run hands batches over until ctx ends. What waits then stays in the queue.
func (q *Queue[T]) Run(ctx context.Context) {
	for began := int64(0); ; {
		select {
		case <-ctx.Done():
			return
		case <-q.wake:
		}
		for q.oldest.Load() != 0 {
			if q.gather(ctx, began); !q.options.Turn.wait(ctx) {
				return
			}
			began = q.now()
			q.flushAll(ctx, q.take())
		}
	}
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

// take swaps what waits for the empty array of the batch before.
func (q *Queue[T]) take() []T {
	q.mu.Lock()
	defer q.mu.Unlock()
	batch := q.waiting
	clear(q.spare[:cap(q.spare)]) // let go of what was flushed
	q.waiting, q.spare = q.spare[:0], batch
	q.oldest.Store(0)
	return batch
}

// flushAll flushes a batch in parts that are small enough. The first has its turn. Once ctx has ended, the others go without:
// what was taken from the queue must not be left.
func (q *Queue[T]) flushAll(ctx context.Context, batch []T) {
	turn := q.options.Turn
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
