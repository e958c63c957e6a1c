package faulttest

import (
	"net/http"
	"strings"
	"testing"

	"pawl/dbtest"
)

// TestSchemaChangedUnderLoad takes a column away from two replicas that serve. They say that they are not healthy, keep no
// order, and go on by themselves when it is back.
func TestSchemaChangedUnderLoad(t *testing.T) {
	build(t)
	t.Parallel()
	s := seed(t)
	database := dbtest.New(t)
	r := startReplicas(t, 2, database.URL, "--lease", "1h", "--recovery-interval", "100ms", "--grace", "10s")
	stockUp(t, r.addresses()[0], scarce, stock)
	load := &traffic{url: r.any, callers: 24, seed: s, order: smallOrders("schema")}
	load.start(t)
	for range rounds(t, 1) {
		load.flows(100)
		query[string](t, database.AdminURL, `ALTER TABLE charges RENAME COLUMN amount TO sum`)
		awaitHealth(t, r, http.StatusServiceUnavailable)
		took := eventually(t, patience, "no order is kept", func() bool {
			return count(t, database.URL, `SELECT count(*) FROM orders AS o WHERE o.owner IS NOT NULL`) == 0
		})
		t.Logf("%d orders wait; they were let go after %s", unfinished(t, database.URL), took)
		query[string](t, database.AdminURL, `ALTER TABLE charges RENAME COLUMN sum TO amount`)
		awaitHealth(t, r, http.StatusOK)
	}
	load.flows(100)
	load.finish()
	settle(t, database.URL, patience)
	prove(t, database.URL, load)
	proveStock(t, database.URL, scarce, stock)
	t.Logf("%d orders; %s", len(load.orders), load.seen())
}

// TestSchemaOfAnotherProgram starts the program on a database that it can't work on. It ends with a sentence, and not with
// a code that has a supervisor wait for the database.
func TestSchemaOfAnotherProgram(t *testing.T) {
	build(t)
	t.Parallel()
	for _, c := range []struct{ name, spoil, says string }{
		{"a column that is missing", `ALTER TABLE late_undos RENAME COLUMN claims TO claimed`, `LateUndo`},
		{"a migration that was changed", `UPDATE migration_checksums SET sha256 = repeat('0', 64) WHERE version = 2`, "00002_guard.sql"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			database := dbtest.New(t)
			query[string](t, database.AdminURL, c.spoil)
			code, said := run(t, "serve", "--database-url", database.URL, "--listen", "127.0.0.1", "--port", "0", "--allow-data-loss")
			if code != 1 || !strings.Contains(said, c.says) || strings.Contains(said, "pawl serves") {
				t.Errorf("ends with %d and says %s", code, said)
			}
			t.Log(said)
		})
	}
}
