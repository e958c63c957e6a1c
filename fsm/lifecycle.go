package fsm

import "github.com/looplab/fsm"

// Event names what happened to an order. Events are facts (charged, declined),
// so that the history reads as what was, not as what was wished.
type Event string

// The events of the machine.
const (
	Start       Event = "start"        // the order is taken up
	Charged     Event = "charged"      // the charge stands
	Reserved    Event = "reserved"     // the reservation stands
	Confirmed   Event = "confirmed"    // the order is done
	Declined    Event = "declined"     // the charge was refused for good; nothing to undo
	UndoCharge  Event = "undo_charge"  // refused or stopped; the charge has to be taken back
	UndoReserve Event = "undo_reserve" // refused or stopped; the reservation has to be taken back first
	Released    Event = "released"     // the reservation is undone
	Refunded    Event = "refunded"     // the charge is undone after a failure
	Stop        Event = "stopped"      // everything is undone, on request
	Redrive     Event = "redrive"      // a failed order starts its next generation
)

// Lifecycle is the machine, and the only place where an edge is written down.
// A change here needs a migration that changes the trigger of the database too;
// the drift tests say so.
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
