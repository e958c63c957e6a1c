package simulator

import (
	"context"
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
	"slices"
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
		if step != "confirm" { // a confirmation can't be undone
			mux.HandleFunc("POST /"+step+"/undo", s.post(step, operationUndo))
		}
	}
	for _, operation := range chargeOperations {
		mux.HandleFunc("POST /charge/"+operation, s.post("charge", operation))
	}
	mux.HandleFunc("POST /charge/expire", s.postExpire)
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

// ServeHTTP answers the requests of docs/simulator.md. It rejects requests that a browser sends for another site.
func (s *Simulator) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if crossOrigin.Check(r) != nil || rebound(r) {
		s.deliver(w, r, notDone(http.StatusForbidden, "cross_origin", "the request comes from a web page of another site"))
		return
	}
	s.mux.ServeHTTP(w, r)
}

// rebound reports whether a browser sent a request to a host name that may belong to another site (DNS rebinding).
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
			decide := s.decide
			if slices.Contains(chargeOperations, operation) {
				decide = s.decideOperation
			}
			return s.attempt(r.Context(), q, known, ending{func() { s.abandon(e) }, func() reply { return decide(q, e) }})
		})
	}
}

// serve answers a request with handle, unless a fault prevents that.
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

// lookup answers with the state of a key. Faults do not apply to it.
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
	case e.Later && !e.Voided.IsZero() && e.rest().IsZero():
		found = said{State: "expired", Reference: e.Reference}
	default:
		found = e.says()
		found.State, found.Outcome, found.Reference = found.Outcome, "", e.Reference
	}
	if found.State != "unseen" && found.State != "in_progress" {
		s.counts.answersFound++
		s.counts.foundOf = s.state.keys[key].OrderID
	}
	return ok(found)
}

func (s *Simulator) postExpire(w http.ResponseWriter, r *http.Request) {
	if err := s.Expire(r.URL.Query().Get("orderId")); err != nil {
		s.deliver(w, r, reply{status: http.StatusConflict, body: said{Code: "bad_request", Detail: err.Error()}})
		return
	}
	s.deliver(w, r, s.durable(ok(map[string]string{"at": time.Now().UTC().Format(time.RFC3339)})))
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

// lines writes each value as a line of JSON.
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
	operationDo      = "do"
	operationUndo    = "undo"
	operationRefund  = "refund"
	operationCapture = "capture"
	operationVoid    = "void"

	maxBody = 256 << 10 // an order of 64 KiB, and a refund of all its lines
	maxKey  = 255
)

type request struct {
	key         string
	fingerprint string // of the path and the body, byte by byte
	step        string
	operation   string
	means       string // do or undo, if a request of Stripe's API amounts to one
	stripe      bool   // a request of Stripe's API
	counted     string // what rules count requests by, if not the key
	fence       int64
	amount      decimal.Decimal
	body        struct {
		Subject
		Operation   string          `json:"operation"`
		Metadata    json.RawMessage `json:"metadata"`
		CallbackURL string          `json:"callbackUrl"`
		UndoKey     string          `json:"undoKey"`
		ChargeKey   string          `json:"chargeKey"` // of the charge
		Capture     string          `json:"capture"`   // later: the charge only authorizes
		Final       bool            `json:"final"`     // of a capture: the rest is voided
		Reference   string          `json:"reference"` // of the effect to undo or refund
	}
	rule   Rule     // the fault; zero: none
	logged *Request // in the log of requests
}

var errSignature = errors.New(
	"webhook-signature: does not match, webhook-id is not the Idempotency-Key, or webhook-timestamp is too far from now")

