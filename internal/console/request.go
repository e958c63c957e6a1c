package console

import (
	"cmp"
	"errors"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"pawl/client"
	"pawl/fsm"
)

// policyField asks for the policy of a retry.
var policyField = field{Name: "policy", Label: "Policy", Type: "select", Options: []string{"pinned", "active"}, Words: map[string]string{
	"pinned": "The one it started with", "active": "The one for new orders"},
	Fold: "Advanced: policy", Help: "Change it only if the policy was wrong, and has been corrected since."}

type ofOrder struct {
	*visit
	verb    *verb
	order   *client.Order
	tracked map[string]bool // the items of the order whose stock is here; only for a refund
	short   string          // see soldOut; only for a retry
	asks    []field
}

// doVerb serves the pages of a verb for an order.
func (v *visit) doVerb() error {
	a := verbByName(verbs, v.r.PathValue("task"))
	if a == nil {
		return errNoPage
	}
	order, err := v.api.GetOrder(v.r.Context(), v.query("id"))
	if err != nil {
		return err
	}
	if err := v.needs(a.operation); err != nil { // before what the order says of the verb
		return err
	}
	q := &ofOrder{visit: v, verb: a, order: order, tracked: map[string]bool{}}
	if v.r.Method == http.MethodGet && !v.applies(a, order) { // the API says why
		_, err := q.send(url.Values{"amount": {"1"}, "outcome": {"done"}}, true)
		problem, refused := errors.AsType[*client.Problem](err)
		if err == nil && a.Name == "cancel" {
			problem, refused = newProblem(http.StatusConflict, "", v.noCancel(order)), true
		}
		if refused && problem.Status == http.StatusConflict {
			return q.conflict(problem)
		}
	}
	if err := q.track(); err != nil {
		return err
	}
	if a.questions != nil {
		q.asks = a.questions(q)
	}
	return v.perform(tasksOf("/console/order", url.Values{"id": {order.OrderID}}, q.task()))
}

func (q *ofOrder) task() *task {
	heading := strings.TrimSuffix(q.verb.Label+": order "+visible(q.order.OrderID)+", "+q.operation(), ", ")
	t := &task{
		Name: q.verb.Name, operation: q.verb.operation,
		Heading: heading, Button: cmp.Or(q.verb.button, q.verb.Label), Danger: q.verb.Danger, Notes: []string{q.about(), q.verb.Meaning},
		questions: q.asks, seen: map[string]string{"seq": strconv.Itoa(q.order.Seq)},
		conflict: q.conflict, details: []string{"step", "generation", "refund", "capture", "void", "since"}, // what step-result is about, and what was seen
		Cautions: q.caution(),
		do: func(form url.Values) error {
			if number(form.Get("seq")) == 0 { // it is of no form
				return errNoPage
			}
			to := orderURL(q.order.OrderID) + "&done=" + q.verb.Name
			if form.Get("seq") != strconv.Itoa(q.order.Seq) { // the API accepts it only if it was done before
				to += "&before=" + url.QueryEscape(form.Get("requestId"))
			}
			_, err := q.send(form, false)
			return q.backTo(to)(nil, err)
		},
	}
	t.preview = func(form url.Values) ([]change, []string, error) {
		would, err := q.send(form, true)
		if err == nil && q.query("since") != "" {
			t.Meanwhile, err = q.meanwhile(number(q.query("since")))
		}
		if err != nil {
			return nil, nil, err
		}
		if q.verb.Name == "retry" {
			q.short = q.soldOut()
		}
		t.Outcomes = q.verb.afterwards(q, would)
		if q.short != "" && q.startsAgain() {
			t.Quiet, t.fields = true, t.fields[1:] // another card does not help
		}
		if last := q.verb.last(would); last.Amount != "" {
			t.Button = q.verb.Label + " " + q.money(last.Amount)
		}
		if q.verb.Name == "step-result" {
			return nil, q.answers(form), nil // the result is applied later: until then, only the hold differs
		}
		return changesOf(q.order, would), nil, nil
	}
	if q.startsAgain() {
		t.Button = "Start the order again"
		t.fields = []field{{Name: "paymentMethod", Label: "Another card or payment method (optional)", Type: "opaque",
			Help: "Its id at the provider, such as pm_1PqX… from Stripe; never a card number. Leave it empty to charge the same one. It is not shown again."}}
	}
	t.fields = append(t.fields, field{Name: "reason", Label: "Reason", Help: "It is kept in the history of the order.", Type: "textarea",
		Required: q.verb.needsReason})
	if slices.Contains(q.me.Roles, "delegate") {
		t.fields = append(t.fields, field{Name: "onBehalfOf", Label: "On behalf of", Help: "It is kept beside your own name."})
	}
	if q.verb.Name == "retry" || q.verb.Name == "cancel" && goesBack(q.order) == neverCharged {
		t.Notes = t.Notes[:1] // the outcomes say what it means for this order
	}
	if q.verb.Name == "retry" && q.order.Status != client.StatusCompleted {
		policy := policyField
		policy.Looks = true
		t.fields = append(t.fields, policy)
	}
	return t
}

