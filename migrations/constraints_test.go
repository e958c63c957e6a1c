package migrations_test

import (
	"testing"

	"pawl/fsm"
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
		insert := `INSERT INTO refunds (order_no, generation, currency, amount) SELECT ` + numberOf + `, 0, 'USD', 10`
		c.do(insert)
		c.refused("23505 refunds_pkey", insert)
	})
}

func TestEffectsAreInBounds(t *testing.T) {
	t.Parallel()
	c := connect(t, dbtest.New(t))
	c.plant("planted", fsm.Reserving)
	c.refused("23514 money_amount", `INSERT INTO charges (order_no, generation, currency, amount) VALUES (1, 0, 'USD', -0.01)`)
	c.refused("23514 money_amount", `INSERT INTO refunds (order_no, generation, currency, amount) VALUES (1, 0, 'USD', -1)`)
	c.refused("23514 item_quantity", `INSERT INTO reservations (order_no, generation, item, quantity) VALUES (1, 0, 'widget', 0)`)
	for domain, sets := range map[string][]string{
		"money_amount":    {"amount = -0.01", "amount = 1e15", "amount = 'NaN'", "amount = 'Infinity'", "amount = 1.00001"},
		"item_quantity":   {"quantity = 0", "quantity = -1"},
		"given_name":      {"item = ''", "order_id = ''"},
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

// TestBooksAreKept tries to remove rows, with and without the setting of an archive, of every table that has some to keep.
func TestBooksAreKept(t *testing.T) {
	t.Parallel()
	c := connect(t, dbtest.New(t))
	c.plant("kept", "completed")
	for table, columns := range map[string]string{
		"orders": "", "installation": "",
		"transitions":     "(order_no, seq, to_status, fence) SELECT order_no, 1, 'pending', 0",
		"charges":         "(order_no, generation, currency, amount) SELECT order_no, 0, 'USD', 10",
		"refunds":         "(order_no, generation, currency, amount) SELECT order_no, 0, 'USD', 10",
		"reservations":    "(order_no, generation, item, quantity) SELECT order_no, 0, 'widget', 1",
		"confirmations":   "(order_no, generation, executor) SELECT order_no, 0, 'http'",
		"step_calls":      "(order_no, call, fence, generation, step, operation) SELECT order_no, 1, 1, 0, 'charge', 'do'",
		"step_answers":    "(order_no, generation, step, source, outcome) SELECT order_no, 0, 'charge', 'callback', 'done'",
		"late_undos":      "(order_no, generation, step, reason) SELECT order_no, 0, 'charge', 'test'",
		"inventory":       "(item) SELECT 'widget'",
		"stock_movements": "(item, version, kind, change, on_hand, sold, actor, request_id) SELECT 'widget', 1, 'set', 5, 5, 0, 'local', 'x'",
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
	if _, err := c.tx.Exec(t.Context(), `SET LOCAL pawl.archive = 'on'`); err != nil {
		t.Fatal(err)
	}
	for _, statement := range history {
		c.refused("55000", statement)
	}
	c.accepted(`DELETE FROM orders`)
	c.accepted(`DELETE FROM transitions`)
}

// TestEveryTableOfTheBooksIsKept finds a table that a later migration adds and forgets.
func TestEveryTableOfTheBooksIsKept(t *testing.T) {
	t.Parallel()
	c := connect(t, dbtest.New(t))
	if open := valueOf[string](c, `SELECT coalesce(string_agg(c.relname, ', ' ORDER BY c.relname), '') FROM pg_class AS c
		WHERE c.relkind = 'r' AND c.relnamespace = 'pawl'::regnamespace AND c.relname NOT LIKE 'goose%'
			AND c.relname NOT IN ('concurrency_keys', 'idempotency_keys', 'webhook_endpoints', 'webhook_deliveries', 'event_batches', 'early_events')
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
