package httpapi

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/govalues/decimal"

	"pawl/engine"
	"pawl/fsm"
	"pawl/internal/iso4217"
	"pawl/internal/orders"
)

// verbPath is the path of a verb. One order can have many refunds and captures.
func verbPath(verb orders.Verb) string {
	path := "/api/orders/{orderId}/" + string(verb)
	if verb == orders.Refund || verb == orders.Capture {
		path += "s"
	}
	return path
}

// verbOperation documents one verb on an order, and why it may be refused besides the state of the order.
func verbOperation(verb orders.Verb, summary, description string, refusals ...problemCode) huma.Operation {
	return withBody(huma.Operation{
		OperationID: operationOf(verb), Method: http.MethodPost, Path: verbPath(verb), Tags: []string{"orders"},
		Summary: summary, Description: description,
	}, append(refusals, "not_found", "order_forgotten", "not_applicable", "invalid_idempotency_key", "idempotency_key_reused",
		"precondition_failed", "stopping", "unavailable", "internal")...)
}

// operationOf is the operationId of a verb for one order.
func operationOf(verb orders.Verb) string {
	if verb == orders.StepResult {
		return "settleStepOfOrder"
	}
	return string(verb) + "Order"
}

var (
	cancelOperation = verbOperation(orders.Cancel, "Cancel an order",
		"Stops the order: the result of the current step is recorded, then everything done is undone, and the order ends canceled. "+
			"If it is already being canceled, the request waits for that. A confirmation that may have been performed cannot be stopped.",
		"confirm_in_doubt")
	retryOperation = verbOperation(orders.Retry, "Retry a held or failed order, or open refunds",
		"Retries the step of a held order at once, with all its attempts available again, but one if the step is in doubt. If the order waits for a callback, the provider is asked at once. "+
			"Refunds, captures and voids of a completed order whose last try failed are tried at once. "+
			"A failed order that is fully undone starts again as its next generation, with another payment method if one is given. "+
			"If it was retried before, the request must say which retry is meant: by the generation that failed, by If-Match or by a requestId.",
		"retried_before", "other_generation", "still_undoing", "outcome_unknown", "policy_switch_refused", "payment_method_in_use", "customer_erased")
	pauseOperation = verbOperation(orders.Pause, "Pause an order",
		"The current step is finished and recorded; then the order waits until it is resumed. Deadlines still apply.")
	resumeOperation = verbOperation(orders.Resume, "Resume a paused order",
		"The order continues where it was. If it was waiting for a time, an approval or a concurrency permit, it waits for it again.", "outcome_unknown")
	approveOperation = verbOperation(orders.Approve, "Approve an order",
		"Starts an order that its policy holds for approval.", "own_order")
	rejectOperation = verbOperation(orders.Reject, "Reject an order",
		"Cancels an order that its policy holds for approval. Its failure code is rejected.")
	stepResultOperation = verbOperation(orders.StepResult, "Report the outcome of a step",
		"Settles a step whose outcome is unknown, or that waits for a callback or a retry, after a person has looked at the provider. "+
			"The order continues as if the provider had reported it. While the step is in progress, the response is 409. "+
			"With the number of a refund, capture or void, it settles that; not_done sends it again. "+
			"With a generation, it closes the open undo of a late effect that was undone by hand; "+
			"the order itself does not change, and may have ended.",
		"busy", "other_step", "not_called", "already_answered", "no_late_undo", "no_charge_operation")
)

// verbRequest documents what a verb reads.
type verbRequest[B any] struct {
	OrderID        string `path:"orderId" doc:"The id, percent-encoded."`
	DryRun         bool   `query:"dryRun" doc:"Report whether the verb applies and how it would leave the order, and do nothing."`
	IfMatch        string `header:"If-Match" doc:"Only if the order still has this ETag."`
	Prefer         string `header:"Prefer" doc:"How long to wait for the end: wait=N (seconds, up to 60), or respond-async (RFC 7240). handling=strict rejects unknown fields."`
	IdempotencyKey string `header:"Idempotency-Key" doc:"The requestId, if the body has none; quoted or not."`
	Body           B
}

// verbBody is the body of a verb.
type verbBody interface {
	asks() VerbBody
	tell(*engine.Request)
}

