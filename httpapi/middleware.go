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

// Recorder is a ResponseWriter that records the status of the answer. If the writer already is one, the handler of New
// reuses it.
type Recorder struct {
	http.ResponseWriter
	status           int
	orderID, outcome string            // for the log
	principal        *access.Principal // of the request, once known
	length           int64             // bytes of bodies read and written
	caller           caller            // where the request comes from
	mux              *http.ServeMux    // of the address that received the request
	done             func(int64)       // called with length at the end of the request; a stream takes it over
	inLines          bool              // the answer has many lines: each is observed, and not the whole
	taken            bool              // a stream continues the answer without the handler
}

// Status is the status of the answer, or 0 until something is written.
func (rec *Recorder) Status() int { return rec.status }

// WriteHeader records the status.
func (rec *Recorder) WriteHeader(status int) {
	if rec.taken {
		return
	}
	rec.status = cmp.Or(rec.status, status)
	rec.ResponseWriter.WriteHeader(status)
}

// Write records status 200 if no other was written.
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

// serve wraps every request: it assigns a request id, recovers from panics, and prevents redirects.
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
	if err := s.checkConnection(rec, r); err != nil {
		s.answered(func(http.ResponseWriter, *http.Request) error { return err })(rec, r)
		return
	}
	if !canonical(r.URL.EscapedPath()) || r.Method == http.MethodConnect {
		s.page(s.unknown)(rec, r)
		return
	}
	mux.ServeHTTP(rec, r)
}

// recordOf returns the Recorder that serve has put around w.
func recordOf(w http.ResponseWriter) *Recorder {
	if kept, ok := w.(*keptAnswer); ok {
		w = kept.ResponseWriter
	}
	rec, _ := w.(*Recorder)
	return rec
}

// note records for the log which order a request was about, and its outcome. Either may be empty.
func note(w http.ResponseWriter, orderID, outcome string) {
	rec := recordOf(w)
	rec.orderID, rec.outcome = orderID, outcome
}

// noteProblem records for the log why a request was rejected.
func noteProblem(w http.ResponseWriter, p *problem) { recordOf(w).outcome = string(p.Code) }

// logRequest logs a request that was answered, or whose caller disconnected (status 0). It omits the path, which may
// contain the token of a callback.
func (s *server) logRequest(rec *Recorder, r *http.Request, started time.Time) {
	s.Log.LogAttrs(r.Context(), slog.LevelDebug, "request", slog.String("request_id", rec.Header().Get("X-Request-Id")),
		slog.String("method", r.Method), slog.String("route", r.Pattern), slog.Int("status", rec.status),
		slog.String("order_id", cmp.Or(rec.orderID, r.PathValue("orderId"))), slog.String("outcome", rec.outcome),
		slog.Float64("duration_seconds", time.Since(started).Seconds()))
}

// recover answers a panic with a 500 without details. If part of the answer was already sent, it closes the connection
// instead, so that the caller does not take the part for the whole.
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

// requestID returns the request id of the caller if it is short and safe to log, and generates one otherwise.
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

// clientGone is the code under which requests are counted whose caller disconnected before the answer.
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

// measured adds metrics to a handler. Their route is the pattern and not the path, which contains ids.
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

// canonical reports whether http.ServeMux serves the path as it is. It would redirect other paths, to a different
// resource.
func canonical(path string) bool {
	return strings.HasPrefix(path, "/") && !strings.Contains(path, "//") &&
		!strings.Contains(path, "/./") && !strings.Contains(path, "/../") &&
		!strings.HasSuffix(path, "/.") && !strings.HasSuffix(path, "/..")
}

// unknown answers requests that no route matches.
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
