package migrations_test

import (
	"fmt"
	"regexp"
	"testing"

	"pawl/fsm"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

const guard = "23514 orders_guard"

// TestGuardIsTheMachine: the statuses are the states, and every trigger fires, after the change. TestGuard compares the edges.
func TestGuardIsTheMachine(t *testing.T) {
	t.Parallel()
	c := connect(t, dbtest.New(t))
	text := valueOf[string](c, `SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = 'order_status'`)
	var got []fsm.State
	for _, match := range regexp.MustCompile(`'(\w+)'::text`).FindAllStringSubmatch(text, -1) {
		got = append(got, fsm.State(match[1]))
	}
	assert.Equal(t, got, fsm.States(), "CHECK machine")
	if n := valueOf[int](c, `SELECT count(*) FROM pg_trigger WHERE tgrelid = 'orders'::regclass AND tgenabled = 'O' AND tgtype & 3 = 1
		AND tgname IN ('orders_guard', 'orders_guard_claim', 'orders_guard_input', 'orders_guard_insert')`); n != 4 {
		t.Errorf("%d triggers", n)
	}
}

// The function tries a statement of somebody with psql, takes back what it did, and says which rule refused it.
const try = `CREATE FUNCTION pg_temp.try(statement text) RETURNS text LANGUAGE plpgsql AS $$
	DECLARE rule text;
	BEGIN
		EXECUTE statement;
		RAISE EXCEPTION SQLSTATE 'TAKEN';
	EXCEPTION
		WHEN SQLSTATE 'TAKEN' THEN RETURN '';
		WHEN check_violation THEN GET STACKED DIAGNOSTICS rule = CONSTRAINT_NAME; RETURN rule;
	END $$`

// driven is the rule of the columns that say who goes on with an order.
const driven = `(CASE
	WHEN status IN ('completed', 'failed', 'canceled')
		THEN ended_as IS NOT DISTINCT FROM status AND hold IS NULL AND due_at IS NULL AND owner IS NULL
	WHEN hold IS NULL THEN ended_as IS NULL AND due_at IS NOT NULL
	ELSE ended_as IS NULL AND owner IS NULL END)`

// Every combination of what the columns of these rules can be set to, and then of which a statement names all, or only
// those that it changes.
const everyChange = `WITH changes AS (
	SELECT o.order_id, o.status AS from_status, x.*,
		ARRAY[o.status = x.status, x.rise = 0, o.hold IS NOT DISTINCT FROM x.hold, o.ended_as IS NOT DISTINCT FROM x.ended_as,
			(o.due_at IS NULL) = (x.due_at IS NULL), (o.owner IS NULL) = (x.owner IS NULL), x.generation = 0] AS same
	FROM orders AS o, (SELECT * FROM unnest($1::text[]) AS a(status), unnest(ARRAY[-1, 0, 1, 11]) AS b(rise),
		unnest(ARRAY[NULL, 'paused']) AS c(hold), unnest(ARRAY[NULL, status, CASE status WHEN 'failed' THEN 'canceled' ELSE 'failed' END]) AS d(ended_as),
		unnest(ARRAY[NULL, '2030-01-01']) AS e(due_at), unnest(ARRAY[NULL, '6ba7b810-9dad-11d1-80b4-00c04fd430c8']) AS f(owner),
		unnest(ARRAY[-1, 0, 1, 2]) AS g(generation), unnest(ARRAY[false, true]) AS h(all_named)) AS x
	WHERE (x.generation = 0 OR x.rise = 1 AND x.hold IS NULL AND x.owner IS NULL) AND (x.all_named OR o.order_id <> 'held')
), tried AS (
	SELECT *, 'UPDATE orders SET failure_detail = NULL' || (SELECT string_agg(set, '' ORDER BY i) FROM unnest(ARRAY[
			format(', status = %L', status), format(', seq = seq + %s', rise), format(', hold = %L', hold), format(', ended_as = %L', ended_as),
			format(', due_at = %L', due_at), format(', owner = %L', owner), format(', generation = generation + %s', generation)])
			WITH ORDINALITY AS s(set, i) WHERE all_named OR NOT same[i])
			|| format(' WHERE order_id = %L', order_id) AS statement,
		CASE WHEN rise NOT IN (0, 1) OR generation <> (from_status = 'failed' AND status = 'pending')::integer
			OR status <> from_status AND (rise <> 1 OR from_status || ' ' || status <> ALL ($2::text[])) THEN 'orders_guard'
		WHEN NOT ` + driven + ` THEN 'orders_driven' ELSE '' END AS want
	FROM changes
)
SELECT count(*), count(*) FILTER (WHERE want = ''), coalesce(string_agg(format('%s: %L, want %L', statement, got, want), E'\n') FILTER (WHERE got <> want), '')
FROM (SELECT *, pg_temp.try(statement) AS got FROM tried WHERE statement LIKE '%, %') AS t`

// TestGuard tries every change of the columns that the condition of the guard looks at, from every status; and to turn back what
// only rises, to have it jump, and to change what an order is about.
func TestGuard(t *testing.T) {
	t.Parallel()
	database := dbtest.New(t)
	var edges []string
	for _, e := range fsm.Edges() {
		edges = append(edges, fmt.Sprintf("%s %s", e.From, e.To))
	}
	for _, from := range fsm.States() {
		t.Run("from "+string(from), func(t *testing.T) {
			t.Parallel()
			c := connect(t, database)
			c.plant("nobody's", from)
			if !from.Final() {
				c.plant("driven", from)
				c.do(`UPDATE orders SET owner = gen_random_uuid() WHERE order_id = 'driven'`)
				c.plant("held", from)
				c.do(`UPDATE orders SET hold = 'paused', due_at = NULL WHERE order_id = 'held'`)
			}
			c.judged(everyChange, fsm.States(), edges)
			c.counters("nobody's")
		})
	}
}

const everyStart = `WITH tried AS (
	SELECT *, format('INSERT INTO orders (order_id, currency, item, amount, status, generation, fence, seq, hold, ended_as, due_at, owner)
			VALUES (''new'', ''USD'', ''widget'', 1, %L, %s, %s, %s, %L, %L, %L, %L)', status, generation, fence, seq, hold, ended_as, due_at, owner) AS statement,
		CASE WHEN status NOT IN ('pending', 'charging') OR generation <> 0 OR fence < 0 OR seq < 1 THEN 'orders_guard_insert'
		WHEN NOT ` + driven + ` THEN 'orders_driven' ELSE '' END AS want
	FROM unnest($1::text[]) AS a(status), unnest(ARRAY[-1, 0, 1]) AS b(generation), unnest(ARRAY[-1, 1, 11]) AS c(fence),
		unnest(ARRAY[0, 1, 11]) AS d(seq), unnest(ARRAY[NULL, 'paused']) AS e(hold), unnest(ARRAY[NULL, 'completed', 'charging']) AS f(ended_as),
		unnest(ARRAY[NULL, '2030-01-01']) AS g(due_at), unnest(ARRAY[NULL, '6ba7b810-9dad-11d1-80b4-00c04fd430c8']) AS h(owner)
)
SELECT count(*), count(*) FILTER (WHERE want = ''), coalesce(string_agg(format('%s: %L, want %L', statement, got, want), E'\n') FILTER (WHERE got <> want), '')
FROM (SELECT *, pg_temp.try(statement) AS got FROM tried) AS t`

// TestGuardOfInsert: an order begins where the machine does, and an upsert is a change.
func TestGuardOfInsert(t *testing.T) {
	t.Parallel()
	c := connect(t, dbtest.New(t))
	insert := `INSERT INTO orders (order_id, status, due_at, currency, item, amount) VALUES ('known', $1, now(), 'USD', 'widget', 1)`
	c.refused("23514 order_status", insert, "shipping")
	c.plant("known", fsm.Charging)
	c.refused(guard, insert+` ON CONFLICT (order_id) DO UPDATE SET status = 'completed', ended_as = 'completed', due_at = NULL`, "charging")
	c.judged(everyStart, fsm.States())
}

// judged sends a query that tries statements and tells how many there were, how many are legal, and which were judged wrongly.
func (c *client) judged(query string, args ...any) {
	c.t.Helper()
	assert.NoError(c.t, assert.Err(c.tx.Exec(c.t.Context(), try)))
	var all, legal int
	var wrong string
	assert.NoError(c.t, c.tx.QueryRow(c.t.Context(), query, args...).Scan(&all, &legal, &wrong))
	c.t.Logf("%d tried, %d legal", all, legal)
	if all < 1000 || legal < 3 || wrong != "" {
		c.t.Errorf("%d tried, %d legal; wrong:\n%.2000s", all, legal, wrong)
	}
}

func (c *client) counters(id string) {
	c.t.Helper()
	for _, set := range []string{
		"fence = fence - 1", "seq = seq - 1", "fence = 0", "fence = fence - 1, seq = seq + 1",
		"fence = fence + 2", "seq = seq + 2", "fence = fence + 2, seq = seq + 1", "fence = fence + 1, seq = seq + 2",
		"seq = 2147483647", "fence = 9223372036854775807",
		"order_id = order_id || 'x'", "generation = generation + 1",
		"amount = 1", "item = 'other'", "currency = 'EUR'", "quantity = 7",
	} {
		c.refused(guard, "UPDATE orders SET "+set+" WHERE order_id = $1", id)
	}
	for _, set := range []string{"fence = fence + 1", "seq = seq + 1", "fence = fence + 1, seq = seq + 1", "fence = fence", "seq = seq", "failure_detail = 'seen'"} {
		c.accepted("UPDATE orders SET "+set+" WHERE order_id = $1", id)
	}
	c.refused("428C9", "UPDATE orders SET order_no = order_no + 1 WHERE order_id = $1", id) // generated always
}
