package console

import (
	"cmp"
	"fmt"
	"html/template"
	"slices"
	"strings"

	"github.com/govalues/decimal"

	"pawl/client"
	"pawl/fsm"
)

// What will be so after a verb, in money and goods. It follows from the order as it is, and from the order that a dry run
// returns.

// refundable is what can still be refunded of an order.
func refundable(o *client.Order) decimal.Decimal {
	left := parsed(taken(o))
	if o.Status != client.StatusCompleted {
		return left.Zero()
	}
	for _, r := range o.Refunds {
		if r.State != client.RefundStateFailed {
			left, _ = left.Sub(parsed(r.Amount))
		}
	}
	return left
}

// taken is what was charged of an order, or captured.
func taken(o *client.Order) string { return cmp.Or(o.Captured, o.Amount) }

// capturable is the part of an authorization that no capture or void has, or may have, taken.
func capturable(o *client.Order) decimal.Decimal {
	left := parsed(o.Authorized) // zero if nothing was authorized
	if o.Status != client.StatusCompleted {
		return left.Zero()
	}
	for _, operation := range operationsOf(o) {
		switch {
		case operation.Kind == "refund" || operation.State == client.CaptureStateFailed:
		case operation.Final:
			return left.Zero()
		default:
			left, _ = left.Sub(parsed(operation.Amount))
		}
	}
	return left
}

// caution warns before something is done to an order about which the provider's books differ, or whose provider fails, and
// before money goes back that a dispute may take back as well.
func (q *ofOrder) caution() (warnings []template.HTML) {
	warn := func(format string, values ...any) {
		warnings = append(warnings, template.HTML(template.HTMLEscapeString(fmt.Sprintf(format, values...))))
	}
	warnings, _ = q.differences(q.order.OrderID)
	for _, text := range q.failing(q.verb, *q.order) {
		warn("%s", text)
	}
	if q.verb.Name != "refund" && q.verb.Name != "cancel" {
		return warnings
	}
	for _, r := range openRefunds(q.order) {
		if q.verb.Name == "refund" {
			warn("Refund %d of %s is not done yet, and Pawl goes on with it: another one pays more back.", r.Refund, q.money(r.Amount))
		}
	}
	for _, d := range disputesIn(client.DisputeStateOpened, q.order) {
		warn("A dispute of %s is open (%s): a refund as well could pay the customer twice.", q.money(d.Amount), visible(d.Reference))
	}
	for _, d := range disputesIn(client.DisputeStateLost, q.order) {
		warn("A dispute of %s was lost (%s): the bank has taken that back for the customer already. "+
			"A refund of it would pay the customer twice.", q.money(d.Amount), visible(d.Reference))
	}
	return warnings
}

// parsed is an amount of the API; an empty one is zero.
func parsed(amount string) decimal.Decimal {
	d, _ := decimal.Parse(amount)
	return d
}

// orderOf is an order that a dry run has allowed a verb for, as far as its result says.
func orderOf(r *client.BulkResult) client.Order {
	return client.Order{OrderID: r.OrderID, Status: r.Status, InDoubt: r.InDoubt, Authorized: r.Authorized, Failure: r.Failure, Steps: client.Steps{Charge: r.Charge},
		Item: r.Item, Quantity: r.Quantity, Lines: r.Lines}
}

// What is what was ordered.
func (p *bulkPage) What(r client.BulkResult) string { return new(orderOf(&r)).What() }

// sum has the amounts of orders whose money becomes the same.
type sum struct {
	Becomes string
	Totals  []client.CurrencyTotal
}

// Sums says what becomes of all the money.
func (p *bulkPage) Sums() (all []sum) {
	for _, r := range p.Would {
		becomes := p.Money[r.OrderID]
		at := slices.IndexFunc(all, func(s sum) bool { return s.Becomes == becomes })
		if at < 0 {
			at, all = len(all), append(all, sum{Becomes: becomes})
		}
		all[at].Totals = addTotals(all[at].Totals, []client.CurrencyTotal{{Currency: r.Currency, Orders: 1, Amount: cmp.Or(r.Refund.Amount, r.Amount)}})
	}
	return all
}

// Becomes says what will be so with an order that a dry run has allowed the verb for. Its status is the one it has now.
func (p *bulkPage) Becomes(r client.BulkResult) template.HTML { return p.Verb.Many.becomes(r.Status) }

