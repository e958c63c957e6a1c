package httpapi

import (
	"pawl/engine"
	"pawl/fsm"
	"pawl/internal/orders"
)

// verbRequest documents what a verb reads. B is its body: a pointer where it may be left out.
type verbRequest[B any] struct {
	OrderID        string `path:"orderId" doc:"The id, percent-encoded."`
	DryRun         bool   `query:"dryRun" doc:"Say whether it applies and how it would leave the order, and do nothing."`
	IfMatch        string `header:"If-Match" doc:"Only if the order is still at this ETag."`
	Prefer         string `header:"Prefer" doc:"How long to wait for the end: wait=N (seconds, up to 60), or respond-async (RFC 7240). handling=strict refuses fields that are not known."`
	IdempotencyKey string `header:"Idempotency-Key" doc:"Another way to give the requestId; in quotes or without."`
	Body           B
}

// VerbBody is that of a verb which says nothing but who asks and why. It is exported because huma passes over embedded types
// that are not.
type VerbBody struct {
	OnBehalfOf string `json:"onBehalfOf,omitempty" minLength:"1" maxLength:"255" doc:"For whom the caller asks; kept in the history beside the caller, which a token names. Needs the role delegate."`
	Reason     string `json:"reason,omitempty" minLength:"1" maxLength:"1000" doc:"Why; kept in the history."`
	RequestID  string `json:"requestId,omitempty" minLength:"1" maxLength:"255" doc:"A name for this request, so that it is done once."`
}

type retryBody struct {
	VerbBody
	Policy string `json:"policy,omitempty" enum:"pinned,active" doc:"Which policy the order goes on with: the one it started with, or the active one. pinned when left out."`

	Generation    *int32 `json:"generation,omitempty" minimum:"0" maximum:"2147483647" doc:"Only if the order is still at this generation. A failed order that was retried before is restarted only with this, If-Match or a requestId, so that a request that comes twice restarts it once."`
	PaymentMethod string `json:"paymentMethod,omitempty" minLength:"1" maxLength:"255" doc:"What a failed order is charged with from now on. Never logged, and never answered." writeOnly:"true"`
}

type stepResultBody struct {
	Step       string `json:"step" enum:"charge,reserve,confirm" doc:"The step that the order does, or undoes."`
	Refund     *int32 `json:"refund,omitempty" minimum:"1" maximum:"2147483647" doc:"Says that this is not about the step the order is at, but about the refund of this number, which is not settled. The step is charge then."`
	Generation *int32 `json:"generation,omitempty" minimum:"0" maximum:"2147483647" doc:"Says that this is not about the step the order is at, but about the open undo of a late effect of that step in this generation. The outcome is done then: it was undone by hand."`
	Outcome    string `json:"outcome" enum:"done,refused,not_done" doc:"Of the step, or of its undoing where the order is being undone. done: it is. refused: it is not and never will be. not_done: it is not, and may be tried again."`
	Reference  string `json:"reference,omitempty" minLength:"1" maxLength:"255" doc:"The provider's name for what is done."`
	Code       string `json:"code,omitempty" minLength:"1" maxLength:"255" doc:"Why it is not done, for programs."`
	Detail     string `json:"detail,omitempty" minLength:"1" maxLength:"1000" doc:"Why it is not done, for people."`
	OnBehalfOf string `json:"onBehalfOf,omitempty" minLength:"1" maxLength:"255" doc:"For whom the caller asks; kept in the history beside the caller, which a token names. Needs the role delegate."`
	Reason     string `json:"reason" minLength:"1" maxLength:"1000" doc:"How they know; kept in the history." example:"seen in the dashboard"`
	RequestID  string `json:"requestId,omitempty" minLength:"1" maxLength:"255" doc:"A name for this request, so that it is done once."`
}

// requestOf is what the body of any verb can say, for one order or many.
func requestOf(verb orders.Verb, got fields) engine.Request {
	q := engine.Request{Verb: verb, OnBehalfOf: got.text("onBehalfOf"), Reason: got.text("reason"), RequestID: got.text("requestId")}
	if verb == orders.Retry {
		q.ActivePolicy, q.PaymentMethod = got.text("policy") == "active", got.text("paymentMethod")
		q.Generation = got.optionalInteger("generation")
	}
	if verb == orders.StepResult {
		q.Settle = &engine.Settled{
			Step: fsm.Step(got.text("step")), Outcome: got.text("outcome"),
			Reference: got.text("reference"), Code: got.text("code"), Detail: got.text("detail"),
			Generation: got.optionalInteger("generation"), Refund: got.optionalInteger("refund"),
		}
	}
	return q
}

// decidingNames are the fields of verbs that decide what is done.
var decidingNames = []string{"generation", "outcome", "paymentMethod", "policy", "refund", "step"}

// checkVerb refuses what one field allows and another does not.
func checkVerb(d *decoder, got fields) {
	d.refuseMisspelled(decidingNames...)
	if got.has("refund") && got.text("step") != "" && (got.text("step") != string(fsm.Charge) || got.has("generation")) {
		d.fault("/refund", "not_a_charge", "requires the step charge and no generation")
	}
	if outcome := got.text("outcome"); got.has("generation") && outcome != "" && outcome != engine.SettledDone {
		d.fault("/outcome", "not_done", "must be done if a generation is given: an undo is closed once it was done by hand")
	}
}
