package faults

import (
	"net/http"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"pawl/test/dbtest"
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
	database := dbtest.New(t)
	query[string](t, database.AdminURL, `ALTER TABLE late_undos RENAME COLUMN claims TO claimed`)
	code, said := run(t, "serve", "--database-url", database.URL, "--listen", "127.0.0.1", "--port", "0", "--allow-data-loss")
	if code != 1 || !strings.Contains(said, "LateUndo") || strings.Contains(said, "pawl serves") {
		t.Errorf("ends with %d and says %s", code, said)
	}
}

// TestNoSchema is about databases without a schema of Pawl's, as there are in the first minute, and after an accident: every command says
// what there is instead and what to do about it.
func TestNoSchema(t *testing.T) {
	build(t)
	t.Parallel()
	const (
		goose     = `CREATE TABLE public.goose_db_version (id serial PRIMARY KEY, version_id bigint NOT NULL, is_applied boolean NOT NULL, tstamp timestamp DEFAULT now())`
		elsewhere = "give Pawl a database of its own: createdb NAME, and set --database-url to it"
	)
	serves := []string{"serve", "--listen", "127.0.0.1", "--port", "0", "--allow-data-loss"}
	reads := [][]string{{"verify"}, {"token", "list"}, {"policy", "list"}, {"migrate", "roles", "--prefix", "other"}}
	writes := [][]string{serves, {"migrate", "up"}, {"migrate", "status"}, {"doctor"}}
	all := append(reads, writes...)
	for _, c := range []struct {
		name     string
		migrated bool
		spoil    string
		commands [][]string
		says     []string
	}{
		{"an empty database", false, `SELECT 1`, reads, []string{"schema pawl is missing: run pawl migrate up"}},
		{"a schema of the same name", false, `CREATE SCHEMA pawl; CREATE TABLE pawl.orders (id int)`, all, []string{"the database has a schema pawl that Pawl did not create", elsewhere}},
		{"first migrations of another program", false, goose + `; INSERT INTO public.goose_db_version (version_id, is_applied) VALUES (0, true), (1, true)`, all,
			[]string{"schema pawl is missing, although", elsewhere}},
		{"later migrations of another program", false, goose + `; INSERT INTO public.goose_db_version (version_id, is_applied) VALUES (0, true), (20260101120000, true)`, all,
			[]string{"schema pawl is missing, although", elsewhere}},
		{"a table of the same name as goose's", false, `CREATE TABLE public.goose_db_version (id int)`, all, []string{"public.goose_db_version belongs to another program", elsewhere}},
		{"a schema that was dropped", true, `DROP SCHEMA pawl CASCADE`, all, []string{"schema pawl is missing, although", "DROP TABLE public.goose_db_version, and run pawl migrate up"}},
		{"migrations of an earlier development version", true, `CREATE TABLE pawl.migration_checksums ()`, writes,
			[]string{"schema pawl is that of an earlier development version", "createdb NAME"}},
		{"migrations without a record", true, `DROP TABLE public.goose_db_version`, writes, []string{"not public.goose_db_version", "restore it from the backup"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			database := dbtest.Empty(t)
			if c.migrated {
				if code, said := run(t, "migrate", "up", "--database-url", database); code != 0 {
					t.Fatal(said)
				}
			}
			change(t, database, c.spoil)
			for _, command := range c.commands {
				code, said := run(t, append(command, "--database-url", database)...)
				for _, words := range c.says {
					if !strings.Contains(said, words) {
						t.Errorf("%s ends with %d and says %s, want %s", command[0], code, said, words)
					}
				}
				if code == 0 || strings.Contains(said, "pawl serves") {
					t.Errorf("%s ends with %d and says %s", command[0], code, said)
				}
			}
		})
	}
}

// TestSchemaDroppedUnderService takes the schema away from a service that requires a token. It says what is missing all the same.
func TestSchemaDroppedUnderService(t *testing.T) {
	build(t)
	t.Parallel()
	database := dbtest.Empty(t)
	p := launch(t, nil, "serve", "--database-url", database, "--listen", "127.0.0.1", "--port", "0", "--allow-data-loss")
	address := p.url()
	if code, said := run(t, "token", "create", "shop", "--roles", "submit", "--database-url", database); code != 0 {
		t.Fatal(said)
	}
	if code, said := run(t, "migrate", "down", "--database-url", database, "--yes", "--drop-data"); code != 0 {
		t.Fatal(said)
	}
	change(t, database, `DROP SCHEMA IF EXISTS pawl, books CASCADE; DELETE FROM public.goose_db_version WHERE version_id > 0`)
	c := newClient(1, false)
	eventually(t, patience, "GET /health says what is missing", func() bool {
		a := c.get(t.Context(), address+"/health")
		return a.code == http.StatusServiceUnavailable && strings.Contains(a.text, `"detail":"Schema pawl is missing: run pawl migrate up."`)
	})
}

// change runs statements that return nothing.
func change(t *testing.T, databaseURL, statements string) {
	t.Helper()
	conn, err := pgconn.Connect(t.Context(), databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if _, err := conn.Exec(t.Context(), statements).ReadAll(); err != nil {
		t.Fatal(err)
	}
}