// orNot asks for a choice that is not made before.
func orNot(name, label, help string) field {
	return field{Name: name, Label: label, Type: "select", Options: []string{"", "yes"}, Words: map[string]string{"": "No", "yes": "Yes"}, Help: help}
}

func (q *ofOrder) refundFields() []field {
	left := refundable(q.order)
	all := field{Name: "all", Type: "checkbox", Label: "All that is left: " + q.money(left.String()), Amount: left.String() + " " + q.order.Currency}
	if before, _ := parsed(taken(q.order)).Sub(left); !before.IsZero() {
		all.Help = q.money(before.String()) + " was refunded before, or is still to go back."
	}
	amount := field{Name: "amount", Label: "Amount in " + q.order.Currency, Type: "decimal", Help: "For a partial refund.", Amount: all.Amount}
	if q.order.Lines != nil {
		amount.Label, amount.Help = "Another amount in "+q.order.Currency, "It replaces the total. Leave it empty for what is chosen above."
	}
	fields := append(append([]field{all}, q.rows("refund")...), amount)
	if b := (&orderPage{Order: q.order}).Balance(); b != nil && len(disputesIn(client.DisputeStateLost, q.order)) > 0 { // the bank has taken a part back
		fields = fields[1:]
		fields[len(fields)-1].Help = "Kept: " + q.money(b.Kept.String()) + "."
	}
	switch {
	case len(q.tracked) == 0 || q.order.Steps.Reserve.Reference != "": // no stock here to put it back into
		return fields
	case q.order.Lines != nil:
		return append(fields, orNot("restock", "Put the units back into stock", ""))
	}
	return append(fields, field{Name: "restock", Label: "Units to put back into stock", Type: "number", Help: "Leave it empty to put none back."})
}

func (q *ofOrder) captureFields() []field {
	left := capturable(q.order)
	amount := field{Name: "amount", Label: "Amount in " + q.order.Currency, Type: "decimal", Amount: left.String() + " " + q.order.Currency,
		Help: "Leave it empty to capture all that is left: " + count(left) + "."}
	if q.order.Lines != nil {
		amount.Help = "Leave it empty to capture the units above or, without units, all that is left: " + count(left) + "."
	}
	return append(q.rows("capture"), amount, orNot("final", "Void the rest", "What is voided can't be captured later."))
}

func (q *ofOrder) resultFields() []field {
	outcome := field{Name: "outcome", Label: "What happened to " + q.subject(), Help: q.lastAnswer(), Type: "select", Required: true, Options: []string{"", "done", "refused", "not_done"},
		Words: map[string]string{"done": "Done: it happened, or you did it by hand", "refused": "Refused: it did not happen; do not send it",
			"not_done": "Not done: it did not happen; send it again"}}
	refusal := map[bool]string{true: "charge_disputed", false: "card_declined"}[fsm.State(q.order.Status).Undoing()]
	if q.query("generation") != "" {
		outcome.Options = []string{"done"}
	}
	return []field{outcome, {Name: "reference", Label: "The provider's reference, if done", Help: "Its id for " + q.subject() + "."},
		{Name: "code", Label: "The provider's code, if refused or not done", Help: "It says why not, such as " + refusal + "."}}
}

