package migrations_test

import (
	"errors"
	"fmt"
	"regexp"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"pawl/fsm"
	"pawl/internal/pg"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

// numberOf stands for the number of the order these tests plant.
const numberOf = `(SELECT order_no FROM orders WHERE order_id = 'planted')`

func TestEffectsHappenOnce(t *testing.T) {
	t.Parallel()
	database := dbtest.New(t)
	for _, table := range []struct {
		name, insert, live, key, undo string
	}{
		{"charge", `INSERT INTO charges (order_no, generation, currency, amount) SELECT ` + numberOf + `, $1, 'USD', 10`,
			"charges_live", "charges_pkey", `UPDATE charges SET refunded_at = now()`},
		{"reservation", `INSERT INTO reservations (order_no, generation, item, quantity) SELECT ` + numberOf + `, $1, 'widget', 1`,
			"reservations_live", "reservations_pkey", `UPDATE reservations SET released_at = now()`},
	} {
		t.Run(table.name, func(t *testing.T) {
			t.Parallel()
			c := connect(t, database)
			c.plant("planted", fsm.Reserving)
			c.do(table.insert, 0)
			c.refused("23505 "+table.live, table.insert, 1) // another generation, while the first stands
			c.do(table.undo)
			c.refused("23505 "+table.key, table.insert, 0) // the same generation, although it was undone
			c.do(table.insert, 1)
			c.refused("23505 "+table.live, table.insert, 2)
			c.do(table.undo)
			c.do(table.insert, 2)
		})
	}
	t.Run("refund", func(t *testing.T) {
		t.Parallel()
		c := connect(t, database)
		c.plant("planted", fsm.Refunding)
		insert := `INSERT INTO charge_operations (order_no, generation, currency, amount) SELECT ` + numberOf + `, 0, 'USD', 10`
		c.do(insert)
		c.refused("23505 charge_operations_pkey", insert)
	})
}

func TestEffectsAreInBounds(t *testing.T) {
	t.Parallel()
	c := connect(t, dbtest.New(t))
	c.plant("planted", fsm.Reserving)
	c.refused("23514 money_amount", `INSERT INTO charges (order_no, generation, currency, amount) VALUES (1, 0, 'USD', -0.01)`)
	c.refused("23514 money_amount", `INSERT INTO charge_operations (order_no, generation, currency, amount) VALUES (1, 0, 'USD', -1)`)
	c.refused("23514 item_quantity", `INSERT INTO reservations (order_no, generation, item, quantity) VALUES (1, 0, 'widget', 0)`)
	for domain, sets := range map[string][]string{
		"money_amount":    {"amount = -0.01", "amount = 1e15", "amount = 'NaN'", "amount = 'Infinity'", "amount = 1.00001"},
		"item_quantity":   {"quantity = 0", "quantity = -1"},
		"given_name":      {"order_id = ''"},
		"currency_code":   {"currency = 'usd'", "currency = 'US'", "currency = 'USDX'"},
		"take_over_count": {"take_overs = -1"},
		"moment":          {"due_at = 'infinity'", "created_at = '-infinity'"},
		"orders_guard":    {"fence = -1", "generation = -1", "seq = 0", "fence = 9223372036854775807", "seq = 2147483647"},
	} {
		for _, set := range sets {
			c.refused("23514 "+domain, `UPDATE orders SET `+set+` WHERE order_id = 'planted'`)
		}
	}
	for _, amount := range []string{"999999999999999.99", "0"} {
		c.accepted(`INSERT INTO orders (order_id, status, due_at, currency, item, amount)
			VALUES ('of ' || $1, 'pending', now(), 'USD', 'widget', $1::text::numeric)`, amount)
	}
}

// TestBooksAreKept tries to remove rows of every table that has some to keep, also after a batch was forgotten.
func TestBooksAreKept(t *testing.T) {
	t.Parallel()
	c := connect(t, dbtest.New(t))
	c.plant("kept", "completed")
	for table, columns := range map[string]string{
		"orders": "", "installation": "",
		"transitions":       "(order_no, seq, to_status, fence) SELECT order_no, 1, 'pending', 0",
		"charges":           "(order_no, generation, currency, amount) SELECT order_no, 0, 'USD', 10",
		"charge_operations": "(order_no, generation, currency, amount) SELECT order_no, 0, 'USD', 10",
		"reservations":      "(order_no, generation, item, quantity) SELECT order_no, 0, 'widget', 1",
		"confirmations":     "(order_no, generation, executor) SELECT order_no, 0, 'http'",
		"step_calls":        "(order_no, call, fence, generation, step, operation) SELECT order_no, 1, 1, 0, 'charge', 'do'",
		"step_answers":      "(order_no, generation, step, source, outcome) SELECT order_no, 0, 'charge', 'callback', 'done'",
		"late_undos":        "(order_no, generation, step, reason) SELECT order_no, 0, 'charge', 'test'",
		"inventory":         "(item) SELECT 'widget'",
		"stock_movements":   "(item, version, kind, change, on_hand, sold, actor, request_id) SELECT 'widget', 1, 'set', 5, 5, 0, 'local', 'x'",
	} {
		if columns != "" {
			c.do(`INSERT INTO ` + table + ` ` + columns + ` FROM orders`)
		}
		c.refused("55000", `DELETE FROM `+table)
		c.refused("55000", `DELETE FROM `+table+` WHERE false`)
		c.refused("55000", `TRUNCATE `+table+` CASCADE`)
	}
	history := []string{`UPDATE transitions SET at = at - interval '1 day'`, `UPDATE stock_movements SET change = 4`,
		`UPDATE installation SET id = gen_random_uuid()`}
	for _, statement := range history {
		c.refused("55000", statement)
	}
	c.do(`SELECT pawl.mark_forgotten(0, 9, interval '31 days', false)`)
	c.do(`SELECT pawl.remove_forgotten(NULL)`) // nothing is old enough
	c.refused("55000", `DELETE FROM orders`)
	c.refused("22023", `SELECT pawl.mark_forgotten(0, 9, interval '30 days', false)`)
}

// TestEveryTableOfTheBooksIsKept finds a table that a later migration adds and forgets.
func TestEveryTableOfTheBooksIsKept(t *testing.T) {
	t.Parallel()
	c := connect(t, dbtest.New(t))
	if open := valueOf[string](c, `SELECT coalesce(string_agg(c.relname, ', ' ORDER BY c.relname), '') FROM pg_class AS c
		WHERE c.relkind = 'r' AND c.relnamespace = 'pawl'::regnamespace AND c.relname NOT LIKE 'goose%'
			AND c.relname NOT IN ('order_numbering', 'concurrency_keys', 'idempotency_keys', 'bulk_refusals', 'verifications', 'webhook_endpoints', 'webhook_deliveries', 'event_batches', 'early_events', 'replica_reports')
			AND 2 > (SELECT count(*) FROM pg_trigger AS t, unnest(ARRAY[8, 32]) AS event
				WHERE t.tgrelid = c.oid AND NOT t.tgisinternal AND t.tgtype::integer & 3 = 2 AND t.tgtype::integer & event <> 0)`); open != "" {
		t.Errorf("rows can be removed from %s", open)
	}
}

func TestStockIsNotOversold(t *testing.T) {
	t.Parallel()
	c := connect(t, dbtest.New(t))
	const oversold, negative = "23514 inventory_not_oversold", "23514 stock_count"
	c.do(`INSERT INTO inventory (item, on_hand, reserved, tracked) VALUES ('tracked', 5, 5, true), ('untracked', 0, 9, false)`)
	c.refused(oversold, `UPDATE inventory SET reserved = 6 WHERE item = 'tracked'`)
	c.refused(oversold, `UPDATE inventory SET on_hand = 4 WHERE item = 'tracked'`)
	c.refused(oversold, `UPDATE inventory SET tracked = true WHERE item = 'untracked'`)
	c.refused(oversold, `INSERT INTO inventory (item, on_hand, reserved, tracked) VALUES ('other', 0, 1, true)`)
	c.refused(negative, `UPDATE inventory SET on_hand = -1, reserved = 0 WHERE item = 'tracked'`)
	c.refused(negative, `UPDATE inventory SET reserved = -1 WHERE item = 'tracked'`)
	c.refused(negative, `UPDATE inventory SET reserved = -1 WHERE item = 'untracked'`)
	c.accepted(`UPDATE inventory SET reserved = 10 WHERE item = 'untracked'`)
	c.accepted(`UPDATE inventory SET on_hand = 9, tracked = true WHERE item = 'untracked'`)
}

func TestOrdersAreDrivenHeldOrFinished(t *testing.T) {
	t.Parallel()
	database := dbtest.New(t)
	const driven = "23514 orders_driven"
	for _, s := range fsm.States() {
		t.Run(string(s), func(t *testing.T) {
			t.Parallel()
			c := connect(t, database)
			c.plant("planted", s)
			set := func(what string) string { return `UPDATE orders SET ` + what + ` WHERE order_id = 'planted'` }
			c.refused("23514 order_stop", set("stop_requested = 'please'"))
			c.refused("23514 order_outcome", set("outcome = 'completed'"))
			c.refused("23514 order_step", set("failure_step = 'ship'"))
			c.refused("23514 order_hold", set("hold = 'retired'"))
			if s.Final() {
				for _, what := range []string{
					"due_at = now()", "hold = 'paused'", "owner = gen_random_uuid()", "ended_as = NULL", "ended_as = 'pending'",
				} {
					c.refused(driven, set(what))
				}
				return
			}
			c.refused(driven, set("due_at = NULL")) // nobody would ever pick it up
			c.refused(driven, set("ended_as = 'failed'"))
			c.refused(driven, set("hold = 'paused', owner = gen_random_uuid()"))
			for _, what := range []string{
				"owner = gen_random_uuid()", "hold = 'paused', due_at = NULL", "hold = 'retry', due_at = now() + interval '1 hour'",
			} {
				c.accepted(set(what))
			}
		})
	}
}

const (
	refundsGuard = "23514 charge_operations_guard"
	askRefund    = `INSERT INTO charge_operations (order_no, generation, number, currency, amount, restock, request_id)
		SELECT ` + numberOf + `, 0, $1::integer, 'USD', $2::text::numeric, nullif($3::integer, 0), 'id ' || $1`
)

// plantSold brings an order to its end, with its charge of 10 and its reservation of 2.
func (c *client) plantSold() {
	c.t.Helper()
	c.plant("planted", fsm.Completed)
	c.do(`INSERT INTO charges (order_no, generation, currency, amount) SELECT ` + numberOf + `, 0, 'USD', 10`)
	c.do(`INSERT INTO reservations (order_no, generation, item, quantity) SELECT ` + numberOf + `, 0, 'widget', 2`)
}

func TestRefundsStayWithinTheOrder(t *testing.T) {
	t.Parallel()
	c := connect(t, dbtest.New(t))
	c.plantSold()
	for _, much := range []string{"10.01", "0", "-1"} {
		assert.True(t, c.try(askRefund, 1, much, 0) != nil, much, "of 10 was taken")
	}
	c.refused(refundsGuard, askRefund, 1, "1", 3) // units of 2
	c.accepted(askRefund, 1, "10", 2)
	c.do(askRefund, 1, "4", 1)
	c.refused("23505 charge_operations_pkey", askRefund, 1, "1", 0)
	c.refused(refundsGuard, askRefund, 2, "6.01", 0)
	c.refused(refundsGuard, askRefund, 2, "6", 2)
	for _, state := range []string{"pending", "in_doubt", "accepted", "done"} { // all of them count
		c.do(`UPDATE charge_operations SET state = $1`, state)
		c.refused(refundsGuard, askRefund, 2, "6.01", 0)
	}
	c.refused(refundsGuard, `UPDATE charge_operations SET amount = 3`)
	c.refused(refundsGuard, `UPDATE charge_operations SET restock = NULL`)
	c.refused(refundsGuard, `UPDATE charge_operations SET number = 2`)
	c.refused(refundsGuard, `UPDATE charge_operations SET request_id = 'b'`)
	c.refused("23505 charge_operations_request", `INSERT INTO charge_operations (order_no, generation, number, currency, amount, request_id) SELECT order_no, 0, 2, 'USD', 1, 'id 1' FROM charge_operations`)
	c.refused(refundsGuard, `INSERT INTO charge_operations (order_no, generation, number, currency, amount) SELECT order_no, 0, 2, 'USD', 1 FROM charge_operations`)
	c.do(`UPDATE charge_operations SET state = 'failed'`)
	c.refused(refundsGuard, `UPDATE charge_operations SET state = 'done'`)
	c.accepted(askRefund, 2, "10", 1)              // what failed does not count
	c.refused(refundsGuard, askRefund, 2, "10", 2) // but its unit is back
	c.plant("charging", fsm.Charging)
	c.do(`INSERT INTO charges (order_no, generation, currency, amount) SELECT order_no, 0, 'USD', 10 FROM orders WHERE order_id = 'charging'`)
	c.refused(refundsGuard, `INSERT INTO charge_operations (order_no, generation, number, currency, amount, request_id) SELECT order_no, 0, 1, 'USD', 1, 'a' FROM charges ORDER BY order_no DESC LIMIT 1`)
	c.refused("23514 charge_operation_state", `UPDATE charge_operations SET state = 'undone'`)
}

// TestRefundsStayWithinTheLines: no more units of a line are refunded or put back than were ordered, and all of them
// for its amount.
func TestRefundsStayWithinTheLines(t *testing.T) {
	t.Parallel()
	c := connect(t, dbtest.New(t))
	c.do(`INSERT INTO orders (order_id, status, due_at, currency, item, quantity, amount, lines)
		SELECT 'planted', 'pending', now(), 'USD', '', 4, 12, $1::text::json`,
		`[{"item":"tea","quantity":3,"amount":"10.00"},{"item":"cup","quantity":1,"amount":"3.00"},{"item":"by air","quantity":1,"amount":"-1.00","kind":"discount"}]`)
	for _, state := range path(fsm.Completed) {
		c.do(change, "planted", state, 0)
	}
	c.do(`INSERT INTO charges (order_no, generation, currency, amount) SELECT ` + numberOf + `, 0, 'USD', 12`)
	c.do(`INSERT INTO reservations (order_no, generation, line, item, quantity) SELECT ` + numberOf + `, 0, x.line, x.item, x.quantity
		FROM (VALUES (1, 'cup', 1), (2, 'tea', 3)) AS x(line, item, quantity)`)
	const ask = `INSERT INTO charge_operations (order_no, generation, number, currency, amount, restock, request_id, lines)
		SELECT ` + numberOf + `, 0, $1::integer, 'USD', 1, nullif($2::integer, 0), 'id ' || $1, $3::text::json`
	for lines, restock := range map[string]int{
		`[{"line":1,"item":"tea","quantity":4,"amount":"10.00"}]`:                                                     0,
		`[{"line":1,"item":"tea","quantity":3,"amount":"9.99"}]`:                                                      0,
		`[{"line":1,"item":"tea","quantity":1,"amount":"10.01"}]`:                                                     0,
		`[{"line":1,"item":"tea","quantity":0,"amount":"1.00"}]`:                                                      0,
		`[{"line":1,"item":"cup","quantity":1,"amount":"3.33"}]`:                                                      0,
		`[{"line":1,"item":"tea","quantity":1}]`:                                                                      0,
		`[{"line":1,"item":"tea","quantity":1,"amount":"3.33","restock":true}]`:                                       0,
		`[{"line":1,"item":"tea","quantity":1,"amount":"3.33"}]`:                                                      1,
		`[{"line":2,"item":"cup","quantity":1,"amount":"3.00"},{"line":2,"item":"cup","quantity":1,"amount":"0.00"}]`: 0,
		`[{"line":3,"item":"by air","quantity":1,"amount":"-1.00","kind":"discount","restock":true}]`:                 1,
		`[{"line":3,"item":"by air","quantity":1,"amount":"-1.00"}]`:                                                  0,
		`[{"line":4,"item":"tea","quantity":1}]`:                                                                      0,
		`[{"item":"tea","quantity":1}]`:                                                                               0,
	} {
		err := c.try(ask, 1, restock, lines)
		assert.True(t, err != nil && pg.Describe(err) == refundsGuard, lines, err)
	}
	c.refused(refundsGuard, askRefund, 1, "1", 1) // of which item?
	c.do(ask, 1, 2, `[{"line":1,"item":"tea","quantity":2,"amount":"6.67","restock":true},{"line":3,"item":"by air","quantity":1,"amount":"-1.00","kind":"discount"}]`)
	c.refused(refundsGuard, `UPDATE charge_operations SET lines = NULL`)
	c.refused(refundsGuard, ask, 2, 0, `[{"line":1,"item":"tea","quantity":1,"amount":"3.34"}]`)
	c.accepted(ask, 2, 1, `[{"line":1,"item":"tea","quantity":1,"amount":"3.33","restock":true}]`)
	c.do(`UPDATE charge_operations SET state = 'failed'`)
	c.refused(refundsGuard, ask, 2, 2, `[{"line":1,"item":"tea","quantity":2,"amount":"6.67","restock":true}]`) // these are back
	c.accepted(ask, 2, 0, `[{"line":1,"item":"tea","quantity":3,"amount":"10.00"}]`)
}

func TestDisputesAreFacts(t *testing.T) {
	t.Parallel()
	c := connect(t, dbtest.New(t))
	const insert = `INSERT INTO disputes (order_no, reference, state, amount, currency, at) SELECT ` + numberOf + `, $1, $2, $3::text::numeric, $4, now()`
	c.plant("planted", fsm.Completed)
	c.refused("23514 disputes_guard", insert, "dp_1", "opened", "1", "USD") // there is no charge
	c.do(`INSERT INTO charges (order_no, generation, currency, amount) SELECT ` + numberOf + `, 0, 'USD', 10`)
	c.refused("23514 disputes_guard", insert, "dp_1", "opened", "1", "EUR")
	c.refused("23514 disputes_amount", insert, "dp_1", "opened", "0", "USD")
	c.refused("23514 disputes_reference", insert, "", "opened", "1", "USD")
	c.refused("23514 dispute_state", insert, "dp_1", "settled", "1", "USD")
	c.do(insert, "dp_1", "opened", "1", "USD")
	c.refused("23505 disputes_pkey", insert, "dp_1", "opened", "2", "USD")
	c.accepted(insert, "dp_1", "lost", "1", "USD")
	for _, statement := range []string{`UPDATE disputes SET amount = 2`, `DELETE FROM disputes`, `TRUNCATE disputes`} {
		assert.True(t, c.try(statement) != nil, statement, "was accepted")
	}
}

func TestOnlyWhatWasSoldIsRefunded(t *testing.T) {
	t.Parallel()
	database := dbtest.New(t)
	for name, statement := range map[string]string{
		"another currency":             `UPDATE charges SET currency = 'EUR'`,
		"an undone charge":             `UPDATE charges SET refunded_at = now()`,
		"no charge":                    `SET LOCAL session_replication_role = replica; DELETE FROM charges`,
		"the charge of somebody else":  `UPDATE charges SET executor = 'stripe'`,
		"the charge of another time":   `UPDATE charges SET generation = 1`,
		"units of somebody else":       `UPDATE reservations SET executor = 'http'`,
		"units that were released":     `UPDATE reservations SET released_at = now()`,
		"units of another reservation": `UPDATE reservations SET generation = 1`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := connect(t, database)
			c.plantSold()
			c.accepted(askRefund, 1, "1", 1)
			c.do(statement)
			assert.NoError(t, assert.Err(c.tx.Exec(t.Context(), `SET LOCAL session_replication_role = origin`)))
			c.refused(refundsGuard, askRefund, 1, "1", 1)
		})
	}
}

