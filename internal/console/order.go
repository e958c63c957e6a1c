package console

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/govalues/decimal"

	"pawl/client"
	"pawl/fsm"
	"pawl/fsm/diagram"
)

// orderPage is an order, with a page of its history.
type orderPage struct {
	*client.Order
	Done       string             // the last action of the person, in a sentence
	Failed     bool               // that has failed
	Stop       *client.Transition // the move that asked it to stop, if it is among the last ones
	Wait       *wait              // what it waits for, if it does
	Away       string             // whether the provider that it waits for works, as on the page of those that need a person
	Again      string
	Actions    []*verb
	NotTheirs  []string            // what others could do to it
	Short      string              // why a retry would fail because of the stock
	NoCancel   string              // why there is no button to cancel it; empty: there is, or it has ended
	Moves      []client.Transition // its newest, the newest first
	Picture    template.HTML
	Way        []string // its path, in words
	Cut        bool     // the path is longer
	History    *history
	Item       *client.Item // nil for an order with lines
	Deliveries []endpointDeliveries
	More       bool            // there are older ones
	Differs    []template.HTML // what the provider's books have otherwise
	Kept       bool            // the provider has money that it should not have
	Raw        string          // JSON
}

// operation is a refund, capture or void of an order.
type operation struct {
	Kind string
	client.Capture
	Restock int
}

// tried are the operations of an order that are not done yet.
type tried struct {
	Title      string
	Operations []operation
	ByHand     bool // a person must record a result
}

// Tried are the operations that are not done yet; nil: the provider was asked in vain for none.
func (p *orderPage) Tried() *tried {
	open := slices.DeleteFunc(operationsOf(p.Order), func(o operation) bool { return !o.Waits() })
	if !slices.ContainsFunc(open, func(o operation) bool { return o.Code != "" }) {
		return nil
	}
	t, kind := &tried{Operations: open, ByHand: slices.ContainsFunc(open, operation.ByHand)}, open[0].Kind
	if slices.ContainsFunc(open, func(o operation) bool { return o.Kind != kind }) {
		kind = "operation"
	}
	if t.Title = fmt.Sprintf("%d %ss are not done yet", len(open), kind); len(open) == 1 {
		t.Title = fmt.Sprintf("The %s of %s %s is not done yet", kind, count(open[0].Amount), p.Currency)
	} else if back := p.GoingBack(); back != "" {
		t.Title += fmt.Sprintf(": %s %s is still to go back", back, p.Currency)
	}
	return t
}

// Waits reports whether the operation waits for its next try, or for a person.
func (o operation) Waits() bool {
	return o.State == client.CaptureStatePending || o.State == client.CaptureStateInDoubt
}

// EndOfAuthorization reports whether Pawl asks the provider about what is left of an authorization that is over: nobody
// asked for that void.
func (o operation) EndOfAuthorization() bool { return o.Kind == "void" && o.RequestID == "" }

// ByHand reports whether a person must record the result.
func (o operation) ByHand() bool { return o.Waits() && o.Code != "" && o.NextAt.IsZero() }

// operationsOf are the refunds, captures and voids of an order, in the order of their requests.
func operationsOf(o *client.Order) (all []operation) {
	for _, r := range o.Refunds {
		all = append(all, operation{Kind: "refund", Restock: r.Restock, Capture: client.Capture{
			Number: r.Refund, State: client.CaptureState(r.State), Amount: r.Amount, Lines: r.Lines, Reason: r.Reason,
			RequestID: r.RequestID, CreatedAt: r.CreatedAt, FinishedAt: r.FinishedAt, Reference: r.Reference, Code: r.Code, Detail: r.Detail, NextAt: r.NextAt,
		}})
	}
	for _, c := range o.Captures {
		all = append(all, operation{Kind: "capture", Capture: c})
	}
	for _, c := range o.Voids {
		all = append(all, operation{Kind: "void", Capture: c})
	}
	slices.SortFunc(all, func(a, b operation) int { return a.Number - b.Number })
	return all
}

