package httpapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"pawl/engine"
	"pawl/fsm"
	"pawl/internal/orders"
)

// bulkLimit is the timeout of a bulk request. Orders that were not reached by then are unchanged.
const bulkLimit = time.Minute

// bulkPath is the prefix of the routes of bulk verbs, which share one documented operation.
const bulkPath = "/api/bulk/"

// bulkVerbPattern begins the pattern of the route of a bulk verb.
const bulkVerbPattern = "POST " + bulkPath

var bulkOperation = withBody(huma.Operation{
	OperationID: "applyBulkVerb", Method: http.MethodPost, Path: bulkPath + "{verb}", Tags: []string{"orders"},
	Summary: "Apply a verb to many orders",
	Description: "Applies the verb to up to 1,000 orders, given by their ids or by a filter, and reports the result for each. " +
		"It does not wait for the orders to end. Each verb requires the role that it requires for one order. " +
		"refund gives back the amounts of refunds, or, with ids or a filter, all that is left of each order; it requires reason and requestId, " +
		"and rejects unknown fields. " +
		"With the same requestId, the verb is applied to an order only once, and what was done and refused can be read at /api/requests/{requestId}. " +
		"If a request with a filter is repeated, the answer starts with the orders that the verb was applied to before, and continues with those that match now, up to limit in all.",
}, "invalid_idempotency_key", "stopping", "unavailable", "internal")

// bulk applies a verb to many orders.
func (s *server) bulk(w http.ResponseWriter, r *http.Request) error {
	verb := orders.Verb(strings.TrimPrefix(r.URL.Path, bulkPath))
	q, err := readBody(w, r, checkBulk(verb))
	if err != nil {
		return err
	}
	b := bulkOf(&q.body, verb)
	if err := s.ownOrder(b.OrderIDs...); err != nil {
		return err
	}
	if err := readHead(w, r, q.body.asks(), &b.Request); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(r.Context(), bulkLimit)
	defer cancel()
	if verb == orders.Refund {
		if err := s.readRefunds(ctx, q, &b); err != nil {
			return err
		}
	}
	results, err := s.engine.DoAll(ctx, b)
	if err != nil && (results == nil || r.Context().Err() != nil) {
		return err
	}
	out := bulkOutcome{Matched: len(results), Results: make([]bulkResult, len(results)), DryRun: b.Request.DryRun, IgnoredFields: q.ignored}
	var refused []orders.Refusal
	for i := range results {
		out.Results[i] = s.bulkResultOf(&results[i], w.Header().Get("X-Request-Id"))
		if r := &out.Results[i]; r.Applied {
			out.Applied++
			out.add(&results[i])
		} else {
			refused = append(refused, orders.Refusal{OrderID: r.OrderID, Code: string(r.Code), Detail: r.Detail})
		}
	}
	if !out.DryRun {
		if err := s.engine.KeepRefusals(r.Context(), &b.Request, refused); err != nil {
			return err
		}
	}
	return answerJSON(w, &out)
}

// add adds an order to the totals.
func (out *bulkOutcome) add(r *engine.BulkResult) {
	amount := r.Order.Amount
	if r.Refund != nil {
		amount = r.Refund.Amount
	}
	out.Totals = addAmount(out.Totals, currencyTotal{r.Order.Currency, 1, amount.String()})
}

// readRefunds reads what a bulk refund is about. Nothing is refunded if any amount is faulty.
func (s *server) readRefunds(ctx context.Context, q *sent[bulkBody], b *engine.Bulk) error {
	if err := (preference{handling: strict}).judge(q.ignored, nil); err != nil { // without its amount, a refund returns everything
		return err
	}
	if b.RequestID == "" {
		return operationWithoutID()
	}
	b.ChargeOperation, b.Refunds = &engine.ChargeOperation{}, map[string]*engine.ChargeOperation{}
	currencies, err := s.engine.Orders.Currencies(ctx, b.OrderIDs)
	if err != nil {
		return err
	}
	var faults []fieldError
	for i, r := range q.body.Refunds {
		refund, fault := refundIn(r.Amount, or(r.Restock, 0), currencies[r.OrderID])
		if fault == nil && b.Refunds[r.OrderID] != nil {
			fault = &fieldError{Pointer: "/orderId", Code: "repeated", Detail: "must be in the list only once"}
		}
		if b.Refunds[r.OrderID] = refund; fault != nil && len(faults) < maxFaults {
			fault.Pointer = fmt.Sprintf("/refunds/%d%s", i, fault.Pointer)
			faults = append(faults, *fault)
		}
	}
	if len(faults) > 0 {
		return newProblem("invalid_input", "", faults...)
	}
	return nil
}

