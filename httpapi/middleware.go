package httpapi

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"pawl/internal/access"
)

// Recorder is a ResponseWriter that knows the status of the answer. One that is around the
// writer already is used by the handler of New, so that there is one layer of it.
type Recorder struct {
	http.ResponseWriter
	status           int
	orderID, outcome string            // for the log: what the request was about, and what came of it
	principal        *access.Principal // of the request, once it is known
	length           int64             // of what was read and written of bodies
	caller           caller            // where it comes from
	mux              *http.ServeMux    // of the address that the request came to
	done             func(int64)       // called at the end of the request, with its length; a stream takes it over
	inLines          bool              // the answer has many lines: each is observed, and not the whole
	taken            bool              // a stream has taken the connection over: the answer has begun, and goes on without the handler
}

// Status is what has been answered, 0 until something is written.
func (rec *Recorder) Status() int { return rec.status }

// WriteHeader notes the status.
func (rec *Recorder) WriteHeader(status int) {
	if rec.taken {
		return
	}
	rec.status = cmp.Or(rec.status, status)
	rec.ResponseWriter.WriteHeader(status)
}

// Write notes that without a status the answer is 200.
func (rec *Recorder) Write(b []byte) (int, error) {
	rec.status = cmp.Or(rec.status, http.StatusOK)
	n, err := rec.ResponseWriter.Write(b)
	rec.length += int64(n)
	return n, err
}

// end counts the request against the limits of its principal.
func (rec *Recorder) end() {
	if rec.done != nil {
		rec.done(rec.length)
	}
}

// Unwrap lets deadlines reach the connection.
func (rec *Recorder) Unwrap() http.ResponseWriter { return rec.ResponseWriter }

var noSniff = []string{"nosniff"}

// ServeHTTP answers a request to the public address.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.serve(w, r, s.mux) }

// operations answers requests to the address for operations.
type operations struct{ *server }

// ServeHTTP answers a request.
func (o operations) ServeHTTP(w http.ResponseWriter, r *http.Request) { o.serve(w, r, o.ops) }

// serve is what every request goes through: a request id, a net under
// panics, and no redirects.
func (s *server) serve(w http.ResponseWriter, r *http.Request, mux *http.ServeMux) {
	rec, ok := w.(*Recorder)
	if !ok {
		rec = &Recorder{ResponseWriter: w}
	}
	rec.mux, rec.caller = mux, callerFrom(r, s.Proxies)
	header := w.Header()
	header["X-Request-Id"] = []string{requestID(r)}
	header["X-Content-Type-Options"] = noSniff
	if s.Log.Enabled(r.Context(), slog.LevelDebug) {
		defer s.logRequest(rec, r, time.Now())
	}
	defer rec.end()
	defer s.recover(rec, r)
	if err := s.admit(rec, r); err != nil {
		s.answered(func(http.ResponseWriter, *http.Request) error { return err })(rec, r)
		return
	}
	if !canonical(r.URL.EscapedPath()) || r.Method == http.MethodConnect {
		s.answered(s.unknown)(rec, r)
		return
	}
	mux.ServeHTTP(rec, r)
}

// recordOf is what is known of the request that is answered with w: serve has put it there.
func recordOf(w http.ResponseWriter) *Recorder {
	rec, _ := w.(*Recorder)
	return rec
}

// note says for the log which order a request was about, and what came of it. Empty: not known.
func note(w http.ResponseWriter, orderID, outcome string) {
	rec := recordOf(w)
	rec.orderID, rec.outcome = orderID, outcome
}

// noteProblem keeps for the log why a request was rejected.
func noteProblem(w http.ResponseWriter, p *problem) { recordOf(w).outcome = string(p.Code) }

// logRequest logs a request that was answered, or whose caller has gone (status 0). Not its path, which may hold a
// callback's token.
func (s *server) logRequest(rec *Recorder, r *http.Request, started time.Time) {
	s.Log.LogAttrs(r.Context(), slog.LevelDebug, "request", slog.String("request_id", rec.Header().Get("X-Request-Id")),
		slog.String("method", r.Method), slog.String("route", r.Pattern), slog.Int("status", rec.status),
		slog.String("order_id", cmp.Or(rec.orderID, r.PathValue("orderId"))), slog.String("outcome", rec.outcome),
		slog.Float64("duration_seconds", time.Since(started).Seconds()))
}

