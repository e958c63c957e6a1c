package console

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"pawl/client"
)

// history is a page of what happened to an order: as a story, or as all moves and calls.
type history struct {
	Story   []chapter
	Rows    []row   // all moves and calls
	Entries []entry // the oldest first
	Oldest  bool    // the story and the rows are, too
	Every   bool    // shows the rows
	Next    string  // the URL of the next page
}

// entry is a move, a call, or a move and the call that it recorded.
type entry struct {
	At     time.Time
	Move   *client.Transition
	Call   *client.Call
	ByHand bool // has a link to record that the effect was undone by hand
}

// row is an entry with the moves of Pawl that belong to it.
type row struct {
	entry
	Before []*client.Transition // that led to it, such as a wake
	Then   []*client.Transition // that the answer to its call made, such as a retry
	Since  time.Duration        // the row before

	Recorded *chapter // what came of a result that a person recorded
}

// rowsOf puts entries into rows, the oldest first. A move of Pawl that leaves the order in its state is in the row of the call
// whose answer made it, or in the next row if it led to that.
func rowsOf(entries []entry) (rows []row) {
	var before []*client.Transition
	for i, e := range entries {
		stays := e.Move != nil && e.Call == nil && e.Move.From == e.Move.To && e.Move.Actor == "system"
		last := len(rows) - 1
		switch {
		case stays && before == nil && last >= 0 && rows[last].Call != nil && rows[last].Call.FinishedAt.Equal(e.At):
			rows[last].Then = append(rows[last].Then, e.Move)
		case stays && moveWords[e.Move.Verb] != "" && i < len(entries)-1:
			before = append(before, e.Move)
		default:
			r := row{entry: e, Before: before}
			if last >= 0 {
				r.Since = e.At.Sub(rows[last].At).Round(time.Millisecond)
			}
			rows, before = append(rows, r), nil
		}
	}
	return rows
}

// Moves are all moves of the row.
func (r *row) Moves() []*client.Transition {
	moves := slices.Concat(r.Before, []*client.Transition{r.Move}, r.Then)
	return slices.DeleteFunc(moves, func(m *client.Transition) bool { return m == nil })
}

// Took is how long the provider took to answer; 0: it has not, or was not asked.
func (e *entry) Took() time.Duration {
	if e.Call == nil || e.Call.FinishedAt.IsZero() {
		return 0
	}
	return e.Call.FinishedAt.Sub(e.Call.StartedAt).Round(time.Millisecond)
}

const (
	historyPage = 150 // moves and calls that are read at a time
	pagesTold   = 8   // that are read at most for a story
)

// past is the cursor of a history, in three numberings: of moves, of calls that moved the order, and of other calls,
// which count down from -1. None starts at 0.
type past struct {
	oldest              bool
	moves, calls, aside int // the last one shown; 0: none
}

const cursorOfPast = "%d.%d.%d"

func (v *visit) history(order *client.Order) (*history, error) {
	h := &history{Oldest: v.query("sort") == "oldest", Every: v.query("every") != ""}
	at := past{oldest: h.Oldest}
	begun, _ := fmt.Sscanf(v.query("cursor"), cursorOfPast, &at.moves, &at.calls, &at.aside)
	for pages := 1; ; pages++ {
		entries, err := v.entries(order, at)
		if err != nil {
			return nil, err
		}
		shown := entries[:min(len(entries), historyPage)]
		if h.Entries = append(h.Entries, shown...); len(shown) == len(entries) {
			break
		}
		if at = at.behind(shown); h.Every || pages == pagesTold {
			h.Next = v.nextPage(fmt.Sprintf(cursorOfPast, at.moves, at.calls, at.aside)) + "#history"
			break
		}
	}
	first, last := begun == 0, h.Next == ""
	if !h.Oldest {
		slices.Reverse(h.Entries)
		first, last = last, first
	}
	if v.may("settleStepOfOrder") {
		h.offerByHand()
	}
	h.Rows, h.Story = rowsOf(h.Entries), storyOf(order, h.Entries, first, last)
	for i := range h.Rows {
		if at := slices.IndexFunc(h.Story, func(c chapter) bool { return records(c) && c.Entries[0].Move == h.Rows[i].Move }); at >= 0 {
			h.Rows[i].Recorded = new(h.Story[at])
		}
	}
	if !h.Oldest {
		slices.Reverse(h.Rows)
		slices.Reverse(h.Story)
	}
	return h, nil
}

// recorded says which result a person recorded last, if that is what they have done.
func (h *history) recorded(done *verb) string {
	at := slices.IndexFunc(h.Story, records)
	if at < 0 || done.Name != "step-result" {
		return ""
	}
	return strings.TrimSuffix(h.Story[at].Title+" ("+visible(h.Story[at].Reference)+")", " ()") + ". "
}

// offerByHand finds the last call on the page of each open undo: all of its calls say that it is open, but one link is enough.
func (h *history) offerByHand() {
	offered := map[string]bool{}
	for i, e := range slices.Backward(h.Entries) {
		if c := e.Call; c != nil && c.UndoOpen {
			undo := fmt.Sprint(c.Step, c.Generation)
			h.Entries[i].ByHand, offered[undo] = !offered[undo], true
		}
	}
}

// entries returns the entries of a page, and at least one more if there are more. The calls that did not move the order
// count down, so their sort is reversed. -1 is below all moving calls, and 1 above all others.
func (v *visit) entries(order *client.Order, at past) ([]entry, error) {
	const limit = historyPage + 1
	ofMoves := client.ListTransitionsParams{Limit: limit, Sort: "newest", Before: at.moves}
	ofCalls := []client.ListCallsParams{{Limit: limit, After: -1, Before: at.calls, Sort: "newest"}, {Limit: limit, After: at.aside, Before: 1}}
	if at.oldest {
		ofMoves = client.ListTransitionsParams{Limit: limit, After: at.moves}
		ofCalls = []client.ListCallsParams{{Limit: limit, After: cmp.Or(at.calls, -1)}, {Limit: limit, Before: cmp.Or(at.aside, 1), Sort: "newest"}}
	}
	moves, err := v.api.ListTransitions(v.r.Context(), order.OrderID, ofMoves)
	if err != nil {
		return nil, err
	}
	all := entriesOf(moves.Transitions, nil)
	for _, params := range ofCalls {
		if order.Policy == 0 && order.Calls == 0 {
			break // everything was done in the database
		}
		list, err := v.api.ListCalls(v.r.Context(), order.OrderID, params)
		if err != nil {
			return nil, err
		}
		all = at.merge(all, entriesOf(nil, list.Calls))
	}
	return all, nil
}

func entriesOf(moves []client.Transition, calls []client.Call) (entries []entry) {
	for i := range moves {
		entries = append(entries, entry{At: moves[i].At, Move: &moves[i]})
	}
	for i := range calls {
		entries = append(entries, entry{At: calls[i].StartedAt, Call: &calls[i]})
	}
	return entries
}

// merge keeps both in their order, and joins a move with the call that it recorded, which has the same time.
func (at past) merge(a, b []entry) (all []entry) {
	for len(a) > 0 && len(b) > 0 {
		same := a[0].At.Equal(b[0].At)
		if same && a[0].Call == nil && b[0].Call.Call > 0 {
			a[0].Call, b = b[0].Call, b[1:]
		}
		if same || a[0].At.Before(b[0].At) == at.oldest {
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
		if e.Call != nil && e.Call.Call > 0 {
			at.calls = e.Call.Call
		} else if e.Call != nil {
			at.aside = e.Call.Call
		}
	}
	return at
}
