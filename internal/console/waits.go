package console

import (
	"cmp"
	"fmt"
	"html/template"
	"slices"
	"strings"
	"time"

	"pawl/client"
	"pawl/fsm"
)

// wait says what an order waits for, to somebody with the customer on the phone.
type wait struct {
	Title string
	Why   template.HTML // and since when
	Next  template.HTML // what happens next, and when
	Act   string        // what somebody must do
	Money string        // whether it has moved
	Needs *reason       // why the order needs a person; nil: it does not, or was paused
}

// theStep is what is done in a state.
var theStep = map[client.Status]string{
	client.StatusPending: "the charge", client.StatusCharging: "the charge", client.StatusReserving: "the reservation",
	client.StatusConfirming: "the confirmation", client.StatusReleasing: "the undo of the reservation", client.StatusRefunding: "the undo of the charge",
}

// waitsFor is about an order on hold. moves and calls are its newest, the newest first.
func waitsFor(o *client.Order, moves []client.Transition, calls []client.Call) *wait {
	w := &wait{Act: "Nobody needs to do anything.", Money: moneyOf(o, moves)}
	held := heldBy(o, moves)
	switch o.Hold {
	case client.OrderHoldRetry:
		w.tellTries(o, moves, calls)
		w.Next = markup("The next try is %s, by itself.%s Tries that can’t reach the provider do not count.", when(o.ResumesAt), untilPerson(o.Retry, o.ResumesAt))
	case client.OrderHoldCallback:
		w.Title = "Waits for the provider’s answer to " + theStep[o.Status]
		w.Why = markup("The provider has accepted the request, and will report the result.%s", waited(held.At))
		w.Next = markup("The order goes on with the provider’s report. Without one, Pawl asks the provider %s.", when(o.ResumesAt))
		if o.Action != nil {
			w.Title, w.Act = "Waits for the customer, who must confirm the payment", "Only the customer can do something: confirm the payment."
			w.Why = markup("As a rule, they do that with their bank (3-D Secure).%s", waited(held.At))
			w.Next, w.Money = markup("The order goes on by itself once they have. If not, Pawl asks the provider %s.", when(o.ResumesAt)), "Until then nothing is charged."
		}
	case client.OrderHoldScheduled:
		w.Title = "Waits for the time it was ordered for"
		w.Why, w.Next = markup("It was placed %s.", ago(o.CreatedAt)), markup("It starts by itself %s.", when(o.ResumesAt))
	case client.OrderHoldQueued:
		w.Title = "Waits for its turn"
		w.Why = markup("Other orders of its kind, such as of the same customer, are under way, and only so many may be.%s", waited(held.At))
		w.Next = "It starts by itself when one of them has ended."
	case client.OrderHoldPaused:
		w.Title, w.Act = "Paused", "It stays so until somebody resumes it."
		if held.Actor != "" {
			w.Why = markup("%s paused it %s%s.", held.Actor, ago(held.At), because(held.Reason))
		}
	case client.OrderHoldApproval:
		w.Title, w.Act = "Waits for a person to approve it", "Somebody with the role approve must approve or reject it."
		w.Needs, w.Why = &approval, markup("A rule of the policy asks for that before anything is charged%s.%s", because(o.ApprovalRule), waited(held.At))
		if !o.ApprovalUntil.IsZero() {
			end := map[client.OrderApprovalOnTimeout]string{"approve": "approved", "cancel": "canceled"}[o.ApprovalOnTimeout]
			w.Next = markup("If nobody decides, it is "+cmp.Or(end, "canceled or approved, as its policy says,")+" %s.", when(o.ApprovalUntil))
		}
	case client.OrderHoldAttention:
		why := reasonOf(o.Hold, o.HoldReason)
		w.Needs, w.Title = &why, "Needs a person: "+why.Title
		var acts []string
		for _, verb := range strings.Fields(why.try) {
			if slices.Contains(o.AllowedActions, verb) {
				acts = append(acts, map[string]string{"retry": "Retry tries " + theStep[o.Status] + " again", "cancel": "Cancel undoes what was done",
					"step-result": "Record the step's result, once it is certain at the provider"}[verb])
			}
		}
		w.Act = strings.TrimSuffix("Somebody must decide: "+strings.Join(acts, "; "), ": ") + "."
		start, _ := triesSince(moves)
		if i := slices.IndexFunc(calls, func(c client.Call) bool { return inVain(&c) }); i >= 0 && start.Verb == "retry" && start.From == start.To && !calls[i].StartedAt.Before(start.At) {
			w.Act = fmt.Sprintf("The retry failed at %s UTC (%s): the provider has to work first. ", calls[i].StartedAt.UTC().Format("15:04"), answerTo(&calls[i])) + w.Act
		}
		w.Why = markup(meaningOf(o, why, calls)+"%s", waited(held.At))
		code, refused := strings.CutPrefix(o.HoldReason, "undo_refused: ")
		code, recorded := strings.CutPrefix(code, "step_result")
		if by := slices.IndexFunc(moves, func(m client.Transition) bool { return m.Verb == "step-result" }); recorded && by >= 0 {
			m := &moves[by]
			w.Title = fmt.Sprintf("Needs a person: recorded by %s as refused%s", visible(whoDid(m)), visible(code))
			w.Why += markup(" %s recorded %s %s%s.", whoDid(m), cmp.Or(strings.TrimPrefix(code, ": "), "a refusal"), ago(m.At), because(m.Reason))
		} else if refused {
			w.Title += ": " + visible(codeInWords(code))
		}
		if len(calls) > 0 && calls[0].Outcome != client.CallOutcomeDone {
			w.Why += markup(" The last answer of the provider, %s: %s.", ago(calls[0].StartedAt), providerWords(&calls[0]))
		}
	}
	switch {
	case o.CompleteBy.IsZero(), beingUndone(o), o.Hold == client.OrderHoldApproval && !o.ApprovalUntil.IsZero() && o.ApprovalUntil.Before(o.CompleteBy):
	case o.Status == client.StatusConfirming && o.InDoubt:
		w.Next += markup(" Its deadline, %s, does not undo it: it may be confirmed already.", timeAt(o.CompleteBy, "2 Jan 15:04 UTC"))
	case o.CompleteBy.Before(time.Now()):
		w.Next += " Its deadline has passed, so what was done is undone now."
	default:
		w.Next += markup(" At its deadline, %s, what was done is undone.", when(o.CompleteBy))
	}
	return w
}

