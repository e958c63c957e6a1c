package simulator_test

import (
	"testing"
	"time"

	"pawl/internal/simulator"
)

// What a provider forgets is its keys, and not what it did.
func TestForgottenKeys(t *testing.T) {
	t.Parallel()
	atOnce := simulator.Config{KeyRetention: time.Nanosecond}
	named := call{key: "undo", undo: "key", reference: "ch_1"}
	t.Run("are done again", func(t *testing.T) {
		t.Parallel()
		p := start(t, atOnce)
		p.answers(call{}, "200 ch_1")
		p.answers(call{}, "200 ch_2")
		if sum := p.Summary(); sum.OK() || sum.DoubleLive != 1 {
			t.Errorf("%+v", sum)
		}
	})
	t.Run("have nothing to take back", func(t *testing.T) {
		t.Parallel()
		p := start(t, atOnce)
		p.answers(call{}, "200 ch_1")
		p.answers(call{key: "undo", undo: "key"}, "200 voided")
		if live := p.Summary().Steps["charge"].Live; live != 1 {
			t.Errorf("%d live", live)
		}
	})
	t.Run("are not asked for by an undo that names what it takes back", func(t *testing.T) {
		t.Parallel()
		atOnce := simulator.Config{KeyRetention: time.Nanosecond, File: write(t, nil)}
		p := start(t, atOnce)
		p.answers(call{}, "200 ch_1")
		p.answers(named, "200 refunded rf_2")
		p.stands("key", "undone 1")
		q := start(t, simulator.Config{File: crash(t, p.file)})
		if got, want := known(q.Simulator), known(p.Simulator); got != want {
			t.Errorf("%s\nwant\n%s", got, want)
		}
		q.answers(named, "200 refunded rf_2 again")
		q.answers(call{}, "402 refused voided again")
		p.answers(named, "200 refunded rf_2 again")
	})
	t.Run("and a name that was never given are no success", func(t *testing.T) {
		t.Parallel()
		p := start(t, atOnce)
		p.answers(call{}, "200 ch_1")
		p.answers(call{key: "undo", undo: "key", reference: "ch_7"}, "402 refused unknown_reference")
	})
	t.Run("are looked up as unseen", func(t *testing.T) {
		t.Parallel()
		p := start(t, atOnce)
		p.answers(call{}, "200 ch_1")
		if lookup := p.get("/lookup?key=key"); lookup != `{"state":"unseen"}` {
			t.Error(lookup)
		}
	})
}

func TestUndoByReference(t *testing.T) {
	t.Parallel()
	t.Run("of a key that is known goes by the key", func(t *testing.T) {
		t.Parallel()
		p := start(t, simulator.Config{})
		p.answers(call{}, "200 ch_1")
		p.answers(call{key: "undo", undo: "key", reference: "ch_1"}, "200 refunded rf_2")
	})
	t.Run("that is of another key takes nothing back", func(t *testing.T) {
		t.Parallel()
		p := start(t, simulator.Config{})
		p.answers(call{}, "200 ch_1")
		p.answers(call{key: "two", order: "other"}, "200 ch_2")
		p.answers(call{key: "undo", undo: "key", reference: "ch_2"}, "422 idempotency_mismatch")
		p.answers(call{key: "undo", undo: "nobody's", reference: "ch_2"}, "422 idempotency_mismatch")
		p.stands("key", "live 1")
		p.stands("two", "live 1")
	})
}
