package cli

import (
	"log/slog"
	"testing"

	"pawl/test/dbtest"
)

func TestServeRefusesARoleThatHearsNoWarnings(t *testing.T) {
	t.Parallel()
	database := dbtest.New(t)
	check := func() error { return checkDurable(t.Context(), database.URL, true, slog.New(slog.DiscardHandler)) }
	if err := check(); err != nil {
		t.Fatal(err)
	}
	if _, err := database.Pool.Exec(t.Context(), `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET client_min_messages = error', current_database()); END $$`); err != nil {
		t.Fatal(err)
	}
	if check() == nil {
		t.Error("accepted")
	}
}
