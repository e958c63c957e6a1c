package httpapi

import (
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"
)

// admit refuses what is not answered at all, whatever it asks for. Nothing of the request was looked at before.
func (s *server) admit(w http.ResponseWriter, r *http.Request) error {
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

// unclearEnd reports whether a proxy may see the request end elsewhere than we do. What follows it on the connection could then
// be the body of one request to the proxy, and another request to us, with the rights of the next caller (RFC 9112, 6.1).
// A Content-Length beside a Transfer-Encoding is dropped by net/http, as is a Transfer-Encoding of HTTP/1.0: neither can be
// told from a request without it, so all of these are the last of their connection.
func unclearEnd(r *http.Request) bool { return len(r.TransferEncoding) > 0 || !r.ProtoAtLeast(1, 1) }

// vital are the paths that are answered by spare connections, too: whoever gets no answer there ends the process.
var vital = map[string]bool{"/livez": true, "/health": true, "/metrics": true}

// edgeProblems are the problems that an operation has whatever it does, but for those that it names itself.
func edgeProblems(op *huma.Operation, named []problemCode) []problemCode {
	codes := []problemCode{"misdirected_request", "overloaded"}
	if vital[op.Path] {
		codes = codes[:1]
	}
	if op.Method != http.MethodGet {
		codes = append(codes, "quarantined")
	}
	return slices.DeleteFunc(codes, func(code problemCode) bool { return slices.Contains(named, code) })
}

const (
	listPlaces = 16       // lists and bulk requests at a time
	lookPlaces = 4        // scrapes and overviews at a time
	bodyBytes  = 16 << 20 // of bodies that are arriving
	catchUps   = 64       // streams at a time that send what is not in memory
	smallBody  = 4 << 10  // a body up to this length, in bytes, is read without asking: nearly all are
)

// sharing has a request wait until there is a place for it, and for its body: what many callers can have the service keep
// in memory for them is bounded.
func (s *server) sharing(pattern string, next http.HandlerFunc) http.HandlerFunc {
	withBody := s.answered(func(w http.ResponseWriter, r *http.Request) error {
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

// first has a request wait for its share, and then another handler answer it.
func (s *shares) first(share func(*http.Request) int64, next http.HandlerFunc) handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		release, err := s.take(r.Context(), w, r, share(r))
		if err != nil {
			return err
		}
		defer release()
		_ = huma.SetReadDeadline(w, readBy(r)) // it has waited; not every writer has a connection
		next(w, r)
		return nil
	}
}

// takeBody takes what the body of a request needs, and returns what gives it back. One that is too large takes nothing:
// it is refused without being read.
func (s *server) takeBody(w http.ResponseWriter, r *http.Request) (release func(), err error) {
	size := r.ContentLength
	if size < 0 {
		size = 2 * maxBody // nobody knows: it is read into a buffer that doubles
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

// readBy is until when a request must have arrived that had to wait. One without a body has.
func readBy(r *http.Request) time.Time {
	if r.ContentLength == 0 {
		return time.Time{}
	}
	return time.Now().Add(readTimeout)
}

// sharedBody gives its share back when it has been read.
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