// lastAnswer says what the provider answered last about what step-result is about; empty: nothing that is known.
func (q *ofOrder) lastAnswer() string {
	about, params := q.operation(), client.ListCallsParams{Before: 1, Limit: callsOfWait} // those beside the order count down
	if q.query("generation") != "" {
		about = "undo of a late " + q.step()
	} else if about == "" {
		params = client.ListCallsParams{After: -1, Sort: "newest", Limit: callsOfWait}
	}
	list, err := q.api.ListCalls(q.r.Context(), q.order.OrderID, params)
	if err != nil {
		return "" // the request is possible without
	}
	for _, c := range list.Calls {
		if name, _ := (&entry{Call: &c}).beside(operationsOf(q.order)); name == about && string(c.Step) == q.step() && c.Outcome != "" {
			return fmt.Sprintf("The last answer, %s: %s.", c.FinishedAt.UTC().Format("2 Jan 15:04 UTC"), visible(providerWords(&c)))
		}
	}
	return ""
}

// about says what a verb is about.
func (q *ofOrder) about() string {
	about := fmt.Sprintf("Order: %s for %s", q.money(q.order.Amount), visible(q.order.What()))
	if q.order.CustomerID != "" {
		about += ", customer " + visible(q.order.CustomerID)
	}
	if charge := q.order.Steps.Charge.Reference; charge != "" {
		about += ", charge " + visible(charge)
	}
	return about + "."
}

// answers are those to step-result; of the others, the outcomes say them.
func (q *ofOrder) answers(form url.Values) (notes []string) {
	for _, f := range q.asks {
		if value := form.Get(f.Name); value != "" {
			notes = append(notes, f.Label+": "+visible(cmp.Or(f.Words[value], value)))
		}
	}
	return notes
}

// operation is the kind and number of the charge operation that step-result is about, or empty.
func (q *ofOrder) operation() string {
	for _, kind := range []string{"refund", "capture", "void"} {
		if number := q.query(kind); number != "" {
			return kind + " " + number
		}
	}
	return ""
}

// subject is what step-result is about: a charge operation, the undo of a late effect, or the current step.
func (q *ofOrder) subject() string {
	operation, generation := q.operation(), q.query("generation")
	switch {
	case operation != "":
		return operation
	case generation != "":
		return fmt.Sprintf("the undo of %s in generation %s", theStep[client.Status(fsm.DoneIn(fsm.Step(q.step())))], generation)
	}
	return theStep[q.order.Status]
}

func (q *ofOrder) step() string {
	return cmp.Or(q.query("step"), stepOf(q.order.Status))
}

// send sends the request. A dry run returns the order as it would be. The order must not have changed since the person
// saw it.
func (q *ofOrder) send(form url.Values, dryRun bool) (*client.Order, error) {
	is := q.order.Seq
	if form.Has("seq") {
		q.order.Seq = numberOr(form.Get("seq"), -1)
	}
	err := q.check(form)
	var would *client.Order
	if err == nil {
		would, err = q.request(form, dryRun)
		q.explain(err, form)
	}
	if hasStatus(err, http.StatusUnprocessableEntity) && is != q.order.Seq { // it was right when they looked
		err = newProblem(http.StatusPreconditionFailed, "", "")
	}
	return would, err
}