func (VerbBody) tell(*engine.Request) {}

type retryBody struct {
	VerbBody
	Policy        string `json:"policy,omitempty" enum:"pinned,active" doc:"The policy to continue with: the one that the order started with (pinned, the default), or the active one."`
	Generation    *int32 `json:"generation,omitempty" minimum:"0" maximum:"2147483647" doc:"Only if the order is still at this generation. A failed order that was retried before is restarted only with this, If-Match or a requestId, so that a duplicate request does not restart it again."`
	PaymentMethod string `json:"paymentMethod,omitempty" minLength:"1" maxLength:"255" doc:"What a failed order is charged with from now on. Never logged or returned." writeOnly:"true"`
}

func (b retryBody) tell(q *engine.Request) {
	q.ActivePolicy, q.PaymentMethod, q.Generation = b.Policy == "active", b.PaymentMethod, b.Generation
}

type stepResultBody struct {
	Step       string `json:"step" enum:"charge,reserve,confirm" doc:"The step that the order is performing or undoing."`
	Refund     *int32 `json:"refund,omitempty" minimum:"1" maximum:"2147483647" doc:"Report the outcome of this open refund, not of the order's current step. The step must be charge."`
	Capture    *int32 `json:"capture,omitempty" minimum:"1" maximum:"2147483647" doc:"Likewise of this open capture."`
	Void       *int32 `json:"void,omitempty" minimum:"1" maximum:"2147483647" doc:"Likewise of this open void. For one without requestId, done says that the authorization has ended."`
	Generation *int32 `json:"generation,omitempty" minimum:"0" maximum:"2147483647" doc:"Close the open undo of a late effect of the step in this generation, instead of settling the order's current step. The outcome must be done: it was undone by hand."`
	Outcome    string `json:"outcome" enum:"done,refused,not_done" doc:"Of the step, or of its undo if the order is being undone. done: it has taken effect. refused: it has not, and never will. not_done: it has not, and may be tried again."`
	Reference  string `json:"reference,omitempty" minLength:"1" maxLength:"255" doc:"The provider's name for the effect."`
	Code       string `json:"code,omitempty" minLength:"1" maxLength:"255" doc:"Why it is not done, for programs."`
	Detail     string `json:"detail,omitempty" minLength:"1" maxLength:"1000" doc:"Why it is not done, for people."`
	Reason     string `json:"reason" minLength:"1" maxLength:"1000" doc:"How you know; recorded in the history."`
	VerbBody
}

func (b stepResultBody) asks() VerbBody { b.VerbBody.Reason = b.Reason; return b.VerbBody }

func (b stepResultBody) tell(q *engine.Request) {
	q.Settle = &engine.Settled{
		Step: fsm.Step(b.Step), Outcome: b.Outcome, Reference: b.Reference, Code: b.Code, Detail: b.Detail, Generation: b.Generation,
	}
	q.Settle.Kind, q.Settle.ChargeOperation = b.operation()
}

// operation is the kind and number of the charge operation to settle.
func (b *stepResultBody) operation() (kind string, number *int32) {
	switch {
	case b.Refund != nil:
		return orders.OperationRefund, b.Refund
	case b.Capture != nil:
		return orders.OperationCapture, b.Capture
	case b.Void != nil:
		return orders.OperationVoid, b.Void
	}
	return "", nil
}

func numbersOf(given ...*int32) (n int) {
	for _, number := range given {
		if number != nil {
			n++
		}
	}
	return n
}

// check rejects combinations of fields.
func (b *stepResultBody) check(d *decoder) {
	if kind, number := b.operation(); number != nil && b.Step != "" && (b.Step != string(fsm.Charge) || b.Generation != nil) {
		d.fault("/"+kind, "not_a_charge", "requires the step charge and no generation")
	}
	if numbersOf(b.Refund, b.Capture, b.Void) > 1 {
		d.fault("/void", "not_alone", "only one of refund, capture and void can be given")
	}
	if b.Generation != nil && b.Outcome != "" && b.Outcome != engine.SettledDone {
		d.fault("/outcome", "not_done", "must be done if a generation is given: an undo is closed once it was done by hand")
	}
}

