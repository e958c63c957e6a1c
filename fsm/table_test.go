package fsm

import (
	"slices"
	"testing"

	"github.com/looplab/fsm"
)

// written is the machine once more, by hand: what the compiled table must say.
var written = []Edge{
	{Pending, Charging, Start},
	{Pending, Canceled, Stop},
	{Charging, Reserving, Charged},
	{Charging, Refunding, UndoCharge},
	{Charging, Failed, Declined},
	{Charging, Canceled, Stop},
	{Reserving, Confirming, Reserved},
	{Reserving, Releasing, UndoReserve},
	{Reserving, Refunding, UndoCharge},
	{Confirming, Completed, Confirmed},
	{Confirming, Releasing, UndoReserve},
	{Releasing, Refunding, Released},
	{Refunding, Failed, Refunded},
	{Refunding, Canceled, Stop},
	{Failed, Pending, Redrive},
}

func TestEdges(t *testing.T) {
	t.Parallel()
	t.Run("are these fifteen", func(t *testing.T) {
		t.Parallel()
		if !slices.Equal(Edges(), written) {
			t.Errorf("got %v", Edges())
		}
	})
	t.Run("are the declared events", func(t *testing.T) {
		t.Parallel()
		declared := map[Edge]bool{}
		for _, desc := range Lifecycle {
			for _, from := range desc.Src {
				declared[Edge{State(from), State(desc.Dst), Event(desc.Name)}] = true
			}
		}
		for _, e := range Edges() {
			if !declared[e] {
				t.Errorf("%v is not declared", e)
			}
			delete(declared, e)
		}
		if len(declared) > 0 {
			t.Errorf("not compiled: %v", declared)
		}
	})
	t.Run("are the only legal pairs", func(t *testing.T) {
		t.Parallel()
		for _, from := range States() {
			for _, to := range States() {
				i := slices.IndexFunc(written, func(e Edge) bool { return e.From == from && e.To == to })
				event, ok := EventOf(from, to)
				if ok != (i >= 0) || ok != Legal(from, to) || ok && event != written[i].Event {
					t.Errorf("%s to %s: %q, %v", from, to, event, ok)
				}
			}
		}
	})
	t.Run("the answer is the caller's to change", func(t *testing.T) {
		t.Parallel()
		Edges()[0], States()[0], Steps()[0] = Edge{}, "", ""
		if Edges()[0] != written[0] || States()[0] != Pending || Steps()[0] != Charge {
			t.Error("a caller changed the machine")
		}
	})
}

func TestStates(t *testing.T) {
	t.Parallel()
	t.Run("no way leads out of a final state but from failed to pending", func(t *testing.T) {
		t.Parallel()
		for _, e := range Edges() {
			if e.From.Final() && e != (Edge{Failed, Pending, Redrive}) {
				t.Errorf("%v", e)
			}
		}
	})
	t.Run("every state that is not final has a way to a final one", func(t *testing.T) {
		t.Parallel()
		for _, s := range States() {
			if !s.Final() && !slices.ContainsFunc(reachable(s), State.Final) {
				t.Errorf("%s does not end", s)
			}
		}
	})
	t.Run("every state is reached from pending", func(t *testing.T) {
		t.Parallel()
		seen := reachable(Pending)
		for _, s := range States() {
			if !slices.Contains(seen, s) {
				t.Errorf("%s is not reached", s)
			}
		}
	})
	t.Run("what is done and undone is said of the right ones", func(t *testing.T) {
		t.Parallel()
		for _, s := range States() {
			final := s == Completed || s == Failed || s == Canceled
			if s.Final() != final || s.Undoing() != (s == Releasing || s == Refunding) || !s.Known() {
				t.Errorf("%s: final %v, undoing %v, known %v", s, s.Final(), s.Undoing(), s.Known())
			}
		}
		if State("").Known() || State("Pending").Known() {
			t.Error("another word is known")
		}
	})
}

// reachable lists the states that can come after s, s among them.
func reachable(s State) []State {
	seen := []State{s}
	for i := 0; i < len(seen); i++ {
		for _, e := range Edges() {
			if e.From == seen[i] && !slices.Contains(seen, e.To) {
				seen = append(seen, e.To)
			}
		}
	}
	return seen
}

func TestCompileRefuses(t *testing.T) {
	t.Parallel()
	for name, events := range map[string]fsm.Events{
		"two edges between the same states": {edge(Start, Charging, Pending), edge(Redrive, Charging, Pending)},
		"an event that leads two ways":      {edge(Start, Charging, Pending), edge(Start, Canceled, Pending)},
		"a state nobody knows":              {edge(Start, "shipping", Pending)},
		"a beginning nobody knows":          {edge(Start, Pending, "shipping")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			defer func() {
				if recover() == nil {
					t.Error("compiled")
				}
			}()
			compile(events)
		})
	}
}

func TestLookUpAllocatesNothing(t *testing.T) { //nolint:paralleltest // allocations are counted for the whole process
	n := testing.AllocsPerRun(1000, func() {
		if _, ok := EventOf(Refunding, Canceled); !ok || Legal(Completed, Pending) || Canceled.Undoing() {
			t.Error("wrong answer")
		}
	})
	if n != 0 {
		t.Errorf("%v allocations a look-up", n)
	}
}

func BenchmarkEventOf(b *testing.B) {
	for b.Loop() {
		EventOf(Refunding, Canceled)
	}
}
