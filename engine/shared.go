package engine

import (
	"context"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"
)

// shared is what was looked up in the database for everybody who asks within a while: however many people look at it, and
// however much is stored, it costs a replica little.
type shared[T any] struct {
	reads singleflight.Group
	last  atomic.Pointer[lookedUp[T]]
}

type lookedUp[T any] struct {
	value T
	until time.Time
}

const (
	sharedFor   = time.Second      // how long it is good, at least
	sharedTimes = 50               // and this many times as long as it took
	sharedLimit = 10 * time.Second // how long it may take
)

// get returns what was looked up lately, or looks it up. A caller who goes does not end it for others.
func (s *shared[T]) get(ctx context.Context, read func(context.Context) (T, error)) (T, error) {
	if last := s.last.Load(); last != nil && time.Now().Before(last.until) {
		return last.value, nil
	}
	found, err, _ := s.reads.Do("", func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), sharedLimit)
		defer cancel()
		began := time.Now()
		value, err := read(ctx)
		if err == nil {
			s.last.Store(&lookedUp[T]{value, time.Now().Add(max(sharedFor, sharedTimes*time.Since(began)))})
		}
		return value, err
	})
	value, _ := found.(T)
	return value, err
}
