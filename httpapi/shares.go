package httpapi

import (
	"context"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"pawl/internal/access"
)

// shares is something of which there is only so much: places for lists, bytes for bodies. One caller gets half of it
// at most, so that it can't keep the others out.
type shares struct {
	size int64
	all  *semaphore.Weighted

	mu sync.Mutex
	of map[payer]*share
}

// payer is the caller whose share a request takes.
type payer struct {
	principal string     // of a credential
	address   netip.Addr // without one
}

// payerOf is the payer of the request that is answered with w.
func payerOf(w http.ResponseWriter) payer {
	switch p := principalOf(w); p {
	case access.Local, access.Anonymous, access.Nobody:
		return payer{address: access.Network(fromOf(w).address)}
	default:
		return payer{principal: p.Name}
	}
}

// share is what one caller has of it.
type share struct {
	*semaphore.Weighted
	users int // requests that have some, or wait for it
}

func newShares(size int64) *shares {
	return &shares{size: size, all: semaphore.NewWeighted(size), of: map[payer]*share{}}
}

// shareTimeout is how long a request waits for its share before it is told to come back.
const shareTimeout = 5 * time.Second

// take gets the request that is answered with w its share, and returns what gives it back. If it has to wait for that, it
// needs a place to wait. Without one, or when it has waited for too long, its caller is told that there is too much to do.
func (s *shares) take(ctx context.Context, w http.ResponseWriter, r *http.Request, n int64) (release func(), err error) {
	at := payerOf(w)
	if release := s.tryAcquire(at, n); release != nil {
		return release, nil
	}
	place, ok := placeToWait(w, r)
	if !ok {
		return nil, newProblem("overloaded", "")
	}
	defer place.leave()
	return s.acquire(ctx, at, n)
}

// acquire waits for a share, half of everything at most, and returns what gives it back.
func (s *shares) acquire(ctx context.Context, by payer, n int64) (release func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, shareTimeout)
	defer cancel()
	own := s.enter(by)
	if own.Acquire(ctx, n) != nil {
		s.leave(by, own)
		return nil, newProblem("overloaded", "")
	}
	if s.all.Acquire(ctx, n) != nil {
		own.Release(n)
		s.leave(by, own)
		return nil, newProblem("overloaded", "")
	}
	return s.releasing(by, own, n), nil
}

// tryAcquire is acquire for a share that is there at once. It returns nil if it is not.
func (s *shares) tryAcquire(by payer, n int64) (release func()) {
	own := s.enter(by)
	if !own.TryAcquire(n) {
		s.leave(by, own)
		return nil
	}
	if !s.all.TryAcquire(n) {
		own.Release(n)
		s.leave(by, own)
		return nil
	}
	return s.releasing(by, own, n)
}

func (s *shares) releasing(by payer, own *share, n int64) func() {
	return sync.OnceFunc(func() {
		s.all.Release(n)
		own.Release(n)
		s.leave(by, own)
	})
}

func (s *shares) enter(by payer) *share {
	s.mu.Lock()
	defer s.mu.Unlock()
	own := s.of[by]
	if own == nil {
		own = &share{Weighted: semaphore.NewWeighted(s.size / 2)}
		s.of[by] = own
	}
	own.users++
	return own
}

func (s *shares) leave(by payer, own *share) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if own.users--; own.users == 0 {
		delete(s.of, by)
	}
}
