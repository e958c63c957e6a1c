package engine_test

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"pawl/engine"
	"pawl/test/dbtest"
)

// The log says why an order is held, in words.
func TestTheLogSaysWhyAnOrderIsHeld(t *testing.T) {
	t.Parallel()
	database := dbtest.New(t)
	newGhost(database.Pool).admit(t, time.Minute, "one")
	if _, err := database.Pool.Exec(t.Context(), `UPDATE orders SET take_overs = 3, due_at = now()`); err != nil {
		t.Fatal(err)
	}
	log := &lines{}
	startEngine(t, database.URL, engine.Config{RecoveryInterval: often, Log: slog.New(slog.NewTextHandler(log, nil))})
	eventually(t, "it is held", func() bool { return strings.Contains(log.String(), "order held") })
	if !strings.Contains(log.String(), `reason="taken over three times without a move"`) {
		t.Error(log.String())
	}
}
