package migrations_test

import (
	"errors"
	"fmt"
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
	assert.NoError(t, assert.Err(c.tx.Exec(t.Context(), `SET LOCAL pawl.archive = 'on'`)))
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
			AND c.relname NOT IN ('order_numbering', 'concurrency_keys', 'idempotency_keys', 'webhook_endpoints', 'webhook_deliveries', 'event_batches', 'early_events')
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
	refundsGuard = "23514 refunds_guard"
	askRefund    = `INSERT INTO refunds (order_no, generation, number, currency, amount, restock, request_id)
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
		if err := c.try(askRefund, 1, much, 0); err == nil {
			t.Errorf("%s of 10 was taken", much)
		}
	}
	c.refused(refundsGuard, askRefund, 1, "1", 3) // units of 2
	c.accepted(askRefund, 1, "10", 2)
	c.do(askRefund, 1, "4", 1)
	c.refused("23505 refunds_pkey", askRefund, 1, "1", 0)
	c.refused(refundsGuard, askRefund, 2, "6.01", 0)
	c.refused(refundsGuard, askRefund, 2, "6", 2)
	for _, state := range []string{"pending", "in_doubt", "accepted", "done"} { // all of them count
		c.do(`UPDATE refunds SET state = $1`, state)
		c.refused(refundsGuard, askRefund, 2, "6.01", 0)
	}
	c.refused(refundsGuard, `UPDATE refunds SET amount = 3`)
	c.refused(refundsGuard, `UPDATE refunds SET restock = NULL`)
	c.refused(refundsGuard, `UPDATE refunds SET number = 2`)
	c.refused(refundsGuard, `UPDATE refunds SET request_id = 'b'`)
	c.refused("23505 refunds_request", `INSERT INTO refunds (order_no, generation, number, currency, amount, request_id) SELECT order_no, 0, 2, 'USD', 1, 'id 1' FROM refunds`)
	c.refused(refundsGuard, `INSERT INTO refunds (order_no, generation, number, currency, amount) SELECT order_no, 0, 2, 'USD', 1 FROM refunds`)
	c.do(`UPDATE refunds SET state = 'failed'`)
	c.refused(refundsGuard, `UPDATE refunds SET state = 'done'`)
	c.accepted(askRefund, 2, "10", 1)              // what failed does not count
	c.refused(refundsGuard, askRefund, 2, "10", 2) // but its unit is back
	c.plant("charging", fsm.Charging)
	c.do(`INSERT INTO charges (order_no, generation, currency, amount) SELECT order_no, 0, 'USD', 10 FROM orders WHERE order_id = 'charging'`)
	c.refused(refundsGuard, `INSERT INTO refunds (order_no, generation, number, currency, amount, request_id) SELECT order_no, 0, 1, 'USD', 1, 'a' FROM charges ORDER BY order_no DESC LIMIT 1`)
	c.refused("23514 refund_state", `UPDATE refunds SET state = 'undone'`)
}

func TestOnlyWhatWasSoldIsRefunded(t *testing.T) {
	t.Parallel()
	database := dbtest.New(t)
	for name, statement := range map[string]string{
		"another currency":             `UPDATE charges SET currency = 'EUR'`,
		"an undone charge":             `UPDATE charges SET refunded_at = now()`,
		"no charge":                    `SET LOCAL pawl.archive = 'on'; DELETE FROM charges`,
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
					if err := askAs(t, database, level, n+1); err != nil {
						t.Error(err)
					}
				})
			}
			clients.Wait()
			c := connect(t, database)
			assert.Equal(t, valueOf[string](c, `SELECT count(*) || ' of ' || sum(amount) FROM refunds`), "3 of 9.99")
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
