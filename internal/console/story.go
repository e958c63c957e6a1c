package console

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"pawl/client"
	"pawl/fsm"
)

// chapter is a row of the story of an order: its stay in one state, a refund, or what a person or a deadline did.
type chapter struct {
	Title     string
	Mark      string // done, failed, waiting or empty: its color
	By        string // the person; empty: Pawl
	Reason    string // in the words of that person
	Said      []string
	Reference string // of the provider
	Code      string // of a refusal
	Entries   []entry
	Until     time.Time // the end; zero: there is none yet

	state, left client.Status // of a stay: the state, and the one that it was left for, or empty
	why         string        // it was left, as a code
	beside      bool          // it did not move the order
	about       *operation    // that it is about, if it is beside
	part        bool          // other pages have more of it

	tries, asked, voids []*client.Call // that do what it is about, ask about it, or undo what was tried before a new start
	last                *client.Call   // of all these; not nil
}

// teller puts entries into chapters, the oldest first.
type teller struct {
	operations []operation
	story      []chapter
	stay       int // the chapter of the current state; -1: none
	state      client.Status
}

// storyOf tells entries, the oldest first. first and last: nothing happened before them, and after.
func storyOf(o *client.Order, entries []entry, first, last bool) []chapter {
	t := teller{operations: operationsOf(o), stay: -1}
	for _, e := range entries {
		t.add(e)
	}
	for i := range t.story {
		c := &t.story[i]
		c.part = !first && (i == 0 || c.beside) || !last && (i == len(t.story)-1 || c.beside)
		if c.tell(o, last && i == t.stay); c.about != nil {
			c.tellOperation(c.about, o.Currency)
		}
	}
	return t.story
}

// meanwhile tells what has happened to the order since a move.
func (q *ofOrder) meanwhile(since int) ([]chapter, error) {
	moves, err := q.api.ListTransitions(q.r.Context(), q.order.OrderID, client.ListTransitionsParams{After: since, Limit: 20})
	if err != nil {
		return nil, err
	}
	return storyOf(q.order, entriesOf(moves.Transitions, nil), true, true), nil
}

func (t *teller) add(e entry) {
	if name, about := e.beside(t.operations); name != "" {
		at := slices.IndexFunc(t.story, func(c chapter) bool { return c.beside && c.Title == name })
		if at < 0 {
			at, t.story = len(t.story), append(t.story, chapter{Title: name, beside: true, about: about})
		}
		t.story[at].Entries = append(t.story[at].Entries, e)
		return
	}
	if m := e.Move; m == nil {
		t.state = cmp.Or(t.state, client.Status(fsm.DoneIn(fsm.Step(e.Call.Step))))
	} else {
		t.state = m.To
		event := eventOf(m)
		if m.From != m.To && t.stay >= 0 {
			before := &t.story[t.stay]
			before.left, before.why, before.Until = m.To, m.Reason, m.At
		} else if last := len(t.story) - 1; t.stay < 0 && last >= 0 && (m.From != m.To || event == "" && (m.Verb == fsm.HoldRetry || m.Verb == fsm.HoldAttention)) {
			t.story[last].left, t.story[last].why = m.To, m.Reason // after what a person did
			if strings.HasPrefix(m.Reason, "undo_refused: step_result") {
				t.stay = last // the hold is of that
			}
		}
		if m.From != m.To || event != "" {
			t.stay = -1
		}
		if event != "" {
			if last := len(t.story) - 1; last >= 0 && t.story[last].state == client.StatusPending && t.story[last].Until.IsZero() {
				t.story[last].Until = m.At // it no longer waits for what it waited for
			}
			t.story = append(t.story, chapter{Title: event, state: m.To, Entries: []entry{{At: e.At, Move: m}}})
			if e.Move = nil; e.Call == nil {
				return
			}
		}
	}
	if t.stay < 0 {
		t.stay, t.story = len(t.story), append(t.story, chapter{state: t.state})
	}
	t.story[t.stay].Entries = append(t.story[t.stay].Entries, e)
}

