package engine_test

import (
	"context"
	"errors"
	"log/slog"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/govalues/decimal"
	"github.com/jackc/pgx/v5"

	"pawl/engine"
	"pawl/fsm"
	"pawl/internal/books"
	"pawl/internal/orders"
	"pawl/migrations"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

func TestReady(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, spoil string
		says        string // empty: ready
	}{
		{"a migrated database", `SELECT 1`, ""},
		{"one that a newer release has migrated", `INSERT INTO goose_db_version (version_id, is_applied) VALUES (99999, true)`, ""},
		{"an older one", `DELETE FROM goose_db_version WHERE version_id = (SELECT max(version_id) FROM goose_db_version)`, "this program needs"},
		{"one that goose does not know", `DROP TABLE goose_db_version`, "restore it from the backup"},
		{"one without our schema", `DROP SCHEMA pawl CASCADE; DELETE FROM goose_db_version WHERE version_id > 0`, "schema pawl is missing: run pawl migrate up"},
		{"one without a table", `DROP TABLE charge_operations CASCADE`, "SELECT on pawl.charge_operations, INSERT on pawl.charge_operations, UPDATE on pawl.charge_operations"},
		{"one whose orders can't be moved", `REVOKE UPDATE ON orders FROM ready`, "UPDATE on pawl.orders"},
		{"one whose lists can't be read", `REVOKE EXECUTE ON FUNCTION orders_within FROM PUBLIC, ready`, "EXECUTE on pawl.orders_within"},
		{"one whose versions can't be read", `REVOKE SELECT ON goose_db_version FROM ready`, "42501"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			log := &dbtest.Log{}
			e := b.asRole(t, "ready").replica(t, engine.Config{
				SchemaVersion: migrations.Version(), Log: slog.New(slog.NewTextHandler(log, nil)),
			})
			b.exec(t, strings.ReplaceAll(c.spoil, " ready", " "+b.role("ready")))
			began := time.Now()
			for range 3 {
				err := e.Ready(t.Context())
				assert.True(t, (c.says != "" || err == nil) && (c.says == "" || errors.Is(err, engine.ErrNotMigrated) &&
					strings.Contains(err.Error(), c.says)), err, "want", c.says)
			}
			most := 1 + int(time.Since(began)/time.Second) // one a second
			if n := strings.Count(log.String(), "not ready"); c.says == "" && n > 0 || c.says != "" && (n < 1 || n > most) {
				t.Errorf("%d lines in the log, at most %d are due:\n%s", n, most, log)
			}
		})
	}
}

// TestReadyLooksAtEverything fails when a table, a view, or a function for statements was added that Ready does not look at.
func TestReadyLooksAtEverything(t *testing.T) {
	t.Parallel()
	b := setup(t)
	all := column[string](t, b.Pool, `SELECT 'pawl.' || tablename::text FROM pg_tables WHERE schemaname = 'pawl'
		UNION ALL SELECT 'pawl.' || viewname::text FROM pg_views WHERE schemaname = 'pawl'
		UNION ALL SELECT 'pawl.orders_order_no_seq' -- the one that is written by itself
		UNION ALL SELECT 'pawl.' || proname || '(' || oidvectortypes(proargtypes) || ')' FROM pg_proc
			WHERE pronamespace = 'pawl'::regnamespace AND prorettype <> 'trigger'::regtype
		ORDER BY 1`)
	assert.Equal(t, engine.Needed(), all, "Ready looks at there are")
}

// role is the name of a role of this database's own: roles belong to the whole server.
func (b *bundle) role(name string) string { return name + "_" + b.Pool.Config().ConnConfig.Database }