// Ten clients of each isolation level ask for a third of the charge at the same time, without the service: three get it.
func TestConcurrentRefundsStayWithinTheCharge(t *testing.T) {
	t.Parallel()
	for _, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} {
		t.Run(string(level), func(t *testing.T) {
			t.Parallel()
			database := dbtest.New(t)
			tx, err := database.Pool.Begin(t.Context())
			assert.NoError(t, err)
			planter := &client{t, tx}
			planter.plantSold()
			assert.NoError(t, tx.Commit(t.Context()))
			var clients sync.WaitGroup
			for n := range 10 {
				clients.Go(func() {
					assert.Succeeds(t, askAs(t, database, level, n+1))
				})
			}
			clients.Wait()
			c := connect(t, database)
			assert.Equal(t, valueOf[string](c, `SELECT count(*) || ' of ' || sum(amount) FROM charge_operations`), "3 of 9.99")
		})
	}
}

// askAs asks for 3.33 until it is there or refused.
func askAs(t *testing.T, database *dbtest.Database, level pgx.TxIsoLevel, number int) error {
	t.Helper()
	for {
		err := pgx.BeginTxFunc(t.Context(), database.Pool, pgx.TxOptions{IsoLevel: level}, func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), askRefund, number, "3.33", 0)
			return err
		})
		switch said := pg.Describe(err); {
		case err == nil || said == refundsGuard:
			return nil
		case errors.Is(err, t.Context().Err()) || len(said) < 5 || said[:5] != "40001":
			return fmt.Errorf("ask for refund %d: %s: %w", number, said, err)
		}
	}
}

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
	n := valueOf[int](c, `SELECT count(*) FROM pg_trigger WHERE tgrelid = 'orders'::regclass AND tgenabled = 'O' AND tgtype & 3 = 1
		AND tgname IN ('orders_guard', 'orders_guard_claim', 'orders_guard_input', 'orders_guard_insert')`)
	assert.Equal(t, n, 4, "triggers")
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
	assert.True(c.t, all >= 1000 && legal >= 3 && wrong == "", all, "tried", legal, "legal; wrong", wrong)
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