// records reports whether a chapter is a result that a person recorded.
func records(c chapter) bool {
	return c.Entries[0].Move != nil && c.Entries[0].Move.Verb == "step-result"
}

// beside names what an entry is about that does not move the order: a refund, capture or void, or the undo of an effect
// that came too late. The move that asked for a refund has its time.
func (e *entry) beside(all []operation) (name string, about *operation) {
	for i := range all {
		var is bool
		o := &all[i]
		if m := e.Move; m == nil {
			is = map[string]int{"refund": e.Call.Refund, "capture": e.Call.Capture, "void": e.Call.Void}[o.Kind] == o.Number
		} else {
			about, _, _ := strings.Cut(m.Reason, ":")
			is = m.Verb == o.Kind && e.At.Equal(o.CreatedAt) || strings.HasPrefix(m.Verb, o.Kind+"_") && about == o.name()
		}
		if is {
			return o.name(), o
		}
	}
	if e.Call != nil && e.Call.Call < 0 {
		return "undo of a late " + string(e.Call.Step), nil
	}
	return "", nil
}

func (o *operation) name() string { return fmt.Sprintf("%s %d", o.Kind, o.Number) }

// eventWords are titles of moves, by their verb, perhaps with the state that they left or led to.
var eventWords = map[string]string{
	"failed retry": "Started again", "retry": "Retry requested", "cancel canceled": "Canceled", "cancel": "Asked to cancel",
	"approve": "Approved", "reject": "Rejected", "pause": "Asked to pause", "resume": "Resumed", "step-result": "Result recorded by a person",
	"deadline": "The deadline passed", "fallback": "The next provider is tried", "capture_due": "The authorization is about to end",
	"erase": "Personal data erased", "dispute_opened": "The customer disputes the charge", "dispute_won": "The dispute is won", "dispute_lost": "The dispute is lost",
}

// eventOf is the title of a move that is a chapter of its own, or empty.
func eventOf(m *client.Transition) string {
	words := cmp.Or(eventWords[string(m.From)+" "+m.Verb], eventWords[m.Verb+" "+string(m.To)], eventWords[m.Verb])
	switch {
	case m.Verb == fsm.HoldRetry && whoDid(m) == "":
		return ""
	case words == "" && whoDid(m) != "":
		return capital(strings.ReplaceAll(m.Verb, "_", " "))
	}
	return words
}

// whoDid is the person who requested a move; empty: Pawl made it by itself.
func whoDid(m *client.Transition) string {
	if m.Actor == "system" {
		return ""
	}
	return strings.TrimSuffix(m.Actor+" for "+m.OnBehalfOf, " for ")
}

// tell says what happened. now: the order is in this state.
func (c *chapter) tell(o *client.Order, now bool) {
	c.sortCalls()
	if m := c.Entries[0].Move; c.Title != "" && m != nil {
		if c.Reason, c.By = m.Reason, whoDid(m); c.By != "" && strings.HasPrefix(m.Verb, "dispute_") {
			c.Title += ", reported"
		}
		if m.PaymentMethod != "" {
			c.say("With another payment method")
		}
		if records(*c) {
			c.tellRecorded(o)
		}
	} else if c.Title == "" {
		c.Title = titles[c.state]
		c.tellResult(o)
		c.tellHolds()
	}
	c.tellCalls()
	if now && !fsm.State(c.state).Final() {
		c.Mark = "waiting"
		if o.Hold == "" {
			c.say("It is under way")
		} else if strings.HasPrefix(o.HoldReason, "undo_refused") {
			c.say("It is not undone")
		} else if o.InDoubt {
			c.say("No result yet: a request may still be on its way")
		} else if c.state != client.StatusPending {
			c.say("It is not done yet")
		}
	}
	c.Title = capital(c.Title)
	if c.part {
		c.say("More of it is on another page.")
	}
}

var titles = map[client.Status]string{
	client.StatusPending: "Accepted", client.StatusCharging: "Charge", client.StatusReserving: "Reservation", client.StatusConfirming: "Confirmation",
	client.StatusReleasing: "Undo of the reservation", client.StatusRefunding: "Undo of the charge",
	client.StatusCompleted: "Completed", client.StatusFailed: "Failed", client.StatusCanceled: "Canceled",
}

