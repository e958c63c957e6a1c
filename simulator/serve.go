package simulator

import (
	"encoding/json"
	"errors"
	"iter"
	"net/http"
	"slices"
)

func (s *Simulator) routes() *http.ServeMux {
	mux := http.NewServeMux()
	for step := range prefixes {
		mux.HandleFunc("POST /"+step, s.post(step, operationDo))
		if step != "confirm" { // what was confirmed stays
			mux.HandleFunc("POST /"+step+"/undo", s.post(step, operationUndo))
		}
	}
	mux.HandleFunc("GET /lookup", s.getLookup)
	mux.HandleFunc("GET /books", func(w http.ResponseWriter, r *http.Request) {
		lines(w, slices.Values(s.Books(r.URL.Query().Get("orderId"))))
	})
	mux.HandleFunc("GET /requests", func(w http.ResponseWriter, r *http.Request) {
		lines(w, slices.Values(s.Requests(r.URL.Query().Get("orderId"))))
	})
	mux.HandleFunc("GET /summary", func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, s.Summary()) })
	mux.HandleFunc("GET /faults", func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, s.Faults()) })
	mux.HandleFunc("POST /faults", s.postFaults)
	s.stripeRoutes(mux)
	return mux
}

// ServeHTTP answers the requests described in docs/simulator.md.
func (s *Simulator) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.mux.ServeHTTP(w, r) }

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
		if !s.enter() {
			s.deliver(w, r, closedReply)
			return
		}
		defer s.work.Done()
		s.arrive(q)
		a := s.handle(r, q)
		s.leave(q, a)
		s.deliver(w, r, a)
	}
}

func (s *Simulator) handle(r *http.Request, q *request) reply {
	if a, ok := front(q.rule); ok {
		return a
	}
	switch {
	case q.operation == operationDo:
		return spoil(q.rule, s.do(r.Context(), q))
	case q.rule.Fault == Hang:
		return reply{outcome: "none", delivery: silent}
	default:
		return spoil(q.rule, s.undo(q))
	}
}

// getLookup says what has become of a key of a do. It asks the books alone: no fault
// keeps it from answering.
func (s *Simulator) getLookup(w http.ResponseWriter, r *http.Request) {
	found, written := s.lookup(r.URL.Query().Get("key"))
	if written.wait() != nil {
		answer(w, http.StatusInternalServerError, problem{Code: "storage"})
		return
	}
	answer(w, http.StatusOK, found)
}

type lookup struct {
	State     string          `json:"state"`
	Reference string          `json:"reference,omitempty"`
	Data      json.RawMessage `json:"data,omitempty"`
	Code      string          `json:"code,omitempty"`
	Detail    string          `json:"detail,omitempty"`
}

func (s *Simulator) lookup(key string) (lookup, *batch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forget(key)
	e := s.state.keys[key]
	switch {
	case e == nil, e.State == "" && !e.running:
		return lookup{State: "unseen"}, nil
	case e.State == "":
		return lookup{State: "pending"}, nil
	}
	found := lookup{Reference: e.Reference, Code: e.Code, Detail: e.Detail}
	switch e.State {
	case Live:
		found.State, found.Data = "done", e.data()
	case Voided, Undone:
		found.State, found.Code = "undone", "voided"
	default:
		found.State = string(e.State)
	}
	return found, e.written
}

func (s *Simulator) postFaults(w http.ResponseWriter, r *http.Request) {
	var rules []Rule
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(&rules)
	if err == nil {
		err = s.SetFaults(rules...)
	}
	if err != nil {
		answer(w, http.StatusBadRequest, problem{Code: "bad_request", Detail: err.Error()})
		return
	}
	answer(w, http.StatusOK, s.Faults())
}

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // the caller has left
}

// lines writes one line of JSON for each.
func lines[T any](w http.ResponseWriter, all iter.Seq[T]) {
	w.Header().Set("Content-Type", "application/x-ndjson")
	encoder := json.NewEncoder(w)
	for one := range all {
		if encoder.Encode(one) != nil {
			return // the caller has left
		}
	}
}
