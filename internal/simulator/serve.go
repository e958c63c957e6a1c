package simulator

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/govalues/decimal"

	"pawl/internal/signing"
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

const (
	operationDo     = "do"
	operationUndo   = "undo"
	operationRefund = "refund"

	maxBody = 64 << 10
	maxKey  = 255
)

// request is what was asked for, checked.
type request struct {
	key         string
	fingerprint string // the same for the same path and body, byte for byte
	step        string
	operation   string
	means       string // do or undo, of a request of Stripe's API that is one by another name
	stripe      bool   // it is one of Stripe's API
	counted     string // what the times of a rule are counted by, if not the key
	fence       int64
	amount      decimal.Decimal
	body        struct {
		Subject
		Operation   string          `json:"operation"`
		Metadata    json.RawMessage `json:"metadata"`
		CallbackURL string          `json:"callbackUrl"`
		UndoKey     string          `json:"undoKey"`
		ChargeKey   string          `json:"chargeKey"` // of what is refunded
		Reference   string          `json:"reference"` // of what an undo is to take back, or a refund to give back
	}
	rule   Rule     // what is to go wrong; the zero rule is nothing
	logged *Request // in the log of requests
}

// event is what the file says of this request.
func (q *request) event(kind string) event {
	key, undoKey := q.key, ""
	if q.operation == operationUndo {
		key, undoKey = q.body.UndoKey, q.key
	}
	return event{Event: kind, Key: key, UndoKey: undoKey, Body: q.fingerprint, Subject: q.body.Subject}
}

var errSignature = errors.New("webhook-signature: does not fit, webhook-id is not the Idempotency-Key, or webhook-timestamp is too far from now")

func (s *Simulator) read(w http.ResponseWriter, r *http.Request, step, operation string) (*request, error) {
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		return nil, fmt.Errorf("read body: %w", err)
	}
	key := r.Header.Get("Idempotency-Key")
	// The key is signed as the id: under another one, the same request would be done again.
	if s.cfg.Secret != "" && (r.Header.Get("Webhook-Id") != key || signing.Verify(s.cfg.Secret, r.Header, text, time.Now()) != nil) {
		return nil, errSignature
	}
	sum := sha256.Sum256([]byte(r.URL.Path + "\x00" + string(text)))
	q := &request{
		key: key, fingerprint: hex.EncodeToString(sum[:16]),
		step: step, operation: operation,
	}
	if err := json.Unmarshal(text, &q.body); err != nil {
		return nil, fmt.Errorf("read body: %w", err)
	}
	if fence := r.Header.Get("Fencing-Token"); fence != "" {
		if q.fence, err = strconv.ParseInt(fence, 10, 64); err != nil {
			return nil, errors.New("the Fencing-Token must be a number")
		}
	}
	return q, q.check()
}

func (q *request) check() (err error) {
	if q.amount, err = decimal.Parse(q.body.Amount); err != nil {
		return errors.New("amount: must be a decimal number in a string")
	}
	callback, err := url.Parse(q.body.CallbackURL)
	for _, rule := range []struct {
		good bool
		text string
	}{
		{q.key != "" && len(q.key) <= maxKey, "Idempotency-Key: must have 1 to 255 characters"},
		{q.body.OrderID != "", "orderId: must not be empty"},
		{q.body.Step == q.step, "step: must be that of the path"},
		{q.body.Operation == q.operation, "operation: must be that of the path"},
		{q.body.Generation >= 0, "generation: must not be negative"},
		{!strings.ContainsAny(q.body.Amount, "+-eE"), "amount: must be digits and a point"},
		{q.operation != operationUndo || q.body.UndoKey != "", "undoKey: must be the Idempotency-Key of the do"},
		{q.operation != operationRefund || q.body.RefundID != "", "refundId: must not be empty"},
		{q.operation != operationRefund || q.amount.IsPos(), "amount: must be more than zero"},
		{q.operation != operationRefund || q.body.ChargeKey != "", "chargeKey: must be the Idempotency-Key of the charge"},
		{q.operation != operationUndo || q.body.UndoKey != q.key, "undoKey: must not be the Idempotency-Key of the undo"},
		{q.body.CallbackURL == "" || err == nil && (callback.Scheme == "http" || callback.Scheme == "https"), "callbackUrl: must be an http or https URL"},
	} {
		if !rule.good {
			return errors.New(rule.text)
		}
	}
	return nil
}
