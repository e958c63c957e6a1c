package engine_test

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/govalues/decimal"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"pawl/engine"
	"pawl/fsm"
	"pawl/internal/orders"
	"pawl/internal/pg"
	"pawl/internal/policy"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

func TestMain(m *testing.M) { dbtest.Main(m) }

// patience is how long a test waits for what must come about. It is no measure of speed: a machine that is busy with
// other things must not fail a test.
const patience = time.Minute

var eventually = assert.Eventually

// bundle is a database of the test's own with an engine at work on it. Its SQL helpers use a pool that is not the
// engine's.
type bundle struct {
	*dbtest.Database
	engine *engine.Engine
}

// setup makes a bundle with the defaults.
func setup(t testing.TB) *bundle {
	t.Helper()
	return setupWith(t, engine.Config{})
}

// setupWith makes a bundle whose engine was told something.
func setupWith(t testing.TB, cfg engine.Config) *bundle {
	t.Helper()
	database := dbtest.New(t)
	return &bundle{Database: database, engine: startEngine(t, database.URL, cfg)}
}

// replica starts one more engine on the same database.
func (b *bundle) replica(t testing.TB, cfg engine.Config) *engine.Engine {
	t.Helper()
	return startEngine(t, b.URL, cfg)
}

// startEngine starts an engine with a pool of its own, and stops both after the test.
func startEngine(t testing.TB, url string, cfg engine.Config) *engine.Engine {
	t.Helper()
	return startOn(t, openPool(t, url), cfg)
}

// startOn starts an engine on a pool, and stops the engine after the test.
func startOn(t testing.TB, pool *pg.Pool, cfg engine.Config) *engine.Engine {
	t.Helper()
	cfg.Bounds = policy.Bounds{SecretsDir: os.TempDir(), AllowPrivate: true} // providers are on this machine
	e := engine.New(pool, cfg)
	e.Start()
	t.Cleanup(func() { stop(t, e) })
	return e
}

// openPool opens a pool as the service does, and closes it after the test. It has as few connections as the service takes:
// each is a process that reads the catalogs and plans every statement for itself, which is most of what these tests cost.
// And it is more patient: on a machine that stands still for a moment, no statement is given up. See setupWatchful.
func openPool(t testing.TB, url string) *pg.Pool {
	t.Helper()
	return dbtest.Open(t, url, pg.Options{MaxConns: 4, Patience: 5 * time.Second})
}

// stop ends an engine whatever is left in it.
func stop(t testing.TB, e *engine.Engine) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
	defer cancel()
	assert.Succeeds(t, e.Stop(ctx), "stop engine")
}

// request asks for one widget at 99.99.
func request(orderID string) engine.Input {
	return engine.Input{OrderID: orderID, Amount: decimal.MustParse("99.99"), Item: "widget"}
}

// insist asks again while the answer is that there is too much to do: on a busy machine that is one that anybody may get.
func insist(call func() (orders.Order, error)) (order orders.Order, err error) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); ; <-tick.C {
		order, err = call()
		if !errors.Is(err, orders.ErrOverloaded) || time.Now().After(end) {
			return order, err
		}
	}
}

// process takes an order to its end.
func (b *bundle) process(t testing.TB, in engine.Input) orders.Order {
	t.Helper()
	order, err := insist(func() (orders.Order, error) { return deref(b.engine.Process(t.Context(), in)) })
	assert.NoError(t, err, "process", in.OrderID)
	return order
}

// setStock gives an item stock, which tracks it from then on.
func (b *bundle) setStock(t testing.TB, item string, onHand int64) {
	t.Helper()
	assert.NoError(t, assert.Err(setStock(t.Context(), b.engine, item, onHand)), "set stock of", item)
}

// setStock sets the stock as somebody who counts again when some was sold meanwhile.
func setStock(ctx context.Context, e *engine.Engine, item string, onHand int64) (orders.Stock, error) {
	for {
		seen, err := e.Orders.StockOf(ctx, item)
		if err != nil && !errors.Is(err, orders.ErrNotFound) {
			return seen, err
		}
		set, err := e.ChangeStock(ctx, setTo(item, onHand, seen.Version))
		if !errors.Is(err, orders.ErrPrecondition) {
			return set, err
		}
	}
}