func (s *Simulator) read(w http.ResponseWriter, r *http.Request, step, operation string) (*request, error) {
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		return nil, fmt.Errorf("read body: %w", err)
	}
	key := r.Header.Get("Idempotency-Key")
	// The key is signed as the ID: with another one, a replayed request would be done again.
	signed := r.Header.Get("Webhook-Id") == key && signing.Verify(s.cfg.Secret, r.Header, text, time.Now()) == nil
	if s.cfg.Secret != "" && !signed {
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
	operates := slices.Contains(chargeOperations, q.operation)
	for _, rule := range []struct {
		good bool
		text string
	}{
		{q.key != "" && len(q.key) <= maxKey, "Idempotency-Key: must have 1 to 255 characters"},
		{q.body.OrderID != "", "orderId: must not be empty"},
		{q.body.Step == q.step, "step: must match the path"},
		{q.body.Operation == q.operation, "operation: must match the path"},
		{q.body.Generation >= 0, "generation: must not be negative"},
		{!strings.ContainsAny(q.body.Amount, "+-eE"), "amount: must be digits and a point"},
		{q.operation != operationUndo || q.body.UndoKey != "", "undoKey: must be the Idempotency-Key of the do"},
		{!operates || q.body.RefundID+q.body.CaptureID+q.body.VoidID != "", q.operation + "Id: must not be empty"},
		{!operates || q.amount.IsPos(), "amount: must be more than zero"},
		{!operates || q.body.ChargeKey != "", "chargeKey: must be the Idempotency-Key of the charge"},
		{q.operation != operationUndo || q.body.UndoKey != q.key, "undoKey: must not be the Idempotency-Key of the undo"},
		{q.body.CallbackURL == "" || err == nil && (callback.Scheme == "http" || callback.Scheme == "https"),
			"callbackUrl: must be an http or https URL"},
	} {
		if !rule.good {
			return errors.New(rule.text)
		}
	}
	return nil
}

type reply struct {
	status   int
	body     any
	replayed bool          // it was decided by an earlier request
	after    time.Duration // Retry-After
	outcome  string        // in the log of requests
	delivery delivery
	before   func() // called before the answer is sent
	then     func() // a job, started after the answer
}

type delivery int

const (
	whole   delivery = iota
	cut              // in the middle of the body
	silent           // not at all; the connection stays open
	dropped          // not at all; the connection is closed
)

// said is the JSON body of an answer or callback.
type said struct {
	Outcome   string          `json:"outcome,omitempty"`
	State     string          `json:"state,omitempty"` // of an undo or a look-up
	Reference string          `json:"reference,omitempty"`
	Data      json.RawMessage `json:"data,omitempty"`
	Code      string          `json:"code,omitempty"`
	Detail    string          `json:"detail,omitempty"`
}

func ok(body any) reply { return reply{status: http.StatusOK, body: body} }

func refusal(code, detail string) reply {
	return reply{status: http.StatusPaymentRequired, outcome: "refused", body: said{Outcome: "refused", Code: code, Detail: detail}}
}

func mismatch(detail string) reply {
	const code = "idempotency_mismatch"
	return reply{status: http.StatusUnprocessableEntity, outcome: code, body: said{Code: code, Detail: detail}}
}

func notDone(status int, code, detail string) reply {
	return reply{status: status, outcome: "not_done", body: said{Outcome: "not_done", Code: code, Detail: detail}}
}

var closedReply = notDone(http.StatusServiceUnavailable, "closed", "the simulator is being stopped")

// durable returns the answer once its effect is on disk. If writing fails, it answers that the effect is unknown: the
// next start may find it or not.
func (s *Simulator) durable(a reply) reply {
	if err := s.journal.sync(); err != nil {
		s.cfg.Log.Error("write simulator file", "error", err)
		return reply{status: http.StatusInternalServerError, outcome: "unknown", body: said{Code: "storage"}}
	}
	return a
}

// front answers if a fault prevents the request.
func front(q *request) (reply, bool) {
	switch rule := q.rule; {
	case q.broken():
		return reply{}, false
	case rule.Fault == RefuseConnection:
		return reply{outcome: "none", delivery: dropped}, true
	case rule.Fault == TimeoutBefore, rule.Fault == Hang && (q.operation == operationUndo || q.operation == stripeRead):
		return reply{outcome: "none", delivery: silent}, true
	case rule.Fault == Error:
		return reply{status: rule.Status, outcome: "error", body: said{Code: "error", Detail: "by the fault plan"}}, true
	case rule.Fault == NotDone:
		return notDone(http.StatusServiceUnavailable, "not_done", "by the fault plan"), true
	case rule.Fault == RateLimit:
		a := notDone(http.StatusTooManyRequests, "rate_limit", "by the fault plan")
		a.after = rule.Delay
		return a, true
	default:
		return reply{}, false
	}
}