// asRole is the bundle's database for a role that may do what the service does, but is no superuser and owns nothing.
func (b *bundle) asRole(t *testing.T, name string) *bundle {
	t.Helper()
	role := b.role(name)
	b.exec(t, `CREATE ROLE `+role)
	t.Cleanup(func() {
		for _, sql := range []string{`DROP OWNED BY ` + role, `DROP ROLE ` + role} {
			assert.Succeeds(t, assert.Err(b.Pool.Exec(context.WithoutCancel(t.Context()), sql)))
		}
	})
	b.exec(t, `GRANT USAGE ON SCHEMA pawl TO `+role)
	b.exec(t, `GRANT ALL ON ALL TABLES IN SCHEMA pawl, public TO `+role)
	b.exec(t, `GRANT UPDATE ON SEQUENCE pawl.orders_order_no_seq TO `+role)
	b.exec(t, `GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA pawl TO `+role)
	u, err := url.Parse(b.URL)
	assert.NoError(t, err)
	query := u.Query()
	query.Set("role", role)
	u.RawQuery = query.Encode()
	return &bundle{Database: &dbtest.Database{URL: u.String(), Pool: b.Pool}}
}

// TestMissingGrant has a role that may not write what a statement writes, beside a replica that may. That is no order's
// fault: the orders are handed to the other replica although their leases would last, callers are told to come again, and
// the log is not flooded.
func TestMissingGrant(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		table  string
		stored int
	}{{"charges", 200}, {"orders", 0}} {
		t.Run("on "+c.table, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			log := &dbtest.Log{}
			e := b.asRole(t, "poor").replica(t, engine.Config{Lease: time.Hour, Log: slog.New(slog.NewTextHandler(log, nil))})
			role := b.role("poor")
			b.exec(t, `REVOKE INSERT ON `+c.table+` FROM `+role)
			comeAgain(t, ask(t, e, requests("order", 200)...), 200)
			if err := e.Ready(t.Context()); !errors.Is(err, engine.ErrNotMigrated) || !strings.Contains(err.Error(), "INSERT on pawl."+c.table) {
				t.Errorf("it says of itself: %v", err)
			}
			assert.ErrorIs(t, assert.Err(e.Process(t.Context(), request("one more"))), engine.ErrNotMigrated, "a new order")
			eventually(t, "the other replica completes them", b.answers(t, 0,
				`SELECT count(*) FROM orders AS o WHERE o.status <> 'completed'`))
			stored := value[int](t, b.Pool, `SELECT count(*) FROM orders`)
			assert.True(t, stored <= c.stored && (stored != 0 || c.stored <= 0), stored, "orders are stored")
			assert.Equal(t, strings.Count(log.String(), "can't run on this schema"), 1, "lines in the log", log)
			b.exec(t, `GRANT INSERT ON `+c.table+` TO `+role)
			eventually(t, "it takes orders again", func() bool { return e.Ready(t.Context()) == nil })
			b.completes(t, ask(t, e, requests("order", 200)...), 200)
			proveBooks(t, b.Pool)
		})
	}
}

// comeAgain waits for n answers, all of which must be to come again.
func comeAgain(t *testing.T, answers <-chan answer, n int) {
	t.Helper()
	for range n {
		a := <-answers
		assert.Require(t, errors.Is(a.err, orders.ErrUnavailable), a.orderID, "told", a.err, brief(a.order))
	}
}

// lasting is for engines that keep what they do not let go: no lease ends within a test.
func lasting(log *dbtest.Log) engine.Config {
	return engine.Config{Lease: time.Hour, RecoveryInterval: often, Log: slog.New(slog.NewTextHandler(log, nil))}
}

