package console

import (
	"cmp"
	"html/template"
	"slices"
	"strings"
	"time"

	"pawl/client"
	"pawl/fsm"
)

// verb is a change of orders that a person can request.
type verb struct {
	Name, Label string
	operation   string                                 // of the API
	button      string                                 // the button that confirms it; empty: Label
	Meaning     string                                 // what it does, in a sentence
	done        string                                 // that it was requested, in a sentence
	then        map[string]string                      // what has become of that, by the state of the order, its hold, the reason of that, or the result of a person
	Danger      bool                                   // it can't be undone
	needsReason bool                                   // the API does
	waits       string                                 // what happens while the provider that it needs does not answer; empty: it needs none
	questions   func(*ofOrder) []field                 // nil: it has none
	afterwards  func(*ofOrder, *client.Order) []string // what will be so, in money and goods, of the order as a dry run returns it
	Many        *ofMany                                // nil: only for one order at a time
}

// ofMany is what differs for many orders at once.
type ofMany struct {
	Done    string // after "3 orders", and after "none can be"
	Meaning string
	money   func(*client.Order) string        // what becomes of the money, after its amount; empty: it stays as it is
	becomes func(client.Status) template.HTML // what will be so with an order in the status
	means   map[string]string                 // what its end means for the money, by the state of a request
}

var (
	stays   = func(*client.Order) string { return "" }
	nothing = ": nothing stays charged"
)

// verbs are all verbs, in the order of their buttons.
var verbs = []*verb{
	{
		Name: "approve", Label: "Approve", operation: "approveOrder",
		Meaning: "The order starts.", done: "The order is approved.", waits: "approved orders wait to be charged",
		afterwards: func(q *ofOrder, _ *client.Order) []string {
			return []string{q.money(q.order.Amount) + " is charged, and " + goodsOf(q.order) + " reserved, if both succeed."}
		},
		Many: &ofMany{"approved", "Orders that wait for approval start.", goesOn, always("starts with the charge"),
			map[string]string{"failed": nothing}},
	},
	{
		Name: "reject", Label: "Reject", operation: "rejectOrder", Danger: true, needsReason: true,
		Meaning: "The order is canceled. Nothing was charged.", done: "The order is rejected.",
		afterwards: func(*ofOrder, *client.Order) []string {
			return []string{"The order ends canceled.", "Nothing was charged, and nothing will be."}
		},
		Many: &ofMany{"rejected", "Orders that wait for approval are canceled.", goesBack, always(badge(client.StatusCanceled)),
			map[string]string{"done": ": nothing was charged"}},
	},
	{
		Name: "retry", Label: "Retry", operation: "retryOrder",
		Meaning: "An order on hold retries its step at once, with all its retries left. A failed one starts again, with new keys. Of a completed one, an open refund is tried at once.",
		done:    "It is tried again.",
		then: map[string]string{
			"failed":    "The order was retried, and has failed again.",
			"attention": "It was tried again, and needs a person again.",
			"due":       "It is tried at once. What is not done yet is below, with its next try.",
			"waiting":   "It was tried again, and is not done yet: the next try is below.",
			"completed": "It was retried. The order is completed, and nothing of it is open.",
		},
		waits: "it may not succeed", afterwards: (*ofOrder).retried,
		Many: &ofMany{"retried", "Each is tried again at once.", goesOn, triedAgain,
			map[string]string{"failed": nothing}},
	},
	{
		Name: "resume", Label: "Resume", operation: "resumeOrder",
		Meaning: "The order continues where it was, and waits again for what it waited for.", done: "The order continues.",
		waits: "resumed orders wait until it works",
		afterwards: func(q *ofOrder, _ *client.Order) []string {
			return []string{"The order continues at the step " + q.step() + "."}
		},
		Many: &ofMany{"resumed", "Paused orders continue where they were.", goesOn, continues, map[string]string{"failed": nothing}},
	},
	{
		Name: "pause", Label: "Pause", operation: "pauseOrder",
		Meaning: "The step under way is finished. Then the order waits until it is resumed. Its deadlines do not wait.",
		done:    "The order will pause.",
		afterwards: func(*ofOrder, *client.Order) []string {
			return []string{"After the step under way, no money and no goods move until a person resumes the order."}
		},
		Many: &ofMany{"paused", "The step under way is finished. Then the orders wait until they are resumed.", stays, always("paused"), nil},
	},
	{
		Name: "cancel", Label: "Cancel", operation: "cancelOrder", Danger: true, needsReason: true,
		button:  "Cancel the order", // "Cancel" alone could mean the way back
		Meaning: "Everything that was done, or may have been, is undone. Then the order is canceled.",
		done:    "The order is being canceled.", then: map[string]string{"canceled": "The order is canceled."},
		waits: "canceled orders wait until what was done can be undone",
		afterwards: func(q *ofOrder, _ *client.Order) []string {
			return []string{"The order ends canceled.", q.money(q.order.Amount) + " " + goesBack(q.order) + ".", q.goodsBack()}
		},
		Many: &ofMany{"canceled", "The orders stop, and everything that was done is undone.", goesBack, always(badge(client.StatusCanceled)),
			map[string]string{"done": nothing}},
	},
	{
		Name: "capture", Label: "Capture", operation: "captureOrder", questions: (*ofOrder).captureFields, afterwards: (*ofOrder).operated,
		Meaning: "A part of what was authorized is taken. The order stays completed.", done: "The capture is requested.",
		waits: "a capture" + laterByItself,
	},
	{
		Name: "void", Label: "Void", operation: "voidOrder", Danger: true, afterwards: (*ofOrder).operated,
		Meaning: "What is not captured is given up. It can't be captured later.", done: "The void is requested.",
		waits: "a void" + laterByItself,
	},
	{
		Name: "refund", Label: "Refund", operation: "refundOrder", Danger: true, needsReason: true,
		questions: (*ofOrder).refundFields, afterwards: (*ofOrder).operated,
		Meaning: "Money goes back to the customer. The order stays completed.", done: "The refund is requested.",
		waits: "a refund" + laterByItself,
		Many: &ofMany{"refunded", "All that is left of each charge goes back to its customer. The orders stay completed.",
			func(*client.Order) string { return "goes back" }, always(badge(client.StatusCompleted)),
			map[string]string{"done": ": it went back", "failed": ": nothing went back"}},
	},
	{
		Name: "step-result", Label: "Record the step's result", operation: "settleStepOfOrder", needsReason: true,
		questions: (*ofOrder).resultFields, afterwards: (*ofOrder).settled,
		Meaning: "Look at the provider first. What you record counts as its answer.",
		done:    "The order goes on.",
		then: map[string]string{
			"refused":      "Nothing was sent. The order still needs a person: undo it by hand at the provider, then record it as done.",
			"undo_refused": "Then the undo was tried, and refused", "attention": "The order needs a person again.",
			"completed": "The order is completed.", "failed": "The order has ended as failed, and nothing is owed.",
			"canceled": "The order has ended as canceled, and nothing is owed.",
		},
	},
}

