package console

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"pawl/client"
	"pawl/fsm"
)

// history is a page of the moves of an order, and the calls for it.
type history struct {
	Entries []entry
	Oldest  bool         // oldest first
	Every   bool         // it has all entries, also of what is folded
	Next    string       // the URL of the next page
	Last    *client.Call // the last call, on the page that begins with it
}

// entry is a move, a call, or a move and the call that it recorded. Many in a row that only try again are one entry.
type entry struct {
	At     time.Time
	Day    bool    // it is the first entry of its day
	After  float64 // seconds since the order was created
	Folded *folded
	Move   *client.Transition
	Call   *client.Call
	Lasted time.Duration // how long the order waited afterwards; 0: it did not, or is waiting
	ByHand bool          // has a link to record that the effect was undone by hand
}

// Took is how long the provider took to answer.
func (e *entry) Took() time.Duration {
	if e.Call == nil || e.Call.FinishedAt.IsZero() {
		return 0
	}
	return e.Call.FinishedAt.Sub(e.Call.StartedAt).Round(time.Millisecond)
}

const (
	historyPage = 150 // moves and calls that are read at a time
	pagesFolded = 8   // that are read at most to fold them, as long as they make
	rowsFolded  = 30  // rows or fewer
)

// past is the cursor of a history, in three numberings: of moves, of calls that moved the order, and of other calls,
// which count down from -1. None starts at 0.
type past struct {
	oldest              bool
	moves, calls, aside int // the last one shown; 0: none

	every bool // what is folded can be unfolded, page by page
}

func (v *visit) history(order *client.Order) (*history, error) {
	at := past{v.query("sort") == "oldest", number(v.query("moves")), number(v.query("calls")), number(v.query("aside")), v.query("every") != ""}
	entries, err := v.entries(order, at)
	if err != nil {
		return nil, err
	}
	h := &history{Oldest: at.oldest, Every: at.every}
	operations := operationsOf(order)
	for pages := 1; ; pages++ {
		more := len(entries) > historyPage
		entries = entries[:min(len(entries), historyPage)]
		h.Entries = append(h.Entries, entries...)
		if !more {
			break
		}
		at = at.behind(entries)
		if at.every || pages == pagesFolded || len(folding(h.Entries, operations)) > rowsFolded {
			h.Next = at.url(order.OrderID)
			break
		}
		if entries, err = v.entries(order, at); err != nil {
			return nil, err
		}
	}
	h.measure()
	if i := slices.IndexFunc(h.Entries, func(e entry) bool { return e.Call != nil && e.Call.Call > 0 }); i >= 0 && !h.Oldest && v.query("moves") == "" {
		h.Last = h.Entries[i].Call
	}
	err = v.offerByHand(order.OrderID, h.Entries)
	h.Entries = folding(h.Entries, operations)
	for i := range h.Entries {
		e := &h.Entries[i]
		e.After = e.At.Sub(order.CreatedAt).Seconds()
		e.Day = i == 0 || e.At.UTC().YearDay() != h.Entries[i-1].At.UTC().YearDay()
	}
	return h, err
}

// folded are entries that are shown as one.
type folded struct {
	Entries     []entry
	What        string // such as "11 tries of the charge: 9 may have been done (timeout), 2 refused (card_declined)"
	First, Last time.Time
}

// foldFrom is how many entries in a row become one.
const foldFrom = 4

// folding folds entries in a row that are about one of the operations, or leave the order where it is.
func folding(entries []entry, operations []operation) (all []entry) {
	for len(entries) > 0 {
		n, at, of := 0, client.Status(""), entries[0].operation(operations)
		for of != nil && n < len(entries) && entries[n].operation(operations) == of {
			n++
		}
		if n > 1 {
			one := foldedOf(entries[:n])
			one.What = of.tell(entries[:n])
			all, entries = append(all, entry{At: entries[0].At, Folded: one}), entries[n:]
			continue
		}
		n = 0
		for n < len(entries) && entries[n].again() {
			if m := entries[n].Move; m != nil && at != "" && m.To != at {
				break
			} else if m != nil {
				at = m.To
			}
			n++
		}
		if n < foldFrom {
			all, entries = append(all, entries[:max(n, 1)]...), entries[max(n, 1):]
			continue
		}
		all, entries = append(all, entry{At: entries[0].At, Folded: foldedOf(entries[:n])}), entries[n:]
	}
	return all
}

// operation is the refund, capture or void that an entry is about, or nil. The move that asked for one has its time.
func (e *entry) operation(all []operation) *operation {
	for i := range all {
		switch o := &all[i]; {
		case e.Call != nil && e.Move == nil:
			if map[string]int{"refund": e.Call.Refund, "capture": e.Call.Capture, "void": e.Call.Void}[o.Kind] == o.Number {
				return o
			}
		case e.Move != nil && e.Move.Verb == o.Kind && e.At.Equal(o.CreatedAt):
			return o
		case e.Move != nil && strings.HasPrefix(e.Move.Verb, o.Kind+"_"):
			if name, _, _ := strings.Cut(e.Move.Reason, ":"); name == o.name() {
				return o
			}
		}
	}
	return nil
}