// say adds a sentence; of an empty text, none.
func (c *chapter) say(text string) {
	if text = strings.TrimRight(text, "."); text != "" {
		c.Said = append(c.Said, capital(text)+".")
	}
}

// tellRecorded says what a person recorded of the step, as far as the service has acted on it since, or of an operation.
func (c *chapter) tellRecorded(o *client.Order) {
	state, left, about, recorded := fsm.State(c.state), fsm.State(c.left), titles[c.state], "recorded as not done"
	code, refusedUndo := strings.CutPrefix(c.why, "undo_refused: ")
	of := slices.IndexFunc(operationsOf(o), func(f operation) bool { return f.FinishedAt.Equal(c.At()) })
	switch next, _ := state.Next(fsm.Done); {
	case of >= 0:
		f := operationsOf(o)[of]
		recorded = map[client.CaptureState]string{client.CaptureStateDone: "recorded as done", client.CaptureStateFailed: "recorded as refused"}[f.State]
		about, c.Reference = f.name(), f.Reference
		c.sayRefused(f.Code, f.Detail)
	case state.Final(): // of the undo of a late effect, or not done
		return
	case left == "":
		recorded = "result recorded"
	case left != state && (state.Undoing() || left == next || left.Step() == state.Step()): // it is undone
		recorded = "recorded as done"
		c.Reference = map[fsm.State]string{fsm.Charging: o.Steps.Charge.Reference, fsm.Reserving: o.Steps.Reserve.Reference, fsm.Refunding: o.Steps.Charge.UndoReference}[state]
	case refusedUndo:
		recorded = "recorded as refused"
		c.sayRefused(strings.TrimPrefix(code, "step_result: "), "")
	case left != state && o.StopRequested == "":
		recorded = "recorded as refused"
		c.sayRefused(code, o.Failure.Detail)
	}
	c.Title = about + ": " + recorded
}

// sayRefused says why something was refused; of a person's record without a code, nothing.
func (c *chapter) sayRefused(code, detail string) {
	if code != "" && code != "step_result" {
		c.Code = code
		c.say(strings.TrimSuffix(fmt.Sprintf("Refused: %s, %s", visible(codeInWords(code)), visible(strings.TrimRight(detail, "."))), ", "))
	}
}

// tellResult says how the stay in a state ended.
func (c *chapter) tellResult(o *client.Order) {
	state := fsm.State(c.state)
	next, _ := state.Next(fsm.Done)
	switch {
	case state.Final():
		c.Mark = map[fsm.State]string{fsm.Completed: "done"}[state]
		if m := c.Entries[0].Move; state == fsm.Failed && m != nil {
			c.Mark = "failed"
			c.say(visible(codeInWords(m.Reason)))
		}
	case c.left == "" || c.state == client.StatusPending:
	case c.left == client.Status(next) || state.Undoing():
		c.Mark, c.Reference = "done", c.last.Reference
		c.say(c.doneTo(o) + c.how())
	case c.last.Outcome == client.CallOutcomeRefused:
		c.Mark = "failed"
		c.sayRefused(c.last.Code, c.last.Detail)
	case c.why == "out_of_stock" && c.state == client.StatusCharging: // the stock was looked at first
		c.Mark, c.Title = "failed", titles[client.StatusReserving]
		c.say("Out of stock, so nothing was charged")
	case c.why != "":
		c.Mark = "failed"
		c.sayRefused(c.why, "")
	default:
		c.say(theStep[c.state] + " was stopped")
	}
	if c.left != "" && fsm.State(c.left).Undoing() && c.state == client.StatusCharging {
		c.say("The customer may have been charged, so the charge is undone")
	}
}

// doneTo says what is so after a state.
func (c *chapter) doneTo(o *client.Order) string {
	charged := map[bool]string{true: " charged", false: " authorized"}[o.Authorized == ""]
	free := map[bool]string{true: "nothing is reserved", false: "the goods are free again"}[o.Steps.Reserve.InDoubt]
	return map[client.Status]string{
		client.StatusCharging: count(o.Amount) + " " + o.Currency + charged, client.StatusReserving: goodsOf(o) + " reserved",
		client.StatusConfirming: "confirmed", client.StatusReleasing: free, client.StatusRefunding: "nothing is kept of the charge",
	}[c.state]
}