// setTo asks for the stock of an item that is at a version.
func setTo(item string, onHand, version int64) engine.StockChange {
	return engine.StockChange{Item: item, Kind: engine.StockSet, Units: onHand, IfVersion: &version}
}

// overdue has the deadline of an order be over. A deadline that is set beforehand may be over before the order is where
// the test wants it.
func (b *bundle) overdue(t testing.TB, orderID string) {
	t.Helper()
	b.exec(t, `UPDATE orders SET complete_by = now() WHERE order_id = $1`, orderID)
}

// exec runs a statement behind the engine's back.
func (b *bundle) exec(t testing.TB, sql string, args ...any) {
	t.Helper()
	assert.NoError(t, assert.Err(b.Pool.Exec(t.Context(), sql, args...)), sql)
}

// value reads the one value that a query answers with.
func value[T any](t testing.TB, pool *pgxpool.Pool, sql string, args ...any) (v T) {
	t.Helper()
	assert.NoError(t, pool.QueryRow(t.Context(), sql, args...).Scan(&v), sql)
	return v
}

// column reads the values of a query with one column.
func column[T any](t testing.TB, pool *pgxpool.Pool, sql string, args ...any) []T {
	t.Helper()
	rows, err := pool.Query(t.Context(), sql, args...)
	assert.NoError(t, err, sql)
	values, err := pgx.CollectRows(rows, pgx.RowTo[T])
	assert.NoError(t, err, sql)
	return values
}

// answer is what a caller was told.
type answer struct {
	orderID string
	order   orders.Order
	err     error
}

// ask sends every request from a goroutine of its own. The answers come in their own order; all goroutines have ended
// when the test has.
func ask(t testing.TB, e *engine.Engine, inputs ...engine.Input) <-chan answer {
	t.Helper()
	answers := make(chan answer, len(inputs))
	var wg sync.WaitGroup
	for _, in := range inputs {
		wg.Go(func() {
			order, err := insist(func() (orders.Order, error) { return deref(e.Process(t.Context(), in)) })
			answers <- answer{in.OrderID, order, err}
		})
	}
	t.Cleanup(wg.Wait)
	return answers
}

// requests makes n requests whose ids begin with a prefix.
func requests(prefix string, n int) []engine.Input {
	inputs := make([]engine.Input, n)
	for i := range inputs {
		inputs[i] = request(fmt.Sprintf("%s %03d", prefix, i))
	}
	return inputs
}

// completes waits for n answers and fails the test for every one that is not a completed order, in the database, too.
func (b *bundle) completes(t testing.TB, answers <-chan answer, n int) {
	t.Helper()
	var orderIDs []string
	for range n {
		a := <-answers
		orderIDs = append(orderIDs, a.orderID)
		o := a.order
		if a.err != nil {
			t.Errorf("%s: %v", a.orderID, a.err)
		} else if o.OrderID != a.orderID || o.Status != "completed" {
			t.Errorf("%s: told that %q is %s (held: %s)", a.orderID, o.OrderID, o.Status, text(o.HoldReason))
		}
	}
	stored := value[int](t, b.Pool, `SELECT count(*) FROM books.orders AS o WHERE o.order_id = ANY($1) AND o.status = 'completed'`, orderIDs)
	assert.Equal(t, stored, n, "told that orders are completed, and are")
}

// text is what a pointer points at.
func text(s *string) string {
	if s == nil {
		return "none"
	}
	return *s
}

// gather sends the requests as one set, and keeps the statement of that name that moves it in the wire until release
// is called. It returns when the statement is there.
func (b *bundle) gather(t testing.TB, p *proxy, statement string, inputs ...engine.Input) (answers <-chan answer, release func()) {
	t.Helper()
	decoy := request("decoy")
	b.process(t, decoy) // a known order goes no further than admission
	atAdmission, admit := p.stall(t, named("OrdersAdmit"))
	ask(t, b.engine, decoy)
	eventually(t, "the line at the admission is held up", func() bool { return atAdmission.Load() == 1 })
	answers = ask(t, b.engine, inputs...)
	eventually(t, "all requests stand in it", func() bool { return b.engine.Admitting() == len(inputs) })
	atStatement, release := p.stall(t, named(statement))
	admit()
	eventually(t, "the set is on its way", func() bool { return atStatement.Load() == 1 })
	return answers, release
}

