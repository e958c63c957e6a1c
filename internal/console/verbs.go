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
	"pawl/fsm"
)

// verb is what a person can ask of an order.
type verb struct {
	Name, Label string
	operation   string // of the API
	confirm     string // what the button says that does it; empty: Label
	Meaning     string // what it does, in a sentence
	asked       string // that it was asked for, in a sentence
	Danger      bool   // it can't be taken back
	needsReason bool
	Many        *ofMany // nil: it is asked of one order at a time
}

// ofMany is what differs where a verb is asked of many orders at once.
type ofMany struct {
	Label   string // stands before "3 orders", and before "all"
	Done    string // stands behind "3 orders", and behind "none can be"
	Meaning string
}

// verbs are all of them, in the order in which they are offered.
var verbs = []*verb{
	{
		Name: "approve", Label: "Approve", operation: "approveOrder", Meaning: "The order starts.", asked: "The order is approved.",
		Many: &ofMany{"Approve", "approved", "Orders that wait for an approval start."},
	},
	{
		Name: "reject", Label: "Reject", operation: "rejectOrder", Meaning: "The order ends canceled, and nothing was charged. Its failure is rejected.",
		asked: "The order is rejected.", Danger: true, needsReason: true,
		Many: &ofMany{"Reject", "rejected", "Orders that wait for an approval are canceled."},
	},
	{
		Name: "retry", Label: "Retry", operation: "retryOrder",
		Meaning: "A held order tries its step again at once, with all its retries before it. A failed one starts anew, under keys of its own.",
		asked:   "The order tries again.",
		Many:    &ofMany{"Retry", "retried", "Held orders try their step again at once. Failed ones start anew."},
	},
	{
		Name: "step-result", Label: "Say what became of the step", operation: "settleStepOfOrder",
		Meaning: "Look at the provider first. The order goes on as if the provider itself had said so: if you say that a charge is done which never happened, nobody pays for the order.",
		asked:   "What became of the step is recorded.", Danger: true, needsReason: true,
		Many: &ofMany{"Say what became of the step for", "given a result", "You have looked at the provider, and say what became of a step. The orders go on as if the provider had said so."},
	},
	{
		Name: "resume", Label: "Resume", operation: "resumeOrder", Meaning: "The order goes on where it was. What it waited for before, it waits for again.",
		asked: "The order goes on.",
		Many:  &ofMany{"Resume", "resumed", "Paused orders go on where they were."},
	},
	{
		Name: "pause", Label: "Pause", operation: "pauseOrder", Meaning: "A step that is under way is finished. Then the order waits until somebody resumes it. Deadlines go on.",
		asked: "The order will pause.",
		Many:  &ofMany{"Pause", "paused", "The step under way is finished; then the orders wait until somebody resumes them."},
	},
	{
		Name: "cancel", Label: "Cancel", confirm: "Cancel the order", operation: "cancelOrder", // "Cancel" alone could be the way back
		Meaning: "The step under way is recorded. Then everything that was done, or may have been, is undone, and the order ends canceled.",
		asked:   "The order is being canceled.", Danger: true, needsReason: true,
		Many: &ofMany{"Cancel", "canceled", "The orders stop, and all that was done is undone."},
	},
	{
		Name: "refund", Label: "Refund", operation: "refundOrder", Meaning: "Money goes back to the customer. The order stays completed.",
		asked: "The refund is requested.", Danger: true, needsReason: true,
	},
}

// verbNamed is one of some verbs; nil: there is none of that name.
func verbNamed(verbs []*verb, name string) *verb {
	if i := slices.IndexFunc(verbs, func(a *verb) bool { return a.Name == name }); i >= 0 {
		return verbs[i]
	}
	return nil
}

// applies reports whether a verb applies to an order, if this person asks: the approval may be for somebody else to give.
func (v *visit) applies(a *verb, order *client.Order) bool {
	if a.Name == "approve" && order.SubmittedBy == v.me.Name && strings.HasPrefix(order.HoldReason, fsm.AnotherApprover) {
		return false
	}
	return slices.Contains(order.AllowedActions, a.Name)
}

// actions are the verbs that apply to an order and that the person may ask.
func (v *visit) actions(order *client.Order) []*verb {
	return slices.DeleteFunc(slices.Clone(verbs), func(a *verb) bool { return !v.applies(a, order) || !v.may(a.operation) })
}

// bulkVerbs are the verbs that the person may ask of many orders.
func (v *visit) bulkVerbs() []*verb {
	return slices.DeleteFunc(slices.Clone(verbs), func(a *verb) bool { return a.Many == nil || !v.may(a.operation) })
}

// bulkActions are those of them that apply to one of the orders at least.
func (v *visit) bulkActions(orders []client.Order) []*verb {
	return slices.DeleteFunc(v.bulkVerbs(), func(a *verb) bool {
		return !slices.ContainsFunc(orders, func(o client.Order) bool { return v.applies(a, &o) })
	})
}

// request is a verb for an order as a person has put it together, in a form.
type request struct {
	*verb
	order *client.Order // as the person has seen it
	form  url.Values
}

// readRequest reads the order and which verb is asked of it.
func (v *visit) readRequest() (*request, error) {
	a := verbNamed(verbs, v.r.PathValue("verb"))
	if a == nil {
		return nil, errNoPage
	}
	if err := v.needs(a.operation); err != nil {
		return nil, err
	}
	order, err := v.api.GetOrder(v.r.Context(), v.query("id"), nil)
	if err != nil {
		return nil, err
	}
	if err := v.r.ParseForm(); err != nil {
		return nil, unusable("The form could not be read.")
	}
	return &request{a, order, v.verbForm(a)}, nil
}