// goodsOf says what of an order can be reserved.
func goodsOf(o *client.Order) string { return visible(o.What()) }

// how says how an effect is known to have happened once, after more than one call.
func (c *chapter) how() string {
	switch all := len(c.tries) + len(c.asked) + len(c.voids); {
	case all < 2 || c.part:
	case c.last.Operation == client.CallOperationLookup && c.last.Outcome == client.CallOutcomeDone:
		return " once: its answer was lost, and Pawl found it by asking the provider"
	case len(c.tries) > 1 && c.last.Outcome == client.CallOutcomeDone:
		return fmt.Sprintf(" once, at try %d of %[1]d, all with the same key", len(c.tries))
	case c.last.Outcome == client.CallOutcomeWaiting:
		return ", as the provider reported later"
	}
	return ""
}

func (c *chapter) sortCalls() {
	c.last = &client.Call{}
	for _, e := range c.Entries {
		if e.Call == nil {
			continue
		}
		kind := &c.tries
		if e.Call.Operation == client.CallOperationLookup {
			kind = &c.asked
		} else if e.Call.Operation == client.CallOperationUndo && c.state != "" && !fsm.State(c.state).Undoing() {
			kind = &c.voids
		}
		*kind, c.last = append(*kind, e.Call), e.Call
	}
}

// tellCalls counts the calls by their answers. The numbers add up.
func (c *chapter) tellCalls() {
	if len(c.voids) > 0 {
		c.say("First undid what was tried before: " + answers(c.voids))
	}
	if n := len(c.tries); n > 1 || n == 1 && c.tries[0].Outcome != client.CallOutcomeDone && c.tries[0].Outcome != client.CallOutcomeRefused {
		c.say(fmt.Sprintf("%s: %s", times(n, "1 try", "tries"), answers(c.tries)))
	}
	if len(c.asked) > 0 {
		before := ""
		if slices.Contains(c.tries, c.last) {
			before = plural(int64(len(c.asked)), ", before the last try,", ", between the tries,")
		}
		c.say(fmt.Sprintf("Asked the provider %s%s what had become of it: %s", times(len(c.asked), "once", "times"), before, answers(c.asked)))
	}
}

// times is how often something was: once, in words.
func times(n int, once, many string) string { return plural(int64(n), once, count(n)+" "+many) }

// answers counts the answers to calls, such as "9 × HTTP 503 Service Unavailable, 1 × done".
func answers(calls []*client.Call) string {
	all := make([]string, len(calls))
	for i, c := range calls {
		all[i] = answerTo(c)
	}
	return counted(all)
}

// counted counts words that occur more than once, in their order.
func counted(words []string) string {
	if len(words) == 1 {
		return words[0]
	}
	var parts []string
	for all := slices.Clone(words); len(all) > 0; {
		word, before := all[0], len(all)
		all = slices.DeleteFunc(all, func(other string) bool { return other == word })
		parts = append(parts, fmt.Sprintf("%d × %s", before-len(all), word))
	}
	return strings.Join(parts, ", ")
}

// notDone is the answer to a look-up of what has not arrived.
const notDone = "not done"

var outcomeWords = map[client.CallOutcome]string{
	"": "no answer recorded", client.CallOutcomeDone: "done", client.CallOutcomeWaiting: "accepted, to be answered later",
}

// answerTo is the answer to a call, in a few words.
func answerTo(c *client.Call) string {
	const most = 50
	switch {
	case outcomeWords[c.Outcome] != "":
		return outcomeWords[c.Outcome]
	case c.Outcome == client.CallOutcomeRefused:
		return strings.TrimSpace("refused " + visible(c.Code))
	case c.Code == "connection_failed":
		return codeWords[c.Code]
	case c.Code == "unseen", c.Code == "not_seen":
		return notDone
	}
	words, _, _ := strings.Cut(c.Detail, ": ")
	if words == "" || len(words) > most {
		words = strings.ReplaceAll(c.Code, "_", " ")
	}
	return visible(words)
}

