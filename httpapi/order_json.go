package httpapi

import (
	"bytes"
	"slices"
	"strconv"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/govalues/decimal"

	"pawl/db"
	"pawl/engine"
	"pawl/fsm"
	"pawl/internal/events"
	"pawl/internal/orders"
)

// order is an order as the API shows it. The fields of the original contract come first. Its JSON is always written by
// append.
type order struct {
	OrderID     string     `json:"orderId" minLength:"1" maxLength:"255" doc:"The caller's name for the order."`
	Status      state      `json:"status"`
	Steps       steps      `json:"steps"`
	Amount      amount     `json:"amount" doc:"The amount, with the fraction digits of its currency."`
	Currency    string     `json:"currency" pattern:"^[A-Z]{3}$" doc:"ISO 4217."`
	Item        string     `json:"item,omitempty" minLength:"1" maxLength:"255" doc:"Absent if the order has lines."`
	Quantity    int32      `json:"quantity,omitempty" minimum:"1" doc:"Absent if the order has lines."`
	Lines       lineList   `json:"lines,omitempty" doc:"What was ordered, if it was not one item."`
	Metadata    stringMap  `json:"metadata,omitempty" doc:"As given with the first request."`
	Generation  int32      `json:"generation" minimum:"0" doc:"Raised by every redrive, and when the charge falls back to its next route."`
	Seq         int32      `json:"seq" minimum:"1" doc:"Raised by every write to the order; also its ETag."`
	CreatedAt   time.Time  `json:"createdAt"`
	FinishedAt  *time.Time `json:"finishedAt,omitempty"`
	SubmittedBy *string    `json:"submittedBy,omitempty" doc:"Who submitted the order: token:NAME or oidc:ISSUER#SUBJECT. Absent if the caller was not identified."`
	*OrderTerms
	Money          *Money     `json:"money,omitempty" doc:"What was charged and refunded of it. Only in lists that asked for it, and absent if it was never charged."`
	StatusSince    *time.Time `json:"statusSince,omitempty" doc:"When it came into its status; with a hold for a person (attention, approval, paused), when that began. Only in lists with count."`
	Matched        *match     `json:"matched,omitempty" doc:"Why the order is in a list by a term."`
	Hold           *string    `json:"hold,omitempty" enum:"retry,callback,scheduled,queued,approval,paused,attention" doc:"What the order is waiting for. Absent while it is in progress or finished."`
	HoldReason     *string    `json:"holdReason,omitempty"`
	ResumesAt      *time.Time `json:"resumesAt,omitempty" doc:"When a held order continues at the latest. Absent if it waits for a person, or for another order with its concurrency key."`
	StopRequested  *string    `json:"stopRequested,omitempty" enum:"cancel,pause,deadline" doc:"A requested stop of the order."`
	Failure        *failure   `json:"failure,omitempty" doc:"Why the order failed, or is being undone."`
	AllowedActions []string   `json:"allowedActions" nullable:"false" doc:"The verbs that currently apply to the order, or to a refund, capture or void of it."`
	DryRun         bool       `json:"dryRun,omitempty" doc:"True for a dry run: nothing was done. The order is as the verb would leave it; its seq is the current one."`
	Forgotten      bool       `json:"forgotten,omitempty" doc:"True if the order ended longer ago than orders are kept. What was bought is then as in this request, which is the same as the first one; fields that are not kept are absent."`
	IgnoredFields  []string   `json:"ignoredFields,omitempty" nullable:"false" doc:"Fields of the request that had no effect: unknown ones, and metadata if the stored metadata differs."`
}