// verbForm is what was said of a verb: by a link, of which the page shows what counts, or by a form. Then all that counts of the URL
// is what the page is about: whoever made the link must not have decided anything that the person has not seen.
func (v *visit) verbForm(a *verb) url.Values {
	if v.r.Method != http.MethodPost {
		return v.r.Form
	}
	form := v.r.PostForm
	for _, name := range a.about() {
		if !form.Has(name) {
			form.Set(name, v.query(name))
		}
	}
	return form
}

// about are the parameters that name what the verb is asked of beside the order.
func (a *verb) about() []string {
	if a.Name == "step-result" {
		return []string{"refund", "generation", "step"}
	}
	return nil
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
	return v.preview(q, nil)
}

// submitVerb does what a form with a request id asks, and shows what one without would change.
func (v *visit) submitVerb() error {
	q, err := v.readRequest()
	if err != nil {
		return err
	}
	if q.form.Get("requestId") == "" {
		return v.preview(q, nil)
	}
	seq, err := strconv.Atoi(q.form.Get("seq"))
	if err != nil {
		return errNoPage
	}
	q.order.Seq = seq // that the person has seen
	if _, err = q.send(v.r.Context(), v.api, false); err != nil {
		if faults := faultsOf(err); faults != nil {
			return v.preview(q, faults)
		}
		return v.refused(q, err)
	}
	return v.redirect(orderURL(q.order.OrderID) + "&done=" + q.Name)
}

func (v *visit) showForm(q *request, fields []field, notes []string) error {
	return v.show("confirm", page{Title: q.Label, Data: confirmation{
		Heading: q.heading(), Notes: append(notes, q.Meaning), Fields: fields, Button: "Show what would change", Back: orderURL(q.order.OrderID),
	}})
}

// decided are the names of what was decided before the preview, which shows what comes of it.
func (q *request) decided() []string {
	names := []string{"requestId"}
	for _, f := range q.decisions() {
		names = append(names, f.Name)
	}
	return append(names, q.about()...)
}

// heading names the verb and what it is asked of.
func (q *request) heading() string {
	text := q.Label + ": order " + visible(q.order.OrderID)
	if n := q.form.Get("refund"); n != "" {
		text += ", refund " + n
	}
	return text
}

// preview shows what would change, and takes the reason. After a refusal it says what was wrong with that.
func (v *visit) preview(q *request, faults []string) error {
	q.form.Set("requestId", client.NewID())
	would, err := q.send(v.r.Context(), v.api, true)
	if err != nil {
		return v.refused(q, err)
	}
	hidden := map[string]string{"seq": strconv.Itoa(q.order.Seq)}
	for _, name := range q.decided() {
		hidden[name] = q.form.Get(name)
	}
	fields := []field{{Name: "reason", Label: "Reason", Help: "It is kept in the history of the order.", Type: "textarea", Required: q.needsReason, Value: v.r.PostForm.Get("reason")}}
	if slices.Contains(v.me.Roles, "delegate") {
		fields = append(fields, field{Name: "onBehalfOf", Label: "On behalf of", Help: "For whom you ask; it is kept beside your own name.", Value: v.r.PostForm.Get("onBehalfOf")})
	}
	return v.show("confirm", page{Title: q.Label, Data: confirmation{
		Heading: q.heading(), Changes: changesOf(q.order, would), Notes: slices.Concat(faults, q.said(), []string{q.Meaning}), Hidden: hidden, Fields: fields,
		Button: cmp.Or(q.confirm, q.Label), Danger: q.Danger, Back: orderURL(q.order.OrderID),
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

// changesOf are the differences between an order as it is and as it would be.
func changesOf(is, would *client.Order) []change {
	changes := different([]change{
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
	}...)
	for i, c := range changes {
		changes[i] = change{c.What, cmp.Or(c.Before, "–"), cmp.Or(c.After, "–")}
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

// faultsOf says what is wrong with a form; nil: the error has another cause.
func faultsOf(err error) (faults []string) {
	if problem := refusedInput(err); problem != nil && problem.Code == "invalid_input" {
		for _, e := range problem.Errors {
			faults = append(faults, strings.TrimPrefix(e.Pointer, "/")+" "+e.Detail)
		}
	}
	return faults
}

// refused shows why a verb was not done. Where the form is to blame, it is shown again.
func (v *visit) refused(q *request, err error) error {
	problem, ok := errors.AsType[*client.Problem](err)
	switch {
	case !ok:
		return err
	case faultsOf(err) != nil && q.decisions() != nil:
		return v.showForm(q, q.decisions(), faultsOf(err))
	case problem.Status != http.StatusConflict && problem.Status != http.StatusPreconditionFailed && problem.Code != "own_order":
		return err
	}
	r := refusal{Problem: problem}
	if r.Order, err = v.api.GetOrder(v.r.Context(), q.order.OrderID, nil); err != nil {
		return err
	}
	if v.applies(q.verb, r.Order) && problem.Status == http.StatusPreconditionFailed {
		r.Again = actionURL(q.Name, q.order.OrderID)
	}
	moves, err := v.api.ListTransitions(v.r.Context(), q.order.OrderID, &client.ListTransitionsParams{After: q.order.Seq, Limit: 20})
	if err != nil {
		return err
	}
	r.Happens = moves.Transitions
	return v.showAs(int(problem.Status), "refused", page{Title: "Not done", Data: r})
}