// TestSchemaChangesUnderOrders changes the schema under an engine whose orders are stored and on their way. None is kept:
// they are released, or, where that can't be done either, their leases are renewed no more. When the schema is as before,
// everything goes on by itself.
func TestSchemaChangesUnderOrders(t *testing.T) {
	t.Parallel()
	const many = 100
	for _, c := range []struct {
		name, spoil, mend string
		keeps             bool // the statement that releases leases can't run either
	}{
		{"the charge can't be written", `ALTER TABLE charges RENAME COLUMN amount TO sum`, `ALTER TABLE charges RENAME COLUMN sum TO amount`, false},
		{"a table is gone", `ALTER TABLE charges RENAME TO kept`, `ALTER TABLE kept RENAME TO charges`, false},
		{"leases can't be released", `ALTER TABLE transitions RENAME COLUMN fence TO mark`, `ALTER TABLE transitions RENAME COLUMN mark TO fence`, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b, log := setupWith(t, byCallers), &dbtest.Log{}
			cfg := lasting(log)
			if c.keeps {
				cfg.Lease = 2 * time.Second
			}
			e := b.replica(t, cfg)
			unlock := b.delay(t, "reserving")
			first := ask(t, e, request("first"))
			eventually(t, "a move is under way", func() bool { return b.atWork(t, "OrdersCharge") > 0 })
			answers := ask(t, e, requests("order", many)...)
			eventually(t, "the others wait for theirs", b.answers(t, many+1,
				`SELECT count(*) FROM orders AS o WHERE o.status = 'charging'`))
			spoiled := make(chan error, 1)
			go func() { // it may wait for the move under way; then no move passes it
				_, err := b.Pool.Exec(t.Context(), c.spoil)
				spoiled <- err
			}()
			eventually(t, "the schema changes", func() bool {
				return len(spoiled) == 1 || value[int](t, b.Pool, `SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query = $1`, c.spoil) == 1
			})
			unlock()
			assert.NoError(t, <-spoiled)
			comeAgain(t, answers, many)
			if a := <-first; !errors.Is(a.err, orders.ErrUnavailable) && (a.err != nil || a.order.Status != fsm.Completed) {
				t.Errorf("the first one: told %v, %s", a.err, brief(a.order)) // its charge may have been before the change
			}
			stuck := `SELECT count(*) FROM orders AS o WHERE o.owner IS NOT NULL`
			if c.keeps {
				stuck += ` AND o.due_at > now()`
			}
			eventually(t, "no order is kept", func() bool { return e.InFlight() == 0 && value[int](t, b.Pool, stuck) == 0 })
			if err := e.Ready(t.Context()); !errors.Is(err, engine.ErrNotMigrated) || !strings.Contains(err.Error(), "charges") && !strings.Contains(err.Error(), "can't be prepared: ") {
				t.Errorf("it says of itself: %v", err)
			}
			assert.ErrorIs(t, assert.Err(e.Process(t.Context(), request("one more"))), engine.ErrNotMigrated, "a new order")
			n := value[int](t, b.Pool, `SELECT count(*) FROM orders AS o WHERE o.hold IS NOT NULL OR o.take_overs > 0`)
			assert.True(t, n == 0, n, "orders were blamed, or claimed in vain")
			b.exec(t, c.mend) // nobody moves orders now
			eventually(t, "the orders are completed", b.answers(t, many+1,
				`SELECT count(*) FROM orders AS o WHERE o.status = 'completed'`))
			b.completes(t, ask(t, e, request("one more")), 1)
			assert.Equal(t, strings.Count(log.String(), "can't run on this schema"), 1, "lines in the log", log)
			proveBooks(t, b.Pool)
		})
	}
}

// TestRowsThatCannotBeRead has a move that is lost, and a caller who comes again: what the row says can't be found out. The
// caller is not told that there is no such order, and the order is not kept.
func TestRowsThatCannotBeRead(t *testing.T) {
	t.Parallel()
	b, p := setupBehind(t, lasting(&dbtest.Log{}))
	b.process(t, request("ended"))
	atMove, release := p.stall(t, named("OrdersCharge"))
	answers := ask(t, b.engine, request("lost"))
	eventually(t, "a move is under way", func() bool { return atMove.Load() == 1 })
	b.exec(t, `UPDATE orders SET seq = seq + 1 WHERE order_id = 'lost'`)
	b.exec(t, `ALTER VIEW full_orders RENAME COLUMN charged_at TO made_at`)
	assert.ErrorIs(t, assert.Err(b.engine.Process(t.Context(), request("ended"))), orders.ErrUnavailable,
		"the caller who comes again")
	release()
	comeAgain(t, answers, 1)
	eventually(t, "no order is kept", func() bool {
		return b.engine.InFlight() == 0 && value[int](t, b.Pool, `SELECT count(*) FROM orders AS o WHERE o.owner IS NOT NULL`) == 0
	})
	b.exec(t, `ALTER VIEW full_orders RENAME COLUMN made_at TO charged_at`)
	reaches(t, b.Pool, "lost", "completed")
}

