package console

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"pawl/client"
)

// verb is what a person can ask of an order.
type verb struct {
	Name, Label string
	operation   string // of the API
	Meaning     string // what it does, in a sentence
	asked       string // that it was asked for, in a sentence
	Danger      bool   // it can't be taken back
	needsReason bool
}

// verbs are all of them, in the order in which they are offered.
var verbs = []verb{
	{"approve", "Approve", "approveOrder", "The order starts.", "The order is approved.", false, false},
	{"reject", "Reject", "rejectOrder", "The order ends canceled, and nothing was charged. Its failure is rejected.", "The order is rejected.", true, true},
	{"retry", "Retry", "retryOrder", "A held order tries its step again at once, with all its retries before it. A failed one starts anew, under keys of its own.", "The order tries again.", false, false},
	{"step-result", "Say what became of the step", "settleStepOfOrder", "Look at the provider first. The order goes on as if the provider itself had said so: if you say that a charge is done which never happened, nobody pays for the order.",
		"What became of the step is noted.", true, true},
	{"resume", "Resume", "resumeOrder", "The order goes on where it was. What it waited for before, it waits for again.", "The order goes on.", false, false},
	{"pause", "Pause", "pauseOrder", "A step that is under way is finished. Then the order waits until somebody resumes it. Deadlines go on.", "The order is to pause.", false, false},
	{"cancel", "Cancel", "cancelOrder", "The step under way is recorded. Then everything that was done, or may have been, is undone, and the order ends canceled.", "The order is to be undone.", true, true},
	{"refund", "Refund", "refundOrder", "Money goes back to the customer. The order stays completed.", "The refund is asked for.", true, true},
}

// asked says of each verb that it was asked for.
var asked = func() map[string]string {
	all := map[string]string{}
	for _, a := range verbs {
		all[a.Name] = a.asked
	}
	return all
}()

// request is a verb for an order as a person has put it together, in a form.
type request struct {
	*verb
	order *client.Order // as the person has seen it
	form  url.Values
}

// readRequest reads the order and which verb is asked of it.
func (v *visit) readRequest() (*request, error) {
	i := slices.IndexFunc(verbs, func(a verb) bool { return a.Name == v.r.PathValue("verb") })
	if i < 0 {
		return nil, errNoPage
	}
	if !v.may(verbs[i].operation) {
		return nil, &client.Problem{ProblemBody: client.ProblemBody{Status: http.StatusForbidden, Title: "Your roles do not allow this."}}
	}
	order, err := v.api.GetOrder(v.r.Context(), v.query("id"), nil)
	if err != nil {
		return nil, err
	}
	if err := v.r.ParseForm(); err != nil {
		return nil, unusable("The form could not be read.")
	}
	return &request{&verbs[i], order, v.r.Form}, nil
}

// askVerb shows the form of what has to be known, or where that is nothing, at once what would change.
func (v *visit) askVerb() error {
	q, err := v.readRequest()
	if err != nil {
		return err
	}
	if fields := q.decisions(); len(fields) > 0 {
		return v.showForm(q, fields, nil)
	}
	return v.preview(q)
}

// submitVerb does what a form with a request id asks, and shows what one without would change.
func (v *visit) submitVerb() error {
	q, err := v.readRequest()
	if err != nil {
		return err
	}
	if q.form.Get("requestId") == "" {
		return v.preview(q)
	}
	seq, err := strconv.Atoi(q.form.Get("seq"))
	if err != nil {
		return errNoPage
	}
	q.order.Seq = seq // that the person has seen
	if _, err = q.send(v.r.Context(), v.api, false); err != nil {
		return v.refused(q, err)
	}
	return v.redirect(orderURL(q.order.OrderID) + "&done=" + q.Name)
}

func (v *visit) showForm(q *request, fields []field, notes []string) error {
	return v.show("confirm", page{Title: q.Label, Still: true, Data: confirmation{
		Heading: q.heading(), Notes: append(notes, q.Meaning), Fields: fields, Button: "Show what would change", Back: orderURL(q.order.OrderID),
	}})
}

// heading names the verb and what it is asked of.
func (q *request) heading() string {
	text := q.Label + ": order " + visible(q.order.OrderID)
	if n := q.form.Get("refund"); n != "" {
		text += ", refund " + n
	}
	return text
}

// preview shows what would change, and takes the reason.
func (v *visit) preview(q *request) error {
	q.form.Set("requestId", client.NewID())
	would, err := q.send(v.r.Context(), v.api, true)
	if err != nil {
		return v.refused(q, err)
	}
	hidden := map[string]string{"seq": strconv.Itoa(q.order.Seq)}
	for name := range q.form {
		if name != "id" && q.form.Get(name) != "" {
			hidden[name] = q.form.Get(name)
		}
	}
	delete(hidden, "reason")
	fields := []field{{Name: "reason", Label: "Reason", Help: "It is kept in the history of the order.", Type: "textarea", Required: q.needsReason}}
	if slices.Contains(v.me.Roles, "delegate") {
		fields = append(fields, field{Name: "onBehalfOf", Label: "On behalf of", Help: "For whom you ask; it is kept beside your own name."})
	}
	return v.show("confirm", page{Title: q.Label, Still: true, Data: confirmation{
		Heading: q.heading(), Changes: changesOf(q.order, would), Notes: []string{q.Meaning}, Hidden: hidden, Fields: fields,
		Button: q.Label, Danger: q.Danger, Back: orderURL(q.order.OrderID),
	}})
}

