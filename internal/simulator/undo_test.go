package simulator_test

import (
	"fmt"
	"sync"
	"testing"

	"pawl/internal/simulator"
)

func TestUndo(t *testing.T) {
	t.Parallel()
	undo := call{key: "undo", undo: "key"}
	t.Run("of a key that was never seen makes a later do fail", func(t *testing.T) {
		t.Parallel()
		p := start(t, simulator.Config{})
		p.answers(undo, "200 voided")
		p.answers(undo, "200 voided again")
		p.answers(call{}, "402 refused voided")
		p.answers(call{}, "402 refused voided again")
		p.stands("key", "voided 0")
		if sum := p.Summary(); sum.RefusedAfterUndo != 2 || sum.DuplicatesSuppressed != 2 {
			t.Errorf("%+v", sum)
		}
	})
	t.Run("takes an effect back once", func(t *testing.T) {
		t.Parallel()
		p := start(t, simulator.Config{})
		p.answers(call{}, "200 ch_1")
		p.answers(undo, "200 refunded rf_2")
		p.answers(undo, "200 refunded rf_2 again")
		p.answers(call{key: "another undo", undo: "key"}, "200 refunded rf_2")
		p.answers(call{}, "402 refused voided again")
		p.stands("key", "undone 1")
		p.answers(call{key: "stock", step: "reserve"}, "200 rs_3")
		p.answers(call{key: "unstock", undo: "stock", step: "reserve"}, "200 released rl_4")
		if lookup := p.get("/lookup?key=key"); lookup != `{"state":"undone","reference":"ch_1","code":"voided"}` {
			t.Errorf("looked up: %s", lookup)
		}
	})
	t.Run("of a refused do has nothing to take back", func(t *testing.T) {
		t.Parallel()
		p := start(t, simulator.Config{})
		p.answers(call{item: "decline"}, "402 refused card_declined")
		p.answers(call{key: "undo", undo: "key", item: "decline"}, "200 voided")
		p.stands("key", "refused 0")
	})
	t.Run("stops a provider that forgets declines", func(t *testing.T) {
		t.Parallel()
		p := start(t, simulator.Config{})
		p.faults("forget-declines")
		p.answers(call{}, "402 refused card_declined")
		p.answers(undo, "200 voided")
		p.answers(call{}, "402 refused voided")
	})
	t.Run("of a confirmation does not exist", func(t *testing.T) {
		t.Parallel()
		p := start(t, simulator.Config{})
		p.answers(call{step: "confirm"}, "200 cf_1")
		if got, err := p.send(call{key: "undo", undo: "key", step: "confirm"}); err == nil {
			t.Errorf("answered %s", got)
		}
		p.stands("key", "live 1")
	})
	t.Run("does not wait for a do in progress: it will be refused", func(t *testing.T) {
		t.Parallel()
		p := start(t, simulator.Config{})
		left := make(chan struct{})
		go func() {
			defer close(left)
			p.sees(call{item: "hang"}, dropped) // until Close
		}()
		p.awaits(t, "key", "running")
		p.answers(call{item: "hang"}, "409 in_progress")
		if lookup := p.get("/lookup?key=key"); lookup != `{"state":"in_progress"}` {
			t.Errorf("looked up: %s", lookup)
		}
		p.answers(call{key: "undo", undo: "key", item: "hang"}, "200 voided")
		p.stands("key", "voided 0")
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		<-left
	})
}

func (p *provider) awaits(t *testing.T, key, outcome string) {
	t.Helper()
	if _, err := p.Await(t.Context(), func(r simulator.Request) bool { return r.Key == key && r.Outcome == outcome }); err != nil {
		t.Fatal(err)
	}
}

func TestBreachOfContract(t *testing.T) {
	t.Parallel()
	undo := call{key: "undo", undo: "key"}
	t.Run("a late do charges after a void, and the books say so", func(t *testing.T) {
		t.Parallel()
		p := start(t, simulator.Config{File: write(t, nil)})
		p.faults("late-after-void,order=order")
		p.answers(undo, "200 voided")
		p.answers(call{key: "next", generation: 1}, "200 ch_1")
		p.answers(call{}, "200 ch_2")
		p.stands("key", "live 1")
		check := func(p *provider) {
			t.Helper()
			if sum := p.Summary(); sum.OK() || sum.DoubleLive != 1 || sum.Overlaps != 1 || sum.RepeatedEffects != 0 {
				t.Errorf("%+v", sum)
			}
		}
		check(p)
		check(start(t, simulator.Config{File: crash(t, p.file)}))
		p.answers(undo, "200 refunded rf_3 again") // also with the key of the void
		p.stands("key", "undone 1")
	})
	t.Run("an effect twice under one key is counted", func(t *testing.T) {
		t.Parallel()
		p := start(t, simulator.Config{})
		p.faults("late-after-void")
		p.answers(call{}, "200 ch_1")
		p.answers(undo, "200 refunded rf_2")
		p.answers(call{}, "200 ch_3")
		p.stands("key", "live 2")
		if sum := p.Summary(); sum.OK() || sum.DoubleLive != 0 || sum.Overlaps != 0 || sum.RepeatedEffects != 1 {
			t.Errorf("%+v", sum)
		}
	})
	t.Run("two generations are legal one after the other", func(t *testing.T) {
		t.Parallel()
		p := start(t, simulator.Config{})
		p.answers(call{}, "200 ch_1")
		p.answers(undo, "200 refunded rf_2")
		p.answers(call{key: "next", generation: 1}, "200 ch_3")
		if sum := p.Summary(); !sum.OK() {
			t.Errorf("%+v", sum)
		}
		p.answers(call{key: "third", generation: 2}, "200 ch_4")
		if sum := p.Summary(); sum.OK() || sum.DoubleLive != 1 {
			t.Errorf("%+v", sum)
		}
	})
}

// TestUndoRaces sends a do and its undo at the same time, over real connections.
func TestUndoRaces(t *testing.T) {
	t.Parallel()
	p := start(t, simulator.Config{File: write(t, nil)})
	var all sync.WaitGroup
	for i := range 100 {
		key := fmt.Sprintf("key %d", i)
		for _, c := range []call{{key: key}, {key: key}, {key: "undo " + key, undo: key}} {
			c.order = key
			all.Go(func() {
				if _, err := p.send(c); err != nil {
					t.Error(err)
				}
			})
		}
	}
	all.Wait()
	for _, e := range p.Books("") {
		if e.State != simulator.Undone && e.State != simulator.Voided || e.Effects > 1 {
			t.Errorf("%+v", e)
		}
	}
	if n := len(p.Books("")); n != 100 {
		t.Errorf("%d keys", n)
	}
}