func (s *server) bulkResultOf(r *engine.BulkResult, requestID string) bulkResult {
	out, order := bulkResult{OrderID: r.OrderID, Applied: r.Err == nil}, &r.Order
	if r.Refund != nil && r.Err == nil {
		out.Refund = new(refundOf(r.Refund))
	}
	if r.SoldOut != nil {
		out.SoldOut = &itemLeft{r.SoldOut.Item, r.SoldOut.Available}
	}
	if refusal, ok := errors.AsType[*orders.NotApplicable](r.Err); ok {
		order = &refusal.Order
	}
	if out.Status = state(order.Status); order.OrderID != "" {
		out.Amount, out.Currency, out.Item, out.Quantity = new(amount(order.Amount)), order.Currency, order.Item, order.Quantity
		out.CreatedAt, out.CustomerID, out.Lines, out.InDoubt, out.Charge = order.CreatedAt.UTC(), order.CustomerID, order.Lines, order.InDoubtSince != nil, new(stepsOf(order).Charge)
		out.Failure = failureOf(order)
		if orders.CapturedLater(order) {
			out.Authorized = order.Amount.String()
		}
	}
	if r.Err == nil {
		return out
	}
	p := problemOf(r.Err)
	s.logFault(requestID, p, r.Err)
	out.Code, out.Detail = p.Code, cmp.Or(p.Detail, p.Title)
	return out
}

// bulkRequest documents what bulk reads.
type bulkRequest struct {
	Verb   bulkVerb `path:"verb" doc:"What to do with the orders."`
	DryRun bool     `query:"dryRun" doc:"Report for each order whether the verb applies, and do nothing."`
	Keyed[bulkBody]
}

type bulkBody struct {
	IDs     []name       `json:"ids,omitempty" nullable:"false" minItems:"1" maxItems:"1000" doc:"The orders; or use a filter."`
	Filter  *bulkFilter  `json:"filter,omitempty" doc:"Which orders. At least one field besides sort and limit is required."`
	Refunds []bulkRefund `json:"refunds,omitempty" nullable:"false" minItems:"1" maxItems:"1000" doc:"For refund, instead of ids or a filter: what to give back of each order."`
	Policy  string       `json:"policy,omitempty" enum:"pinned,active" doc:"For retry: the policy that the orders continue with; pinned by default."`
	Step    string       `json:"step,omitempty" enum:"charge,reserve,confirm" doc:"For step-result, which requires it: the step that the orders are performing or undoing."`
	Outcome string       `json:"outcome,omitempty" enum:"done,refused,not_done" doc:"For step-result, which requires it: the outcome, as for one order."`
	Code    string       `json:"code,omitempty" minLength:"1" maxLength:"255" doc:"For step-result: why it is not done, for programs."`
	Detail  string       `json:"detail,omitempty" minLength:"1" maxLength:"1000" doc:"For step-result: why it is not done, for people."`
	VerbBody
}

type bulkRefund struct {
	OrderID string      `json:"orderId" minLength:"1" maxLength:"255"`
	Amount  amountInput `json:"amount,omitempty" doc:"How much; more than 0. Defaults to all that is left."`
	Restock *int32      `json:"restock,omitempty" minimum:"1" maximum:"2147483647" doc:"Units to return to stock at once."`
}

