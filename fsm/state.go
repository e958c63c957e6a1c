package fsm

import (
	"errors"
	"slices"
)

// State is the value of orders.status. The text is the same in SQL, JSON and the docs.
type State string

// The states of an order.
const (
	// Pending: accepted, nothing done yet, or held before the start.
	Pending State = "pending"
	// Charging: the charge is under way.
	Charging State = "charging"
	// Reserving: charged; the reservation is under way.
	Reserving State = "reserving"
	// Confirming: reserved; the confirmation is under way. It is the pivot: once its first call is committed, the
	// order can no longer be stopped.
	Confirming State = "confirming"
	// Completed: charged, reserved and confirmed.
	Completed State = "completed"
	// Releasing: undoing the reservation.
	Releasing State = "releasing"
	// Refunding: undoing the charge.
	Refunding State = "refunding"
	// Failed: a step was refused, and every step before it has been undone. It is final, unless a person redrives the
	// order.
	Failed State = "failed"
	// Canceled: stopped on request, and every step has been undone.
	Canceled State = "canceled"
)

var states = []State{
	Pending, Charging, Reserving, Confirming, Completed,
	Releasing, Refunding, Failed, Canceled,
}

// States lists all states in the order of a successful run, followed by the undoing ones. The slice is a copy.
func States() []State { return slices.Clone(states) }

// Known reports whether s is a state of the machine.
func (s State) Known() bool { return slices.Contains(states, s) }

// ScanBytes reads a state from the database driver, whose memory is only valid during the call. The known states are
// not copied, because each move of each order reads one.
func (s *State) ScanBytes(text []byte) error {
	if text == nil {
		return errors.New("a state is NULL")
	}
	i := slices.IndexFunc(states, func(known State) bool { return string(known) == string(text) })
	if i < 0 {
		*s = State(text)
		return nil
	}
	*s = states[i]
	return nil
}

// Step is one of the three things an order needs.
type Step string

// The steps, in their order.
const (
	Charge  Step = "charge"
	Reserve Step = "reserve"
	Confirm Step = "confirm"
)

// Steps lists the steps in their order. The slice is new.
func Steps() []Step { return []Step{Charge, Reserve, Confirm} }
