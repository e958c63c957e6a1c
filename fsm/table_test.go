package fsm

import (
	"context"
	"slices"
	"testing"

	"github.com/looplab/fsm"
	"pgregory.net/rapid"

	"pawl/test/assert"
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
		assert.Equal(t, Edges(), written)
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
			assert.True(t, declared[e], e, "is not declared")
			delete(declared, e)
		}
		assert.True(t, len(declared) == 0, "not compiled", declared)
	})
	t.Run("are the only legal pairs", func(t *testing.T) {
		t.Parallel()
		for _, from := range States() {
			for _, to := range States() {
				i := slices.IndexFunc(written, func(e Edge) bool { return e.From == from && e.To == to })
				event, ok := EventOf(from, to)
				assert.True(t, ok == (i >= 0) && ok == Legal(from, to) && (!ok || event == written[i].Event),
					from, "to", to, event, ok)
			}
		}
	})
	t.Run("the answer is the caller's to change", func(t *testing.T) {
		t.Parallel()
		Edges()[0], States()[0], Steps()[0] = Edge{}, "", ""
		assert.True(t, Edges()[0] == written[0] && States()[0] == Pending && Steps()[0] == Charge, "a caller changed the machine")
	})
}

func TestStates(t *testing.T) {
	t.Parallel()
	t.Run("no way leads out of a final state but from failed to pending", func(t *testing.T) {
		t.Parallel()
		for _, e := range Edges() {
			assert.True(t, !e.From.Final() || e == (Edge{Failed, Pending, Redrive}), e)
		}
	})
	t.Run("every state that is not final has a way to a final one", func(t *testing.T) {
		t.Parallel()
		for _, s := range States() {
			assert.True(t, s.Final() || slices.ContainsFunc(reachable(s), State.Final), s, "does not end")
		}
	})
	t.Run("every state is reached from pending", func(t *testing.T) {
		t.Parallel()
		seen := reachable(Pending)
		for _, s := range States() {
			assert.True(t, slices.Contains(seen, s), s, "is not reached")
		}
	})
	t.Run("what is done and undone is said of the right ones", func(t *testing.T) {
		t.Parallel()
		for _, s := range States() {
			final := s == Completed || s == Failed || s == Canceled
			assert.True(t, s.Final() == final && s.Undoing() == (s == Releasing || s == Refunding) && s.Known(),
				s, "final", s.Final(), "undoing", s.Undoing(), "known", s.Known())
		}
		assert.True(t, !State("").Known() && !State("Pending").Known(), "another word is known")
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
				assert.True(t, recover() != nil, "compiled")
			}()
			compile(events)
		})
	}
}

func TestLookUpAllocatesNothing(t *testing.T) { //nolint:paralleltest // allocations are counted for the whole process
	n := testing.AllocsPerRun(1000, func() {
		_, ok := EventOf(Refunding, Canceled)
		assert.True(t, ok && !Legal(Completed, Pending) && !Canceled.Undoing(), "wrong answer")
	})
	assert.Equal(t, n, 0, "allocations a look-up")
}

func BenchmarkEventOf(b *testing.B) {
	for b.Loop() {
		EventOf(Refunding, Canceled)
	}
}

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
		s := DoneIn(step)
		assert.True(t, s.Step() == step && !s.Undoing(), step, "is done in", s)
	}
	assert.Equal(t, DoneIn(""), "", "no step is done in")
}

// Whatever the machine has an edge for is some outcome, and the other way round: neither table says more than the other.
func TestOutcomesAreTheEdges(t *testing.T) {
	t.Parallel()
	outcomes := []Outcome{Done, Refused, Stopped}
	for _, e := range Edges() {
		if e.Event == Redrive {
			continue // a person's, of a final state
		}
		assert.True(t, slices.ContainsFunc(outcomes, func(o Outcome) bool { return e.From.Leads(o, e.To) }), e, "is no outcome")
	}
	for s, d := range duties {
		for o, events := range d.outcomes {
			for _, event := range events {
				_, ok := target(s, event)
				assert.True(t, ok, s, o, "the machine has no edge for", event)
			}
		}
	}
}

// A state that comes from the database is the text that came; the memory of one that is known is that of the machine.
func TestScanBytes(t *testing.T) { //nolint:paralleltest // it counts what all goroutines allocate
	for _, text := range []string{"charging", "completed", "gone", ""} {
		var s State
		err := s.ScanBytes([]byte(text))
		assert.True(t, err == nil && string(s) == text, text, s, err)
	}
	s, completed := Pending, []byte("completed")
	assert.True(t, s.ScanBytes(nil) != nil && s == Pending, "NULL is", s)
	n := testing.AllocsPerRun(100, func() { _ = s.ScanBytes(completed) })
	assert.True(t, n <= 0, n, "pieces of memory")
}

// The library walks along events, the table is asked for pairs of states. Whatever
// comes, both must stand at the same place, and refuse the same.
func TestWalks(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		library := fsm.NewFSM(string(Pending), Lifecycle, nil)
		at := Pending
		for range rapid.IntRange(1, 60).Draw(t, "length") {
			event := rapid.SampledFrom(events()).Draw(t, "event")
			to, legal := follows(at, event)
			if can := library.Can(string(event)); can != legal {
				t.Fatalf("%s in %s: library %v, table %v", event, at, can, legal)
			}
			err := library.Event(context.Background(), string(event)) //nolint:usetesting // rapid's own t
			if (err == nil) != legal {
				t.Fatalf("%s in %s: %v", event, at, err)
			}
			if legal {
				at = to
			}
			if State(library.Current()) != at {
				t.Fatalf("%s: library at %s, table at %s", event, library.Current(), at)
			}
		}
	})
}

func events() (out []Event) {
	for _, desc := range Lifecycle {
		out = append(out, Event(desc.Name))
	}
	return out
}

// follows finds where an event leads, by the pairs alone.
func follows(from State, event Event) (State, bool) {
	for _, to := range States() {
		if e, ok := EventOf(from, to); ok && e == event {
			return to, true
		}
	}
	return "", false
}