// OrderTerms are fields that most orders lack. It is nil for those, to save time. It is exported because encoding/json
// and huma ignore embedded pointers to unexported types.
type OrderTerms struct {
	Policy        *int32     `json:"policy,omitempty" minimum:"1" doc:"Policy version that the order started with. Absent if every step runs in the database."`
	Route         *string    `json:"route,omitempty" doc:"Provider that charges the order, by its name in the policy. Absent if the charge has only one."`
	CustomerID    *string    `json:"customerId,omitempty" maxLength:"255" doc:"As given with the first request."`
	StartAt       *time.Time `json:"startAt,omitempty" doc:"The order does not start before this time."`
	CompleteBy    *time.Time `json:"completeBy,omitempty" doc:"The deadline: an order that is not completed by then is undone."`
	ReservedUntil *time.Time `json:"reservedUntil,omitempty" doc:"When the reservation expires if the order is not confirmed."`
	ApprovalUntil *time.Time `json:"approvalUntil,omitempty" doc:"When the approval times out and the policy decides. Absent if it does not."`
	OnTimeout     string     `json:"approvalOnTimeout,omitempty" enum:"cancel,approve" doc:"What happens at approvalUntil if nobody decides before. Absent unless the order waits for approval, and in problems."`
	ApprovalRule  string     `json:"approvalRule,omitempty" doc:"The conditions of the rule of the policy for which the order waits for approval, in words."`
	Retry         *retries   `json:"retry,omitempty" doc:"The tries of the step that an order with hold retry waits to try again."`
	Calls         int32      `json:"calls,omitempty" minimum:"1" doc:"Number of calls made to providers."`
	InDoubt       bool       `json:"inDoubt,omitempty" doc:"A call was made, and its outcome is not known yet."`
	Action        object     `json:"action,omitempty" doc:"What the customer must do, as the provider described it."`
	Refunded      string     `json:"refunded,omitempty" pattern:"^[0-9]+([.][0-9]+)?$" doc:"The sum of the refunds that succeeded, as a decimal. Absent if no refund was requested."`
	Refunds       []refund   `json:"refunds,omitempty" nullable:"false" doc:"The requested refunds, oldest first."`
	Authorized    string     `json:"authorized,omitempty" pattern:"^[0-9]+([.][0-9]+)?$" doc:"What the charge authorized, as a decimal. Absent, like the next five, unless the policy has capture: later."`
	Captured      string     `json:"captured,omitempty" pattern:"^[0-9]+([.][0-9]+)?$" doc:"The sum of the captures that succeeded."`
	Voided        string     `json:"voided,omitempty" pattern:"^[0-9]+([.][0-9]+)?$" doc:"The part of the authorization that was given up or has ended."`
	CaptureBy     *time.Time `json:"captureBy,omitempty" doc:"When the authorization ends, as far as the policy says. Absent if nothing is left to capture."`
	Captures      []capture  `json:"captures,omitempty" nullable:"false" doc:"The requested captures, oldest first."`
	Voids         []capture  `json:"voids,omitempty" nullable:"false" doc:"The requested voids, oldest first. One without requestId asks the provider whether the authorization has ended."`
	Disputes      []dispute  `json:"disputes,omitempty" nullable:"false" doc:"What was reported about disputes of the charge, oldest first."`
}

// Money is what was charged and given back, as the books count it. All are decimals: charged - refunded - voided -
// authorized - lost = kept. It is exported because huma skips unexported embedded types.
type Money struct {
	Charged    string `json:"charged" doc:"The sum of the charges, also of those that were undone, and of authorizations. A charge that was undone while nothing showed that it had happened does not count, nor its undo."`
	Refunded   string `json:"refunded" doc:"The sum of the refunds that succeeded, and of the charges that were undone."`
	Authorized string `json:"authorized" doc:"Authorized and not captured yet."`
	Voided     string `json:"voided" doc:"Authorized by completed orders, and given up or ended."`
	Kept       string `json:"kept" doc:"Captured, and neither refunded nor lost."`
	Disputed   string `json:"disputed" doc:"The amounts of open disputes, which are part of kept."`
	Lost       string `json:"lost" doc:"The amounts of lost disputes, which the provider took back."`
}

func moneyOf(m *orders.Money) Money {
	return Money{m.Charged, m.Refunded, m.Authorized, m.Voided, m.Kept, m.Disputed, m.Lost}
}