const laterByItself = " may not succeed at once; Pawl then tries again by itself"

// always is what becomes of orders in any status.
func always(text template.HTML) func(client.Status) template.HTML {
	return func(client.Status) template.HTML { return text }
}

// stepOf is the step that an order in the status needs next; a charge, if it starts again.
func stepOf(status client.Status) string { return string(cmp.Or(fsm.State(status).Step(), fsm.Charge)) }

func continues(status client.Status) template.HTML {
	return template.HTML("continues at the " + stepOf(status))
}

func triedAgain(status client.Status) template.HTML {
	undo := map[bool]template.HTML{true: "undo of the "}[fsm.State(status).Undoing()]
	return cmp.Or(map[client.Status]template.HTML{client.StatusPending: "starts with the charge", client.StatusCompleted: "open refund is tried again"}[status],
		undo+template.HTML(stepOf(status))+" is tried again")
}

// goesOn says what becomes of the money of an order that continues.
func goesOn(o *client.Order) string {
	switch {
	case o.Status == client.StatusCompleted:
		return ""
	case fsm.State(o.Status).Undoing():
		return goesBack(o)
	case o.Steps.Charge.Completed:
		return "is charged already, and not again"
	case o.InDoubt && o.Status == client.StatusCharging:
		return "is charged, unless an earlier try did it"
	case declined(o.Failure.Step, o.Failure.Code):
		return "is charged only if the card is accepted this time; last time " + codeInWords(o.Failure.Code)
	}
	return "is charged"
}

const neverCharged = "was never charged"

