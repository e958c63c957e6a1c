package simulator

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"time"
)

// reply is what is answered, and how.
type reply struct {
	status   int
	body     any
	replayed bool          // it was decided by an earlier request
	after    time.Duration // Retry-After
	outcome  string        // in the log of requests
	delivery delivery
	before   func() // is called before it goes out
	then     func() // a job, started when it is out
}

type delivery int

const (
	whole   delivery = iota
	cut              // in the middle of the body
	silent           // not at all; the connection stays open
	dropped          // not at all; the connection is closed
)

// said is what is answered, or told by callback, as JSON.
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

// durable holds an answer back until what it says is on disk. If that can't be, nobody
// knows what the next start will find, and the answer says neither.
func (s *Simulator) durable(a reply) reply {
	if err := s.journal.sync(); err != nil {
		s.cfg.Log.Error("write simulator file", "error", err)
		return reply{status: http.StatusInternalServerError, outcome: "unknown", body: said{Code: "storage"}}
	}
	return a
}

// front is what faults answer that keep a request from doing anything.
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

// spoil is what faults make of an answer that was earned.
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

// deliver writes a reply. It panics with http.ErrAbortHandler to close the connection.
func (s *Simulator) deliver(w http.ResponseWriter, r *http.Request, a reply) {
	if a.then != nil {
		defer s.start(a.then) // also when the caller has left
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

// untilLeft waits for the caller to leave.
func (s *Simulator) untilLeft(caller context.Context) {
	select {
	case <-caller.Done():
	case <-s.closing.Done():
	}
}

// says is what the state of a key comes to, for callbacks and look-ups.
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

// answer is what the state of a key says to a do.
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

// data is what a provider tells beside its reference.
func (e *entry) data() json.RawMessage {
	data := map[string]any{"orderId": e.OrderID}
	switch e.Step {
	case "charge":
		data = map[string]any{"amount": e.Amount, "currency": e.Currency}
	case "reserve":
		data = map[string]any{"item": e.Item, "quantity": e.Quantity}
	}
	return encode(data)
}

// undone is what the state of a key says to an undo.
func (e *entry) undone(replayed bool) reply {
	verdict := "voided"
	if e.State == Undone {
		verdict = map[string]string{"charge": "refunded", "reserve": "released"}[e.Step]
	}
	return reply{status: http.StatusOK, outcome: verdict, body: said{State: verdict, Reference: e.undoName}, replayed: replayed}
}

// encode writes what can always be written: types of our own, of strings and numbers.
func encode(body any) json.RawMessage {
	text, err := json.Marshal(body)
	if err != nil {
		panic(err)
	}
	return text
}