// tellHolds says what the order waited for, and what became of it, in its entries that only leave it where it is.
func (c *chapter) tellHolds() {
	putOff, takenOver := 0, 0
	for i, e := range c.Entries {
		if e.Move == nil || e.Move.Actor != "system" {
			continue
		}
		until := c.Until
		if i+1 < len(c.Entries) {
			until = c.Entries[i+1].At
		}
		switch e.Move.Verb {
		case fsm.HoldApproval, fsm.HoldQueued, fsm.HoldScheduled:
			what := map[string]string{fsm.HoldApproval: "a person to approve it", fsm.HoldQueued: "its turn", fsm.HoldScheduled: "its time"}[e.Move.Verb]
			if waited := until.Sub(e.At); until.IsZero() {
				c.say("It waits for " + what)
			} else if waited > time.Second {
				c.say("It waited " + length(waited) + " for " + what)
			}
		case fsm.HoldAttention, "hold":
			c.Mark = cmp.Or(c.Mark, "failed")
			why := inWords(e.Move.Reason)
			if why == e.Move.Reason {
				_, detail, _ := strings.Cut(why, ": ")
				why = strings.TrimSuffix(reasonOf(client.OrderHoldAttention, why).Title+", "+detail, ", ")
			}
			c.say("It needs a person: " + visible(why))
		case fsm.HoldRetry:
			if code, _, _ := strings.Cut(e.Move.Reason, ":"); code == "breaker_open" || code == "queue_full" {
				putOff++
			}
		case "take_over":
			takenOver++
		}
	}
	if putOff > 0 {
		c.say("Put off " + times(putOff, "once", "times") + ", because the provider kept failing")
	}
	if takenOver > 0 {
		c.say("Taken over by another replica " + times(takenOver, "once", "times"))
	}
}

// tellOperation says who asked for a refund, capture or void, and what has become of it.
func (c *chapter) tellOperation(o *operation, currency string) {
	c.Title, c.Reference = fmt.Sprintf("%s: %s %s", capital(o.name()), count(o.Amount), currency), o.Reference
	if c.By == "" {
		c.Reason = "" // a code
	}
	c.Mark = cmp.Or(map[client.CaptureState]string{client.CaptureStateDone: "done", client.CaptureStateFailed: "failed"}[o.State], "waiting")
	c.Said = slices.Insert(c.Said, 0, capital(strings.ReplaceAll(string(o.State), "_", " "))+".")
	if o.State == client.CaptureStateFailed {
		c.sayRefused(o.Code, o.Detail)
	}
	if o.EndOfAuthorization() {
		c.Title, c.Reason = fmt.Sprintf("Authorization over, %s %s of it not captured", count(o.Amount), currency), ""
		switch {
		case o.State == client.CaptureStateDone:
			c.Said = []string{"No more can be captured."}
		case o.State == client.CaptureStateFailed:
			c.Title, c.Mark, c.Said = "Asked whether the authorization is over", "", []string{"It is not."}
		}
	} else if o.Kind == "void" && o.Code == "authorization_expired" {
		c.Said[0] = "The authorization had ended already: there was nothing to void."
	}
}

// At is when the chapter began.
func (c *chapter) At() time.Time { return c.Entries[0].At }

// Ended is when it ended, if that is seconds later. A final state does not end.
func (c *chapter) Ended() time.Time {
	end := cmp.Or(c.Until, c.Entries[len(c.Entries)-1].At)
	if end.Sub(c.At()) < time.Second || fsm.State(c.state).Final() {
		return time.Time{}
	}
	return end
}

// Cut reports whether the chapter is too long to show all of its rows.
func (c *chapter) Cut() bool { return len(c.Entries) > 24 }

// Rows are those of its moves and calls: the first two and the last two, if it is cut.
func (c *chapter) Rows() []row {
	rows := rowsOf(c.Entries)
	if n := len(rows); c.Cut() && n > 4 {
		return slices.Delete(rows, 2, n-2)
	}
	return rows
}