// request sends a request that the console finds no mistake in.
func (q *ofOrder) request(form url.Values, dryRun bool) (*client.Order, error) {
	get := form.Get
	b := client.VerbBody{Reason: get("reason"), OnBehalfOf: get("onBehalfOf"), RequestID: get("requestId")}
	if dryRun {
		b = client.VerbBody{Reason: "preview", RequestID: client.NewID()} // not stored; the form asks for the reason
	}
	var body any = b
	switch q.verb.Name {
	case "retry":
		body = client.RetryBody{
			Policy: client.RetryBodyPolicy(get("policy")), PaymentMethod: get("paymentMethod"),
			Reason: b.Reason, OnBehalfOf: b.OnBehalfOf, RequestID: b.RequestID,
		}
	case "refund":
		c := q.chosen(form)
		refund := client.RefundBody{Amount: c.amount, Lines: c.lines, Reason: b.Reason, OnBehalfOf: b.OnBehalfOf, RequestID: b.RequestID}
		if get("all") == "yes" {
			refund.Amount = new(refundable(q.order).String())
		}
		if q.order.Lines == nil {
			refund.Restock = numberOr(get("restock"), -1)
		}
		body = refund
	case "capture":
		c := q.chosen(form)
		body = client.CaptureBody{Amount: c.amount, Lines: c.lines, Final: get("final") == "yes",
			Reason: b.Reason, OnBehalfOf: b.OnBehalfOf, RequestID: b.RequestID}
	case "step-result":
		result := client.StepResultBody{
			Step: client.StepResultBodyStep(q.step()), Outcome: client.StepResultBodyOutcome(get("outcome")),
			Refund: numberOr(q.query("refund"), -1), Capture: numberOr(q.query("capture"), -1), Void: numberOr(q.query("void"), -1),
			Reference: get("reference"), Code: get("code"), Detail: get("detail"),
			Reason: b.Reason, OnBehalfOf: b.OnBehalfOf, RequestID: b.RequestID,
		}
		if generation := q.query("generation"); generation != "" {
			result.Generation = new(numberOr(generation, -1))
		}
		body = result
	}
	return q.api.ApplyVerb(q.r.Context(), client.OrderVerb{OrderID: q.order.OrderID, Name: q.verb.Name, Body: body},
		client.CancelOrderParams{DryRun: dryRun, IfMatch: q.order.ETag(), Prefer: "wait=2"})
}

// check returns an error for what the API can't know to be a mistake: a refund that does not say how much, or costs
// nothing, and a card number.
func (q *ofOrder) check(form url.Values) error {
	wrong := newProblem(http.StatusUnprocessableEntity, "", "")
	noAmount := q.verb.Name == "refund" && form.Get("all") != "yes" && amountIn(form, "amount") == nil
	c := q.chosen(form)
	switch {
	case aCardNumber.MatchString(form.Get("paymentMethod")):
		wrong.Title = "This looks like a card number."
		wrong.Errors = []client.FieldError{{Pointer: "/paymentMethod", Detail: "Never enter card numbers here. Enter the id that the provider gave the card."}}
	case len(c.wrong) > 0:
		wrong.Title, wrong.Errors = "Part of a line is not right.", c.wrong
	case noAmount && len(c.lines) == 0:
		wrong.Title = "How much goes back?"
		wrong.Errors = []client.FieldError{{Pointer: "/all", Detail: "Choose all that is left, or say a part."}}
	case noAmount && q.order.Lines[0].Amount != "" && !c.total.IsPos():
		wrong.Title = "The total must be more than 0: it is " + q.money(c.total.String()) + "."
	default:
		return nil
	}
	return wrong
}

var aCardNumber = regexp.MustCompile(`^\s*([0-9][ -]?){12,19}\s*$`)

var withComma = regexp.MustCompile(`^([0-9]+),([0-9]{1,2})$`) // three digits could be thousands

// amountIn is the amount of a field, perhaps with a decimal comma, or nil if it is empty.
func amountIn(form url.Values, field string) *string {
	text := withComma.ReplaceAllString(strings.TrimSpace(form.Get(field)), "$1.$2")
	if text == "" {
		return nil
	}
	return &text
}