// heldBy is the move that began the hold; empty: it is not among these moves.
func heldBy(o *client.Order, moves []client.Transition) (held client.Transition) {
	verbs := []string{string(o.Hold), map[client.OrderHold]string{client.OrderHoldAttention: "hold", client.OrderHoldPaused: "pause"}[o.Hold]}
	for _, m := range moves {
		switch {
		case m.Verb != "" && slices.Contains(verbs, m.Verb):
			held = m
		case held.Verb != "" && m.Verb != "step-result" && m.Verb != "answer": // a recorded refusal changes nothing
			return held
		}
	}
	return held
}

// callsOfWait is how many of the newest calls of a waiting order are read.
const callsOfWait = 100

// triesSince is the move that began the tries of a step, if it is among these, and how often the step was put off since.
func triesSince(moves []client.Transition) (start client.Transition, putOff int) {
	for _, m := range moves {
		if m.From != m.To || m.Verb == "fallback" || m.Verb == "retry" && whoDid(&m) != "" {
			return m, putOff
		} else if m.Verb == "retry" {
			putOff++
		}
	}
	return start, putOff
}

// tellTries says how often the step was tried in vain: since the order came to it, or a person had it tried again.
func (w *wait) tellTries(o *client.Order, moves []client.Transition, calls []client.Call) {
	start, putOff := triesSince(moves)
	began := start.At
	tries := slices.DeleteFunc(slices.Clone(calls), func(c client.Call) bool {
		return c.StartedAt.Before(began) || c.Operation == client.CallOperationLookup
	})
	w.Title = "Waits to try " + theStep[o.Status] + " again"
	switch n := len(tries); n {
	case 0:
		w.Title = "Waits for the provider of " + theStep[o.Status]
		w.Why = template.HTML("Put off " + times(putOff, "once", "times") + ", without a call.")
	case 1:
		w.Why = markup("One try has failed, %s: %s.", ago(tries[0].StartedAt), providerWords(&tries[0]))
	default:
		all := atLeast(int64(n), len(calls) == callsOfWait && !began.Before(calls[len(calls)-1].StartedAt))
		w.Why = markup(all+" tries have failed%s, the last %s: %s.", since(tries[n-1].StartedAt), ago(tries[0].StartedAt), providerWords(&tries[0]))
	}
	if words := inWords(o.HoldReason); words != o.HoldReason {
		w.Why += template.HTML(" " + template.HTMLEscapeString(capital(words)) + ".")
	}
}