// goesBack says what becomes of the money of an order that is undone.
func goesBack(o *client.Order) string {
	switch {
	case o.Steps.Charge.Completed && o.Authorized != "":
		return "was authorized, and is given up once the undo succeeds"
	case o.Steps.Charge.Completed:
		return "goes back to the customer once the undo succeeds"
	case fsm.State(o.Status).Undoing(), o.InDoubt && o.Status == client.StatusCharging:
		return "goes back to the customer if it was charged"
	}
	return neverCharged
}

// doneTo says that it was requested, or what has become of that since.
func (a *verb) doneTo(o *client.Order) string {
	last := a.last(o)
	switch {
	case last.State == client.CaptureStateDone && last.Code == "authorization_expired":
		return "Nothing is left to capture: the authorization had ended."
	case last.State == client.CaptureStateDone:
		return "The " + a.Name + " is done."
	case last.State == client.CaptureStateFailed:
		return strings.TrimSpace("The "+a.Name+" has failed: "+last.Code+" "+last.Detail) +
			". Look at the provider; then you can request another."
	}
	state, open := string(o.Status), slices.DeleteFunc(operationsOf(o), func(o operation) bool { return !o.Waits() })
	if len(open) > 0 {
		due := slices.ContainsFunc(open, func(o operation) bool { return !o.NextAt.After(time.Now()) })
		state = map[bool]string{true: "due", false: "waiting"}[due]
	}
	reason, code, _ := strings.Cut(o.HoldReason, ": ")
	refused := a.then[reason]
	switch {
	case refused != "" && strings.HasPrefix(code, "step_result"):
		return a.then["refused"]
	case refused != "":
		return strings.TrimSuffix(refused+": "+visible(codeInWords(code)), ": ") + "."
	}
	return cmp.Or(a.then[state], a.then[string(o.Hold)], a.done)
}

// last is the newest operation of this kind.
func (a *verb) last(o *client.Order) (last operation) {
	for _, operation := range operationsOf(o) {
		if operation.Kind == a.Name {
			last = operation
		}
	}
	return last
}

// failed reports whether the newest operation of this kind has failed, or the order that was retried needs a person again.
func (a *verb) failed(o *client.Order) bool {
	return a.last(o).State == client.CaptureStateFailed || a.Name == "retry" && (o.Status == client.StatusFailed || o.Hold == client.OrderHoldAttention)
}

func verbByName(verbs []*verb, name string) *verb {
	if i := slices.IndexFunc(verbs, func(a *verb) bool { return a.Name == name }); i >= 0 {
		return verbs[i]
	}
	return nil
}

// applies reports whether this person may request a verb for an order. The submitter may not always approve it.
func (v *visit) applies(a *verb, order *client.Order) bool {
	own := order.SubmittedBy == v.me.Name && strings.HasPrefix(order.HoldReason, fsm.AnotherApprover)
	return slices.Contains(order.AllowedActions, a.Name) && (a.Name != "approve" || !own)
}

func (v *visit) actions(order *client.Order) []*verb {
	return slices.DeleteFunc(slices.Clone(verbs), func(a *verb) bool { return !v.applies(a, order) || !v.may(a.operation) })
}

// offers are the actions of an order for which it has buttons: each open refund, capture and void has its own link, and what
// is left after lost disputes alone can be refunded without paying twice.
func (v *visit) offers(order *client.Order) []*verb {
	return slices.DeleteFunc(v.actions(order), func(a *verb) bool {
		return a.Name == "step-result" && order.Status == client.StatusCompleted || a.Name == "refund" && refundable(order).Cmp(disputed(client.DisputeStateLost, order)) <= 0
	})
}

func (v *visit) bulkVerbs() []*verb {
	return slices.DeleteFunc(slices.Clone(verbs), func(a *verb) bool { return a.Many == nil || !v.may(a.operation) })
}

// bulkActions returns the bulkVerbs that apply to at least one of the orders.
func (v *visit) bulkActions(orders []client.Order) []*verb {
	return slices.DeleteFunc(v.bulkVerbs(), func(a *verb) bool {
		return !slices.ContainsFunc(orders, func(o client.Order) bool { return v.applies(a, &o) })
	})
}

// fits is the first of the bulkVerbs that applies to all of the orders, or empty. A refund is never proposed: a person
// chooses it.
func (v *visit) fits(orders []client.Order) string {
	for _, a := range v.bulkActions(orders) {
		if a.Name != "refund" && !slices.ContainsFunc(orders, func(o client.Order) bool { return !v.applies(a, &o) }) {
			return a.Name
		}
	}
	return ""
}