// TestCapturesStayWithinTheAuthorization: captures and voids that have not failed stay within what was authorized, and
// refunds within what was certainly captured. What was taken at once is not captured again.
func TestCapturesStayWithinTheAuthorization(t *testing.T) {
	t.Parallel()
	c := connect(t, dbtest.New(t))
	c.plantSold()
	const ask = `INSERT INTO charge_operations (order_no, generation, number, kind, currency, amount, voided, executor, state, request_id)
		SELECT ` + numberOf + `, 0, $1::integer, $2::text, 'USD', $3::text::numeric, $4::text::numeric, 'http', 'pending', 'id ' || $1`
	c.do(`UPDATE charges SET executor = 'http'`)
	c.refused(refundsGuard, ask, 1, "capture", "1", nil)
	c.do(`UPDATE charges SET capture = 'later'`)
	c.refused(refundsGuard, ask, 1, "capture", "10.01", nil)
	c.refused(refundsGuard, ask, 1, "capture", "4", "6.01")
	c.refused(refundsGuard, ask, 1, "void", "4", "1")
	c.do(ask, 1, "capture", "4", nil)
	c.refused(refundsGuard, ask, 2, "refund", "1", nil) // it is not done yet
	c.refused(refundsGuard, ask, 2, "void", "6.01", nil)
	c.do(`UPDATE charge_operations SET state = 'done'`)
	c.refused(refundsGuard, `UPDATE charge_operations SET state = 'failed'`)
	c.refused(refundsGuard, `UPDATE charge_operations SET voided = 1`)
	c.refused(refundsGuard, `UPDATE charge_operations SET kind = 'void'`)
	c.refused(refundsGuard, ask, 2, "refund", "4.01", nil)
	c.do(ask, 2, "refund", "4", nil)
	c.do(ask, 3, "void", "6", nil)
	c.refused(refundsGuard, ask, 4, "capture", "0.01", nil)
	c.do(`UPDATE charge_operations SET state = 'failed' WHERE number = 3`)
	c.do(ask, 4, "capture", "2", "4")
	c.refused(refundsGuard, ask, 5, "capture", "0.01", nil)
}