// recover answers a panic with a mute 500. When part of an answer is out already
// the connection is cut instead: the caller must not take it for a whole one.
func (s *server) recover(rec *Recorder, r *http.Request) {
	cause := recover()
	if cause == nil {
		return
	}
	if err, ok := cause.(error); ok && errors.Is(err, http.ErrAbortHandler) {
		panic(cause)
	}
	s.logPanic(rec.Header().Get("X-Request-Id"), r, cause)
	if rec.status != 0 {
		panic(http.ErrAbortHandler)
	}
	writeProblem(rec, newProblem("internal", ""))
}

func (s *server) logPanic(requestID string, r *http.Request, cause any) {
	s.Log.Error("panic in a request", "request_id", requestID, "route", r.Pattern,
		"panic", fmt.Sprint(cause), "stack", string(debug.Stack()))
}

// requestID takes the caller's id of the request when it is short and harmless in
// a log, and makes one otherwise.
func requestID(r *http.Request) string {
	id := r.Header.Get("X-Request-Id")
	if id == "" || len(id) > 128 {
		return rand.Text()
	}
	for _, c := range []byte(id) {
		if c <= ' ' || c >= 0x7f {
			return rand.Text()
		}
	}
	return id
}

// clientGone is the code under which requests are counted whose caller hung up
// before the answer: neither our fault nor an answer.
const clientGone = 499

type metrics struct {
	inFlight *prometheus.GaugeVec
	seconds  *prometheus.HistogramVec
}

func newMetrics(registerer prometheus.Registerer) *metrics {
	factory := promauto.With(registerer)
	return &metrics{
		inFlight: factory.NewGaugeVec(prometheus.GaugeOpts{
			Name: "http_server_requests_in_flight",
			Help: "Requests in progress, by route.",
		}, []string{"route"}),
		seconds: factory.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "http_server_request_duration_seconds",
			Help:    "Request duration, by route and status; 499 if the client disconnected.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
		}, []string{"route", "code"}),
	}
}

// measured wraps a handler. The route is the pattern, never the path: paths hold ids.
func (m *metrics) measured(route string, next http.HandlerFunc) http.HandlerFunc {
	inFlight := m.inFlight.WithLabelValues(route)
	seconds := m.seconds.MustCurryWith(prometheus.Labels{"route": route})
	return func(w http.ResponseWriter, r *http.Request) {
		started := time.Now()
		inFlight.Inc()
		defer func() {
			inFlight.Dec()
			if recordOf(w).inLines {
				return
			}
			code := http.StatusInternalServerError // nothing was answered: a panic, or the caller disconnected
			if answered := recordOf(w).status; answered != 0 {
				code = answered
			}
			if code >= http.StatusInternalServerError && r.Context().Err() == context.Canceled {
				code = clientGone
			}
			seconds.WithLabelValues(strconv.Itoa(code)).Observe(time.Since(started).Seconds())
		}()
		next(w, r)
	}
}

// canonical reports whether http.ServeMux takes the path as it is. Others it
// would answer with a redirect, to another resource than was asked for.
func canonical(path string) bool {
	return strings.HasPrefix(path, "/") && !strings.Contains(path, "//") &&
		!strings.Contains(path, "/./") && !strings.Contains(path, "/../") &&
		!strings.HasSuffix(path, "/.") && !strings.HasSuffix(path, "/..")
}

// unknown answers whatever no route matches.
func (s *server) unknown(w http.ResponseWriter, r *http.Request) error {
	if !canonical(r.URL.EscapedPath()) {
		return newProblem("unknown_route", "")
	}
	var allowed []string
	probe := *r
	for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodPatch} {
		probe.Method = method
		if _, pattern := recordOf(w).mux.Handler(&probe); pattern != "/" {
			allowed = append(allowed, method)
		}
	}
	if len(allowed) == 0 {
		return newProblem("unknown_route", "")
	}
	p := newProblem("method_not_allowed", "")
	p.allow = strings.Join(allowed, ", ")
	return p
}
