package engine

import (
	"testing"
	"time"

	"pawl/fsm"
)

// TestLinesThatTurnCallersAway gives each line somebody who has waited for an hour.
func TestLinesThatTurnCallersAway(t *testing.T) {
	t.Parallel()
	e := New(nil, Config{})
	old := uptime() - int64(time.Hour)
	for name, c := range map[string]struct {
		line *line
		want bool
	}{
		"orders to be admitted":              {e.admits, true},
		"orders to be charged":               {e.lines[fsm.Charging], true},
		"answers to be recorded":             {e.records, true},
		"orders that may have an answer":     {e.inbox, true},
		"orders to be held, one by one":      {e.waits, false},
		"keys to be voided, one by one":      {e.voids, false},
		"orders of a locked item":            {e.slow.line, false},
		"answers for orders of such an item": {e.slowRecords.line, false},
	} {
		c.line.oldest.Store(old)
		if got := e.overloaded(""); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
		c.line.began.Store(old) // its statement hangs: that is no load
		if e.overloaded("") {
			t.Errorf("%s: turned away while a statement hangs", name)
		}
		c.line.began.Store(0)
		c.line.oldest.Store(0)
	}
	e.cancel()
}

func TestSlowLaneTakesWhatWritesStockRows(t *testing.T) {
	t.Parallel()
	e := New(nil, Config{})
	defer e.cancel()
	of := func(state fsm.State, item string) *run {
		r := newRun(string(state)+item, Input{})
		r.order.Status, r.order.Item = state, item
		return r
	}
	e.slow.add([]*run{of(fsm.Reserving, "locked")})
	if n := e.slow.holds("locked"); n != 1 {
		t.Fatalf("%d orders of the locked item", n)
	}
	runs := []*run{of(fsm.Charging, "locked"), of(fsm.Confirming, "locked"), of(fsm.Reserving, "free"), of(fsm.Refunding, "locked")}
	if fast := e.slow.divert(runs); len(fast) != 3 || fast[0] != runs[0] || fast[1] != runs[2] || fast[2] != runs[3] {
		t.Errorf("%d go the fast way", len(fast))
	}
	if n := e.slow.holds("locked"); n != 2 {
		t.Errorf("%d orders of the locked item, want 2", n)
	}
	e.slow.leave("locked")
	if fast := e.slow.divert(runs); len(fast) != 4 {
		t.Errorf("%d go the fast way when the item is free", len(fast))
	}
}
