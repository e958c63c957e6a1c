package fsm

import "slices"

// Outcome is what came of what an order is there for in a state.
type Outcome string

// The outcomes.
const (
	Done    Outcome = "done"    // the step stands, or is undone
	Refused Outcome = "refused" // the step will not be done
	Stopped Outcome = "stopped" // somebody asked to stop, and no outcome is waited for
)

// duty is what an order in a state is there for: the step that is done or taken back, and the events that an outcome can
// be. The first one is the plain case. The others are for orders that were asked to stop meanwhile, or of
// which an earlier call may still have its effect: the statement that moves the order chooses by its row.
type duty struct {
	step     Step
	undoes   bool
	outcomes map[Outcome][]Event
}

// duties has every state that is ours to leave. With Lifecycle it is the machine: engine, ledger, callbacks, verbs and
// books ask it, and keep no list of their own.
var duties = map[State]duty{
	Pending: {outcomes: map[Outcome][]Event{
		Done: {Start}, Stopped: {Stop}}},
	Charging: {step: Charge, outcomes: map[Outcome][]Event{
		Done: {Charged, UndoCharge}, Refused: {Declined, Stop, UndoCharge}, Stopped: {Stop, UndoCharge}}},
	Reserving: {step: Reserve, outcomes: map[Outcome][]Event{
		Done: {Reserved, UndoReserve}, Refused: {UndoCharge, UndoReserve}, Stopped: {UndoCharge, UndoReserve}}},
	Confirming: {step: Confirm, outcomes: map[Outcome][]Event{
		Done: {Confirmed}, Refused: {UndoReserve}, Stopped: {UndoReserve}}},
	Releasing: {step: Reserve, undoes: true, outcomes: map[Outcome][]Event{
		Done: {Released}}},
	Refunding: {step: Charge, undoes: true, outcomes: map[Outcome][]Event{
		Done: {Refunded, Stop}}},
}

// Step is what an order in s is there to do or to undo; empty where it is nothing.
func (s State) Step() Step { return duties[s].step }

// Undoing reports whether s takes back a step that was done.
func (s State) Undoing() bool { return duties[s].undoes }

// Final reports whether an order in s is finished: no lease, no hold, and no
// move of ours. A failed order is final although it can be redriven.
func (s State) Final() bool {
	_, ours := duties[s]
	return !ours && s.Known()
}

// Next is where an order in s goes with an outcome when nothing out of the ordinary happens; ok is false where there is no
// such outcome.
func (s State) Next(o Outcome) (to State, ok bool) {
	if events := duties[s].outcomes[o]; len(events) > 0 {
		return target(s, events[0])
	}
	return "", false
}

// Leads reports whether an outcome can take an order from s to another state.
func (s State) Leads(o Outcome, to State) bool {
	event, ok := EventOf(s, to)
	return ok && slices.Contains(duties[s].outcomes[o], event)
}

// Pivot reports whether nothing stops an order in s once its step has been called for: what a confirmation has begun,
// nothing undoes ("pivot transaction": Garcia-Molina and Salem, "Sagas", 1987; Richardson, "Microservices Patterns").
func (s State) Pivot() bool { return s == Confirming }

// DoneIn is the state in which a step is done.
func DoneIn(step Step) State {
	for _, s := range states {
		if d := duties[s]; step != "" && d.step == step && !d.undoes {
			return s
		}
	}
	return ""
}

func target(from State, event Event) (State, bool) {
	for _, e := range edges {
		if e.From == from && e.Event == event {
			return e.To, true
		}
	}
	return "", false
}