// failing says which providers that orders need for a verb do not answer, if the person may know.
func (v *visit) failing(verb *verb, orders ...client.Order) []string {
	if verb.waits == "" || !v.may("getOverview") {
		return nil
	}
	found, err := v.api.GetOverview(v.r.Context())
	if err != nil {
		return nil // the request is possible without
	}
	return slices.Concat(failingAt(found, verb, orders), failedUndos(found, verb, orders))
}

// idsWhere are the ids of some of the orders, to be read.
func idsWhere(orders []client.Order, is func(*client.Order) bool) (ids []string) {
	for i := range orders {
		if is(&orders[i]) {
			ids = append(ids, visible(orders[i].OrderID))
		}
	}
	return ids
}

// needing are those of the orders that a verb calls the provider of a step for: to do it, or to undo it.
func needing(verb *verb, orders []client.Order, step, route string) []string {
	return idsWhere(orders, func(o *client.Order) bool {
		needs := stepOf(o.Status) == step
		if verb.Name == "cancel" {
			needs = needs && o.InDoubt || step == "charge" && o.Steps.Charge.Completed || step == "reserve" && o.Status == client.StatusConfirming
		}
		return needs && (route == "" || o.Route == "" || route == o.Route)
	})
}

// ofThem names the orders that a sentence is about, unless it is about all.
func ofThem(ids []string, all int) string {
	const named = 3
	n := len(ids)
	if n == all {
		return ""
	} else if n > named {
		ids = append(ids[:named], "…")
	}
	return fmt.Sprintf("%d of them (%s): ", n, strings.Join(ids, ", "))
}

// What is advised while a provider fails. Without calls, nothing is known of it.
const (
	waitFirst = ". Wait until it works: then a retry can succeed."
	oneFirst  = " Retry one order first: if it succeeds, retry the others."
)

// failingAt says which of the providers that orders need have failed and not worked since, and what that means for a verb.
func failingAt(found *client.Overview, verb *verb, orders []client.Order) (all []string) {
	for _, s := range found.ProviderSteps {
		ids := needing(verb, orders, string(s.Step), s.Route)
		if s.FailingSince.IsZero() || ids == nil {
			continue
		}
		then := ", and the next call tries whether it works again."
		switch open := s.Breaker == client.ProviderStepBreakerOpen; {
		case open && verb.Name == "retry":
			then = waitFirst
		case open:
			then = ": " + verb.waits + "."
		case verb.Name != "retry":
			then += " If not, " + verb.waits + "."
		case len(ids) > 1:
			then += oneFirst
		}
		all = append(all, ofThem(ids, len(orders))+
			fmt.Sprintf("%s has failed at %s since %s UTC", cmp.Or(s.Host, "The provider"), s.Step, s.FailingSince.UTC().Format("15:04"))+then)
	}
	slices.Sort(all)
	return slices.Compact(all) // policies share a provider
}

// failedUndos says which undos that orders need have failed, so that others need a person already.
func failedUndos(found *client.Overview, verb *verb, orders []client.Order) (all []string) {
	for _, i := range found.Incidents {
		if !fsm.State(i.Status).Undoing() || i.Reason != "retries_exhausted" {
			continue
		}
		failed := theStep[i.Status] + " has failed"
		if ids := needing(verb, orders, string(i.Step), ""); verb.Name == "cancel" && ids != nil {
			all = append(all, capital(ofThem(ids, len(orders))+failed+fmt.Sprintf(", so %s %s a person: a canceled order may need one, too.",
				times(int(i.Orders), "1 order", "orders"), plural(i.Orders, "needs", "need"))))
		} else if ids = idsWhere(orders, func(o *client.Order) bool { return o.Status == i.Status }); verb.Name == "retry" && ids != nil && len(orders) > 1 {
			all = append(all, capital(ofThem(ids, len(orders))+failed+", and may fail again."+map[bool]string{true: oneFirst}[len(ids) > 1]))
		}
	}
	return all
}