// TestTriggerThatCannotRun has what no preparing shows: the error comes from the body of a trigger. The orders are handed
// back all the same, and tried again after pauses that grow.
func TestTriggerThatCannotRun(t *testing.T) {
	t.Parallel()
	b, log := setupWith(t, byCallers), &dbtest.Log{}
	e := b.replica(t, lasting(log))
	b.exec(t, `CREATE FUNCTION broken() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM * FROM nowhere; RETURN NULL; END $$`)
	b.exec(t, `CREATE TRIGGER broken AFTER INSERT ON charges EXECUTE FUNCTION broken()`)
	began := time.Now()
	comeAgain(t, ask(t, e, requests("order", 50)...), 50)
	eventually(t, "it says so of itself, in one of the pauses between two tries", func() bool {
		err := e.Ready(t.Context())
		return errors.Is(err, engine.ErrNotMigrated) && strings.Contains(err.Error(), "42P01")
	})
	eventually(t, "they are tried again", func() bool { return strings.Count(log.String(), "can't run on this schema") == 3 })
	took := time.Since(began)
	assert.True(t, took >= 3*time.Second, "tried three times within", took)
	b.exec(t, `DROP TRIGGER broken ON charges`)
	eventually(t, "the orders are completed", b.answers(t, 0,
		`SELECT count(*) FROM orders AS o WHERE o.status <> 'completed'`))
	proveBooks(t, b.Pool)
}

// TestSchemaChangesAtAProvider changes the schema while an order is at a provider: whichever statement meets it, the order
// is let go, and it is done once in the end.
func TestSchemaChangesAtAProvider(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, spoil, mend string }{
		{"the answer can't be recorded", `ALTER TABLE step_calls RENAME COLUMN finished_at TO over_at`, `ALTER TABLE step_calls RENAME COLUMN over_at TO finished_at`},
		{"answers without a call can't be looked for", `ALTER TABLE step_answers RENAME COLUMN source TO origin`, `ALTER TABLE step_answers RENAME COLUMN origin TO source`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			log := &dbtest.Log{}
			s := openShop(t, 1, lasting(log))
			b, e := s.bundle, s.engine
			s.use(t, eager)
			s.faults(t, "cut-after@charge") // tried again and again: it is done, and nobody knows
			answers := ask(t, e, request("order"))
			eventually(t, "it is charged", func() bool { return s.standing("order") == "charge 1 reserve 0 confirm 0" })
			b.exec(t, c.spoil)
			eventually(t, "the order is let go", func() bool {
				return e.InFlight() == 0 && value[int](t, b.Pool, `SELECT count(*) FROM orders AS o WHERE o.owner IS NOT NULL`) == 0
			})
			comeAgain(t, answers, 1)
			assert.ErrorIs(t, e.Ready(t.Context()), engine.ErrNotMigrated, "it says of itself")
			s.faults(t)
			b.exec(t, c.mend)
			eventually(t, "it takes orders again", func() bool { return e.Ready(t.Context()) == nil })
			isNow(t, b.process(t, request("order")), fsm.Completed)
			assert.Equal(t, s.standing("order"), "charge 1 reserve 1 confirm 1")
			proveBooks(t, b.Pool)
		})
	}
}

