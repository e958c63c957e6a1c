package httpapi

import (
	"context"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"golang.org/x/sync/semaphore"

	"pawl/internal/access"
)

// withinLimits counts the request that w answers against the limits of its principal, and writes the remaining quotas. It
// returns an error if a limit is exceeded.
func (s *server) withinLimits(w http.ResponseWriter, p *access.Principal) error {
	admission, err := s.Access.Admit(p)
	if err != nil || admission == nil {
		return err
	}
	writeQuotas(w.Header(), admission.Quotas(time.Now()))
	recordOf(w).done = admission.Done
	return nil
}

// writeQuotas writes the quotas of a caller as in draft 11 of "RateLimit header fields for HTTP". Nothing else depends on
// the draft.
func writeQuotas(header http.Header, quotas []access.Quota) {
	var policies, left []string
	for _, q := range quotas {
		policy, now := fmt.Sprintf("%q;q=%d", q.Name, q.Most), fmt.Sprintf("%q;r=%d", q.Name, q.Remaining)
		if q.Unit != "requests" { // the default
			policy += fmt.Sprintf(";qu=%q", q.Unit)
		}
		if q.Window > 0 {
			policy += ";w=" + wholeSeconds(q.Window)
			now += ";t=" + wholeSeconds(q.Wait)
		}
		policies, left = append(policies, policy), append(left, now)
	}
	header.Set("RateLimit-Policy", strings.Join(policies, ", "))
	header.Set("RateLimit", strings.Join(left, ", "))
}

// wholeSeconds is a time in seconds, rounded up, so that the retry succeeds.
func wholeSeconds(d time.Duration) string { return strconv.Itoa(int(math.Ceil(d.Seconds()))) }

// shares divides a limited resource, such as places for lists or bytes for bodies. One caller gets at most half of it, so
// that it can't exclude the others.
type shares struct {
	size int64
	all  *semaphore.Weighted

	mu sync.Mutex
	of map[payer]*share
}

// payer identifies the caller whose share a request uses.
type payer struct {
	principal string     // if authenticated
	address   netip.Addr // otherwise
}

// payerOf returns the payer of the request that w answers.
func payerOf(w http.ResponseWriter) payer {
	switch p := principalOf(w); p {
	case access.Local, access.Anonymous, access.Nobody:
		return payer{address: access.Network(fromOf(w).address)}
	default:
		return payer{principal: p.Name}
	}
}

// share is what one caller uses.
type share struct {
	*semaphore.Weighted
	users int // requests that use some, or wait for it
}

func newShares(size int64) *shares {
	return &shares{size: size, all: semaphore.NewWeighted(size), of: map[payer]*share{}}
}

// shareTimeout is how long a request waits for its share before it is rejected.
const shareTimeout = 5 * time.Second

// take acquires a share for the request that w answers, and returns the function that releases it. To wait, the request
// needs a place. Without one, or after shareTimeout, it fails with overloaded.
func (s *shares) take(ctx context.Context, w http.ResponseWriter, r *http.Request, n int64) (release func(), err error) {
	at := payerOf(w)
	if release := s.get(at, n, func(from *semaphore.Weighted) bool { return from.TryAcquire(n) }); release != nil {
		return release, nil
	}
	place, ok := placeToWait(w, r)
	if !ok {
		return nil, newProblem("overloaded", "")
	}
	defer place.leave()
	ctx, cancel := context.WithTimeout(ctx, shareTimeout)
	defer cancel()
	return s.acquire(ctx, at, n)
}

// acquire waits for a share of at most half, and returns the function that releases it.
func (s *shares) acquire(ctx context.Context, by payer, n int64) (release func(), err error) {
	if release = s.get(by, n, func(from *semaphore.Weighted) bool { return from.Acquire(ctx, n) == nil }); release == nil {
		return nil, newProblem("overloaded", "")
	}
	return release, nil
}

