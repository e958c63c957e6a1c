package engine_test

import (
	"errors"
	"testing"

	"pawl/engine"
	"pawl/internal/orders"
)

// TestTheCallbackSecretIsReplaced does what docs/security.md says to do when somebody has read it.
func TestTheCallbackSecretIsReplaced(t *testing.T) {
	t.Parallel()
	d := openDesk(t, "")
	d.admit(t, request("before"))
	old := d.token(t, "charge")
	d.until(t, "before", "callback")
	d.exec(t, `UPDATE pawl.installation SET callback_secret = DEFAULT`)

	d.engine = d.replica(t, d.cfg) // the one after the restart
	if err := d.engine.LoadPolicies(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := d.engine.Answer(t.Context(), old, engine.CallbackResult{Outcome: "done"}); !errors.Is(err, orders.ErrNotFound) {
		t.Errorf("a token of the old secret: %v", err)
	}
	d.mu.Lock()
	delete(d.tokens, "charge")
	d.mu.Unlock()
	d.admit(t, request("after"))
	token := d.token(t, "charge")
	if token == old {
		t.Error("the token is the same")
	}
	d.until(t, "after", "callback")
	d.tell(t, token, "done", "ch_after")
	d.token(t, "reserve")
}