// TestReadyBelievesAProof asks often: the statements are prepared once in a while, and at once when one of them has failed.
func TestReadyBelievesAProof(t *testing.T) {
	t.Parallel()
	b := setupWith(t, byCallers)
	assert.NoError(t, b.engine.Ready(t.Context()))
	b.exec(t, `ALTER TABLE transitions RENAME COLUMN actor TO who`)
	assert.NoError(t, b.engine.Ready(t.Context()), "a moment later nobody has met it yet")
	assert.NoError(t, assert.Err(b.engine.Process(t.Context(), request("one"))), "an order that does not meet it")
	if _, err := b.engine.Orders.Transitions(t.Context(), "one", orders.Span{Before: 9, Limit: 10}); !errors.Is(err, orders.ErrUnavailable) {
		t.Errorf("a statement that meets it: %v", err)
	}
	err := b.engine.Ready(t.Context())
	assert.True(t, errors.Is(err, engine.ErrNotMigrated) && strings.Contains(err.Error(), `column "actor"`), "once it was met", err)
	assert.NoError(t, assert.Err(b.engine.Process(t.Context(), request("two"))), "orders go on as long as their statements can run")
	b.exec(t, `ALTER TABLE transitions RENAME COLUMN who TO actor`)
	assert.NoError(t, b.engine.Ready(t.Context()), "mended")
}

// plants are what a role makes that may do no more than create in public, which is everybody on PostgreSQL 14. Each of them
// suits what our statements have better than what PostgreSQL has, and writes down who ran it.
var plants = []string{
	`CREATE TABLE public.loot (victim text)`,
	`GRANT INSERT, SELECT, DELETE ON public.loot TO PUBLIC`,
	`CREATE FUNCTION public.unnest(text[]) RETURNS SETOF text LANGUAGE plpgsql AS $$ BEGIN
		INSERT INTO public.loot VALUES (current_user); RETURN QUERY SELECT pg_catalog.unnest($1); END $$`,
	`CREATE FUNCTION public.unnest(bigint[]) RETURNS SETOF bigint LANGUAGE plpgsql AS $$ BEGIN
		INSERT INTO public.loot VALUES (current_user); RETURN QUERY SELECT pg_catalog.unnest($1); END $$`,
	`CREATE FUNCTION public.concat_ws(text, text, text) RETURNS text LANGUAGE plpgsql AS $$ BEGIN
		INSERT INTO public.loot VALUES (current_user); RETURN $2; END $$`,
	`CREATE FUNCTION public.array_position(bigint[], bigint) RETURNS integer LANGUAGE plpgsql AS $$ BEGIN
		INSERT INTO public.loot VALUES (current_user); RETURN pg_catalog.array_position($1, $2); END $$`,
	`CREATE FUNCTION public.is_equal(numeric, integer) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN
		INSERT INTO public.loot VALUES (current_user); RETURN $1 OPERATOR(pg_catalog.=) $2::numeric; END $$`,
	`CREATE OPERATOR public.= (FUNCTION = public.is_equal, LEFTARG = numeric, RIGHTARG = integer)`,
	`CREATE FUNCTION public.join_text(text, integer) RETURNS text LANGUAGE plpgsql AS $$ BEGIN
		INSERT INTO public.loot VALUES (current_user); RETURN $1; END $$`,
	`CREATE OPERATOR public.|| (FUNCTION = public.join_text, LEFTARG = text, RIGHTARG = integer)`,
	`CREATE TABLE public.orders (order_id text)`, `CREATE TABLE public.transitions (seq integer)`, `CREATE TABLE public.full_orders ()`,
	`CREATE TABLE public.installation (id uuid, callback_secret bytea)`, `CREATE TABLE public.policies (version integer, source text)`,
}

// plant has a role of no rights make what it can, and returns who the service is.
func plant(t *testing.T, b *bundle) {
	t.Helper()
	role := b.role("mallory")
	b.exec(t, `CREATE ROLE `+role)
	t.Cleanup(func() {
		for _, sql := range []string{`DROP OWNED BY ` + role + ` CASCADE`, `DROP ROLE ` + role} {
			assert.Succeeds(t, assert.Err(b.Pool.Exec(context.WithoutCancel(t.Context()), sql)))
		}
	})
	b.exec(t, `GRANT CREATE ON SCHEMA public TO `+role)
	err := pgx.BeginFunc(t.Context(), b.Pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), `SET LOCAL ROLE `+role+`; `+strings.Join(plants, "; "), pgx.QueryExecModeSimpleProtocol)
		return err
	})
	assert.NoError(t, err)
}

