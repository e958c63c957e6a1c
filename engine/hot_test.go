package engine

import (
	"testing"
	"testing/synctest"
	"time"

	"pawl/fsm"
	"pawl/internal/provider"
)

// TestQueuesThatTurnCallersAway gives each queue somebody who has waited for an hour.
func TestQueuesThatTurnCallersAway(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		queue func(*Engine) *queue
		want  bool
	}{
		"orders to be admitted":          {func(e *Engine) *queue { return e.admits }, true},
		"orders to be charged":           {func(e *Engine) *queue { return e.moves[fsm.Charging] }, true},
		"answers to be recorded":         {func(e *Engine) *queue { return e.results }, true},
		"orders that may have an answer": {func(e *Engine) *queue { return e.preflights }, true},
		"orders to be held":              {func(e *Engine) *queue { return e.waits }, false},
		"orders to be released":          {func(e *Engine) *queue { return e.leaves }, false},
		"orders of a locked item":        {func(e *Engine) *queue { return e.hot.queue }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				e := New(nil, Config{})
				defer e.cancel()
				c.queue(e).Add(newRun("waits", Input{}))
				if e.overloaded("") {
					t.Error("turned away at once")
				}
				<-time.After(time.Hour)
				if got := e.overloaded(""); got != c.want {
					t.Error(got)
				}
			})
		})
	}
}

func TestHotItemsAreWhatWritesStockRows(t *testing.T) {
	t.Parallel()
	e := New(nil, Config{})
	defer e.cancel()
	of := func(state fsm.State, item string) *run {
		r := newRun(string(state)+item, Input{})
		r.order.Status, r.order.Item = state, item
		return r
	}
	e.hot.add([]*run{of(fsm.Reserving, "locked")})
	if n := e.hot.holds("locked"); n != 1 {
		t.Fatalf("%d orders of the locked item", n)
	}
	runs := []*run{of(fsm.Charging, "locked"), of(fsm.Confirming, "locked"), of(fsm.Reserving, "free"), of(fsm.Refunding, "locked")}
	if fast := e.hot.divert(runs); len(fast) != 3 || fast[0] != runs[0] || fast[1] != runs[2] || fast[2] != runs[3] {
		t.Errorf("%d go the fast way", len(fast))
	}
	stale := of(fsm.Reserving, "locked")
	stale.call = &call{state: fsm.Charging, result: provider.Done{}} // it was committed, and the reply was lost
	if fast := e.hot.divert([]*run{stale}); len(fast) != 0 {
		t.Error("an order with the answer of the step before goes the fast way")
	}
	if n := e.hot.holds("locked"); n != 3 {
		t.Errorf("%d orders of the locked item, want 3", n)
	}
	e.hot.unblock("locked")
	if fast := e.hot.divert(runs); len(fast) != 4 {
		t.Errorf("%d go the fast way when the item is free", len(fast))
	}
}