// dispute is a state that a dispute has had.
type dispute struct {
	Reference string    `json:"reference" doc:"The provider's name for the dispute."`
	State     string    `json:"state" enum:"opened,won,lost" doc:"opened: it is open until another entry says won or lost."`
	Amount    string    `json:"amount" pattern:"^[0-9]+([.][0-9]+)?$" doc:"A decimal."`
	Reason    string    `json:"reason,omitempty"`
	Charge    string    `json:"charge,omitempty" doc:"The provider's name for the charge, as the dispute has it."`
	At        time.Time `json:"at" doc:"When it happened, as reported."`
}

func disputeOf(d *orders.ReportedDispute) dispute {
	return dispute{Reference: d.Reference, State: d.State, Amount: d.Amount.String(), Reason: d.Reason, Charge: d.Charge, At: d.At.UTC()}
}

// refund is a requested refund.
type refund struct {
	Refund  int32  `json:"refund" minimum:"1" doc:"Its number, from 1."`
	State   string `json:"state" enum:"pending,in_doubt,accepted,done,failed" doc:"pending: not refunded yet. in_doubt: it was sent, and the outcome is unknown. accepted: the provider will do it. done and failed are final, except that done becomes failed if a bank returns the money."`
	Amount  string `json:"amount" pattern:"^[0-9]+([.][0-9]+)?$" doc:"A decimal."`
	Restock int32  `json:"restock,omitempty" minimum:"1" doc:"Units returned to stock."`

	OperationResult
}

// capture is a requested capture or void.
type capture struct {
	Number int32  `json:"number" minimum:"1" doc:"Its number, over all refunds, captures and voids of the order."`
	State  string `json:"state" enum:"pending,in_doubt,accepted,done,failed" doc:"pending: not done yet. in_doubt: it was sent, and the outcome is unknown. accepted: the provider will do it. done and failed are final."`
	Amount string `json:"amount" pattern:"^[0-9]+([.][0-9]+)?$" doc:"A decimal."`
	Final  bool   `json:"final,omitempty" doc:"The capture voids what it leaves of the authorization."`

	OperationResult
}

// OperationResult is what refunds, captures and voids have in common. It is exported because huma skips unexported
// embedded types.
type OperationResult struct {
	Lines      []events.RefundLine `json:"lines,omitempty" nullable:"false" doc:"What it is about, if the request named lines. Their amounts are what the units cost, even if another amount was requested. The quantity is 0 for a part of the amount."`
	Reason     string              `json:"reason,omitempty"`
	RequestID  string              `json:"requestId,omitempty"`
	CreatedAt  time.Time           `json:"createdAt"`
	FinishedAt *time.Time          `json:"finishedAt,omitempty" doc:"When it succeeded or failed."`
	Reference  string              `json:"reference,omitempty" doc:"The provider's name for it."`
	Code       string              `json:"code,omitempty" doc:"Why it is not done, for programs. step_result: a person reported the outcome. authorization_expired: nothing was left, so a void is done."`
	Detail     string              `json:"detail,omitempty" doc:"Why it is not done, for people."`
	NextAt     *time.Time          `json:"nextAt,omitempty" doc:"When the provider is called next. Absent if it succeeded or failed, and if a person has to look."`
}

func resultOf(c *orders.ChargeOperation) OperationResult {
	return OperationResult{
		Lines: linesOf(c), Reason: c.Reason, RequestID: c.RequestID, CreatedAt: c.CreatedAt.UTC(), FinishedAt: utc(c.FinishedAt),
		Reference: c.Reference, Code: c.Code, Detail: c.Detail, NextAt: utc(c.NextAt),
	}
}

func captureOf(c *orders.ChargeOperation) capture {
	return capture{Number: c.Number, State: c.State, Amount: c.Amount.String(), Final: c.Voided != nil && c.Voided.IsPos(), OperationResult: resultOf(c)}
}

// retries are an engine.Retries.
type retries struct {
	Failed int32      `json:"failed" minimum:"0" doc:"Tries and look-ups that failed and count, since the order came to the step or a person had it tried again. Those that could not reach the provider, or came too fast for it, do not count, nor do look-ups with a clear answer. If the step was in doubt when a person had it tried again, the try in doubt is the first that counts."`
	Left   int32      `json:"left" minimum:"0" doc:"How many more must fail before the order needs a person."`
	Until  *time.Time `json:"until,omitempty" doc:"The order does not need a person before this time, even if none is left. Absent before the first call."`
}

