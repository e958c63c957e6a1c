package engine_test

import (
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
)

// wrongBooks lists what must not be, whatever happened: an effect twice, an effect without its move or the other way
// round, a history with a gap, stock that is reserved for nobody.
const wrongBooks = `
WITH moves AS NOT MATERIALIZED (
  SELECT t.order_id, t.from_status, t.to_status FROM books.transitions AS t
  WHERE t.from_status IS DISTINCT FROM t.to_status
), counts AS (
  SELECT o.order_id,
    (SELECT count(*) FROM moves AS m WHERE m.order_id = o.order_id AND m.to_status = 'reserving') AS charging,
    (SELECT count(*) FROM books.charges AS c WHERE c.order_id = o.order_id AND c.amount = o.amount AND c.currency = o.currency) AS charges,
    (SELECT count(*) FROM books.charges AS c WHERE c.order_id = o.order_id AND c.refunded_at IS NOT NULL) AS refunded,
    (SELECT count(*) FROM moves AS m WHERE m.order_id = o.order_id AND m.from_status = 'refunding') AS refunding,
    (SELECT count(*) FROM books.refunds AS r WHERE r.order_id = o.order_id AND r.amount = o.amount) AS refunds,
    (SELECT count(*) FROM moves AS m WHERE m.order_id = o.order_id AND m.to_status = 'confirming') AS reserving,
    (SELECT count(*) FROM books.reservations AS r WHERE r.order_id = o.order_id AND r.item = o.item AND r.quantity = o.quantity) AS reservations,
    (SELECT count(*) FROM moves AS m WHERE m.order_id = o.order_id AND m.from_status = 'releasing') AS releasing,
    (SELECT count(*) FROM books.reservations AS r WHERE r.order_id = o.order_id AND r.state = 'released') AS released
  FROM books.orders AS o
), paths AS (
  SELECT t.order_id, t.seq, row_number() OVER w AS place, t.from_status, lag(t.to_status) OVER w AS came_from
  FROM books.transitions AS t WINDOW w AS (PARTITION BY t.order_id ORDER BY t.seq)
)
SELECT c.order_id || ': effects and moves differ: ' || c::text FROM counts AS c
WHERE (c.charging, c.refunding, c.refunding, c.reserving, c.releasing) <> (c.charges, c.refunds, c.refunded, c.reservations, c.released)
UNION ALL
SELECT m.order_id || ': moved to ' || m.to_status || ' ' || count(*) || ' times' FROM moves AS m
GROUP BY m.order_id, m.to_status HAVING count(*) > 1
UNION ALL
SELECT p.order_id || ': history breaks at seq ' || p.seq FROM paths AS p
WHERE p.seq <> p.place OR p.place > 1 AND p.from_status IS DISTINCT FROM p.came_from
UNION ALL
SELECT o.order_id || ': seq and history differ' FROM books.orders AS o
WHERE o.seq <> (SELECT count(*) FROM books.transitions AS t WHERE t.order_id = o.order_id)
UNION ALL
SELECT o.order_id || ': is ' || o.status || ', history says otherwise' FROM books.orders AS o
WHERE o.status <> (SELECT t.to_status FROM books.transitions AS t WHERE t.order_id = o.order_id ORDER BY t.seq DESC LIMIT 1)
UNION ALL
SELECT i.item || ': ' || i.reserved || ' reserved' FROM books.inventory AS i
WHERE i.reserved <> (SELECT coalesce(sum(r.quantity), 0) FROM books.reservations AS r WHERE r.item = i.item AND r.state = 'held' AND r.executor = 'ledger')
UNION ALL
SELECT i.item || ': ' || i.sold || ' sold' FROM books.inventory AS i
WHERE i.sold <> (SELECT coalesce(sum(r.quantity), 0) FROM books.reservations AS r WHERE r.item = i.item AND r.state = 'sold' AND r.executor = 'ledger')
UNION ALL
SELECT i.item || ': ' || i.on_hand || ' on hand' FROM books.inventory AS i
WHERE i.on_hand <> (SELECT coalesce(sum(m.change) - i.sold + min(m.sold), 0) FROM books.stock_movements AS m WHERE m.item = i.item)
LIMIT 20`

// proveBooks fails the test for everything that is wrong in a database.
func proveBooks(t testing.TB, pool *pgxpool.Pool) {
	t.Helper()
	for _, wrong := range column[string](t, pool, wrongBooks) {
		t.Error(wrong)
	}
}

// states reads the way an order took, take-overs and the like left out.
func states(t testing.TB, pool *pgxpool.Pool, orderID string) []string {
	t.Helper()
	return column[string](t, pool, `SELECT t.to_status FROM books.transitions AS t
		WHERE t.order_id = $1 AND t.from_status IS DISTINCT FROM t.to_status ORDER BY t.seq`, orderID)
}

// verbs reads what was done to an order besides moving it.
func verbs(t testing.TB, pool *pgxpool.Pool, orderID string) []string {
	t.Helper()
	return column[string](t, pool, `SELECT coalesce(t.verb, '') FROM books.transitions AS t
		WHERE t.order_id = $1 AND t.from_status = t.to_status ORDER BY t.seq`, orderID)
}

// status reads where an order stands.
func status(t testing.TB, pool *pgxpool.Pool, orderID string) string {
	t.Helper()
	return value[string](t, pool, `SELECT o.status FROM books.orders AS o WHERE o.order_id = $1`, orderID)
}