// decidingNames are the fields of verbs whose misspelling would change what is done.
var decidingNames = []string{"capture", "generation", "outcome", "paymentMethod", "policy", "refund", "step", "void"}

func checkVerb[B any](d *decoder, body *B) {
	d.refuseMisspelled(decidingNames...)
	if result, ok := any(body).(*stepResultBody); ok {
		result.check(d)
	}
}

// leastVerbWait is the minimum time for a verb to be stored, even if the caller does not wait for its effect.
const leastVerbWait = time.Second

// postVerb serves one verb, with the body B.
func postVerb[B verbBody](s *server, op huma.Operation, verb orders.Verb) {
	postBody[verbRequest[B], orderAnswer](s, op, checkVerb, func(w http.ResponseWriter, r *sent[B]) error {
		q, err := readVerb(w, r, verb)
		if err != nil {
			return err
		}
		return s.do(w, r.Request, &q, r.ignored)
	})
}

// do performs a verb and answers with the order.
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
		wire := s.answerOf(&o, ignored)
		wire.DryRun = true
		writeOrderStatus(w, wire, http.StatusOK)
	case q.Open(&o):
		s.writeAccepted(w, &o, want, ignored)
	default:
		s.writeOrder(w, &o, want, ignored)
	}
	return nil
}

// readVerb reads a request for a verb.
func readVerb[B verbBody](w http.ResponseWriter, r *sent[B], verb orders.Verb) (engine.Request, error) {
	q := engine.Request{Verb: verb, OrderID: r.PathValue("orderId")}
	r.body.tell(&q)
	if !possible(q.OrderID) {
		return q, &orders.NotFound{What: "order"}
	}
	err := readHead(w, r.Request, r.body.asks(), &q)
	if err == nil {
		q.IfSeq, err = ifMatch[int32](r.Header.Get("If-Match"))
	}
	return q, err
}

