package migrations_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"pawl/test/assert"
	"pawl/test/dbtest"
)

// bookColumns is what reports of other people rely on: columns may follow, none may change or go.
var bookColumns = map[string]string{
	"orders": "order_id text, status text, amount numeric, currency text, item text, quantity integer, generation integer, " +
		"fence bigint, seq integer, due_at timestamp with time zone, owner uuid, hold text, hold_reason text, " +
		"stop_requested text, outcome text, failure_step text, failure_code text, failure_detail text, metadata jsonb, " +
		"created_at timestamp with time zone, finished_at timestamp with time zone, policy integer, customer_id text, " +
		"calls integer, retries integer, in_doubt_since timestamp with time zone, start_at timestamp with time zone, " +
		"complete_by timestamp with time zone, reserved_until timestamp with time zone, " +
		"approval_until timestamp with time zone, approved_at timestamp with time zone, concurrency_key text, submitted_by text, refunded numeric, kept numeric, lines json, route text",
	"transitions": "order_id text, seq integer, from_status text, to_status text, at timestamp with time zone, fence bigint, " +
		"verb text, actor text, reason text, request_id text, payment_method text, on_behalf_of text",
	"charges": "order_id text, generation integer, amount numeric, currency text, created_at timestamp with time zone, " +
		"refunded_at timestamp with time zone, executor text, reference text, in_doubt boolean, captured_at timestamp with time zone, route text, " +
		"capture text, capture_by timestamp with time zone",
	"captures": "order_id text, generation integer, number integer, kind text, amount numeric, voided numeric, currency text, " +
		"created_at timestamp with time zone, reference text, state text, executor text, reason text, request_id text, claims integer, " +
		"due_at timestamp with time zone, sent_at timestamp with time zone, finished_at timestamp with time zone, code text, detail text",
	"refunds": "order_id text, generation integer, amount numeric, currency text, created_at timestamp with time zone, reference text, " +
		"refund integer, state text, restock integer, executor text, reason text, request_id text, claims integer, " +
		"due_at timestamp with time zone, sent_at timestamp with time zone, finished_at timestamp with time zone, code text, detail text, lines json",
	"reservations": "order_id text, generation integer, item text, quantity integer, state text, " +
		"created_at timestamp with time zone, released_at timestamp with time zone, executor text, reference text, in_doubt boolean, line smallint",
	"disputes": "order_id text, reference text, state text, amount numeric, currency text, reason text, " +
		"at timestamp with time zone, recorded_at timestamp with time zone, charge text",
	"step_calls": "order_id text, step text, generation integer, call integer, operation text, fence bigint, policy integer, " +
		"started_at timestamp with time zone, finished_at timestamp with time zone, outcome text, code text, detail text, " +
		"reference text, fenced boolean, charge_operation integer, route text",
	"late_undos": "order_id text, step text, generation integer, reason text, claims integer, due_at timestamp with time zone, " +
		"created_at timestamp with time zone, finished_at timestamp with time zone, code text, detail text, reference text",
	"forgotten": "placed_on date, currency text, status text, orders bigint, charges bigint, charged numeric, refunded numeric, voided numeric, kept numeric, lost numeric",
	"erasures": "number integer, requested_at timestamp with time zone, finished_at timestamp with time zone, actor text, on_behalf_of text, " +
		"reason text, request_id text, pseudonym text, orders integer, sent jsonb",
	"inventory": "item text, on_hand bigint, reserved bigint, tracked boolean, available bigint, sold bigint, version bigint",
	"stock_movements": "item text, version bigint, kind text, change bigint, on_hand bigint, sold bigint, " +
		"at timestamp with time zone, actor text, reason text, request_id text, on_behalf_of text",
	"event_batches": "first_event_no bigint, last_event_no bigint, epoch integer, at timestamp with time zone",
	"events": "event_no bigint, cursor text, order_id text, stock_item text, seq bigint, at timestamp with time zone, from_status text, to_status text, " +
		"verb text, actor text, on_behalf_of text, reason text, request_id text, change bigint, on_hand bigint, first_event_no bigint",
	"access_log": "at timestamp with time zone, event text, actor text, on_behalf_of text, address inet, operation text, subject text, detail text, times integer",
	"webhook_endpoints": "endpoint_no integer, url text, description text, types text[], state text, disabled_reason text, " +
		"disabled_at timestamp with time zone, failures integer, failing_since timestamp with time zone, paused_until timestamp with time zone, " +
		"event_no bigint, created_at timestamp with time zone, created_by text",
	"webhook_deliveries": "endpoint_no integer, delivery_no bigint, event_no bigint, event_id text, type text, subject text, state text, " +
		"attempts smallint, created_at timestamp with time zone, due_at timestamp with time zone, attempted_at timestamp with time zone, " +
		"finished_at timestamp with time zone, log jsonb",
}

func TestBooks(t *testing.T) {
	t.Parallel()
	c := connect(t, dbtest.New(t))
	for view, want := range bookColumns {
		got := valueOf[string](c, `SELECT string_agg(attname || ' ' || format_type(atttypid, atttypmod), ', ' ORDER BY attnum)
			FROM pg_attribute WHERE attrelid = ('books.' || $1)::regclass AND attnum > 0`, view)
		assert.Equal(t, got, want, "books", view)
	}
	assert.Equal(t, valueOf[int](c, `SELECT count(*) FROM pg_class WHERE relnamespace = 'books'::regnamespace`), len(bookColumns),
		"views")
}