// untilPerson says how long a step is tried, from its next try on, before the order needs a person; empty: it is not known.
func untilPerson(r client.Retries, next time.Time) template.HTML {
	if r == (client.Retries{}) {
		return ""
	}
	var bounds []string
	if r.Left > 0 {
		bounds = append(bounds, fmt.Sprint(" ", r.Left, plural(int64(r.Left), " more time", " more times")))
	}
	if r.Until.After(next) {
		bounds = append(bounds, string(markup(" until %s (%s)", clock(r.Until), due(r.Until))))
	}
	if len(bounds) == 0 {
		return " If it fails, the order needs a person."
	}
	return template.HTML(" Pawl tries at least" + strings.Join(bounds, " and") + "; then the order needs a person.")
}

// providerWords are those of the provider in its answer to a call, or ours for it.
func providerWords(c *client.Call) string {
	code := map[bool]string{true: answerTo(c) + ": "}[c.Outcome == client.CallOutcomeRefused] // one to search for
	return cmp.Or(strings.TrimSuffix(code+strings.TrimRight(c.Detail, "."), ": "), answerTo(c))
}

// recordedBy says who recorded the result that ended the stay in a state; empty: nobody did, as far as the newest moves say.
func recordedBy(moves []client.Transition, state client.Status) string {
	at := 1 + slices.IndexFunc(moves, func(m client.Transition) bool { return m.From == state && m.To != state })
	if at == 0 || at == len(moves) || moves[at].Verb != "step-result" {
		return ""
	}
	return ", as " + visible(whoDid(&moves[at])) + " recorded"
}

// meaningOf is what a reason means at the step of the order. calls begin with the newest.
func meaningOf(o *client.Order, why reason, calls []client.Call) string {
	if why.Key != "retries_exhausted" {
		return cmp.Or(why.Meaning, "Pawl can’t go on.")
	}
	text, tries, lookups := "No try of "+theStep[o.Status]+" has succeeded", 0, 0
	for _, c := range calls { // the policy counts both
		switch {
		case string(c.Step) != string(fsm.State(o.Status).Step()) || c.Generation != o.Generation:
		case c.Operation == client.CallOperationLookup:
			lookups++
		default:
			tries++
		}
	}
	if lookups > 0 && !fsm.State(o.Status).Undoing() {
		text += fmt.Sprintf(" (%s, %s)", times(tries, "1 try", "tries"), times(lookups, "1 look-up", "look-ups"))
	}
	if o.InDoubt {
		unclear := slices.IndexFunc(calls, func(c client.Call) bool {
			return c.Operation != client.CallOperationLookup && (c.Outcome == "" || c.Outcome == client.CallOutcomeUnknown)
		})
		text += ", but one without a clear answer may have been done"
		if unclear >= 0 {
			text += fmt.Sprintf(": that of %s UTC (%s)", calls[unclear].StartedAt.UTC().Format("15:04:05"), answerTo(&calls[unclear]))
		}
		if calls != nil && calls[0].Operation == client.CallOperationLookup && answerTo(&calls[0]) == notDone {
			text += ". Asked last, the provider said that it was not done, but the request may still be on its way"
		}
	}
	return text + "."
}