func (o *operation) name() string { return fmt.Sprintf("%s %d", o.Kind, o.Number) }

// tell says in a line who asked for an operation, and what has become of it.
func (o *operation) tell(entries []entry) string {
	text := o.name() + " of " + count(o.Amount)
	for _, e := range entries {
		if m := e.Move; m != nil && m.Verb == o.Kind && m.Actor != "system" {
			text += " by " + visible(m.Actor)
		}
	}
	text += ": " + strings.ReplaceAll(string(o.State), "_", " ")
	if o.RequestID != "" && o.Reason != "" {
		text += " (" + visible(o.Reason) + ")"
	}
	if o.Reference != "" {
		text += ", " + visible(o.Reference)
	}
	return text
}

// again reports whether an entry leaves the order where it is, and nobody asked for it.
func (e *entry) again() bool {
	return !e.ByHand && (e.Move == nil || e.Move.From == e.Move.To && e.Move.Actor == "system" && !strings.HasPrefix(e.Move.Verb, "dispute_"))
}

func foldedOf(entries []entry) *folded {
	f := &folded{Entries: entries, First: entries[0].At, Last: entries[len(entries)-1].At}
	if f.Last.Before(f.First) {
		f.First, f.Last = f.Last, f.First
	}
	times := map[string]int{}
	var order []string
	var calls []*client.Call
	for _, e := range entries {
		if e.Call != nil {
			calls = append(calls, e.Call)
		}
	}
	for _, e := range entries {
		var why string
		switch {
		case e.Call != nil:
			why = resultOf(e.Call)
		case len(calls) > 0:
			continue // only calls are tries
		case e.Move.Reason != "":
			why, _, _ = strings.Cut(e.Move.Reason, ":")
		default:
			why = e.Move.Verb
		}
		if times[why]++; times[why] == 1 && why != "" {
			order = append(order, why)
		}
	}
	f.What = fmt.Sprintf("%d entries", len(entries))
	if len(calls) > 0 {
		f.What = fmt.Sprintf("%s tries of the %s", count(len(calls)), calls[0].Step)
	}
	if len(order) == 1 && len(calls) > 1 {
		f.What += ", each: " + visible(order[0])
	} else {
		for i, why := range order {
			f.What += map[bool]string{true: ": ", false: ", "}[i == 0] + fmt.Sprintf("%d %s", times[why], visible(inWords(why)))
		}
	}
	f.What += apart(calls)
	if chargedOnce(calls) {
		f.What += "; charged once (the same key on every try)"
	}
	return f
}

// resultOf is what came of a call, in words.
func resultOf(c *client.Call) string {
	words := map[client.CallOutcome]string{
		"": "without an answer", client.CallOutcomeDone: "done", client.CallOutcomeRefused: "refused", client.CallOutcomeRetry: "not done",
		client.CallOutcomeUnknown: "may have been done", client.CallOutcomeWaiting: "waiting",
	}[c.Outcome]
	if c.Code != "" {
		words += " (" + c.Code + ")"
	}
	if c.Operation != client.CallOperationDo {
		words = string(c.Operation) + " " + words
	}
	return words
}

// chargedOnce reports whether calls are for one charge, and it was done. Another generation or route has another key.
func chargedOnce(calls []*client.Call) bool {
	done := false
	for _, c := range calls {
		if c.Step != client.CallStepCharge || c.Generation != calls[0].Generation || c.Route != calls[0].Route ||
			c.Operation != client.CallOperationDo && c.Operation != client.CallOperationLookup {
			return false
		}
		done = done || c.Outcome == client.CallOutcomeDone
	}
	return done && len(calls) > 1
}

// apart says how long it was from one call to the next, at least and at most.
func apart(calls []*client.Call) string {
	if len(calls) < 3 {
		return ""
	}
	var gaps []float64
	for i, c := range calls[1:] {
		gaps = append(gaps, c.StartedAt.Sub(calls[i].StartedAt).Abs().Seconds())
	}
	least, most := duration(slices.Min(gaps)), duration(slices.Max(gaps))
	if least == most {
		return "; " + most + " apart"
	}
	return fmt.Sprintf("; %s to %s apart", least, most)
}

// unfolded is how many entries of what is folded are on a page that does not have every one.
const unfolded = 12

// Ends are the first and the last of many entries that are folded; nil: there are few.
func (f *folded) Ends() []entry {
	if len(f.Entries) <= unfolded {
		return nil
	}
	return []entry{f.Entries[0], f.Entries[1], f.Entries[len(f.Entries)-2], f.Entries[len(f.Entries)-1]}
}

