package fsm

import "github.com/looplab/fsm"

// Event names what happened to an order. Events are facts (charged, declined), so that the history says what
// happened, not what was intended.
type Event string

// The events of the machine.
const (
	Start       Event = "start"        // the order starts
	Charged     Event = "charged"      // the charge is done
	Reserved    Event = "reserved"     // the reservation is done
	Confirmed   Event = "confirmed"    // the confirmation is done, and so is the order
	Declined    Event = "declined"     // the charge was refused for good; nothing to undo
	UndoCharge  Event = "undo_charge"  // refused or stopped; the charge must be undone
	UndoReserve Event = "undo_reserve" // refused or stopped; the reservation must be undone first
	Released    Event = "released"     // the reservation is undone
	Refunded    Event = "refunded"     // the charge is undone after a failure
	Stop        Event = "stopped"      // everything is undone, on request
	Redrive     Event = "redrive"      // a failed order starts its next generation
)

// Lifecycle is the machine, and the only place that declares its edges. A change here also needs a migration that
// changes the trigger of the database; tests compare the two.
var Lifecycle = fsm.Events{
	edge(Start, Charging, Pending),
	edge(Charged, Reserving, Charging),
	edge(Reserved, Confirming, Reserving),
	edge(Confirmed, Completed, Confirming),

	edge(Declined, Failed, Charging),
	edge(UndoCharge, Refunding, Charging, Reserving),
	edge(UndoReserve, Releasing, Reserving, Confirming),
	edge(Released, Refunding, Releasing),
	edge(Refunded, Failed, Refunding),
	edge(Stop, Canceled, Pending, Charging, Refunding),

	edge(Redrive, Pending, Failed),
}

func edge(event Event, to State, from ...State) fsm.EventDesc {
	desc := fsm.EventDesc{Name: string(event), Dst: string(to)}
	for _, state := range from {
		desc.Src = append(desc.Src, string(state))
	}
	return desc
}