type steps struct {
	Charge  stepState `json:"charge"`
	Reserve stepState `json:"reserve"`
	Confirm stepState `json:"confirm"`
}

// stepState says whether the effect of a step happened and was not undone.
type stepState struct {
	Completed bool    `json:"completed" doc:"The step has taken effect, which was not undone."`
	Undone    bool    `json:"undone,omitempty" doc:"The step took effect, or may have, and was undone."`
	InDoubt   bool    `json:"inDoubt,omitempty" doc:"With undone: nothing has shown whether the step took effect. A reference of the undo of a charge does."`
	Reference *string `json:"reference,omitempty" maxLength:"255" doc:"The provider's name for the charge or the reservation."`

	UndoReference string `json:"undoReference,omitempty" maxLength:"255" doc:"With undone: the provider's name for the undo of the charge, if it gave one or a person recorded one."`
}

type failure struct {
	Step   string `json:"step,omitempty" enum:"charge,reserve,confirm"`
	Code   string `json:"code"`
	Detail string `json:"detail,omitempty"`
}

// failureOf is nil if the order neither failed nor is being undone.
func failureOf(o *orders.Order) *failure {
	if o.FailureCode == nil {
		return nil
	}
	return &failure{Step: or(o.FailureStep, ""), Code: *o.FailureCode, Detail: or(o.FailureDetail, "")}
}

// transition is one row of an order's history.
type transition struct {
	Seq   int32     `json:"seq" minimum:"1" doc:"Number of the row, without gaps."`
	From  *state    `json:"from,omitempty" doc:"Absent in the first row."`
	To    state     `json:"to" doc:"Same as from if only something else changed."`
	At    time.Time `json:"at"`
	Fence int64     `json:"fence" minimum:"0" doc:"The fencing token of the writer."`
	Verb  string    `json:"verb,omitempty" doc:"The verb, if it was not a step."`
	Actor string    `json:"actor" doc:"Who did it: token:NAME, oidc:ISSUER#SUBJECT, or system for the service itself. local or anonymous: a caller on this or another machine, while no token was required."`

	OnBehalfOf string `json:"onBehalfOf,omitempty" doc:"On whose behalf, as stated by the actor."`
	Reason     string `json:"reason,omitempty"`

	PaymentMethod string `json:"paymentMethod,omitempty" enum:"changed" doc:"A retry changed it. It is not shown."`
}

// call is one call of a remote step.
type call struct {
	Call       int32      `json:"call" doc:"Number of the call, over all steps of the order. Negative for refunds, captures, voids and undos of late effects, which do not move the order."`
	Step       string     `json:"step" enum:"charge,reserve,confirm"`
	Operation  string     `json:"operation" enum:"do,undo,lookup,refund,capture,void"`
	Refund     int32      `json:"refund,omitempty" minimum:"1" doc:"Number of the refund, if the call is about one."`
	Capture    int32      `json:"capture,omitempty" minimum:"1" doc:"Number of the capture."`
	Void       int32      `json:"void,omitempty" minimum:"1" doc:"Number of the void."`
	Generation int32      `json:"generation" minimum:"0" doc:"The generation of the order."`
	Route      string     `json:"route,omitempty" doc:"Provider of the charge that was called, by its name in the policy. Absent if there is only one."`
	Policy     *int32     `json:"policy,omitempty" minimum:"1"`
	Fence      int64      `json:"fence" minimum:"0" doc:"The fencing token of the caller."`
	StartedAt  time.Time  `json:"startedAt" doc:"Recorded before the call was made."`
	FinishedAt *time.Time `json:"finishedAt,omitempty" doc:"Absent while the call is in progress, and if the process ended during it."`
	Outcome    string     `json:"outcome,omitempty" enum:"done,refused,retry,waiting,unknown" doc:"retry: not done. unknown: may have been done."`
	Fenced     bool       `json:"fenced,omitempty" doc:"The response came after another replica took over the order, and had no effect."`
	UndoOpen   bool       `json:"undoOpen,omitempty" doc:"The late effect that this call should undo still stands. It is retried until it is undone, or a person reports that it was undone by hand."`
	Code       string     `json:"code,omitempty"`
	Detail     string     `json:"detail,omitempty"`
	Reference  string     `json:"reference,omitempty"`
}