// disputed warns before a refund of orders with a refund under way, or with a dispute that is open or was lost.
func (v *visit) disputed(would []client.Order) (all []string) {
	for of, filter := range map[string]client.ListOrdersParams{
		"a refund is not done yet: another one pays more back":              {Refund: client.ListOrdersParamsRefundOpen},
		"a dispute is open: a refund as well could pay the customer twice":  {Dispute: client.ListOrdersParamsDisputeOpen},
		"a dispute was lost: a refund as well could pay the customer twice": {Dispute: client.ListOrdersParamsDisputeLost},
	} {
		ids, _, err := v.collect(v.r.Context(), filter)
		if err != nil {
			return all // the request is possible without
		}
		if about := idsWhere(would, func(o *client.Order) bool { return slices.Contains(ids, o.OrderID) }); about != nil {
			all = append(all, capital(ofThem(about, len(would))+of+"."))
		}
	}
	slices.Sort(all)
	return all
}

func (q *ofOrder) money(amount string) string { return count(amount) + " " + q.order.Currency }

func (q *ofOrder) goodsBack() string {
	switch {
	case q.order.Steps.Reserve.Completed:
		return "Back to stock: " + goodsOf(q.order) + "."
	case q.order.InDoubt && q.step() == "reserve":
		return "Back to stock if reserved: " + goodsOf(q.order) + "."
	case q.order.Steps.Reserve.Undone:
		return "The goods were reserved, and are not any more."
	}
	return "No goods were reserved."
}

// startsAgain reports whether the verb starts a failed order again, and so charges it again.
func (q *ofOrder) startsAgain() bool {
	return q.verb.Name == "retry" && q.order.Status == client.StatusFailed
}

// soldOut says that a retry would fail because of the stock; empty: nothing is known to be missing.
func (q *ofOrder) soldOut() string {
	out, err := q.api.ApplyBulkVerb(q.r.Context(), client.BulkVerb(q.verb.Name), client.BulkBody{IDs: []string{q.order.OrderID},
		RequestID: client.NewID(), Policy: client.BulkBodyPolicy(q.form.Get("policy"))}, client.ApplyBulkVerbParams{DryRun: true})
	if err != nil || len(out.Results) == 0 || out.Results[0].SoldOut.Item == "" {
		return "" // the request is possible without
	}
	return capital(soldOut(&out.Results[0])) + ". "
}

func (q *ofOrder) retried(*client.Order) []string {
	if q.order.Status == client.StatusCompleted {
		return []string{"What is not done yet of its refunds, captures and voids is tried again now, with the same keys, so nothing is done twice.",
			"If it fails again, the wait until the next try begins anew, and may be longer."}
	}
	money, goods := q.money(q.order.Amount), goodsOf(q.order)
	if q.startsAgain() {
		card := "the same card or payment method, unless you enter another one below"
		if q.form.Get("paymentMethod") != "" {
			card = "the other payment method that you have entered"
		}
		why := visible(strings.TrimSuffix(codeInWords(q.order.Failure.Code)+": "+q.order.Failure.Detail, ": "))
		why = strings.TrimRight(why, ".")
		if q.short != "" {
			return []string{q.short + "If it is charged first, that goes back.", "Ask the customer to wait until it is in stock, or to order something else."}
		}
		last := fmt.Sprintf("Last time it failed at %s (%s), and nothing was kept of a charge.", theStep[client.Status(fsm.DoneIn(fsm.Step(q.order.Failure.Step)))], why)
		switch {
		case declined(q.order.Failure.Step, q.order.Failure.Code):
			last = fmt.Sprintf("Last time the charge was refused (%s). The same card is probably refused again.", why)
		case q.order.Failure.Step == client.FailureStepCharge:
			last = fmt.Sprintf("Last time nothing was charged (%s).", why)
		}
		return []string{money + " is charged, to " + card + ".", last,
			"If the charge succeeds, the goods are reserved and the order completes. If it is refused, the order fails again, and nothing is charged."}
	}
	const again = " is tried again now."
	end := map[bool]string{true: "canceled", false: "failed"}[beingCanceled(q.order)]
	ifCharged := map[bool]string{true: " if it was charged"}[!q.order.Steps.Charge.Completed]
	said := map[client.Status]string{
		client.StatusReserving:  "The reservation of " + goods + again + " " + money + " is charged already, and is not charged again.",
		client.StatusConfirming: "The confirmation" + again + " " + money + " is charged already, and is not charged again.",
		client.StatusReleasing:  "The undo of the reservation" + again + " Then the charge is undone, and the order ends " + end + ".",
		client.StatusRefunding:  "The undo of the charge" + again + " If it succeeds, " + money + " goes back to the customer" + ifCharged + ", and the order ends " + end + ".",
	}[q.order.Status]
	all := []string{cmp.Or(said, "The charge of "+money+again+" It is made to the same card or payment method.")}
	if q.short != "" {
		all = append(all, q.short+"Then "+money+" goes back, if it was charged.")
	}
	if q.order.InDoubt {
		all = append(all, "An earlier try may have succeeded. The provider gets the same key, so it is not done twice.")
	}
	return all
}

