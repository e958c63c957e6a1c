package fsm

import "slices"

// Outcome is the result of what an order has to do in a state.
type Outcome string

// The outcomes.
const (
	Done    Outcome = "done"    // the step is done, or undone
	Refused Outcome = "refused" // the step will certainly not be done
	Stopped Outcome = "stopped" // the order was asked to stop, and no other outcome is awaited
)

// duty is what an order has to do in a state: the step that is done or undone, and the events that each outcome can be.
// The first event is the normal one. The others are for orders that were asked to stop meanwhile, or whose earlier call
// may still take effect: the statement that moves the order chooses by its row.
type duty struct {
	step     Step
	undoes   bool
	outcomes map[Outcome][]Event
}

// duties has every state that the engine moves orders out of. Together with Lifecycle it is the machine: engine,
// ledger, callbacks, verbs and books use it, and have no lists of their own.
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

// Step is the step that is done or undone in s; empty if there is none.
func (s State) Step() Step { return duties[s].step }

// Undoing reports whether a step is undone in s.
func (s State) Undoing() bool { return duties[s].undoes }

// Final reports whether an order in s is finished: it has no lease and no hold, and the engine does not move it. A
// failed order is final although a person can redrive it.
func (s State) Final() bool {
	_, ours := duties[s]
	return !ours && s.Known()
}

// Next is the normal next state after an outcome in s; ok is false if s has no such outcome.
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

// Pivot reports whether an order in s can no longer be stopped once its step was called for: nothing undoes a
// confirmation ("pivot transaction": Garcia-Molina and Salem, "Sagas", 1987; Richardson, "Microservices Patterns").
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