// readHead reads the common part of requests for one order and for many: the dry run, and who makes the request.
func readHead(w http.ResponseWriter, r *http.Request, asks VerbBody, q *engine.Request) (err error) {
	q.OnBehalfOf, q.Reason, q.HTTPRequestID = asks.OnBehalfOf, asks.Reason, w.Header().Get("X-Request-Id")
	if q.DryRun, err = dryRun(r); err != nil {
		return err
	}
	if q.Actor, err = actorOf(w, q.OnBehalfOf); err == nil {
		q.RequestID, err = requestIDOf(r, asks.RequestID)
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

var refundOperation = verbOperation(orders.Refund, "Refund a completed order",
	"Refunds a part of the charge, or all that is left of it, through the provider that charged it. The status stays completed; "+
		"refunded and refunds report what was refunded. Unknown fields are rejected.\n\n"+
		"A named line gets back its own amount, without a share of tax or discount: name the part of those lines, too, as the console does. "+
		"One of two cups, with its share of the tax: {\"requestId\":\"r1\",\"reason\":\"broken\",\"lines\":[{\"line\":2,\"quantity\":1},{\"line\":4,\"amount\":\"2.86\"}]}",
	"refund_too_large", "restock_too_large", "no_refund_url")

type refundBody struct {
	Amount    amountInput `json:"amount,omitempty" doc:"How much; more than 0. Defaults to all that is left."`
	Restock   *int32      `json:"restock,omitempty" minimum:"1" maximum:"2147483647" doc:"Units to return to stock at once, whatever the outcome of the refund. For an order of one item."`
	Lines     []linePart  `json:"lines,omitempty" nullable:"false" minItems:"1" maxItems:"200" doc:"For an order with lines: what is refunded. Without an amount, the refund is of their amounts, without a share of tax or discount, which are lines of their own. Refunds of all units of a line add up to its amount; those of some are rounded half up."`
	Reason    string      `json:"reason" minLength:"1" maxLength:"1000" doc:"Why; recorded in the history, and sent to an http provider."`
	RequestID string      `json:"requestId,omitempty" minLength:"1" maxLength:"255" doc:"A name for this refund, so that it is done once. Required, here or as Idempotency-Key."`
	VerbBody
}

// linePart is a part of a line of an order.
type linePart struct {
	Line     int32       `json:"line" minimum:"1" maximum:"200" doc:"The line, counted from 1 in the order of the order."`
	Quantity int32       `json:"quantity,omitempty" minimum:"1" maximum:"1000000" doc:"How many of its units. Required without amount."`
	Amount   amountInput `json:"amount,omitempty" doc:"How much of its amount, instead of units; more than 0, also of a discount. Only of a line that is no item."`
	Restock  bool        `json:"restock,omitempty" doc:"Return these units to stock at once, whatever the outcome of the refund."`
}

func (b refundBody) asks() VerbBody {
	return VerbBody{OnBehalfOf: b.OnBehalfOf, Reason: b.Reason, RequestID: b.RequestID}
}

func (refundBody) tell(*engine.Request) {}

var captureOperation = verbOperation(orders.Capture, "Capture a part of an authorization",
	"Takes a part of what the charge of a completed order authorized, or all that is left of it, through the provider that "+
		"authorized it. It can be requested as often as goods leave. With final, the rest is voided; without it, a provider that "+
		"allows only one capture refuses one that leaves something. captured and captures report what was captured. Unknown fields are rejected.",
	"capture_too_large", "capture_open", "no_capture_url")

var voidOperation = verbOperation(orders.Void, "Void the rest of an authorization",
	"Gives up what is not captured of the charge of a completed order. voided and voids report what was voided. Unknown fields are rejected.",
	"capture_too_large", "capture_open", "no_capture_url")

type captureBody struct {
	Amount    amountInput `json:"amount,omitempty" doc:"How much; more than 0. Defaults to all that is left."`
	Lines     []linePart  `json:"lines,omitempty" nullable:"false" minItems:"1" maxItems:"200" doc:"For an order with lines: what leaves. Without an amount, the capture is of their amounts. No unit is captured twice."`
	Final     bool        `json:"final,omitempty" doc:"Void the rest."`
	Reason    string      `json:"reason,omitempty" minLength:"1" maxLength:"1000" doc:"Why; recorded in the history, and sent to an http provider."`
	RequestID string      `json:"requestId,omitempty" minLength:"1" maxLength:"255" doc:"A name for this capture, so that it is done once. Required, here or as Idempotency-Key."`
	VerbBody
}

func (b captureBody) asks() VerbBody {
	return VerbBody{OnBehalfOf: b.OnBehalfOf, Reason: b.Reason, RequestID: b.RequestID}
}

type voidBody struct {
	Reason    string `json:"reason,omitempty" minLength:"1" maxLength:"1000" doc:"Why; recorded in the history, and sent to an http provider."`
	RequestID string `json:"requestId,omitempty" minLength:"1" maxLength:"255" doc:"A name for this void, so that it is done once. Required, here or as Idempotency-Key."`
	VerbBody
}

func (b voidBody) asks() VerbBody {
	return VerbBody{OnBehalfOf: b.OnBehalfOf, Reason: b.Reason, RequestID: b.RequestID}
}

func (s *server) capture(w http.ResponseWriter, r *sent[captureBody]) error {
	q, err := readOperation(w, r, orders.Capture)
	if err != nil {
		return err
	}
	if q.ChargeOperation, err = s.operationOf(r.Context(), r.body.Amount, r.body.Lines, &q); err != nil {
		return err
	}
	q.ChargeOperation.Final = r.body.Final
	return s.do(w, r.Request, &q, nil)
}

func (s *server) void(w http.ResponseWriter, r *sent[voidBody]) error {
	q, err := readOperation(w, r, orders.Void)
	if err != nil {
		return err
	}
	q.ChargeOperation = &engine.ChargeOperation{}
	return s.do(w, r.Request, &q, nil)
}

// readOperation reads a request for a charge operation. It needs an id; and without its amount, it would be about all
// that is left, so unknown fields are rejected.
func readOperation[B verbBody](w http.ResponseWriter, r *sent[B], verb orders.Verb) (engine.Request, error) {
	if err := (preference{handling: strict}).judge(r.ignored, nil); err != nil {
		return engine.Request{}, err
	}
	q, err := readVerb(w, r, verb)
	if err == nil && q.RequestID == "" {
		err = operationWithoutID()
	}
	return q, err
}

// operationOf reads a charge operation. The currency of the order limits the digits of its amount, and its lines may
// have none.
func (s *server) operationOf(ctx context.Context, given amountInput, of []linePart, q *engine.Request) (*engine.ChargeOperation, error) {
	if given == nil && of == nil {
		return &engine.ChargeOperation{}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, readLimit)
	defer cancel()
	o, err := s.engine.Orders.Get(ctx, q.OrderID)
	if err != nil {
		return nil, err
	}
	operation, fault := refundIn(given, 0, o.Currency)
	lines := orders.ParseLines(o.Lines)
	if given == nil && lines != nil && lines[0].Amount == nil {
		fault = &fieldError{Pointer: "/amount", Code: "required", Detail: "is required, because the lines of the order have no amounts"}
	}
	if fault != nil {
		return nil, newProblem("invalid_input", "", *fault)
	}
	for i := range of {
		part, fault := of[i].part(lines, o.Currency)
		if of[i].Restock && q.Verb != orders.Refund {
			fault = &fieldError{Pointer: "/restock", Code: "not_a_refund", Detail: "is only for refunds"}
		}
		if fault != nil {
			fault.Pointer = fmt.Sprintf("/lines/%d%s", i, fault.Pointer)
			return nil, newProblem("invalid_input", "", *fault)
		}
		operation.Lines = append(operation.Lines, part)
	}
	return operation, nil
}

// part reads a part of one of the lines of an order.
func (l *linePart) part(lines []orders.Line, currency string) (orders.LinePart, *fieldError) {
	part := orders.LinePart{Line: int(l.Line), Quantity: l.Quantity, Restock: l.Restock}
	switch {
	case part.Line > len(lines):
		return part, &fieldError{Pointer: "/line", Code: "out_of_range", Detail: "is not a line of the order"}
	case l.Amount == nil && l.Quantity == 0:
		return part, &fieldError{Pointer: "/quantity", Code: "required", Detail: "is required without an amount"}
	case l.Amount == nil:
		return part, nil
	case l.Quantity != 0:
		return part, &fieldError{Pointer: "/amount", Code: "exclusive", Detail: "must not be given with a quantity"}
	case lines[part.Line-1].Kind == "":
		return part, &fieldError{Pointer: "/amount", Code: "not_an_item", Detail: "is only for lines that are no items"}
	}
	amount, fault := positiveAmount(l.Amount, currency)
	part.Amount = new(amount.Trim(0))
	return part, fault
}

func (s *server) refund(w http.ResponseWriter, r *sent[refundBody]) error {
	q, err := readOperation(w, r, orders.Refund)
	if err != nil {
		return err
	}
	if r.body.Lines != nil && r.body.Restock != nil {
		return newProblem("invalid_input", "", fieldError{Pointer: "/restock", Code: "exclusive", Detail: "must not be given with lines, which say it themselves"})
	}
	if q.ChargeOperation, err = s.operationOf(r.Context(), r.body.Amount, r.body.Lines, &q); err != nil {
		return err
	}
	q.ChargeOperation.Restock = or(r.body.Restock, 0)
	return s.do(w, r.Request, &q, nil)
}

func operationWithoutID() error {
	return newProblem("invalid_input", "", fieldError{Pointer: "/requestId", Code: "required",
		Detail: "is required if there is no Idempotency-Key: without one, a repeated request would be done twice"})
}

// refundIn reads a refund in the currency of its order.
func refundIn(given amountInput, restock int32, code string) (*engine.ChargeOperation, *fieldError) {
	if given == nil {
		return &engine.ChargeOperation{Restock: restock}, nil
	}
	amount, fault := positiveAmount(given, code)
	if fault != nil {
		return nil, fault
	}
	return &engine.ChargeOperation{Amount: &amount, Restock: restock}, nil
}

// positiveAmount reads an amount in the currency of an order, which was checked when the order was admitted. It is empty
// for an order that does not exist.
func positiveAmount(given amountInput, code string) (decimal.Decimal, *fieldError) {
	currency, known := iso4217.Find(code)
	if !known {
		currency.Digits = 4
	}
	amount, fault, detail := amountIn(given, currency)
	if fault == "" && !amount.IsPos() {
		fault, detail = "out_of_range", "must be greater than 0"
	}
	if fault != "" {
		return amount, &fieldError{Pointer: "/amount", Code: fault, Detail: detail}
	}
	return amount, nil
}