// item is the stock of one item.
type item struct {
	Item      string `json:"item" minLength:"1" maxLength:"255"`
	Tracked   bool   `json:"tracked" doc:"Whether stock is counted. An item that was never given stock is not tracked and never runs out."`
	OnHand    int64  `json:"onHand" minimum:"0" doc:"Units on the shelf, without sold ones."`
	Reserved  int64  `json:"reserved" minimum:"0" doc:"Units reserved by orders that are not finished."`
	Available *int64 `json:"available" nullable:"true" minimum:"0" doc:"onHand - reserved: what is left to sell. Null if the item is not tracked."`
	Sold      int64  `json:"sold" minimum:"0" doc:"Units of all completed orders. Units that were put back into stock since are not subtracted."`

	IgnoredFields []string `json:"ignoredFields,omitempty" nullable:"false" doc:"Unknown fields of the request, which had no effect."`
}

// movement is one change of the stock of an item.
type movement struct {
	Version int64     `json:"version" minimum:"1" doc:"The version of the item after the change. Sales also raise it, so there are gaps."`
	Kind    string    `json:"kind" enum:"set,adjustment,restock" doc:"restock: units returned with a refund."`
	Change  int64     `json:"change" doc:"The change of onHand, in units."`
	OnHand  int64     `json:"onHand" minimum:"0" doc:"Units on the shelf afterward."`
	At      time.Time `json:"at"`
	Actor   string    `json:"actor" doc:"Who requested it, as in the history of an order."`

	OnBehalfOf string `json:"onBehalfOf,omitempty" doc:"On whose behalf, as stated by the actor."`
	Reason     string `json:"reason,omitempty"`
	RequestID  string `json:"requestId" doc:"The requestId of the request, or a generated one."`
}

func orderOf(o *orders.Order) order {
	out := order{
		OrderID: o.OrderID, Status: state(o.Status), Steps: stepsOf(o),
		Amount: amount(o.Amount), Currency: o.Currency, Lines: o.Lines, Metadata: compact(o.Metadata),
		Generation: o.Generation, Seq: o.Seq, CreatedAt: o.CreatedAt.UTC(), SubmittedBy: o.SubmittedBy,
		Hold: o.Hold, HoldReason: o.HoldReason, StopRequested: o.StopRequested,
		AllowedActions: orders.AllowedActions(o), OrderTerms: termsOf(o),
	}
	if o.Lines == nil {
		out.Item, out.Quantity = o.Item, o.Quantity
	}
	out.FinishedAt = utc(o.FinishedAt)
	out.Failure = failureOf(o)
	if o.Hold != nil && slices.Contains([]string{fsm.HoldRetry, fsm.HoldCallback, fsm.HoldScheduled, fsm.HoldApproval}, *o.Hold) {
		out.ResumesAt = utc(o.DueAt)
	}
	return out
}

// forgottenOrder is the answer to a repetition of the request for an order that was forgotten: how it ended, and what
// the request says.
func forgottenOrder(f *orders.Forgotten, in *engine.Input, ignored []string) *order {
	done := stepState{Completed: f.Status == fsm.Completed}
	out := &order{
		OrderID: in.OrderID, Status: state(f.Status), Steps: steps{done, done, done}, Amount: amount(in.Amount), Currency: f.Currency,
		Item: in.Item, Quantity: max(in.Quantity, 1), Generation: f.Generation, Seq: f.Seq, CreatedAt: f.CreatedAt.UTC(),
		AllowedActions: []string{}, Forgotten: true, IgnoredFields: ignored,
	}
	if in.Lines != "" {
		out.Lines, out.Item, out.Quantity = []byte(in.Lines), "", 0
	}
	if f.Refunded != "" || f.Voided != "" {
		out.OrderTerms = &OrderTerms{Refunded: f.Refunded, Voided: f.Voided}
	}
	return out
}

