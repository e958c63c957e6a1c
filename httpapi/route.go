package httpapi

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"pawl/internal/access"
	"pawl/internal/orders"
)

// readLimit is the time limit of requests that only wait for the database.
const readLimit = 10 * time.Second

// handler answers a request or returns an error, which becomes a problem.
type handler func(http.ResponseWriter, *http.Request) error

// handle serves a route with the query parameters that the API description lists.
func (s *server) handle(pattern string, h http.HandlerFunc) {
	if table, ok := csvTables[pattern]; ok {
		h = table.orCSV(h)
	}
	s.handleAnyQuery(pattern, s.checked(pattern, h))
}

// handleAnyQuery serves a route that ignores its query string or checks it itself.
func (s *server) handleAnyQuery(pattern string, h http.HandlerFunc) {
	h = s.metrics.measured(pattern, s.guarded(pattern, s.sharing(pattern, s.ofThisCell(pattern, h))))
	for _, mux := range s.muxesOf(pattern) {
		mux.HandleFunc(pattern, h)
	}
}

// muxesOf are the muxes of the addresses that have a route.
func (s *server) muxesOf(pattern string) []*http.ServeMux {
	switch {
	case s.ops == s.mux:
		return []*http.ServeMux{s.mux}
	case slices.Contains(consolePatterns, pattern):
		return []*http.ServeMux{s.ops}
	case pattern == metricsPattern, slices.Equal(s.ruleAt(pattern).roles, access.Roles{access.Admin}):
		return []*http.ServeMux{s.ops, s.inside}
	case slices.Contains(everywhere, pattern):
		return []*http.ServeMux{s.mux, s.ops, s.inside}
	default:
		return []*http.ServeMux{s.mux, s.inside}
	}
}

const metricsPattern = "GET /metrics"

// everywhere are the routes of both addresses: for health checks, documentation and signing in.
var everywhere = []string{
	"GET /health", "GET /livez", "GET /api/me", "GET /problems/{code}", "GET /{$}", "/",
	"GET /login", "GET /login/{link}", "POST /login/{link}", "POST /logout", "GET /docs", "GET /docs/{page}", "GET /openapi.yaml", "GET /openapi.json",
}

// answered turns errors into problems.
func (s *server) answered(h handler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		err := h(w, r)
		if err == nil {
			return
		}
		p := problemOf(err)
		if p.Status >= http.StatusInternalServerError && r.Context().Err() == context.Canceled {
			return // the caller disconnected, which is the cause
		}
		s.logFault(w.Header().Get("X-Request-Id"), p, err)
		writeProblem(w, p)
	}
}

func (s *server) logFault(requestID string, p *problem, err error) {
	if p.Code == "internal" {
		s.Log.Error("request failed", "request_id", requestID, "error", err)
	}
}

// plainAnswer is an answer without headers of its own.
type plainAnswer[B any] struct{ Body B }

// get documents and serves an operation without a request body: huma reads the parameters and writes the answer.
func get[I, B any](s *server, op huma.Operation, read func(context.Context, *I) (B, error)) {
	getWithin(s, op, readWithin, func(ctx context.Context, in *I) (*plainAnswer[B], error) {
		body, err := read(ctx, in)
		return &plainAnswer[B]{body}, err
	})
}

// list is get for operations with long answers, of which few are served at a time.
func list[I, B any](s *server, op huma.Operation, read func(context.Context, *I) (B, error)) {
	s.bound(op, s.lists)
	get(s, op, read)
}

// look is get for operations that answer from memory.
func look[I, B any](s *server, op huma.Operation, read func(context.Context, *I) (B, error)) {
	s.bound(op, s.looks)
	get(s, op, read)
}

// bound makes an operation wait for one of a number of places.
func (s *server) bound(op huma.Operation, places *shares) { s.bounded[op.Method+" "+op.Path] = places }

// readWithin is the time limit of operations that do not wait.
func readWithin[I any](*I) time.Duration { return readLimit }

// getWithin is get for operations that may wait, up to limit, and for answers with headers.
func getWithin[I, O any](s *server, op huma.Operation, limit func(*I) time.Duration, answer func(context.Context, *I) (*O, error)) {
	huma.Register(s.api, op, func(ctx context.Context, in *I) (*O, error) {
		ctx, cancel := context.WithTimeout(ctx, limit(in))
		defer cancel()
		out, err := answer(ctx, in)
		if err == nil {
			return out, nil
		}
		p := problemOf(err)
		if ctx.Err() != context.Canceled {
			s.logFault(writerOf(ctx).Header().Get("X-Request-Id"), p, err)
		}
		noteProblem(writerOf(ctx), p)
		return nil, p
	})
}

// sameOrigin rejects cross-origin requests of browsers. While the service is open, any page that a person on the network
// visits could otherwise place orders: a request without a body, or not labeled as JSON, needs no CORS preflight.
func (s *server) sameOrigin(h handler) handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		if s.crossOrigin.Check(r) != nil {
			return newProblem("cross_origin", "")
		}
		return h(w, r)
	}
}

// post documents an operation with a body by the types of its request and answer, and serves it with our own handler,
// because huma accepts ambiguous bodies.
func post[I, O any](s *server, op huma.Operation, h handler) {
	s.own[op.Method+" "+op.Path] = s.answered(s.sameOrigin(h))
	huma.Register(s.api, op, func(context.Context, *I) (*O, error) { return nil, nil })
}

// humaRoutes is the mux that huma registers its routes with.
type humaRoutes struct{ *server }

// HandleFunc registers a route of huma, unless we serve it ourselves.
func (h humaRoutes) HandleFunc(documented string, serve func(http.ResponseWriter, *http.Request)) {
	if own, ok := h.own[documented]; ok {
		serve = own
	}
	for _, pattern := range patternsOf(documented) {
		h.handle(pattern, serve)
	}
}

// patternsOf are the patterns of an operation. Bulk verbs share one operation, but each verb is a route with its own
// rule.
func patternsOf(documented string) (patterns []string) {
	method, bulk := strings.CutSuffix(documented, bulkOperation.Path)
	if !bulk {
		return []string{documented}
	}
	for _, verb := range orders.BulkVerbs {
		patterns = append(patterns, method+bulkPath+string(verb))
	}
	return patterns
}

// documentedAs is the pattern of a route in the API description.
func documentedAs(pattern string) string {
	if strings.HasPrefix(pattern, bulkVerbPattern) {
		return bulkOperation.Method + " " + bulkOperation.Path
	}
	return pattern
}

// writeProblem writes a problem. It ignores errors, which mean that the caller has disconnected.
func writeProblem(w http.ResponseWriter, p *problem) {
	noteProblem(w, p)
	header := w.Header()
	for name, values := range p.GetHeaders() {
		header[name] = values
	}
	header.Set("Content-Type", p.ContentType(""))
	body, err := json.Marshal(p)
	if err != nil { // only an order that is not UTF-8 could do this
		body = []byte("{}")
	}
	w.WriteHeader(p.Status)
	w.Write(body) //nolint:errcheck // the caller has gone
}