// moneyOf says what the customer has paid or pays, and whether that was so before the order was started again, as far as its
// newest moves say; empty: it is completed, and no authorization of it has ended.
func moneyOf(o *client.Order, moves []client.Transition) (text string) {
	money, charge, undoing := count(o.Amount)+" "+o.Currency, o.Steps.Charge, fsm.State(o.Status).Undoing()
	switch charged := "The customer was charged " + money; {
	case uncaptured(o):
		return "Nothing was captured, and nothing can be any more: the authorization ended."
	case over(o):
		return count(o.Captured) + " " + o.Currency + " was captured, and no more can be: the authorization ended."
	case o.Status == client.StatusCompleted:
		return ""
	case charge.InDoubt:
		text = "The customer pays nothing: if " + money + " was charged, it went back" + recordedBy(moves, client.StatusRefunding) + "."
	case charge.Undone:
		text = "The customer pays nothing: " + money + map[bool]string{true: " was authorized, and is not any more.", false: " was charged, and went back" + recordedBy(moves, client.StatusRefunding) + "."}[o.Authorized != ""]
	case charge.Completed && o.Authorized != "" && !undoing:
		text = money + " is authorized, and not taken yet."
	case charge.Completed && o.InDoubt && o.Status == client.StatusRefunding && !strings.HasPrefix(o.HoldReason, "undo_refused"):
		text = charged + ". Whether it has gone back is not known yet."
	case charge.Completed && o.Hold != client.OrderHoldAttention && (undoing || o.StopRequested == client.OrderStopRequestedCancel):
		text = charged + ", and has not got it back yet: it goes back by itself."
	case charge.Completed && undoing:
		text = charged + ", and has not got it back yet."
	case charge.Completed:
		text = charged + "."
	case o.InDoubt && o.Status == client.StatusCharging:
		text = "The customer may have been charged " + money + ", but not twice: all tries have the same key."
	case undoing:
		text = "If the customer was charged " + money + ", whether it has gone back is not known yet."
	case fsm.State(o.Status).Final():
		text = "The customer pays nothing: nothing was charged" + map[bool]string{true: " this time"}[o.Generation > 0] + "."
	default:
		text = "The customer was not charged."
	}
	again := slices.IndexFunc(moves, func(m client.Transition) bool { return m.From == client.StatusFailed })
	if again >= 0 && slices.ContainsFunc(moves[again:], func(m client.Transition) bool {
		return m.From == client.StatusCharging && m.To == client.StatusReserving
	}) {
		text += " Before it was started again, " + money + " was charged, and went back."
	}
	return text
}

// markup is a sentence with values in it. Texts are names or words of others.
func markup(format string, values ...any) template.HTML {
	for i, value := range values {
		if text, ok := value.(string); ok {
			values[i] = isolated(text)
		}
	}
	return template.HTML(fmt.Sprintf(format, values...))
}

// when is a time to come, as a distance and by the clock.
func when(at time.Time) template.HTML {
	if at.IsZero() {
		return "later"
	}
	return markup("%s (%s)", due(at), clock(at))
}

// clock is a time to come by the clock, with seconds if it is near.
func clock(at time.Time) template.HTML {
	switch left := time.Until(at); {
	case left < 5*time.Minute:
		return timeAt(at, "15:04:05 UTC")
	case left < time.Hour:
		return timeAt(at, "15:04 UTC")
	}
	return timeAt(at, "Mon 2 Jan 15:04 UTC")
}

// since says when something began, after the rest of a sentence; empty: it is not known.
func since(at time.Time) template.HTML {
	if at.IsZero() {
		return ""
	}
	return markup(" since %s (%s)", timeAt(at, "15:04 UTC"), ago(at))
}

// waited says since when the order has waited, if that is known.
func waited(at time.Time) template.HTML {
	if at.IsZero() {
		return ""
	}
	return " It has waited" + since(at) + "."
}

func because(reason string) template.HTML {
	if reason == "" {
		return ""
	}
	return markup(": %s", reason)
}