// forever is the approval_until of an order without an approval timeout.
var forever = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)

func termsOf(row *orders.Order) *OrderTerms {
	if row.Policy == nil && row.CustomerID == nil && row.StartAt == nil && row.CompleteBy == nil && row.ReservedUntil == nil && row.ChargeOperations == nil && row.Disputes == nil {
		return nil // the others come with a policy
	}
	terms := &OrderTerms{
		Policy: row.Policy, Route: row.Route, CustomerID: row.CustomerID, StartAt: utc(row.StartAt), CompleteBy: utc(row.CompleteBy),
		ReservedUntil: utc(row.ReservedUntil), InDoubt: row.InDoubtSince != nil, Action: object(compact(row.Action)),
	}
	if row.ChargeOperationList != nil || row.ChargeCapture != nil {
		terms.addCharge(row)
	}
	if row.DisputeList != nil {
		terms.Disputes = each(orders.Disputes(row), disputeOf)
	}
	if row.Calls != nil {
		terms.Calls = *row.Calls
	}
	if until := row.ApprovalUntil; until != nil && until.Before(forever) {
		terms.ApprovalUntil = utc(until)
	}
	return terms
}

// addCharge adds what was done to the charge since it was made.
func (t *OrderTerms) addCharge(row *orders.Order) {
	totals := orders.Totals(row)
	if refunds := orders.ChargeOperations(row, orders.OperationRefund); len(refunds) > 0 {
		t.Refunds, t.Refunded = each(refunds, refundOf), totals.Refunded.String()
	}
	if !orders.CapturedLater(row) {
		return
	}
	t.Captures = each(orders.ChargeOperations(row, orders.OperationCapture), captureOf)
	t.Voids = each(orders.ChargeOperations(row, orders.OperationVoid), captureOf)
	t.Authorized, t.Captured, t.Voided = row.Amount.String(), totals.Captured.String(), totals.Voided.String()
	if row.RefundedAt == nil && !(row.Status == fsm.Completed && orders.Capturable(row).IsZero()) {
		t.CaptureBy = utc(row.CaptureBy)
	}
}

func utc(t *time.Time) *time.Time {
	if t == nil {
		return nil
	}
	return new(t.UTC())
}

// each converts every row of a list.
func each[R, S any](rows []R, show func(*R) S) []S {
	out := make([]S, len(rows))
	for i := range rows {
		out[i] = show(&rows[i])
	}
	return out
}

// stepsOf does not report a step as completed while it is being undone and it is unknown whether it was done.
func stepsOf(o *orders.Order) steps {
	return steps{
		Charge: stepState{
			Completed: o.ChargedAt != nil && o.RefundedAt == nil && !or(o.ChargeInDoubt, false),
			Undone:    o.RefundedAt != nil, InDoubt: o.RefundedAt != nil && or(o.ChargeInDoubt, false), Reference: o.ChargeReference, UndoReference: o.UndoReference,
		},
		Reserve: stepState{
			Completed: o.ReservedAt != nil && o.ReleasedAt == nil && !or(o.ReserveInDoubt, false),
			Undone:    o.ReleasedAt != nil, InDoubt: o.ReleasedAt != nil && or(o.ReserveInDoubt, false), Reference: o.ReserveReference,
		},
		Confirm: stepState{Completed: o.Status == fsm.Completed},
	}
}

func transitionOf(row *db.Transition) transition {
	out := transition{
		Seq: row.Seq, From: (*state)(row.FromStatus), To: state(row.ToStatus), At: row.At.UTC(), Fence: row.Fence,
		Verb: or(row.Verb, ""), Actor: or(row.Actor, orders.ActorSystem), OnBehalfOf: or(row.OnBehalfOf, ""), Reason: or(row.Reason, ""),
	}
	if row.PaymentMethod != nil {
		out.PaymentMethod = "changed"
	}
	return out
}

