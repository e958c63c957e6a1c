package access

import (
	"context"
	"fmt"
	"sync"
	"time"

	"pawl/internal/pg"
)

// readLimit is how long the database may take to say who somebody is: as long as for any read of a caller.
const readLimit = 10 * time.Second

// recent is a value of the database that is believed for a while. When half of the time is over, whoever asks has it read
// again without waiting; once all of it is over, he waits. All who ask share one read.
type recent[T any] struct {
	good time.Duration // how long it is believed

	mu    sync.Mutex
	value T
	at    time.Time // zero: not read yet
	under *reading[T]
}

// reading is one read under way. The rest is set when done is closed.
type reading[T any] struct {
	done  chan struct{}
	value T
	err   error
}

// get returns the value. Errors: ErrUnavailable, or why ctx ended.
func (r *recent[T]) get(ctx context.Context, c *Control, read func(context.Context) (T, error)) (T, error) {
	r.mu.Lock()
	age := time.Since(r.at)
	under := r.under
	if under == nil && (r.at.IsZero() || age > r.good/2) {
		under = r.refresh(c, read)
	}
	value := r.value
	r.mu.Unlock()
	if age <= r.good {
		return value, nil
	}
	select {
	case <-under.done:
		return under.value, under.err
	case <-ctx.Done():
		return value, ctx.Err()
	}
}

// last returns the value as it was read last, however long ago; zero if it never was.
func (r *recent[T]) last() T {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.value
}

// refresh begins a read. The lock is held.
func (r *recent[T]) refresh(c *Control, read func(context.Context) (T, error)) *reading[T] {
	now := &reading[T]{done: make(chan struct{})}
	r.under = now
	if !c.begin(func() { r.finish(c, now, read) }) {
		now.err = fmt.Errorf("%w: stopping", ErrUnavailable)
		r.under = nil
		close(now.done)
	}
	return now
}

func (r *recent[T]) finish(c *Control, now *reading[T], read func(context.Context) (T, error)) {
	began := time.Now()
	ctx, cancel := context.WithTimeout(c.life, readLimit)
	defer cancel()
	now.value, now.err = pg.Repeat(ctx, c.life, read)
	if now.err != nil {
		now.err = fmt.Errorf("%w: %w", ErrUnavailable, now.err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if now.err == nil {
		r.value, r.at = now.value, began
	}
	r.under = nil
	close(now.done)
}