// get gets a share, first of the caller's half and then of all, or returns nil if it does not get one of them.
func (s *shares) get(by payer, n int64, from func(*semaphore.Weighted) bool) (release func()) {
	own := s.enter(by)
	switch {
	case !from(own.Weighted):
	case !from(s.all):
		own.Release(n)
	default:
		return sync.OnceFunc(func() {
			s.all.Release(n)
			own.Release(n)
			s.leave(by, own)
		})
	}
	s.leave(by, own)
	return nil
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

// checkConnection is the first check of a request. It rejects requests that no route may answer.
func (s *server) checkConnection(w http.ResponseWriter, r *http.Request) error {
	if unclearEnd(r) {
		w.Header().Set("Connection", "close")
	}
	if !s.hosts.allow(r, fromOf(w).local) {
		return newProblem("misdirected_request", "")
	}
	if c := connectionOf(r); c != nil && c.spare {
		w.Header().Set("Connection", "close")
		if !vital[r.URL.Path] {
			return newProblem("overloaded", "Too many connections are open.")
		}
	}
	return nil
}

// unclearEnd reports whether a proxy and this server may disagree about where the request ends. The bytes after it
// could then be part of its body to the proxy, and the request of another caller to us (request smuggling; RFC 9112,
// 6.1). net/http drops a Content-Length next to a Transfer-Encoding, and the Transfer-Encoding of HTTP/1.0, so these
// requests can't be told from harmless ones. All of them are the last of their connection.
func unclearEnd(r *http.Request) bool { return len(r.TransferEncoding) > 0 || !r.ProtoAtLeast(1, 1) }

// vital are the paths that spare connections also serve, because a supervisor without an answer kills the process.
var vital = map[string]bool{"/livez": true, "/health": true, "/metrics": true}

// edgeProblems are the problems that every operation has, in addition to its own.
func edgeProblems(op *huma.Operation, named []problemCode) []problemCode {
	codes := []problemCode{"misdirected_request", "overloaded"}
	if vital[op.Path] {
		codes = codes[:1]
	}
	if op.Method != http.MethodGet {
		codes = append(codes, "quarantined")
	}
	if namesOrder(op.Path) {
		codes = append(codes, "other_cell")
	}
	return slices.DeleteFunc(codes, func(code problemCode) bool { return slices.Contains(named, code) })
}

const (
	listPlaces = 16       // lists and bulk requests at a time
	lookPlaces = 4        // scrapes and overviews at a time
	bodyBytes  = 16 << 20 // of bodies that are arriving
	lineBytes  = 8 << 20  // of orders that came in streams and are not answered
	catchUps   = 64       // streams at a time that read from the database
	smallBody  = 4 << 10  // bodies up to this length in bytes, which are nearly all, need no share
)

// sharing makes a request wait until there is a place for it and its body. This bounds the memory that many callers can
// use together.
func (s *server) sharing(pattern string, next http.HandlerFunc) http.HandlerFunc {
	withBody := s.answered(func(w http.ResponseWriter, r *http.Request) error {
		if hasOrderLines(r) { // each line takes what it needs
			next(w, r)
			return nil
		}
		release, err := s.takeBody(w, r)
		if err != nil {
			return err
		}
		defer release()
		next(w, r)
		return nil
	})
	places := s.bounded[documentedAs(pattern)]
	if places == nil {
		return withBody
	}
	return s.answered(places.first(func(*http.Request) int64 { return 1 }, withBody))
}

// first makes a request wait for its share before the next handler answers it.
func (s *shares) first(share func(*http.Request) int64, next http.HandlerFunc) handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		release, err := s.take(r.Context(), w, r, share(r))
		if err != nil {
			return err
		}
		defer release()
		_ = huma.SetReadDeadline(w, readBy(r)) // the wait has used up the old deadline; not every writer has a connection
		next(w, r)
		return nil
	}
}

// takeBody acquires the memory for the body of a request, and returns the function that releases it. A body that is too
// large needs none, because it is rejected without being read.
func (s *server) takeBody(w http.ResponseWriter, r *http.Request) (release func(), err error) {
	size := r.ContentLength
	if size < 0 {
		size = 2 * maxBody // unknown: it is read into a buffer that doubles
	} else if size <= smallBody || size > maxBody {
		return func() {}, nil
	}
	release, err = s.bodies.take(r.Context(), w, r, size)
	if err != nil {
		return nil, err
	}
	_ = huma.SetReadDeadline(w, readBy(r))
	r.Body = &sharedBody{r.Body, release}
	return release, nil
}

// readBy is the read deadline of a request that had to wait. A request without a body has none.
func readBy(r *http.Request) time.Time {
	if r.ContentLength == 0 {
		return time.Time{}
	}
	return time.Now().Add(readTimeout)
}

// sharedBody releases its share when it has been read.
type sharedBody struct {
	io.ReadCloser
	free func()
}

// Read reads on.
func (b *sharedBody) Read(p []byte) (n int, err error) {
	if n, err = b.ReadCloser.Read(p); err != nil {
		b.free()
	}
	return n, err
}