type bulkFilter struct {
	Status      []state     `json:"status,omitempty" nullable:"false" minItems:"1" maxItems:"9" doc:"Any of these statuses."`
	CustomerID  string      `json:"customerId,omitempty" minLength:"1" maxLength:"255"`
	Hold        string      `json:"hold,omitempty" enum:"retry,callback,scheduled,queued,approval,paused,attention" doc:"What the orders are waiting for."`
	HoldReason  string      `json:"holdReason,omitempty" minLength:"1" maxLength:"255" doc:"The reason of the hold, or its part before a colon. Requires hold."`
	Item        string      `json:"item,omitempty" minLength:"1" maxLength:"255"`
	FailureStep string      `json:"failureStep,omitempty" enum:"charge,reserve,confirm,refund,capture,void" doc:"Failed, or being undone, because of this step. refund, capture, void: the last one has failed."`
	FailureCode string      `json:"failureCode,omitempty" minLength:"1" maxLength:"255" doc:"Failed, or being undone, with this code."`
	AmountFrom  amountBound `json:"amountFrom,omitempty" doc:"At least this amount, in any currency."`
	AmountTo    amountBound `json:"amountTo,omitempty" doc:"At most this amount, in any currency."`
	CreatedFrom *time.Time  `json:"createdFrom,omitempty" doc:"Created at this time or later (RFC 3339)."`
	CreatedTo   *time.Time  `json:"createdTo,omitempty" doc:"Created before this time (RFC 3339)."`
	Sort        string      `json:"sort,omitempty" enum:"newest,oldest" doc:"Which orders come first, and are chosen if more than limit match. Defaults to newest. They are done the oldest first."`
	Limit       int32       `json:"limit,omitempty" minimum:"1" maximum:"1000" doc:"Maximum number of orders. Defaults to 1000."`
}

// bulkOutcome is the result of a bulk request.
type bulkOutcome struct {
	Matched int             `json:"matched" minimum:"0" doc:"Number of orders that the verb was tried on."`
	Applied int             `json:"applied" minimum:"0" doc:"Number of orders that the verb was applied to, or would be in a dry run."`
	Results []bulkResult    `json:"results" nullable:"false" doc:"One result for each order, in the order of the ids; of a filter, the oldest order first. Orders are done in this order."`
	Totals  []currencyTotal `json:"totals,omitempty" nullable:"false" doc:"The orders that the verb was applied to, or would be, by currency."`
	DryRun  bool            `json:"dryRun,omitempty" doc:"True for a dry run: nothing was done, and each status is what the verb would lead to."`

	IgnoredFields []string `json:"ignoredFields,omitempty" nullable:"false" doc:"Unknown fields of the request, which had no effect."`
}

type currencyTotal struct {
	Currency string `json:"currency" doc:"ISO 4217."`
	Orders   int    `json:"orders" minimum:"1"`
	Amount   string `json:"amount" pattern:"^[0-9]+([.][0-9]+)?$" doc:"The sum of the orders, or of their refunds."`
}

type bulkResult struct {
	OrderID string      `json:"orderId"`
	Applied bool        `json:"applied"`
	Status  state       `json:"status,omitempty"`
	Code    problemCode `json:"code,omitempty"`
	Detail  string      `json:"detail,omitempty" doc:"Why the verb was not applied."`

	Amount     *amount    `json:"amount,omitempty" doc:"The amount of the order. Absent, like the fields below, if the order was not found or not read."`
	Currency   string     `json:"currency,omitempty" doc:"ISO 4217."`
	CreatedAt  time.Time  `json:"createdAt,omitzero"`
	CustomerID *string    `json:"customerId,omitempty"`
	Item       string     `json:"item,omitempty"`
	Quantity   int32      `json:"quantity,omitempty"`
	Lines      lineList   `json:"lines,omitempty" doc:"What was ordered, if it was not one item."`
	Charge     *stepState `json:"charge,omitempty" doc:"Whether it was charged, and not undone."`
	InDoubt    bool       `json:"inDoubt,omitempty" doc:"A call was made, and its outcome is not known yet."`
	Failure    *failure   `json:"failure,omitempty" doc:"Why the order failed, or is being undone; in a dry run of retry, why it has failed before."`
	Authorized string     `json:"authorized,omitempty" doc:"What the charge authorized, as a decimal. Absent unless the policy has capture: later."`
	Refund     *refund    `json:"refund,omitempty" doc:"The refund, if one was requested. It may be open; Pawl continues it."`
	SoldOut    *itemLeft  `json:"soldOut,omitempty" doc:"In a dry run of retry: an item of which too little is in stock for the order and those before it in the list, and what is left of it. The order would fail."`
}