// looted tells how often code of that role was run by somebody else since the last look.
func looted(t *testing.T, b *bundle) int {
	t.Helper()
	return value[int](t, b.Pool, `WITH gone AS (DELETE FROM public.loot RETURNING 1) SELECT count(*) FROM gone`)
}

// TestPlantedNamesAreNotRun repeats the attack of CVE-2018-1058 on a service at work. First it shows that the attack works:
// on whoever uses the search_path that PostgreSQL has by default.
func TestPlantedNamesAreNotRun(t *testing.T) {
	t.Parallel()
	b := &bundle{Database: dbtest.New(t)}
	plant(t, b)
	careless := b.connectWith(t, `"$user", public`)
	for _, sql := range []string{`SELECT unnest(ARRAY['a'])`, `SELECT unnest(ARRAY[1::bigint])`, `SELECT concat_ws(','::text, 'a'::text, 'b'::text)`,
		`SELECT array_position(ARRAY[1::bigint], 1::bigint)`, `SELECT 1::numeric = 1`, `SELECT 'a'::text || 1`} {
		careless(sql)
		assert.True(t, looted(t, b) != 0, "the attack on", sql, "is none")
	}
	b.engine = b.replica(t, engine.Config{})
	b.work(t)
	// Triggers run with the search_path of whoever fires them, if they have none of their own.
	careless(`UPDATE pawl.orders SET seq = seq + 1, hold = NULL WHERE order_id = 'sold'`)
	careless(`INSERT INTO pawl.charge_operations (order_no, generation, number, currency, amount, request_id)
		SELECT order_no, 0, 9, 'USD', 1, 'nine' FROM pawl.orders WHERE order_id = 'sold'`)
	assert.Equal(t, looted(t, b), 0, "code of a role without rights was run times")
}

// connectWith returns what sends statements on a connection with a search_path.
func (b *bundle) connectWith(t *testing.T, path string) func(sql string) {
	t.Helper()
	conn, err := b.Pool.Acquire(t.Context())
	assert.NoError(t, err)
	t.Cleanup(conn.Release)
	send := func(sql string) {
		t.Helper()
		assert.NoError(t, assert.Err(conn.Exec(t.Context(), sql)), sql)
	}
	send(`SET search_path = ` + path)
	return send
}

// work has the service do what it does: orders, stock, a refund, lists, its checks and those of the books.
func (b *bundle) work(t *testing.T) {
	t.Helper()
	b.setStock(t, "widget", 60)
	b.completes(t, ask(t, b.engine, requests("order", 50)...), 50)
	b.process(t, request("sold"))
	refund := engine.Request{Verb: orders.Refund, OrderID: "sold", Actor: "ann", Reason: "broken", RequestID: "one",
		ChargeOperation: &engine.ChargeOperation{Amount: new(decimal.MustParse("1"))}}
	b.do(t, refund)
	found, _, err := b.engine.Orders.List(t.Context(), orders.Filter{Limit: 10})
	assert.True(t, err == nil && len(found) == 10, len(found), "orders", err)
	assert.Succeeds(t, assert.Err(b.engine.Orders.Waiting(t.Context(), b.engine.Backlog())))
	assert.Succeeds(t, b.engine.Ready(t.Context()))
	if report, err := books.Verify(t.Context(), openPool(t, b.URL), books.Options{}); err != nil || !report.OK() {
		t.Errorf("%v: %v", report, err)
	}
}

// TestFunctionsHaveTheirOwnSearchPath looks at all functions of the migrations.
func TestFunctionsHaveTheirOwnSearchPath(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, name := range column[string](t, b.Pool, `SELECT p.oid::regprocedure::text FROM pg_proc AS p
		WHERE p.pronamespace IN ('pawl'::regnamespace, 'books'::regnamespace) AND NOT coalesce('search_path=pg_catalog, pg_temp' = ANY(p.proconfig), p.prosqlbody IS NOT NULL)`) { // a parsed body needs none
		t.Errorf("%s has not", name)
	}
}
