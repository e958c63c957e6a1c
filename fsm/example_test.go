package fsm_test

import (
	"fmt"

	"pawl/fsm"
)

// An order asks the machine where it stands, what it has to do there, and where that leads.
func Example() {
	follow := func(s fsm.State, outcomes ...fsm.Outcome) {
		for _, outcome := range outcomes {
			to, _ := s.Next(outcome)
			event, _ := fsm.EventOf(s, to)
			fmt.Printf("%s: %s %s, %s → %s\n", s, s.Step(), outcome, event, to)
			s = to
		}
		fmt.Println("final:", s.Final())
	}
	follow(fsm.Charging, fsm.Done, fsm.Done, fsm.Done)
	follow(fsm.Charging, fsm.Done, fsm.Refused, fsm.Done) // the charge is undone
	// Output:
	// charging: charge done, charged → reserving
	// reserving: reserve done, reserved → confirming
	// confirming: confirm done, confirmed → completed
	// final: true
	// charging: charge done, charged → reserving
	// reserving: reserve refused, undo_charge → refunding
	// refunding: charge done, refunded → failed
	// final: true
}
