package faults

import (
	"fmt"
	"net/http"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"pawl/internal/books"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

// row is an order as the books have it.
type row struct {
	OrderID      string
	Status       string
	Amount       string
	Item         string
	Charges      int64 // of its amount and currency
	Refunds      int64
	Reservations int64
	Released     int64
	Transitions  int64
	Redone       int64 // the most often any move between two states is in its history, less one
}

const readBooks = `
SELECT o.order_id, o.status, o.amount::text, coalesce(o.item, ''),
  (SELECT count(*) FROM books.charges AS c WHERE c.order_id = o.order_id AND c.amount = o.amount AND c.currency = o.currency),
  (SELECT count(*) FROM books.refunds AS r WHERE r.order_id = o.order_id AND r.amount = o.amount),
  (SELECT count(*) FROM books.reservations AS v WHERE v.order_id = o.order_id AND v.line = 1 AND (v.item = o.item OR o.lines IS NOT NULL)),
  (SELECT count(*) FROM books.reservations AS v WHERE v.order_id = o.order_id AND v.line = 1 AND v.released_at IS NOT NULL),
  (SELECT count(*) FROM books.transitions AS t WHERE t.order_id = o.order_id),
  (SELECT count(*) - count(DISTINCT (t.from_status, t.to_status)) FROM books.transitions AS t
   WHERE t.order_id = o.order_id AND t.from_status IS DISTINCT FROM t.to_status)
FROM books.orders AS o`

// wrong says what is wrong with an order that has ended, for itself.
func (r row) wrong() string {
	switch {
	case r.Redone != 0:
		return "made a move twice"
	case r.Status == "completed" && (r.Charges != 1 || r.Refunds != 0 || r.Reservations != 1 || r.Released != 0):
		return "completed without exactly one charge and one reservation"
	case r.Status == "failed" && (r.Charges != 1 || r.Refunds != 1 || r.Reservations != r.Released):
		return "failed without exactly one refund of its charge"
	case r.Status != "completed" && r.Status != "failed":
		return "not ended"
	}
	return ""
}

// readers are the connections that tests look at their databases with, by URL: to make one costs more than most queries.
var readers struct {
	sync.Mutex
	pools map[string]*pgxpool.Pool
}

// reader is a pool on a database, kept until the end of the test that was the first to ask for it.
func reader(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	readers.Lock()
	defer readers.Unlock()
	if pool := readers.pools[url]; pool != nil {
		return pool
	}
	pool, err := pgxpool.New(t.Context(), url)
	assert.NoError(t, err)
	if readers.pools == nil {
		readers.pools = map[string]*pgxpool.Pool{}
	}
	readers.pools[url] = pool
	t.Cleanup(func() {
		readers.Lock()
		delete(readers.pools, url)
		readers.Unlock()
		pool.Close()
	})
	return pool
}

// query reads a column of values from a database. A connection that was killed since the last query is made anew.
func query[T any](t testing.TB, url, sql string, args ...any) []T {
	t.Helper()
	values, err := column[T](t, url, sql, args...)
	if err != nil && t.Context().Err() == nil {
		reader(t, url).Reset()
		values, err = column[T](t, url, sql, args...)
	}
	assert.NoError(t, err)
	return values
}

func column[T any](t testing.TB, url, sql string, args ...any) ([]T, error) {
	t.Helper()
	rows, err := reader(t, url).Query(t.Context(), sql, args...)
	if err != nil {
		return nil, err
	}
	scan := pgx.RowTo[T]
	if of := reflect.TypeFor[T](); of.Kind() == reflect.Struct && of != reflect.TypeFor[time.Time]() {
		scan = pgx.RowToStructByPos[T]
	}
	return pgx.CollectRows(rows, scan)
}

func count(t testing.TB, url, sql string, args ...any) int64 {
	t.Helper()
	return query[int64](t, url, sql, args...)[0]
}

// unfinished counts the orders that have not ended.
func unfinished(t testing.TB, url string) int64 {
	t.Helper()
	return count(t, url, `SELECT count(*) FROM books.orders AS o WHERE o.due_at IS NOT NULL OR o.hold IS NOT NULL`)
}

// settle waits until no order is unfinished, without any caller.
func settle(t testing.TB, url string, limit time.Duration) time.Duration {
	t.Helper()
	return eventually(t, limit, "every stored order has ended", func() bool { return unfinished(t, url) == 0 })
}

// prove compares what callers were told with the books, and proves the books for themselves.
func prove(t testing.TB, url string, traffics ...*traffic) {
	t.Helper()
	verify(t, url)
	stored := map[string]row{}
	for _, r := range query[row](t, url, readBooks) {
		stored[r.OrderID] = r
		assert.Equal(t, r.wrong(), "", r)
	}
	assert.True(t, len(stored) != 0, "the books are empty")
	asked := 0
	for _, f := range traffics {
		for _, s := range f.orders {
			r, found := stored[s.id]
			if found {
				asked++
			}
			if wrong := s.wrong(r, found); wrong != "" {
				t.Errorf("%s: %+v, books %+v", wrong, *s, r)
			}
		}
	}
	assert.True(t, len(traffics) == 0 || asked == len(stored),
		len(stored), "orders are stored", asked, "of them were asked for")
}

// wrong compares what a caller was told with what the books say.
func (s *sent) wrong(r row, found bool) string {
	switch {
	case s.stored && !found:
		return "acknowledged and lost"
	case s.final != "" && s.final != r.Status:
		return "ended otherwise than acknowledged"
	case found && (r.Amount != s.amount || r.Item != s.item):
		return "stored with other terms"
	case !s.stored && !s.cut && !s.refused:
		return "a caller without any answer"
	}
	return ""
}

// verify proves the books as pawl verify does, in this process.
func verify(t testing.TB, url string) {
	t.Helper()
	report, err := books.Verify(t.Context(), reader(t, url), books.Options{})
	assert.True(t, err == nil && report.OK(), "the books are wrong", err, report.Checks)
}

// proveStock compares what was sold with what is gone.
func proveStock(t testing.TB, url, item string, stock int64) {
	t.Helper()
	sold := count(t, url, `SELECT coalesce(sum(r.quantity), 0) FROM books.reservations AS r WHERE r.item = $1 AND r.state = 'sold'`, item)
	left := count(t, url, `SELECT i.on_hand FROM books.inventory AS i WHERE i.item = $1`, item)
	assert.Equal(t, sold+left, stock, "of", item, sold, "were sold and", left, "are left")
}

// takeOvers counts how often an order was taken up after its lease had ended.
func takeOvers(t testing.TB, url string) int64 {
	t.Helper()
	return count(t, url, `SELECT count(*) FROM books.transitions AS t WHERE t.verb = 'take_over'`)
}

// stockUp gives an item its first stock, as an operator does, which may be none.
func stockUp(t testing.TB, url, item string, onHand int) {
	t.Helper()
	c := newClient(1, false)
	a := c.send(t.Context(), request{method: http.MethodPut, url: url + "/api/inventory/" + item,
		body: fmt.Sprintf(`{"onHand":%d,"reason":"delivery","requestId":"delivery"}`, onHand), header: [2]string{"If-None-Match", "*"}})
	assert.True(t, a.err == nil && a.code/100 == 2, "set inventory", a)
}

// sign makes the database note on every row of the history which process wrote it.
func sign(t testing.TB, database *dbtest.Database) {
	t.Helper()
	_, err := database.Pool.Exec(t.Context(),
		`ALTER TABLE transitions ADD COLUMN written_by text NOT NULL DEFAULT current_setting('application_name')`)
	assert.NoError(t, err)
}

// proveFences fails for orders to which another process wrote than the one that had admitted or claimed them last: a write
// that came too late.
func proveFences(t testing.TB, url string) {
	t.Helper()
	for _, id := range query[string](t, url, `
		SELECT o.order_id FROM (
		  SELECT t.order_no, t.written_by, count(*) FILTER (WHERE t.seq = 1 OR t.verb = 'take_over')
		    OVER (PARTITION BY t.order_no ORDER BY t.seq) AS tenure
		  FROM transitions AS t
		) AS x JOIN orders AS o ON o.order_no = x.order_no
		GROUP BY o.order_id, x.tenure HAVING count(DISTINCT x.written_by) > 1`) {
		t.Errorf("order %s: written to by a process whose lease had ended", id)
	}
}
