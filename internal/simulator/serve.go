package simulator

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
)

func (s *Simulator) routes() *http.ServeMux {
	mux := http.NewServeMux()
	for step := range prefixes {
		mux.HandleFunc("POST /"+step, s.post(step, operationDo))
		if step != "confirm" { // what was confirmed stays
			mux.HandleFunc("POST /"+step+"/undo", s.post(step, operationUndo))
		}
	}
	mux.HandleFunc("POST /charge/refund", s.post("charge", operationRefund))
	mux.HandleFunc("GET /lookup", func(w http.ResponseWriter, r *http.Request) {
		s.deliver(w, r, s.durable(s.lookup(r.URL.Query().Get("key"))))
	})
	mux.HandleFunc("GET /books", func(w http.ResponseWriter, r *http.Request) {
		lines(w, s.Books(r.URL.Query().Get("orderId")))
	})
	mux.HandleFunc("GET /requests", func(w http.ResponseWriter, r *http.Request) {
		lines(w, s.Requests(r.URL.Query().Get("orderId")))
	})
	mux.HandleFunc("GET /summary", func(w http.ResponseWriter, r *http.Request) { s.deliver(w, r, ok(s.Summary())) })
	mux.HandleFunc("GET /faults", func(w http.ResponseWriter, r *http.Request) { s.deliver(w, r, ok(s.Faults())) })
	mux.HandleFunc("POST /faults", s.postFaults)
	s.stripeRoutes(mux)
	return mux
}

var crossOrigin = http.NewCrossOriginProtection()

// ServeHTTP answers the requests described in docs/simulator.md. It refuses what a browser sends for a page of another
// site.
func (s *Simulator) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if crossOrigin.Check(r) != nil || rebound(r) {
		s.deliver(w, r, notDone(http.StatusForbidden, "cross_origin", "the request comes from a web page of another site"))
		return
	}
	s.mux.ServeHTTP(w, r)
}

// rebound reports whether a browser sent a request to a name that may be anybody's: a site whose name leads to this machine
// looks to it like the simulator's own. Addresses and localhost are nobody's.
func rebound(r *http.Request) bool {
	if r.Header.Get("Origin") == "" && r.Header.Get("Sec-Fetch-Site") == "" {
		return false
	}
	host, _, err := net.SplitHostPort(r.Host)
	if err != nil {
		host = r.Host
	}
	_, err = netip.ParseAddr(strings.Trim(host, "[]"))
	return err != nil && host != "localhost"
}

func (s *Simulator) post(step, operation string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		q, err := s.read(w, r, step, operation)
		if err != nil {
			status := http.StatusBadRequest
			if errors.Is(err, errSignature) {
				status = http.StatusUnauthorized
			}
			s.deliver(w, r, notDone(status, "bad_request", err.Error()))
			return
		}
		s.serve(w, r, q, func() reply {
			if operation == operationUndo {
				return s.undo(q)
			}
			e, known := s.begin(q)
			if operation == operationRefund {
				return s.attempt(r.Context(), q, known, ending{func() { s.abandon(e) }, func() reply { return s.decideRefund(q, e) }})
			}
			return s.attempt(r.Context(), q, known, ending{func() { s.abandon(e) }, func() reply { return s.decide(q, e) }})
		})
	}
}

// serve answers a request that can be read, unless its fault keeps it from being handled.
func (s *Simulator) serve(w http.ResponseWriter, r *http.Request, q *request, handle func() reply) {
	if !s.enter() {
		s.deliver(w, r, q.worded(closedReply))
		return
	}
	defer s.work.Done()
	s.arrive(q)
	if q.stripe {
		w.Header().Set("Request-Id", fmt.Sprintf("req_%d", q.logged.Number))
	}
	a, ok := front(q)
	if !ok {
		a = spoil(q, handle())
	}
	a = q.worded(a)
	s.leave(q, a)
	s.deliver(w, r, a)
}

// lookup says what has become of a key of a do. It asks the books alone: no fault keeps it
// from answering.
func (s *Simulator) lookup(key string) reply {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forget(key)
	found := said{State: "unseen"}
	switch e := s.state.keys[key]; {
	case e == nil, e.State == "" && !e.running:
	case e.State == "":
		found.State = "in_progress"
	case e.State == Voided, e.State == Undone:
		found = said{State: "undone", Reference: e.Reference, Code: "voided"}
	default:
		found = e.says()
		found.State, found.Outcome, found.Reference = found.Outcome, "", e.Reference
	}
	return ok(found)
}

func (s *Simulator) postFaults(w http.ResponseWriter, r *http.Request) {
	var rules []Rule
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(&rules)
	if err == nil {
		err = s.SetFaults(rules...)
	}
	if err != nil {
		s.deliver(w, r, reply{status: http.StatusBadRequest, body: said{Code: "bad_request", Detail: err.Error()}})
		return
	}
	s.deliver(w, r, ok(s.Faults()))
}

// lines writes one line of JSON for each.
func lines[T any](w http.ResponseWriter, all []T) {
	w.Header().Set("Content-Type", "application/x-ndjson")
	encoder := json.NewEncoder(w)
	for _, one := range all {
		if encoder.Encode(one) != nil {
			return // the caller has left
		}
	}
}