// linesOf are the lines that a refund or capture named.
func linesOf(c *orders.ChargeOperation) []events.RefundLine {
	return each(c.Lines, func(l *orders.OperationLine) events.RefundLine {
		line := events.RefundLine{Line: l.Number, EventLine: events.EventLine{Item: l.Item, Quantity: l.Quantity, Kind: l.Kind}, Restock: l.Restock}
		if l.Amount != nil {
			line.Amount = l.Amount.String()
		}
		return line
	})
}

func refundOf(c *orders.ChargeOperation) refund {
	return refund{Refund: c.Number, State: c.State, Amount: c.Amount.String(), Restock: c.Restock, OperationResult: resultOf(c)}
}

// numberOf is the number of the charge operation of a kind that a call is about, or 0.
func numberOf(row *db.CallsOfRow, kind string) int32 {
	if row.Kind != kind {
		return 0
	}
	return or(row.ChargeOperation, 0)
}

func callOf(row *db.CallsOfRow) call {
	return call{
		Call: row.Call, Step: row.Step, Operation: row.Operation, Generation: row.Generation,
		Refund: numberOf(row, orders.OperationRefund), Capture: numberOf(row, orders.OperationCapture), Void: numberOf(row, orders.OperationVoid),
		Policy: row.Policy, Route: or(row.Route, ""), Fence: row.Fence,
		StartedAt: row.StartedAt.UTC(), FinishedAt: utc(row.FinishedAt), Outcome: or(row.Outcome, ""), Fenced: or(row.Fenced, false),
		Code: or(row.Code, ""), Detail: or(row.Detail, ""), Reference: or(row.Reference, ""), UndoOpen: row.UndoOpen,
	}
}

func itemOf(row *orders.Stock) item {
	out := item{Item: row.Item, Tracked: row.Tracked, OnHand: row.OnHand, Reserved: row.Reserved, Sold: row.Sold}
	if row.Tracked {
		out.Available = new(row.OnHand - row.Reserved)
	}
	return out
}

func movementOf(row *db.StockMovement) movement {
	return movement{
		Version: row.Version, Kind: row.Kind, Change: row.Change, OnHand: row.OnHand, At: row.At.UTC(),
		Actor: row.Actor, OnBehalfOf: or(row.OnBehalfOf, ""), Reason: or(row.Reason, ""), RequestID: row.RequestID,
	}
}

func or[T any](p *T, fallback T) T {
	if p == nil {
		return fallback
	}
	return *p
}

// amount is a decimal, written as a JSON string with all its digits.
type amount decimal.Decimal

// stringMap is a JSON object of strings, kept as text.
type stringMap []byte

// object is a JSON object, kept as text.
type object []byte

// state is a status of the machine.
type state fsm.State

func statesOf(statuses []state) (states []fsm.State) {
	for _, status := range statuses {
		states = append(states, fsm.State(status))
	}
	return states
}

// entityTag is the ETag of a version.
func entityTag[N int32 | int64](version N) string {
	return `"` + strconv.FormatInt(int64(version), 10) + `"`
}

// MarshalJSON implements json.Marshaler by append, for orders in lists and problems.
func (o order) MarshalJSON() ([]byte, error) { return o.append(make([]byte, 0, 512)), nil }