func TestBooksAreReadByOrder(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		orders int
	}{{"on an empty database", 0}, {"among many orders", 20_000}} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c := connect(t, dbtest.New(t))
			c.fill(test.orders)
			for view := range bookColumns {
				key := "order_id = 'order 17'"
				switch view {
				case "access_log", "webhook_endpoints", "forgotten", "erasures": // the first is read by time, by people who look for something that went wrong; the others are short
					continue
				case "inventory", "stock_movements":
					key = "item = 'order 17'"
				case "webhook_deliveries":
					key = "endpoint_no = 17"
				case "events", "event_batches": // a batch of all orders at a time
					key = "first_event_no = 17"
				}
				plan := c.planOf(`SELECT * FROM books.` + view + ` WHERE ` + key)
				assert.True(t, !strings.Contains(plan, "Seq Scan") && strings.Contains(plan, "Index"), "books.", view, plan)
			}
		})
	}
}

// fill makes completed orders with all their rows, and the statistics that go with them.
func (c *client) fill(orders int) {
	c.t.Helper()
	for _, statement := range []string{
		`INSERT INTO orders (order_id, status, due_at, currency, item, amount)
			SELECT 'order ' || n, 'charging', now(), 'USD', 'item ' || n % 50, 10 FROM generate_series(1, $1::integer) AS n`,
		`INSERT INTO transitions (order_no, seq, to_status, fence, position) SELECT order_no, n, 'charging', 1, order_no FROM orders, generate_series(1, 4) AS n WHERE $1 > 0`,
		`INSERT INTO charges (order_no, generation, currency, amount) SELECT order_no, 0, 'USD', 10 FROM orders WHERE $1 > 0`,
		`INSERT INTO charge_operations (order_no, generation, currency, amount) SELECT order_no, 0, 'USD', 10 FROM orders WHERE $1 > 0`,
		`INSERT INTO reservations (order_no, generation, item, quantity) SELECT order_no, 0, item, 1 FROM orders WHERE $1 > 0`,
		`INSERT INTO inventory (item) SELECT 'item ' || n FROM generate_series(1, $1::integer) AS n`,
		`INSERT INTO stock_movements (item, version, kind, change, on_hand, sold, actor, request_id, position)
			SELECT 'item ' || n, 1, 'set', 5, 5, 0, 'local', 'x', n FROM generate_series(1, $1::integer) AS n`,
	} {
		assert.NoError(c.t, assert.Err(c.tx.Exec(c.t.Context(), statement, orders)), statement)
	}
	if orders > 0 {
		if _, err := c.tx.Exec(c.t.Context(), `ANALYZE orders, transitions, charges, charge_operations, reservations, inventory, stock_movements`); err != nil {
			c.t.Fatal(err)
		}
	}
}

func (c *client) planOf(query string) string {
	c.t.Helper()
	rows, err := c.tx.Query(c.t.Context(), `EXPLAIN `+query)
	assert.NoError(c.t, err)
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	assert.NoError(c.t, err)
	return strings.Join(lines, "\n")
}

func TestBooksSayWhatHappened(t *testing.T) {
	t.Parallel()
	c := connect(t, dbtest.New(t))
	c.plant("sold", "completed")
	c.plant("held", "confirming")
	c.plant("released", "failed")
	for _, id := range []string{"sold", "held", "released"} {
		c.do(`INSERT INTO reservations (order_no, generation, item, quantity, released_at)
			SELECT order_no, 0, item, quantity, CASE WHEN order_id = 'released' THEN now() END FROM orders WHERE order_id = $1`, id)
		assert.Equal(t, valueOf[string](c, `SELECT state FROM books.reservations WHERE order_id = $1`, id), id)
	}
	c.do(`INSERT INTO transitions (order_no, seq, to_status, fence, actor) SELECT order_no, 1, 'pending', 0, NULL FROM orders`)
	assert.Equal(t, valueOf[string](c, `SELECT actor FROM books.transitions WHERE order_id = 'sold'`), "system",
		"the service calls itself")
	c.do(`INSERT INTO inventory (item, on_hand, reserved, tracked) VALUES ('tracked', 5, 2, true), ('untracked', 0, 2, false)`)
	left := valueOf[*int64](c, `SELECT available FROM books.inventory WHERE item = 'tracked'`)
	assert.True(t, left != nil && *left == 3, "available", left)
	if left := valueOf[*int64](c, `SELECT available FROM books.inventory WHERE item = 'untracked'`); left != nil {
		t.Errorf("an item that is not tracked has %d left", *left)
	}
}

func TestBooksAreForReadingOnly(t *testing.T) {
	t.Parallel()
	c := connect(t, dbtest.New(t))
	c.plant("written", "charging")
	c.do(`INSERT INTO inventory (item) VALUES ('counted')`)
	c.refused("55000", `UPDATE books.orders SET hold_reason = 'mine' WHERE order_id = 'written'`)
	c.refused("55000", `DELETE FROM books.orders WHERE order_id = 'written'`)
	c.refused("55000", `UPDATE books.inventory SET on_hand = 5 WHERE item = 'counted'`)
	c.refused("55000", `INSERT INTO books.inventory (item, on_hand) VALUES ('new', 5)`)
	c.do(`INSERT INTO stock_movements (item, version, kind, change, on_hand, sold, actor, request_id) VALUES ('counted', 1, 'set', 5, 5, 0, 'local', 'x')`)
	c.refused("55000", `UPDATE books.stock_movements SET change = 4 WHERE item = 'counted'`)
	c.refused("55000", `DELETE FROM books.stock_movements WHERE item = 'counted'`)
}