// dispute is one as it was reported last.
type dispute struct {
	client.Dispute
	Opened time.Time // before; zero: it is open, or was not reported then
}

// disputesIn are the disputes of an order in a state; empty: in any.
func disputesIn(state client.DisputeState, o *client.Order) (rows []dispute) {
	for _, d := range o.Disputes {
		i := slices.IndexFunc(rows, func(row dispute) bool { return row.Reference == d.Reference })
		switch {
		case i < 0:
			rows = append(rows, dispute{Dispute: d})
		case d.State == client.DisputeStateOpened:
			rows[i].Opened, rows[i].Reason = d.At, cmp.Or(rows[i].Reason, d.Reason)
		default:
			d.Reason = cmp.Or(d.Reason, rows[i].Reason)
			rows[i] = dispute{d, rows[i].At}
		}
	}
	return slices.DeleteFunc(rows, func(d dispute) bool { return state != "" && d.State != state })
}

// Disputed is what open disputes may take, or lost ones have taken; empty: nothing.
func (p *orderPage) Disputed(state client.DisputeState) string {
	return unlessZero(disputed(state, p.Order))
}

func disputed(state client.DisputeState, o *client.Order) (sum decimal.Decimal) {
	for _, d := range disputesIn(state, o) {
		sum, _ = sum.Add(parsed(d.Amount))
	}
	return sum
}

func unlessZero(sum decimal.Decimal) string {
	if sum.IsZero() {
		return ""
	}
	return count(sum)
}

// GivenBack is what was refunded, with the digits of the other amounts.
func (p *orderPage) GivenBack() decimal.Decimal {
	return added(parsed(p.Refunded), parsed(cmp.Or(p.Captured, p.Amount)).Zero())
}

// GoingBack is what open refunds may give back; empty: nothing.
func (p *orderPage) GoingBack() string { return unlessZero(goingBack(p.Order)) }

// goingBack is what open refunds may give back.
func goingBack(o *client.Order) (sum decimal.Decimal) {
	for _, r := range openRefunds(o) {
		sum, _ = sum.Add(parsed(r.Amount))
	}
	return sum
}

// openRefunds are those that are neither done nor failed.
func openRefunds(o *client.Order) []client.Refund {
	return slices.DeleteFunc(slices.Clone(o.Refunds), func(r client.Refund) bool {
		return r.State == client.RefundStateDone || r.State == client.RefundStateFailed
	})
}

// Balance is what was taken for the order, less what went or goes back or was lost, and what is kept; nil: nothing is known
// to be taken.
func (p *orderPage) Balance() *balance {
	b := &balance{Line: "Charged ", Kept: parsed(p.Amount)}
	switch {
	case p.Captured != "":
		b = &balance{Line: "Captured ", Kept: parsed(p.Captured)}
	case p.Authorized != "", !p.Steps.Charge.Completed && !p.Steps.Charge.Undone, p.Steps.Charge.InDoubt:
		return nil
	}
	b.Line += count(b.Kept)
	if p.Steps.Charge.Undone {
		b.less("undone", b.Kept)
	}
	b.less("refunded", parsed(p.Refunded))
	b.less("still to go back", goingBack(p.Order))
	b.less("lost in disputes", disputed(client.DisputeStateLost, p.Order))
	kept := count(b.Kept) + " " + p.Currency
	switch {
	case !beingUndone(p.Order) || !b.Kept.IsPos():
		b.Result = "kept " + kept + map[bool]string{true: ", once all has gone back"}[goingBack(p.Order).IsPos()]
	case p.Hold == client.OrderHoldAttention:
		b.Result = kept + map[bool]string{true: ", of which is not known yet whether it has gone back", false: " still to go back"}[p.InDoubt && !strings.HasPrefix(p.HoldReason, "undo_refused")]
	default:
		b.Result = kept + " goes back"
	}
	return b
}

