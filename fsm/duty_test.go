package fsm

import (
	"slices"
	"testing"
)

// The plain way of an order, and the way back, in one look.
func TestDuties(t *testing.T) {
	t.Parallel()
	for s, want := range map[State]struct {
		step    Step
		undoing bool
		next    map[Outcome]State
	}{
		Pending:    {"", false, map[Outcome]State{Done: Charging, Stopped: Canceled}},
		Charging:   {Charge, false, map[Outcome]State{Done: Reserving, Refused: Failed, Stopped: Canceled}},
		Reserving:  {Reserve, false, map[Outcome]State{Done: Confirming, Refused: Refunding, Stopped: Refunding}},
		Confirming: {Confirm, false, map[Outcome]State{Done: Completed, Refused: Releasing, Stopped: Releasing}},
		Releasing:  {Reserve, true, map[Outcome]State{Done: Refunding}},
		Refunding:  {Charge, true, map[Outcome]State{Done: Failed}},
		Completed:  {}, Failed: {}, Canceled: {},
	} {
		if s.Step() != want.step || s.Undoing() != want.undoing || s.Final() != (want.next == nil) {
			t.Errorf("%s: step %q, undoing %t, final %t", s, s.Step(), s.Undoing(), s.Final())
		}
		for _, o := range []Outcome{Done, Refused, Stopped} {
			to, ok := s.Next(o)
			if wanted, has := want.next[o]; ok != has || to != wanted || ok && !s.Leads(o, to) {
				t.Errorf("%s, %s: %q, %t", s, o, to, ok)
			}
		}
	}
	for _, step := range Steps() {
		if s := DoneIn(step); s.Step() != step || s.Undoing() {
			t.Errorf("%s is done in %q", step, s)
		}
	}
	if s := DoneIn(""); s != "" {
		t.Errorf("no step is done in %q", s)
	}
}

// Whatever the machine has an edge for is some outcome, and the other way round: neither table says more than the other.
func TestOutcomesAreTheEdges(t *testing.T) {
	t.Parallel()
	outcomes := []Outcome{Done, Refused, Stopped}
	for _, e := range Edges() {
		if e.Event == Redrive {
			continue // a person's, of a final state
		}
		if !slices.ContainsFunc(outcomes, func(o Outcome) bool { return e.From.Leads(o, e.To) }) {
			t.Errorf("%v is no outcome", e)
		}
	}
	for s, d := range duties {
		for o, events := range d.outcomes {
			for _, event := range events {
				if _, ok := target(s, event); !ok {
					t.Errorf("%s, %s: the machine has no edge for %s", s, o, event)
				}
			}
		}
	}
}