// changesOf returns the differences between an order as it is and as it would be.
func changesOf(is, would *client.Order) []change {
	changes := different(
		change{"Status", string(is.Status), string(would.Status)},
		change{"Generation", strconv.Itoa(is.Generation), strconv.Itoa(would.Generation)},
		change{"Policy", strings.TrimPrefix(strconv.Itoa(is.Policy), "0"), strings.TrimPrefix(strconv.Itoa(would.Policy), "0")},
		change{"Waits for", string(is.Hold), string(would.Hold)},
		change{"Reason for waiting", is.HoldReason, would.HoldReason},
		change{"Asked to stop", string(is.StopRequested), string(would.StopRequested)},
		change{"Failure", is.Failure.Code, would.Failure.Code},
		change{"Captured", count(is.Captured), count(cmp.Or(would.Captured, is.Captured))},
		change{"Voided", count(is.Voided), count(cmp.Or(would.Voided, is.Voided))},
		change{"Refunded", unlessZero(parsed(is.Refunded)), unlessZero(parsed(cmp.Or(would.Refunded, is.Refunded)))},
		change{"Refunds, captures and voids", operationsText(is), operationsText(would)},
		change{"Possible actions", strings.Join(is.AllowedActions, ", "), strings.Join(would.AllowedActions, ", ")},
	)
	for i, c := range changes {
		changes[i] = change{c.What, cmp.Or(c.Before, "–"), cmp.Or(c.After, "–")}
	}
	return changes
}

func operationsText(o *client.Order) string {
	var all []string
	for _, r := range operationsOf(o) {
		all = append(all, fmt.Sprintf("%s of %s %s: %s", r.Kind, count(r.Amount), o.Currency, strings.ReplaceAll(string(r.State), "_", " ")))
	}
	return strings.Join(all, "; ")
}

// refusal says why a verb was not done, and what happened since the person looked.
type refusal struct {
	*client.Problem
	Order         *client.Order
	Left          string        // what can still be refunded, captured or voided; empty: nothing
	Waits         *wait         // untitled: it waits for nothing
	Ends          template.HTML // why it stops or has ended
	Actions       []*verb       // what can be done instead
	Again, Button string        // URL of the page to try again, and the button that leads there; empty: it would be refused
	Typed         url.Values    // to be sent there, so that it is in no URL
	Happens       []chapter
}

// conflict shows that the order has changed since it was seen, or that it is the person's own.
func (q *ofOrder) conflict(problem *client.Problem) (err error) {
	seen := q.order.Seq
	if q.order, err = q.api.GetOrder(q.r.Context(), q.order.OrderID); err != nil {
		return err
	}
	moves, err := q.api.ListTransitions(q.r.Context(), q.order.OrderID, client.ListTransitionsParams{Sort: "newest", Limit: movesDrawn})
	if err != nil {
		return err
	}
	p := orderPage{Order: q.order, Stop: stopOf(q.order, moves.Transitions)}
	left := map[string]string{"refund": unlessZero(refundable(q.order)), "capture": unlessZero(capturable(q.order)), "void": unlessZero(capturable(q.order))}
	r := refusal{Problem: problem, Order: q.order, Left: left[q.verb.Name], Waits: waitsFor(q.order, moves.Transitions, nil),
		Ends: p.Ends(), Actions: q.offers(q.order)}
	r.Typed = url.Values{"person": {q.me.Name}}
	for _, f := range append(q.asks, whyField) {
		r.Typed.Set(f.Name, q.form.Get(f.Name))
	}
	switch {
	case problem.Status == http.StatusPreconditionFailed && q.applies(q.verb, r.Order):
		r.Again, r.Button = q.with("since", cmp.Or(q.query("since"), strconv.Itoa(seen))), "Look at it again"
	case q.verb.Name == "retry" && r.Order.Hold == client.OrderHoldAttention && q.form.Get(policyField.Name) != "active":
		r.Again, r.Button = q.r.URL.RequestURI(), "See if it works under the policy for new orders"
		r.Typed.Set(policyField.Name, "active")
	}
	if r.Happens, err = q.meanwhile(seen); err != nil {
		return err
	}
	return q.showAs(int(problem.Status), "refused", page{Title: "Not done", Data: r})
}