type balance struct {
	Line, Result string
	Kept         decimal.Decimal
}

func (b *balance) less(what string, amount decimal.Decimal) {
	if !amount.IsZero() {
		b.Line += " − " + what + " " + count(amount)
		b.Kept, _ = b.Kept.Sub(amount)
	}
}

// lineRow is a line of an order: what refunds have given back of it, may give back, and leave. The rows add up.
type lineRow struct {
	client.Line
	Refunded, GoingBack, Left linePart
}

// linePart is a part of a line. Lines may have no amounts.
type linePart struct {
	Units  int
	Amount decimal.Decimal
}

// LineRows are the lines, and what was refunded beside them; nil: nothing was refunded of an order with lines.
func (p *orderPage) LineRows() (rows []lineRow) {
	if p.Lines == nil || p.GivenBack().IsZero() && p.GoingBack() == "" {
		return nil
	}
	for _, line := range p.Lines {
		rows = append(rows, lineRow{Line: line, Left: linePart{line.Quantity, parsed(line.Amount)}})
	}
	beside := lineRow{}
	for _, r := range p.Refunds {
		if r.State == client.RefundStateFailed {
			continue
		}
		beside.giveBack(r.State, linePart{Amount: parsed(r.Amount)})
		for _, l := range r.Lines {
			rows[l.Line-1].giveBack(r.State, linePart{l.Quantity, parsed(l.Amount)})
			beside.giveBack(r.State, linePart{Amount: parsed(l.Amount).Neg()})
		}
	}
	if p.Lines[0].Amount != "" && !(beside.Refunded.Amount.IsZero() && beside.GoingBack.Amount.IsZero()) {
		rows = append(rows, beside)
	}
	return rows
}

func (r *lineRow) giveBack(state client.RefundState, part linePart) {
	to := &r.Refunded
	if state != client.RefundStateDone {
		to = &r.GoingBack
	}
	*to = linePart{to.Units + part.Units, added(to.Amount, part.Amount)}
	r.Left = linePart{r.Left.Units - part.Units, added(r.Left.Amount, part.Amount.Neg())}
}

// Says shows a part; empty: nothing of the line.
func (r lineRow) Says(part linePart) string {
	switch {
	case part == linePart{}:
		return ""
	case r.Item != "" && r.Amount == "":
		return count(part.Units)
	case part.Units > 0 && r.Kind == "":
		return fmt.Sprintf("%s for %d", count(part.Amount), part.Units)
	}
	return count(part.Amount)
}

// Goods says whether the goods of the order are reserved.
func (p *orderPage) Goods() string {
	switch reserve := p.Steps.Reserve; {
	case p.Status == client.StatusCompleted:
		back, where := 0, "back in stock"
		for _, refund := range p.Refunds {
			back += refund.Restock
		}
		if p.Item != nil && !p.Item.Tracked {
			where = "came back"
		}
		if back == 0 {
			return "sold"
		}
		return fmt.Sprintf("sold, %d %s", back, where)
	case reserve.Completed:
		return "reserved"
	case reserve.Undone && !reserve.InDoubt:
		return "released again"
	case p.InDoubt && fsm.State(p.Status).Step() == fsm.Reserve:
		return "perhaps reserved"
	}
	return "not reserved"
}

// ChargesBefore are the references of charges before the order was started again, each with that of its undo, if calls on the
// page have them.
func (p *orderPage) ChargesBefore() [][2]string {
	all, undo := make([][2]string, p.Generation), map[bool]int{true: 1}
	for _, e := range p.History.Entries {
		if c := e.Call; c != nil && c.Step == "charge" && c.Outcome == "done" && c.Generation < p.Generation && c.Reference != p.Steps.Charge.Reference {
			found := &all[c.Generation][undo[c.Operation == "undo"]]
			*found = cmp.Or(*found, c.Reference)
		}
	}
	return slices.DeleteFunc(all, func(charge [2]string) bool { return charge[0] == "" })
}