// offerByHand finds the last call of each open undo: all of its calls say that it is open, but one link is enough.
func (v *visit) offerByHand(orderID string, entries []entry) error {
	open := func(e entry) bool { return e.Call != nil && e.Call.UndoOpen }
	if !v.may("settleStepOfOrder") || !slices.ContainsFunc(entries, open) {
		return nil
	}
	// These calls count down, so the newest come first.
	newest, err := v.api.ListCalls(v.r.Context(), orderID, client.ListCallsParams{Before: 1, Limit: 200})
	if err != nil {
		return err
	}
	for i := range entries {
		e := &entries[i]
		e.ByHand = open(*e) && !slices.ContainsFunc(newest.Calls, func(c client.Call) bool {
			return c.UndoOpen && c.Step == e.Call.Step && c.Generation == e.Call.Generation && c.Call < e.Call.Call
		})
	}
	return nil
}

// entries returns the entries of a page, and at least one more if there are more.
func (v *visit) entries(order *client.Order, at past) ([]entry, error) {
	ctx := v.r.Context()
	params := at.params()
	moves, err := v.api.ListTransitions(ctx, order.OrderID, params)
	if err != nil {
		return nil, err
	}
	all := make([][]client.Call, 2)
	for i, params := range at.callParams() {
		if order.Policy == 0 && order.Calls == 0 {
			break // everything was done in the database
		}
		list, err := v.api.ListCalls(ctx, order.OrderID, params)
		if err != nil {
			return nil, err
		}
		all[i] = list.Calls
	}
	moved, calls := fold(moves.Transitions, all[0])
	return at.merge(at.merge(moved, calls), entriesOf(all[1])), nil
}

func (at past) params() client.ListTransitionsParams {
	if at.oldest {
		return client.ListTransitionsParams{Limit: historyPage + 1, After: at.moves}
	}
	return client.ListTransitionsParams{Limit: historyPage + 1, Sort: "newest", Before: at.moves}
}

// callParams are for the calls that moved the order, and for the others. The others count down, so their sort is
// reversed. -1 is below all moving calls, and 1 above all others.
func (at past) callParams() [2]client.ListCallsParams {
	if at.oldest {
		return [2]client.ListCallsParams{
			{Limit: historyPage + 1, After: cmp.Or(at.calls, -1), Sort: "oldest"},
			{Limit: historyPage + 1, Before: cmp.Or(at.aside, 1), Sort: "newest"},
		}
	}
	return [2]client.ListCallsParams{
		{Limit: historyPage + 1, After: -1, Before: at.calls, Sort: "newest"},
		{Limit: historyPage + 1, After: at.aside, Before: 1},
	}
}

// fold joins each move with the call that it recorded, which has the same time. The moves of the other calls are on
// other pages.
func fold(moves []client.Transition, calls []client.Call) (moved, left []entry) {
	for i := range moves {
		e := entry{At: moves[i].At, Move: &moves[i]}
		if c := slices.IndexFunc(calls, func(c client.Call) bool { return c.StartedAt.Equal(e.At) }); c >= 0 {
			e.Call = new(calls[c])
			calls = slices.Delete(calls, c, c+1)
		}
		moved = append(moved, e)
	}
	return moved, entriesOf(calls)
}

func entriesOf(calls []client.Call) (entries []entry) {
	for i := range calls {
		entries = append(entries, entry{At: calls[i].StartedAt, Call: &calls[i]})
	}
	return entries
}

func (at past) merge(a, b []entry) (all []entry) {
	for len(a) > 0 && len(b) > 0 {
		if a[0].At.Equal(b[0].At) || a[0].At.Before(b[0].At) == at.oldest {
			all, a = append(all, a[0]), a[1:]
		} else {
			all, b = append(all, b[0]), b[1:]
		}
	}
	return append(append(all, a...), b...)
}

// behind is the cursor after some entries.
func (at past) behind(entries []entry) past {
	for _, e := range entries {
		if e.Move != nil {
			at.moves = e.Move.Seq
		}
		switch {
		case e.Call == nil:
		case e.Call.Call > 0:
			at.calls = e.Call.Call
		default:
			at.aside = e.Call.Call
		}
	}
	return at
}

func (at past) url(orderID string) string {
	query := url.Values{"id": {orderID}}
	for name, n := range map[string]int{"moves": at.moves, "calls": at.calls, "aside": at.aside} {
		if n != 0 {
			query.Set(name, strconv.Itoa(n))
		}
	}
	if at.oldest {
		query.Set("sort", "oldest")
	}
	if at.every {
		query.Set("every", "yes")
	}
	return address("/console/order", query) + "#history"
}

// measure sets how long the order waited: from the move that began a hold to the next one.
func (h *history) measure() {
	var next time.Time
	for i := range h.Entries { // from the newest
		if h.Oldest {
			i = len(h.Entries) - 1 - i
		}
		e := &h.Entries[i]
		if e.Move == nil {
			continue
		}
		if slices.Contains(fsm.Holds(), e.Move.Verb) && e.Move.Actor == "system" && !next.IsZero() {
			e.Lasted = next.Sub(e.At).Round(time.Millisecond)
		}
		next = e.At
	}
}