// decisions are the fields of what has to be known before it can be said what would change.
func (q *request) decisions() []field {
	value := func(f field) field {
		f.Value = cmp.Or(q.form.Get(f.Name), f.Value)
		return f
	}
	switch q.Name {
	case "retry":
		fields := []field{value(field{Name: "policy", Label: "Policy", Type: "select", Options: []string{"pinned", "active"}, Help: "pinned: that with which the order started. active: that of new orders."})}
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
			value(field{Name: "outcome", Label: "What became of " + q.subject(), Type: "select", Options: q.outcomes(),
				Help: "done: it is. refused: it is not and never will be. not_done: it is not, and may be tried again."}),
			value(field{Name: "reference", Label: "The provider's name for what is done", Help: "Such as the id of the charge."}),
			value(field{Name: "code", Label: "Why it is not done, for programs"}),
			value(field{Name: "detail", Label: "Why it is not done, for people"}),
		}
	}
	return nil
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

func (q *request) outcomes() []string {
	if q.form.Get("generation") != "" {
		return []string{"done"}
	}
	return []string{"done", "refused", "not_done"}
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
		b.Reason = cmp.Or(b.Reason, "preview") // of which nothing is kept
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
			Amount: strings.TrimSpace(q.form.Get("amount")), Restock: q.number("restock")})
	}
	body := client.StepResultBody{Reason: b.Reason, OnBehalfOf: b.OnBehalfOf, RequestID: b.RequestID,
		Step: client.StepResultBodyStep(q.step()), Outcome: client.StepResultBodyOutcome(q.form.Get("outcome")),
		Refund: q.number("refund"), Reference: q.form.Get("reference"), Code: q.form.Get("code"), Detail: q.form.Get("detail")}
	if q.form.Get("generation") != "" {
		body.Generation = new(q.number("generation"))
	}
	return api.SettleStepOfOrder(ctx, id, (*client.SettleStepOfOrderParams)(&to), body)
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

// changesOf are the differences between an order as it is and as it would be.
func changesOf(is, would *client.Order) (changes []change) {
	for _, c := range []change{
		{"Status", string(is.Status), string(would.Status)},
		{"Generation", strconv.Itoa(is.Generation), strconv.Itoa(would.Generation)},
		{"Policy", version(is.Policy), version(would.Policy)},
		{"Waits for", string(is.Hold), string(would.Hold)},
		{"Reason for waiting", is.HoldReason, would.HoldReason},
		{"Asked to stop", string(is.StopRequested), string(would.StopRequested)},
		{"Failure", is.Failure.Code, would.Failure.Code},
		{"Given back", is.Refunded, would.Refunded},
		{"Refunds", refundsText(is), refundsText(would)},
		{"Can be asked", strings.Join(is.AllowedActions, ", "), strings.Join(would.AllowedActions, ", ")},
	} {
		if c.Before != c.After {
			changes = append(changes, change{c.What, cmp.Or(c.Before, "–"), cmp.Or(c.After, "–")})
		}
	}
	return changes
}

func version(policy int) string {
	if policy == 0 {
		return "none"
	}
	return strconv.Itoa(policy)
}

func refundsText(o *client.Order) string {
	var all []string
	for _, r := range o.Refunds {
		text := fmt.Sprintf("%s %s: %s", r.Amount, o.Currency, strings.ReplaceAll(string(r.State), "_", " "))
		if r.Restock > 0 {
			text += fmt.Sprintf(", %d back in stock", r.Restock)
		}
		all = append(all, text)
	}
	return strings.Join(all, "; ")
}

// refusal says why a verb was not done, and what has happened since the person looked.
type refusal struct {
	*client.Problem
	Order   *client.Order
	Again   string // URL of the page where it can be asked again; empty: it would be refused
	Happens []client.Transition
}

// refused shows why a verb was not done. Where the form is to blame, it is shown again.
func (v *visit) refused(q *request, err error) error {
	problem, ok := errors.AsType[*client.Problem](err)
	switch {
	case !ok:
		return err
	case problem.Status == http.StatusUnprocessableEntity && problem.Code == "invalid_input" && q.decisions() != nil:
		var notes []string
		for _, e := range problem.Errors {
			notes = append(notes, strings.TrimPrefix(e.Pointer, "/")+" "+e.Detail)
		}
		return v.showForm(q, q.decisions(), notes)
	case problem.Status != http.StatusConflict && problem.Status != http.StatusPreconditionFailed && problem.Code != "own_order":
		return err
	}
	r := refusal{Problem: problem}
	if r.Order, err = v.api.GetOrder(v.r.Context(), q.order.OrderID, nil); err != nil {
		return err
	}
	if slices.Contains(r.Order.AllowedActions, q.Name) && problem.Status == http.StatusPreconditionFailed {
		r.Again = actionURL(q.Name, q.order.OrderID)
	}
	moves, err := v.api.ListTransitions(v.r.Context(), q.order.OrderID, &client.ListTransitionsParams{After: q.order.Seq, Limit: 20})
	if err != nil {
		return err
	}
	r.Happens = moves.Transitions
	return v.showAs(int(problem.Status), "refused", page{Title: "Not done", Still: true, Data: r})
}