// withItem makes the requests ask for another item.
func withItem(item string, inputs []engine.Input) []engine.Input {
	inputs = slices.Clone(inputs)
	for i := range inputs {
		inputs[i].Item = item
	}
	return inputs
}

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
    (SELECT count(*) FROM books.refunds AS r WHERE r.order_id = o.order_id AND r.amount = o.amount AND r.refund = 0) AS refunds,
    (SELECT count(*) FROM moves AS m WHERE m.order_id = o.order_id AND m.to_status = 'confirming') AS reserving,
    (SELECT count(DISTINCT r.generation) FROM books.reservations AS r WHERE r.order_id = o.order_id
      AND (r.item = o.item AND r.quantity = o.quantity OR o.lines IS NOT NULL)) AS reservations,
    (SELECT count(*) FROM moves AS m WHERE m.order_id = o.order_id AND m.from_status = 'releasing') AS releasing,
    (SELECT count(DISTINCT r.generation) FROM books.reservations AS r WHERE r.order_id = o.order_id AND r.state = 'released') AS released
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

// metric reads a metric with these values of its labels, in the order of the labels' names; of a histogram, how often
// something was observed. -1: there is none.
func metric(t testing.TB, registry *prometheus.Registry, name, labels string) float64 {
	t.Helper()
	families, err := registry.Gather()
	assert.NoError(t, err)
	for _, family := range families {
		for _, m := range family.Metric {
			if family.GetName() == name && valuesOf(m) == labels {
				return m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return -1
}

func valuesOf(m *dto.Metric) string {
	var values []string
	for _, label := range m.Label {
		values = append(values, label.GetValue())
	}
	return strings.Join(values, " ")
}

// tokenOf is the callback token of the charge of an order, once it was called for.
func (s *shop) tokenOf(t testing.TB, orderID string) string {
	t.Helper()
	eventually(t, "the charge was called for", func() bool {
		return value[int](t, s.Pool, `SELECT count(*) FROM books.step_calls WHERE order_id = $1`, orderID) > 0
	})
	no := value[int64](t, s.Pool, `SELECT order_no FROM orders WHERE order_id = $1`, orderID)
	secret := value[[]byte](t, s.Pool, `SELECT callback_secret FROM installation`)
	id := sha256.Sum256([]byte(orderID))
	f := binary.BigEndian.AppendUint64(id[:8:8], uint64(no))
	f = append(f, 0, 0, 0, 0, 0)
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte("callback"))
	mac.Write(f)
	return strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(append(f, mac.Sum(nil)[:16]...)))
}

// answers reports whether a query answers with a value, whenever it is asked.
func (b *bundle) answers(t testing.TB, want any, sql string, args ...any) func() bool {
	t.Helper()
	return func() bool {
		t.Helper()
		return fmt.Sprint(value[any](t, b.Pool, sql, args...)) == fmt.Sprint(want)
	}
}

// reaches waits until an order has a status.
func reaches(t testing.TB, pool *pgxpool.Pool, orderID, want string) {
	t.Helper()
	eventually(t, orderID+" is "+want, func() bool { return status(t, pool, orderID) == want })
}

// counts fails the test unless a query answers with a value.
func (b *bundle) counts(t testing.TB, want any, sql string, args ...any) {
	t.Helper()
	got := value[any](t, b.Pool, sql, args...)
	assert.Equal(t, fmt.Sprint(got), fmt.Sprint(want), sql)
}

// isNow checks the status of an order.
func isNow(t testing.TB, o orders.Order, want fsm.State) {
	t.Helper()
	assert.Equal(t, o.Status, want, brief(o))
}

// admit stores an order and does not wait for it.
func (b *bundle) admit(t testing.TB, in engine.Input) orders.Order {
	t.Helper()
	order, err := insist(func() (orders.Order, error) { return deref(b.engine.Admit(t.Context(), in)) })
	assert.NoError(t, err, "admit", in.OrderID)
	return order
}

// deref returns the order that a call returned, or an empty one with its error.
func deref(order *orders.Order, err error) (orders.Order, error) {
	if order == nil {
		return orders.Order{}, err
	}
	return *order, err
}
