package console

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"

	"pawl/client"
)

// decisions are the fields of what has to be known before it can be said what would change.
func (q *request) decisions() []field {
	value := func(f field) field {
		f.Value = cmp.Or(q.form.Get(f.Name), f.Value)
		return f
	}
	switch q.Name {
	case "retry":
		fields := []field{value(field{Name: "policy", Label: "Policy", Type: "select", Options: []string{"pinned", "active"}, Words: policyWords})}
		if q.order.Status == "failed" {
			fields = append(fields, field{Name: "paymentMethod", Label: "Another payment method", Help: "Empty: the same. It is shown to nobody afterwards."})
		}
		return fields
	case "refund":
		return []field{
			value(field{Name: "amount", Label: "Amount in " + q.order.Currency, Help: "Empty: all that is left of " + q.order.Amount + "."}),
			value(field{Name: "restock", Label: "Units to put back into stock", Type: "number", Help: "Empty: none."}),
		}
	case "step-result":
		return []field{
			value(field{Name: "outcome", Label: "What became of " + q.subject(), Type: "select", Options: q.outcomes(), Words: outcomeWords, Required: true}),
			value(field{Name: "reference", Label: "The provider's reference", Help: "Such as the id of the charge."}),
			value(field{Name: "code", Label: notDoneCode, Help: notDoneHelp}),
			value(field{Name: "detail", Label: notDoneWhy}),
		}
	}
	return nil
}

// said is what the order is, and what was decided about it.
func (q *request) said() []string {
	about := fmt.Sprintf("%s %s for %d × %s", q.order.Amount, q.order.Currency, q.order.Quantity, visible(q.order.Item))
	if q.order.CustomerID != "" {
		about += ", customer " + visible(q.order.CustomerID)
	}
	lines := []string{about + "."}
	for _, f := range q.decisions() {
		if f.Value = q.form.Get(f.Name); f.Value != "" && f.Name != "paymentMethod" { // which nobody sees again
			lines = append(lines, f.Label+": "+visible(f.said()))
		}
	}
	return lines
}

// subject is what step-result is about: a refund, the undo of what came too late, or the step that the order is at.
func (q *request) subject() string {
	switch {
	case q.form.Get("refund") != "":
		return "refund " + q.form.Get("refund")
	case q.form.Get("generation") != "":
		return fmt.Sprintf("the undo of the %s in generation %s", q.step(), q.form.Get("generation"))
	case q.order.Status == "releasing" || q.order.Status == "refunding":
		return "the undo of the " + q.step()
	}
	return "the " + q.step()
}

// policyWords are by which policy an order is tried again.
var policyWords = map[string]string{"pinned": "That with which it started (pinned)", "active": "That of new orders (active)"}

// The labels of why a step was not done.
const (
	notDoneCode = "Why it did not happen, as a code"
	notDoneHelp = "Such as card_declined."
	notDoneWhy  = "Why it did not happen, in words"
)

// outcomeWords are what can have become of a step, or of its undo.
var outcomeWords = map[string]string{
	"done":     "It happened (done)",
	"refused":  "It did not happen, and never will (refused)",
	"not_done": "It did not happen, and is tried again (not done)",
}

func (q *request) outcomes() []string {
	if q.form.Get("generation") != "" {
		return []string{"done"}
	}
	return []string{"", "done", "refused", "not_done"} // nothing is said by leaving a form as it is
}

// step is the one that is settled.
func (q *request) step() string {
	steps := map[client.Status]string{"reserving": "reserve", "releasing": "reserve", "confirming": "confirm"}
	return cmp.Or(q.form.Get("step"), steps[q.order.Status], "charge")
}

// send asks the API, whose answer to a dry run is the order as it would be. The version that the person has seen must still be there.
func (q *request) send(ctx context.Context, api *client.Client, dryRun bool) (*client.Order, error) {
	id, to := q.order.OrderID, client.CancelOrderParams{DryRun: dryRun, IfMatch: q.order.ETag(), Prefer: "wait=2"}
	b := client.VerbBody{Reason: q.form.Get("reason"), OnBehalfOf: q.form.Get("onBehalfOf"), RequestID: q.form.Get("requestId")}
	if dryRun {
		b.Reason, b.OnBehalfOf = "preview", "" // of which nothing is kept: the form asks for them
	}
	switch q.Name {
	case "approve":
		return api.ApproveOrder(ctx, id, (*client.ApproveOrderParams)(&to), b)
	case "reject":
		return api.RejectOrder(ctx, id, (*client.RejectOrderParams)(&to), b)
	case "resume":
		return api.ResumeOrder(ctx, id, (*client.ResumeOrderParams)(&to), b)
	case "pause":
		return api.PauseOrder(ctx, id, (*client.PauseOrderParams)(&to), b)
	case "cancel":
		return api.CancelOrder(ctx, id, &to, b)
	case "retry":
		return api.RetryOrder(ctx, id, (*client.RetryOrderParams)(&to), client.RetryBody{Reason: b.Reason, OnBehalfOf: b.OnBehalfOf, RequestID: b.RequestID,
			Policy: client.RetryBodyPolicy(q.form.Get("policy")), PaymentMethod: q.form.Get("paymentMethod")})
	case "refund":
		return api.RefundOrder(ctx, id, (*client.RefundOrderParams)(&to), client.RefundBody{Reason: b.Reason, OnBehalfOf: b.OnBehalfOf, RequestID: b.RequestID,
			Amount: q.amount(), Restock: q.number("restock")})
	}
	body := client.StepResultBody{Reason: b.Reason, OnBehalfOf: b.OnBehalfOf, RequestID: b.RequestID,
		Step: client.StepResultBodyStep(q.step()), Outcome: client.StepResultBodyOutcome(q.form.Get("outcome")),
		Refund: q.number("refund"), Reference: q.form.Get("reference"), Code: q.form.Get("code"), Detail: q.form.Get("detail")}
	if q.form.Get("generation") != "" {
		body.Generation = new(q.number("generation"))
	}
	return api.SettleStepOfOrder(ctx, id, (*client.SettleStepOfOrderParams)(&to), body)
}

// amount is what to give back: nil, all of it, where the field says nothing.
func (q *request) amount() *string {
	text := strings.TrimSpace(q.form.Get("amount"))
	if text == "" {
		return nil
	}
	return &text
}

// number is a field of the form; what is none is -1, which the API refuses.
func (q *request) number(name string) int {
	text := strings.TrimSpace(q.form.Get(name))
	n, err := strconv.Atoi(text)
	if err != nil && text != "" {
		return -1
	}
	return n
}
