package httpapi

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
)

// shares is something of which there is only so much: places for lists, bytes for bodies. One address gets half of it
// at most, so that it can't keep the others out.
type shares struct {
	size int64
	all  *semaphore.Weighted

	mu sync.Mutex
	of map[netip.Addr]*share
}

// share is what one address has of it.
type share struct {
	*semaphore.Weighted
	users int // requests that have some, or wait for it
}

func newShares(size int64) *shares {
	return &shares{size: size, all: semaphore.NewWeighted(size), of: map[netip.Addr]*share{}}
}

// shareTimeout is how long a request waits for its share before it is told to come back.
const shareTimeout = 5 * time.Second

// acquire waits for a share, half of everything at most, and returns what gives it back. Whoever gets none in time is told that
// there is too much to do.
func (s *shares) acquire(ctx context.Context, address netip.Addr, n int64) (release func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, shareTimeout)
	defer cancel()
	own := s.enter(address)
	if own.Acquire(ctx, n) != nil {
		s.leave(address, own)
		return nil, newProblem("overloaded", "")
	}
	if s.all.Acquire(ctx, n) != nil {
		own.Release(n)
		s.leave(address, own)
		return nil, newProblem("overloaded", "")
	}
	return sync.OnceFunc(func() {
		s.all.Release(n)
		own.Release(n)
		s.leave(address, own)
	}), nil
}

func (s *shares) enter(address netip.Addr) *share {
	s.mu.Lock()
	defer s.mu.Unlock()
	own := s.of[address]
	if own == nil {
		own = &share{Weighted: semaphore.NewWeighted(s.size / 2)}
		s.of[address] = own
	}
	own.users++
	return own
}

func (s *shares) leave(address netip.Addr, own *share) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if own.users--; own.users == 0 {
		delete(s.of, address)
	}
}