// endpointDeliveries are deliveries of an order to an endpoint, the newest first.
type endpointDeliveries struct {
	client.WebhookEndpoint
	Deliveries []client.Delivery
}

// Counted counts them by their state, with the last answer to those that were not delivered.
func (e *endpointDeliveries) Counted() string {
	states, failure := make([]string, len(e.Deliveries)), ""
	for i, d := range e.Deliveries {
		states[i] = deliveryState(d)
		if failure == "" && (states[i] == failing || d.State == client.DeliveryStateExhausted) {
			failure = "; the last failure: " + cmp.Or(visible(d.Error), fmt.Sprintf("HTTP %d %s", d.Status, http.StatusText(d.Status)))
		}
	}
	return counted(states) + failure
}

const deliveriesShown = 20

// Ends says who stopped an order, and why it failed, was canceled or is being undone; empty: none of these.
func (p *orderPage) Ends() (text template.HTML) {
	final := fsm.State(p.Status).Final()
	stopped := p.Stop != nil && whoDid(p.Stop) != ""
	switch {
	case stopped:
		did := map[string]string{"cancel": "canceled", "reject": "rejected"}[p.Stop.Verb]
		if !final {
			did = "asked to " + p.Stop.Verb
		}
		text = markup("%s %s it %s%s.", whoDid(p.Stop), template.HTML(did), ago(p.Stop.At), because(p.Stop.Reason))
	case p.Stop != nil:
		text = markup("Its deadline passed %s.", ago(p.Stop.At))
	}
	if p.Status != client.StatusFailed && p.Failure.Code == "" || stopped && p.Failure.Step == "" {
		return text
	}
	text += template.HTML(map[bool]string{true: " It was canceled", false: " It failed"}[p.Status == client.StatusCanceled])
	detail := strings.TrimRight(p.Failure.Detail, ".")
	if p.Failure.Code == outOfStock {
		detail = cmp.Or(detail, p.Order.Item)
	}
	switch {
	case p.Failure.Step == "charge" && p.Failure.Code == outOfStock:
		text += " before the charge"
	case p.Failure.Step != "":
		text += template.HTML(" at " + theStep[client.Status(fsm.DoneIn(fsm.Step(p.Failure.Step)))])
	}
	if p.Failure.Code != "" {
		text += markup(": %s", codeInWords(p.Failure.Code))
	}
	if detail != "" {
		text += markup(" (%s)", detail)
	}
	return text + "."
}

// over reports whether the authorization ended before all of it was captured or voided.
func over(o *client.Order) bool {
	return slices.ContainsFunc(o.Voids, func(c client.Capture) bool {
		return c.State == client.CaptureStateDone && (c.RequestID == "" || c.Code == "authorization_expired")
	})
}

// uncaptured reports whether it ended before anything was captured.
func uncaptured(o *client.Order) bool { return over(o) && parsed(o.Captured).IsZero() }

// Paid says whether the customer paid or pays for an order that does not wait; empty: it is completed.
func (p *orderPage) Paid() string {
	if p.Kept {
		return fmt.Sprintf("The provider still has %s %s: give it back there, then compare again.", count(p.Amount), p.Currency)
	}
	return moneyOf(p.Order, p.Moves)
}