// operated says what a refund, capture or void does: the last operation of the order as it would be.
func (q *ofOrder) operated(would *client.Order) (all []string) {
	last := q.verb.last(would)
	amount := q.money(last.Amount)
	var remains string
	switch q.verb.Name {
	case "refund":
		remains = fmt.Sprintf("%s goes back to the customer, %s can still be refunded.", amount, q.money(refundable(would).String()))
		if b := (&orderPage{Order: would}).Balance(); b != nil && b.Kept.IsNeg() {
			remains = fmt.Sprintf("%s goes back to the customer. With what a dispute took, that is %s more than the customer paid.", amount, q.money(b.Kept.Abs().String()))
		}
	case "capture":
		remains = fmt.Sprintf("%s is captured, %s can still be captured.", amount, q.money(capturable(would).String()))
		if last.Final {
			remains = amount + " is captured. The rest is voided: the customer does not pay it."
		}
	default:
		remains = amount + " is voided: the customer does not pay it."
	}
	all = append(all, remains)
	switch {
	case last.Restock > 0:
		all = append(all, times(last.Restock, "1 unit goes", "units go")+" back to stock.")
	case q.verb.Name == "refund":
		all = append(all, "No goods go back to stock.")
	}
	c := q.chosen(q.form)
	switch {
	case len(c.parts) > 0:
		sum := strings.TrimPrefix(strings.Join(c.parts, " "), "+ ") + " = " + q.money(c.total.String()) + "."
		if amountIn(q.form, "amount") != nil {
			sum += " The amount you entered replaces this."
		}
		all = append(all, sum)
	case q.order.Lines != nil && q.verb.Name != "void":
		all = append(all, "It is of the whole order, and of no line.")
	}
	return all
}

// settled says what a recorded result means.
func (q *ofOrder) settled(would *client.Order) []string {
	outcome := q.form.Get("outcome")
	o, state, subject, next := q.order, fsm.State(q.order.Status), q.subject(), fsm.State("")
	const nothingSent = " Nothing is sent to the provider for it"
	means := cmp.Or(map[string]string{"not_done": capital(subject) + " counts as not done, and is sent to the provider again at once."}[outcome],
		fmt.Sprintf("From now on, %s counts as %s."+nothingSent+".", subject, outcome))
	code, already := strings.CutPrefix(o.HoldReason, "undo_refused: ")
	switch {
	case q.operation() != "" || q.query("generation") != "":
		return []string{means}
	case outcome == "refused" && already:
		codes := slices.Compact([]string{strings.TrimPrefix(code, "step_result: "), cmp.Or(q.form.Get("code"), "step_result")})
		changes := map[int]string{1: "It counts as refused already: ", 2: "Only the code changes: "}[len(codes)]
		return []string{changes + visible(strings.Join(codes, " → ")) + "; " + q.money(o.Amount) + " is still to go back."}
	case outcome == "done":
		next, _ = state.Next(fsm.Done)
		means = map[fsm.State]string{fsm.Charging: q.money(o.Amount) + " counts as charged.", fsm.Reserving: goodsOf(o) + " counts as reserved.",
			fsm.Confirming: "The order counts as confirmed.", fsm.Releasing: goodsOf(o) + " counts as released.",
			fsm.Refunding: q.money(o.Amount) + " counts as given back."}[state] + nothingSent + ": if it never happened, it never will."
	case outcome == "refused":
		next, _ = state.Next(fsm.Refused)
	}
	goesOn := "The order goes on with " + theStep[client.Status(next)] + "."
	switch {
	case would.Hold == client.OrderHoldPaused:
		goesOn = "The order stays paused until somebody resumes it."
	case beingUndone(o) && !state.Undoing() && next != fsm.Completed:
		goesOn = "What was done is undone, and the order ends canceled."
	case outcome == "not_done":
		goesOn = ""
	case next == "":
		goesOn = "The order needs a person until it is undone."
	case next.Final() && beingCanceled(o):
		goesOn = "The order ends canceled."
	case next.Final():
		goesOn = "The order ends " + string(next) + "."
	}
	return []string{means + " " + goesOn}
}