// spoil applies faults to an answer.
func spoil(q *request, a reply) reply {
	switch {
	case q.rule.Fault == TimeoutAfter:
		a.delivery = silent
	case q.rule.Fault == CutAfter:
		a.delivery = cut
	case q.rule.Fault == ErrorAfter && !q.broken():
		a.status, a.body = q.rule.Status, said{Code: "error", Detail: "by the fault plan"}
	}
	return a
}

// deliver sends a reply. It panics with http.ErrAbortHandler to close the connection.
func (s *Simulator) deliver(w http.ResponseWriter, r *http.Request, a reply) {
	if a.then != nil {
		defer s.start(a.then) // even if the caller has left
	}
	if a.before != nil {
		a.before()
	}
	if a.delivery == silent {
		s.untilLeft(r.Context())
	}
	if a.delivery == silent || a.delivery == dropped {
		panic(http.ErrAbortHandler)
	}
	body := append(encode(a.body), '\n')
	header := w.Header()
	header.Set("Content-Type", "application/json")
	header.Set("Content-Length", strconv.Itoa(len(body)))
	if a.replayed {
		header.Set("Idempotent-Replayed", "true")
	}
	if a.after > 0 { // whole seconds, rounded up
		header.Set("Retry-After", strconv.FormatInt(int64((a.after+time.Second-1)/time.Second), 10))
	}
	w.WriteHeader(a.status)
	if a.delivery == cut {
		body = body[:len(body)/2]
	}
	_, _ = w.Write(body)
	_ = http.NewResponseController(w).Flush()
	if a.delivery == cut {
		panic(http.ErrAbortHandler)
	}
}

func (s *Simulator) untilLeft(caller context.Context) {
	select {
	case <-caller.Done():
	case <-s.closing.Done():
	}
}

// says describes the state of a key, for callbacks and look-ups.
func (e *entry) says() said {
	switch e.State {
	case Live:
		return said{Outcome: "done", Reference: e.Reference, Data: e.data()}
	case Pending:
		return said{Outcome: string(Pending)}
	case Refused:
		return said{Outcome: "refused", Code: e.Code, Detail: e.Detail}
	default:
		return said{Outcome: "refused", Code: "voided", Detail: "the key was undone"}
	}
}

// answer is the answer to a do by the state of its key.
func (e *entry) answer() reply {
	told := e.says()
	switch e.State {
	case Live:
		told.Outcome = "" // the status says it
		return reply{status: http.StatusOK, outcome: "done", body: told}
	case Pending:
		return e.promised()
	case Refused:
		return reply{status: http.StatusPaymentRequired, outcome: "refused", body: told}
	default:
		return reply{status: http.StatusPaymentRequired, outcome: string(Voided), body: told}
	}
}

func (e *entry) promised() reply {
	return reply{status: http.StatusAccepted, outcome: string(Pending), body: said{Reference: e.Reference}}
}

// data is what a provider returns besides the reference.
func (e *entry) data() json.RawMessage {
	data := map[string]any{"orderId": e.OrderID}
	switch e.Step {
	case "charge":
		data = map[string]any{"amount": e.Amount, "currency": e.Currency}
	case "reserve":
		data = map[string]any{"item": e.Item, "quantity": e.Quantity}
		if e.Lines != nil {
			data = map[string]any{"lines": e.Lines}
		}
	}
	return encode(data)
}

// undone is the answer to an undo by the state of the key.
func (e *entry) undone(replayed bool) reply {
	verdict := "voided"
	if e.State == Undone {
		verdict = map[string]string{"charge": "refunded", "reserve": "released"}[e.Step]
	}
	return reply{status: http.StatusOK, outcome: verdict, body: said{State: verdict, Reference: e.UndoName}, replayed: replayed}
}

// encode encodes our own types, which can't fail.
func encode(body any) json.RawMessage {
	text, err := json.Marshal(body)
	if err != nil {
		panic(err)
	}
	return text
}