func (v *visit) showOrder() error {
	order, err := v.api.GetOrder(v.r.Context(), v.query("id"))
	if err != nil {
		return err
	}
	p := &orderPage{Order: order, Actions: v.offers(order), NotTheirs: v.notTheirs(order), NoCancel: v.noCancel(order)}
	operations := operationsOf(order)
	done := verbByName(verbs, v.query("done"))
	if last := len(operations) - 1; done == nil && last >= 0 && operations[last].State == client.CaptureStateFailed {
		done = verbByName(verbs, operations[last].Kind)
	}
	if retry := verbByName(verbs, "retry"); order.Failure.Code == outOfStock && slices.Contains(p.Actions, retry) {
		p.Short = (&ofOrder{visit: v, verb: retry, order: order}).soldOut()
	}
	if err := errors.Join(v.readPast(p), v.readAround(p)); err != nil {
		return err
	}
	if done != nil {
		p.Done, p.Failed = p.History.recorded(done)+done.doneTo(order), done.failed(order)
		if before := v.query("before"); before != "" {
			p.Done = strings.TrimSpace(v.doneBefore(order, before) + " " + p.Done)
		}
	}
	if (p.tryFirst() == "retry" || p.Tried() != nil) && v.may("getOverview") {
		if found, err := v.api.GetOverview(v.r.Context()); err == nil { // the order is worth more
			one := waitingOrder{Order: *order}
			for _, e := range p.History.Entries {
				if e.Call != nil {
					one.Made = append(one.Made, *e.Call)
				}
			}
			p.Away, p.Again = away(found, []waitingOrder{one})
		}
	}
	raw, err := json.MarshalIndent(order, "", "  ")
	if err != nil {
		return err
	}
	p.Raw = visibleLines(string(raw))
	v.live = fmt.Sprintf("/console/live?order=%s&seq=%d", url.QueryEscape(order.OrderID), order.Seq)
	return v.show("order", page{Title: "Order " + visible(order.OrderID), Data: p})
}

// Primary reports whether the runbook recommends a verb now.
func (p *orderPage) Primary(verb string) bool {
	return verb == p.tryFirst() && (verb != "retry" || p.Away == "")
}

// tryFirst is the verb that the runbook recommends first; empty: the order needs nobody.
func (p *orderPage) tryFirst() string {
	if p.Wait == nil || p.Wait.Needs == nil {
		return ""
	}
	return p.Wait.Needs.first()
}

// beingUndone reports whether what was done of an order is being undone, or will be.
func beingUndone(o *client.Order) bool {
	state := fsm.State(o.Status)
	return state.Undoing() || !state.Final() && o.StopRequested != "" && o.StopRequested != client.OrderStopRequestedPause
}

// beingCanceled reports whether it is being undone because somebody canceled it, or its deadline passed.
func beingCanceled(o *client.Order) bool {
	return beingUndone(o) && (o.StopRequested == client.OrderStopRequestedCancel || o.StopRequested == client.OrderStopRequestedDeadline)
}

// noCancel says why a person can't cancel an order.
func (v *visit) noCancel(o *client.Order) string {
	switch {
	case beingUndone(o) && o.Hold == client.OrderHoldAttention:
		return capital(theStep[o.Status]) + " waits for a person: there is nothing to cancel."
	case beingUndone(o):
		return "What was done is being undone already, so there is nothing to cancel."
	case !slices.Contains(o.AllowedActions, "cancel") && o.Status == client.StatusConfirming:
		return "It can't be canceled any more, because it is being confirmed. It can be refunded once it is completed."
	}
	return ""
}

// notTheirs names what could be done to an order, but not by this person.
func (v *visit) notTheirs(o *client.Order) (labels []string) {
	for _, a := range verbs {
		if slices.Contains(o.AllowedActions, a.Name) && !v.may(a.operation) {
			labels = append(labels, a.Label)
		}
	}
	return labels
}

// doneBefore says who sent a request the first time, and when; empty: it can't be read.
func (v *visit) doneBefore(order *client.Order, requestID string) string {
	const again = "Nothing was done twice: this was requested before"
	found, err := v.api.GetRequest(v.r.Context(), requestID)
	if err != nil {
		return ""
	}
	for _, r := range found.Results {
		if r.OrderID == order.OrderID {
			return fmt.Sprintf("%s, on %s by %s.", again, r.At.UTC().Format("2 January at 15:04:05 UTC"), visible(r.Actor))
		}
	}
	return again + "."
}

