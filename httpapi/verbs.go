package httpapi

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"pawl/engine"
	"pawl/internal/orders"
)

// verbPath is where a verb is asked for. One order can have many refunds.
func verbPath(verb orders.Verb) string {
	path := "/api/orders/{orderId}/" + string(verb)
	if verb == orders.Refund {
		path += "s"
	}
	return path
}

// verbOperation documents one verb on an order.
func verbOperation(verb orders.Verb, summary, description string) huma.Operation {
	return withBody(huma.Operation{
		OperationID: operationOf(verb), Method: http.MethodPost, Path: verbPath(verb), Tags: []string{"orders"},
		Summary: summary,
		Description: description + " Waits and answers like processing. Where it does not apply it is 409, with the verbs that do. " +
			"A request that comes again with the same requestId is answered and not done again.",
	}, "not_found", "not_applicable", "refund_too_large", "restock_too_large", "no_refund_url", "no_refund", "confirm_in_doubt", "outcome_unknown", "still_undoing", "policy_switch_refused", "busy", "already_answered", "no_late_undo", "not_called", "other_step",
		"other_generation", "retried_before", "payment_method_in_use", "own_order",
		"invalid_idempotency_key", "idempotency_key_reused", "precondition_failed", "stopping", "unavailable", "internal")
}

// operationOf is the operationId of a verb for one order.
func operationOf(verb orders.Verb) string {
	if verb == orders.StepResult {
		return "settleStepOfOrder"
	}
	return string(verb) + "Order"
}

var (
	cancelOperation = verbOperation(orders.Cancel, "Stop an order and undo it",
		"Asks that the order be stopped: the step under way is recorded, then everything done is undone and the order ends canceled. "+
			"A cancellation of an order that is being canceled waits with the first. A confirmation that may have been done is not stopped.")
	retryOperation = verbOperation(orders.Retry, "Try a held or failed order again",
		"Retries the step of a held order again at once, with all its retries before it. For an order that waits for a callback, the provider is asked at once. A failed order, of which nothing stands any more, "+
			"starts anew as its next generation, with another payment method if one is given. One that was retried before must be told which retry is meant: "+
			"by the generation that failed, by If-Match or by a requestId.")
	pauseOperation = verbOperation(orders.Pause, "Hold an order before its next step",
		"A step under way is finished and recorded; then the order waits until it is resumed. Deadlines go on.")
	resumeOperation = verbOperation(orders.Resume, "Go on with a paused order",
		"The order goes on where it was. What it waited for before the pause, a time, an approval or a concurrency permit, it waits for again.")
	approveOperation = verbOperation(orders.Approve, "Approve an order",
		"Lets an order start that a rule of its policy holds for a person.")
	rejectOperation = verbOperation(orders.Reject, "Reject an order",
		"Cancels an order that a rule of its policy holds for a person. Its failure code is rejected.")
	stepResultOperation = verbOperation(orders.StepResult, "Say what became of a step",
		"Settles a step whose outcome nobody knows, or that waits for an answer or another try: a person has looked at the provider. "+
			"The order goes on as if the provider had said so. While the step is being done it is 409. "+
			"With the number of a refund it settles that refund; not_done has it sent again. "+
			"With a generation it closes the open undo of an effect that was reported too late, which a person has done by hand. "+
			"The order is not moved by that, and may have ended.")
)

// leastVerbWait is what a verb is given to be stored, however short the caller waits for
// what comes of it.
const leastVerbWait = time.Second

// postVerb serves one verb, with the body B.
func postVerb[B any](s *server, op huma.Operation, verb orders.Verb) {
	f := formOf[verbRequest[B]](checkVerb)
	f.optional = true // where something is required, it is said what
	post[verbRequest[B], orderAnswer](s, op, f.then(func(w http.ResponseWriter, r *http.Request, got fields) error {
		q := requestOf(verb, got)
		q.HTTPRequestID = w.Header().Get("X-Request-Id")
		if err := readTarget(w, r, &q); err != nil {
			return err
		}
		return s.do(w, r, &q, got.ignored())
	}))
}

// do does what a verb asks and answers with the order.
func (s *server) do(w http.ResponseWriter, r *http.Request, q *engine.Request, ignored []string) error {
	want := preferenceOf(r.Header["Prefer"], s.ResponseTimeout)
	place := want.placeToWait(w, r)
	defer place.leave()
	limit := max(want.atMost, leastVerbWait)
	if want.atMost == 0 {
		q.Async, limit = true, readLimit
	}
	ctx, done := context.WithTimeout(r.Context(), limit)
	defer done()
	o, err := s.engine.Do(ctx, *q)
	switch {
	case err != nil:
		return err
	case q.DryRun:
		wire := answerOf(&o, ignored)
		wire.DryRun = true
		writeOrderStatus(w, wire, http.StatusOK)
	case refundOpen(&o, q):
		s.writeAccepted(w, &o, want, ignored)
	default:
		s.writeOrder(w, &o, want, ignored)
	}
	return nil
}

// readTarget reads what a request for a verb says beside its body.
func readTarget(w http.ResponseWriter, r *http.Request, q *engine.Request) (err error) {
	if q.OrderID = r.PathValue("orderId"); !possible(q.OrderID) {
		return &orders.NotFound{What: "order"}
	}
	if err = readHead(w, r, q); err != nil {
		return err
	}
	q.IfSeq, err = ifMatch[int32](r.Header.Get("If-Match"))
	return err
}

// readHead reads the dry run of a verb, for one order or many, who asks, and the request id of who gives none in the body.
func readHead(w http.ResponseWriter, r *http.Request, q *engine.Request) (err error) {
	if q.DryRun, err = dryRun(r); err != nil {
		return err
	}
	if q.Actor, err = actorOf(w, q.OnBehalfOf); err == nil {
		q.RequestID, err = requestIDOf(r, q.RequestID)
	}
	return err
}

func dryRun(r *http.Request) (bool, error) {
	switch r.URL.Query().Get("dryRun") {
	case "", "false":
		return false, nil
	case "true":
		return true, nil
	}
	return false, invalidParameter("dryRun", "wrong_type", "must be true or false")
}