type itemLeft struct {
	Item string `json:"item"`
	Left int64  `json:"left" minimum:"0"`
}

// bulkVerb documents the verbs that can be applied to many orders.
type bulkVerb string

// Schema lists them.
func (bulkVerb) Schema(r huma.Registry) *huma.Schema {
	s := &huma.Schema{Type: huma.TypeString, Description: "What to do with the orders."}
	for _, verb := range orders.BulkVerbs {
		s.Enum = append(s.Enum, string(verb))
	}
	s.PrecomputeMessages()
	return named(r, "BulkVerb", s)
}

// checkBulk checks what the type of the body does not express.
func checkBulk(verb orders.Verb) func(*decoder, *bulkBody) {
	return func(d *decoder, body *bulkBody) {
		d.refuseMisspelled(decidingNames...)
		chosen := 0
		for _, name := range []string{"ids", "filter", "refunds"} {
			if d.has(name) {
				chosen++
			}
		}
		switch {
		case d.has("refunds") && verb != orders.Refund:
			d.fault("/refunds", "not_a_refund", "is only for refund")
		case chosen != 1 && verb == orders.Refund:
			d.fault("/refunds", "required", "exactly one of refunds, ids and filter is required")
		case chosen != 1:
			d.fault("/ids", "required", "exactly one of ids and filter is required")
		}
		if body.Filter != nil {
			body.Filter.check(d)
		}
		d.require(d.has("reason") || verb != orders.Refund, "/reason")
		if verb == orders.StepResult {
			for _, name := range []string{"step", "outcome", "reason"} {
				d.require(d.has(name), "/"+name)
			}
		}
	}
}

// bulkOf translates a body for the engine.
func bulkOf(body *bulkBody, verb orders.Verb) engine.Bulk {
	b := engine.Bulk{Request: engine.Request{Verb: verb}, OrderIDs: textsOf(body.IDs)}
	if verb == orders.Retry {
		b.Request.ActivePolicy = body.Policy == "active"
	} else if verb == orders.StepResult {
		b.Request.Settle = &engine.Settled{Step: fsm.Step(body.Step), Outcome: body.Outcome, Code: body.Code, Detail: body.Detail}
	}
	for _, r := range body.Refunds {
		b.OrderIDs = append(b.OrderIDs, r.OrderID)
	}
	if f := body.Filter; f != nil {
		b.Filter = &orders.Filter{
			Statuses: statesOf(f.Status), CustomerID: f.CustomerID, Item: f.Item, Hold: f.Hold, HoldReason: f.HoldReason,
			FailureStep: f.FailureStep, FailureCode: f.FailureCode, AmountFrom: f.AmountFrom.decimal(), AmountTo: f.AmountTo.decimal(),
			CreatedFrom: or(f.CreatedFrom, time.Time{}), CreatedTo: or(f.CreatedTo, time.Time{}), Oldest: f.Sort == oldestFirst,
			Limit: cmp.Or(f.Limit, engine.BulkMost),
		}
	}
	return b
}

// check rejects a filter that would match other orders than intended: one without conditions, or a reason without its hold.
// It also checks the amounts, because the decoder ignores patterns.
func (f *bulkFilter) check(d *decoder) {
	f.AmountFrom.check(d, "/filter/amountFrom")
	f.AmountTo.check(d, "/filter/amountTo")
	conditions := *f
	conditions.Sort, conditions.Limit = "", 0
	switch {
	case f.HoldReason != "" && f.Hold == "":
		d.fault("/filter/hold", "required", "is required with holdReason")
	case reflect.ValueOf(conditions).IsZero() && len(d.faults) == 0: // a condition with a fault is zero, too
		d.fault("/filter", "empty", "must have at least one condition")
	}
}

// name is the name of an order, or of a type of events, in a list.
type name string

func textsOf(names []name) (texts []string) {
	for _, name := range names {
		texts = append(texts, string(name))
	}
	return texts
}

// Schema implements huma.SchemaProvider.
func (name) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeString, MinLength: new(1), MaxLength: new(maxText)}
}