// movesDrawn is how many of the newest moves of an order are read. Hardly any order has more.
const movesDrawn = 200

// readPast reads a page of the history, the path of the order, and what it waits for.
func (v *visit) readPast(p *orderPage) (err error) {
	params := client.ListTransitionsParams{Sort: "newest", Limit: movesDrawn}
	moves, err := v.api.ListTransitions(v.r.Context(), p.OrderID, params)
	if err != nil {
		return err
	}
	p.Moves = moves.Transitions
	p.draw(moves.Transitions)
	p.Stop = stopOf(p.Order, moves.Transitions)
	p.Cut = len(moves.Transitions) == movesDrawn
	if p.History, err = v.history(p.Order); err != nil || p.Hold == "" {
		return err
	}
	calls, err := v.api.ListCalls(v.r.Context(), p.OrderID, client.ListCallsParams{After: -1, Sort: "newest", Limit: callsOfWait})
	if err != nil {
		return err
	}
	if p.Wait = waitsFor(p.Order, moves.Transitions, calls.Calls); p.Wait.Needs != nil {
		p.Actions = p.Wait.Needs.ranked(p.Actions)
	}
	return nil
}

// stopOf is the move that asked an order to stop, if it is among these.
func stopOf(o *client.Order, moves []client.Transition) *client.Transition {
	asked := func(m client.Transition) bool { return m.Verb == string(o.StopRequested) || m.Verb == "reject" }
	if i := slices.IndexFunc(moves, asked); i >= 0 && o.StopRequested != "" {
		return &moves[i]
	}
	return nil
}

// draw draws the state machine with the path of the order. moves begin with the newest.
func (p *orderPage) draw(moves []client.Transition) {
	picture := diagram.Picture{At: fsm.State(p.Status), Walked: map[[2]fsm.State]int{}}
	for _, m := range slices.Backward(moves) {
		if m.From == "" || m.From == m.To {
			continue
		}
		picture.Walked[[2]fsm.State{fsm.State(m.From), fsm.State(m.To)}]++
		if p.Way == nil {
			p.Way = []string{string(m.From)}
		}
		p.Way = append(p.Way, string(m.To))
	}
	picture.Label = "The path of this order: " + strings.Join(p.Way, ", ")
	if p.Way == nil {
		picture.Label = fmt.Sprintf("The order is %s, and no move of it is shown.", p.Status)
	}
	p.Picture = picture.HTML()
}

// readAround reads the stock of the item, and the deliveries to webhook endpoints.
func (v *visit) readAround(p *orderPage) error {
	ctx := v.r.Context()
	if v.may("getInventory") && p.Lines == nil {
		item, err := v.api.GetInventory(ctx, p.Order.Item)
		if err != nil && !hasStatus(err, http.StatusNotFound) {
			return err
		}
		p.Item = item // nil if it was never reserved
	}
	p.Differs, p.Kept = v.differences(p.OrderID)
	if !v.may("listDeliveriesOfOrder") {
		return nil
	}
	list, err := v.api.ListDeliveriesOfOrder(ctx, p.OrderID, client.ListDeliveriesOfOrderParams{Limit: deliveriesShown})
	if err != nil {
		return err
	}
	if p.More = len(list.Deliveries) >= deliveriesShown; len(list.Deliveries) == 0 {
		return nil
	}
	endpoints, err := v.api.ListWebhookEndpoints(ctx)
	if err != nil {
		return err
	}
	for _, e := range endpoints.Endpoints {
		others := func(d client.Delivery) bool { return d.EndpointID != e.ID }
		if of := slices.DeleteFunc(slices.Clone(list.Deliveries), others); len(of) > 0 {
			p.Deliveries = append(p.Deliveries, endpointDeliveries{e, of})
		}
	}
	return nil
}
