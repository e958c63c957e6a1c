package engine_test

import (
	"slices"
	"testing"

	"pawl/engine"
	"pawl/fsm"
	"pawl/internal/orders"
	"pawl/internal/provider"
)

// What a late callback calls the effect is the only name it is ever known by.
func TestALateEffectIsUndoneByItsName(t *testing.T) {
	t.Parallel()
	failed := func(t *testing.T) (s *shop, k *keeper, tell func(reference string)) {
		t.Helper()
		k = &keeper{mute: true}
		s = openKeeper(t, k)
		token := s.tokenOf(t, "one")
		s.aDayPasses(t, k)
		s.verb(t, orders.StepResult, &engine.Settled{Step: fsm.Charge, Outcome: engine.SettledRefused})
		s.until(t, "one", "failed")
		return s, k, func(reference string) {
			t.Helper()
			if _, err := s.engine.Answer(t.Context(), token, engine.CallbackResult{Outcome: "done", CallbackText: provider.CallbackText{Reference: reference}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	finished := func(t *testing.T, s *shop) {
		t.Helper()
		eventually(t, "it is undone", func() bool {
			return value[bool](t, s.Pool, `SELECT coalesce(bool_and(finished_at IS NOT NULL AND code IS NULL), false) FROM late_undos`)
		})
	}
	byPerson := func(t *testing.T, s *shop) {
		t.Helper()
		eventually(t, "it says that a person must", func() bool {
			return value[bool](t, s.Pool, `SELECT coalesce(bool_or(code = 'outcome_unknown'), false) FROM late_undos`)
		})
	}
	named := func(t *testing.T, k *keeper) {
		t.Helper()
		if names := k.named(); !slices.Equal(names, []string{"ch_1"}) {
			t.Errorf("named: %q", names)
		}
	}
	t.Run("though a person has said refused", func(t *testing.T) {
		t.Parallel()
		s, k, tell := failed(t)
		tell("ch_1")
		finished(t, s)
		s.undone(t, k, fsm.Failed)
		named(t, k)
	})
	t.Run("that is told after an undo was opened without it", func(t *testing.T) {
		t.Parallel()
		s, k, tell := failed(t)
		tell("")
		byPerson(t, s)
		tell("ch_1")
		finished(t, s)
		s.undone(t, k, fsm.Failed)
		named(t, k)
	})
	t.Run("and one that was closed by hand is told of again", func(t *testing.T) {
		t.Parallel()
		s, k, tell := failed(t)
		tell("")
		byPerson(t, s)
		s.exec(t, `UPDATE late_undos SET finished_at = now(), detail = 'undone by hand', claims = 9`)
		tell("")
		if claims := value[int](t, s.Pool, `SELECT claims FROM late_undos`); claims > 1 {
			t.Errorf("opened again after %d claims", claims)
		}
		byPerson(t, s)
		if names := k.named(); len(names) > 0 {
			t.Errorf("undone: %q", names)
		}
	})
}
