package engine_test

import (
	"context"
	"strings"
	"testing"

	"github.com/govalues/decimal"
	"github.com/jackc/pgx/v5"

	"pawl/engine"
	"pawl/internal/books"
	"pawl/internal/orders"
	"pawl/test/dbtest"
)

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
			if _, err := b.Pool.Exec(context.WithoutCancel(t.Context()), sql); err != nil {
				t.Error(err)
			}
		}
	})
	b.exec(t, `GRANT CREATE ON SCHEMA public TO `+role)
	err := pgx.BeginFunc(t.Context(), b.Pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), `SET LOCAL ROLE `+role+`; `+strings.Join(plants, "; "), pgx.QueryExecModeSimpleProtocol)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
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
		if careless(sql); looted(t, b) == 0 {
			t.Errorf("the attack on %s is none", sql)
		}
	}
	b.engine = b.replica(t, engine.Config{})
	b.work(t)
	// Triggers run with the search_path of whoever fires them, if they have none of their own.
	careless(`UPDATE pawl.orders SET seq = seq + 1, hold = NULL WHERE order_id = 'sold'`)
	careless(`INSERT INTO pawl.refunds (order_no, generation, number, currency, amount, request_id)
		SELECT order_no, 0, 9, 'USD', 1, 'nine' FROM pawl.orders WHERE order_id = 'sold'`)
	if n := looted(t, b); n != 0 {
		t.Errorf("code of a role without rights was run %d times", n)
	}
}

// connectWith returns what sends statements on a connection with a search_path.
func (b *bundle) connectWith(t *testing.T, path string) func(sql string) {
	t.Helper()
	conn, err := b.Pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Release)
	send := func(sql string) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
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
		Refund: &engine.Refund{Amount: new(decimal.MustParse("1"))}}
	if _, err := b.engine.Do(t.Context(), refund); err != nil {
		t.Error(err)
	}
	if found, _, err := b.engine.Orders.List(t.Context(), orders.Filter{Limit: 10}); err != nil || len(found) != 10 {
		t.Errorf("%d orders: %v", len(found), err)
	}
	if _, err := b.engine.Waiting(t.Context()); err != nil {
		t.Error(err)
	}
	if err := b.engine.Ready(t.Context()); err != nil {
		t.Error(err)
	}
	if report, err := books.Verify(t.Context(), openPool(t, b.URL), books.Options{}); err != nil || !report.OK() {
		t.Errorf("%v: %v", report, err)
	}
}

// TestFunctionsHaveTheirOwnSearchPath looks at all functions of the migrations.
func TestFunctionsHaveTheirOwnSearchPath(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, name := range column[string](t, b.Pool, `SELECT p.oid::regprocedure::text FROM pg_proc AS p
		WHERE p.pronamespace IN ('pawl'::regnamespace, 'books'::regnamespace) AND NOT coalesce('search_path=pg_catalog, pg_temp' = ANY(p.proconfig), false)`) {
		t.Errorf("%s has not", name)
	}
}