// append writes the order as JSON. It is written by hand because it is on the hot path. A test compares it with
// encoding/json.
func (o *order) append(b []byte) []byte {
	b = appendString(append(b, `{"orderId":`...), o.OrderID)
	b = appendString(append(b, `,"status":`...), string(o.Status))
	b = o.Steps.append(append(b, `,"steps":`...))
	b = o.Amount.append(append(b, `,"amount":`...))
	b = appendString(append(b, `,"currency":`...), o.Currency)
	if o.Lines != nil {
		b = append(append(b, `,"lines":`...), o.Lines...)
	} else {
		b = appendString(append(b, `,"item":`...), o.Item)
		b = strconv.AppendInt(append(b, `,"quantity":`...), int64(o.Quantity), 10)
	}
	if len(o.Metadata) > 0 {
		b = append(append(b, `,"metadata":`...), o.Metadata...)
	}
	b = strconv.AppendInt(append(b, `,"generation":`...), int64(o.Generation), 10)
	b = strconv.AppendInt(append(b, `,"seq":`...), int64(o.Seq), 10)
	b = appendTime(append(b, `,"createdAt":`...), o.CreatedAt)
	b = appendOptionalTime(b, `,"finishedAt":`, o.FinishedAt)
	b = appendOptional(b, `,"submittedBy":`, o.SubmittedBy)
	if o.OrderTerms != nil {
		terms := appendRare(nil, o.OrderTerms)
		b = append(append(b, ','), terms[1:len(terms)-1]...) // there is one at least
	}
	if o.Money != nil {
		b = appendRare(append(b, `,"money":`...), o.Money)
	}
	b = appendOptionalTime(b, `,"statusSince":`, o.StatusSince)
	if o.Matched != nil {
		b = appendRare(append(b, `,"matched":`...), o.Matched)
	}
	b = appendOptional(b, `,"hold":`, o.Hold)
	b = appendOptional(b, `,"holdReason":`, o.HoldReason)
	b = appendOptionalTime(b, `,"resumesAt":`, o.ResumesAt)
	b = appendOptional(b, `,"stopRequested":`, o.StopRequested)
	if o.Failure != nil {
		b = appendRare(append(b, `,"failure":`...), o.Failure)
	}
	b = append(b, `,"allowedActions":[`...)
	for i, action := range o.AllowedActions {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(b, action)
	}
	b = append(b, ']')
	if o.DryRun {
		b = append(b, `,"dryRun":true`...)
	}
	if o.Forgotten {
		b = append(b, `,"forgotten":true`...)
	}
	if len(o.IgnoredFields) > 0 {
		b = appendRare(append(b, `,"ignoredFields":`...), o.IgnoredFields)
	}
	return append(b, '}')
}

func (s *steps) append(b []byte) []byte {
	b = s.Charge.append(append(b, `{"charge":`...))
	b = s.Reserve.append(append(b, `,"reserve":`...))
	b = s.Confirm.append(append(b, `,"confirm":`...))
	return append(b, '}')
}

func (s stepState) append(b []byte) []byte {
	b = strconv.AppendBool(append(b, `{"completed":`...), s.Completed)
	if s.Undone {
		b = append(b, `,"undone":true`...)
	}
	if s.InDoubt {
		b = append(b, `,"inDoubt":true`...)
	}
	b = appendOptional(b, `,"reference":`, s.Reference)
	if s.UndoReference != "" {
		b = appendString(append(b, `,"undoReference":`...), s.UndoReference)
	}
	return append(b, '}')
}

// appendRare writes a field that few orders have, with encoding/json.
func appendRare(b []byte, v any) []byte {
	var text bytes.Buffer
	_ = writeJSON(&text, v) // our own types
	return append(b, text.Bytes()...)
}

// MarshalJSON writes a string, because most clients read a JSON number as a float.
func (a amount) MarshalJSON() ([]byte, error) { return a.append(nil), nil }

func (a amount) append(b []byte) []byte {
	b, _ = decimal.Decimal(a).AppendText(append(b, '"')) // its error is always nil
	return append(b, '"')
}

// MarshalJSON writes the text as it is: it is JSON already.
func (m stringMap) MarshalJSON() ([]byte, error) { return m, nil }

// MarshalJSON writes the text as it is: it is JSON already.
func (o object) MarshalJSON() ([]byte, error) { return o, nil }

func appendOptionalTime(b []byte, prefix string, t *time.Time) []byte {
	if t == nil {
		return b
	}
	return appendTime(append(b, prefix...), *t)
}

// appendOptional appends a member, unless its value is nil. prefix is what comes before the value: comma, name and colon.
func appendOptional(b []byte, prefix string, value *string) []byte {
	if value == nil {
		return b
	}
	return appendString(append(b, prefix...), *value)
}

func appendTime(b []byte, t time.Time) []byte {
	return append(t.AppendFormat(append(b, '"'), time.RFC3339Nano), '"')
}

// appendString writes a JSON string with the fewest escapes (RFC 8785). Invalid UTF-8, which the database never returns,
// would become U+FFFD.
func appendString(b []byte, s string) []byte {
	b, _ = jsontext.AppendQuote(b, s)
	return b
}
