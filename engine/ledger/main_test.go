package ledger_test

import (
	"fmt"
	"pawl/test/assert"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"pawl/db"
	"pawl/engine/ledger"
	"pawl/fsm"
	"pawl/test/dbtest"
)

func TestMain(m *testing.M) { dbtest.Main(m) }

// books is a database with nothing but the moves between it and the test: no engine.
type books struct {
	t     *testing.T
	pool  *pgxpool.Pool
	query *db.Queries
	made  int
}

func open(t *testing.T) *books {
	t.Helper()
	database := dbtest.New(t)
	return &books{t: t, pool: database.Pool, query: db.New(database.Pool)}
}

// within is the same ledger seen from inside a transaction, whose end is the caller's.
func (l *books) within(tx pgx.Tx) *books {
	return &books{t: l.t, pool: l.pool, query: l.query.WithTx(tx)}
}

func (l *books) begin() pgx.Tx {
	l.t.Helper()
	tx, err := l.pool.Begin(l.t.Context())
	l.must(err)
	return tx
}

// order admits an order, charging, with fence 1 and seq 1.
func (l *books) order(item string, quantity int32) int64 {
	l.t.Helper()
	l.made++
	rows, err := l.query.OrdersAdmit(l.t.Context(), db.OrdersAdmitParams{
		OrderIds: []string{fmt.Sprintf("order %d", l.made)}, Amounts: []string{"10.50"}, Currencies: []string{"USD"},
		Items: []string{item}, Quantities: []int32{quantity}, Metadata: []string{""}, Owner: uuid.New(), LeaseSeconds: 60,
	})
	l.must(err)
	assert.Require(l.t, len(rows) == 1, len(rows), "orders admitted")
	return rows[0].OrderNo
}

// orders admits orders for one item and takes them to a state.
func (l *books) orders(state fsm.State, item string, quantities ...int32) (orderNos []int64) {
	l.t.Helper()
	for _, quantity := range quantities {
		orderNos = append(orderNos, l.order(item, quantity))
	}
	for _, s := range []fsm.State{fsm.Charging, fsm.Reserving, fsm.Confirming} {
		if s == state {
			break
		}
		l.all(l.set(orderNos...))
	}
	return orderNos
}

// plant brings an order for two widgets into a state. outcome is how it is to end, empty while nothing stops it.
func (l *books) plant(state fsm.State, outcome string) int64 {
	l.t.Helper()
	var no int64
	switch state {
	case fsm.Pending:
		no = l.order("widget", 2)
		l.exec(fmt.Sprintf(`SET LOCAL session_replication_role = replica; DELETE FROM transitions WHERE order_no = %[1]d; DELETE FROM orders WHERE order_no = %[1]d`, no))
		l.exec(`INSERT INTO orders (order_id, status, fence, due_at, owner, currency, item, quantity, amount)
			VALUES ('waits', 'pending', 1, now() + interval '1 minute', gen_random_uuid(), 'USD', 'widget', 2, 10.50)`)
		no = value[int64](l, `SELECT order_no FROM orders WHERE order_id = 'waits'`)
		l.exec(`INSERT INTO transitions (order_no, seq, to_status, fence) VALUES ($1, 1, 'pending', 1)`, no)
	case fsm.Releasing:
		no = l.orders(fsm.Confirming, "widget", 2)[0]
		l.undo(no, outcome)
		return no
	case fsm.Refunding:
		no = l.orders(fsm.Reserving, "widget", 2)[0]
		l.undo(no, outcome)
		return no
	default:
		no = l.orders(state, "widget", 2)[0]
	}
	if outcome != "" {
		l.stop(no)
	}
	return no
}

// undo turns an order back: on request, or as a refusal does.
func (l *books) undo(no int64, outcome string) {
	l.t.Helper()
	l.stop(no)
	l.all(l.set(no))
	if outcome == "failed" {
		l.exec(`UPDATE orders SET outcome = 'failed', failure_step = 'confirm', failure_code = 'refused', stop_requested = NULL
			WHERE order_no = $1`, no)
	}
}

func (l *books) stop(no int64) {
	l.t.Helper()
	seq := value[int32](l, `SELECT seq FROM orders WHERE order_no = $1`, no)
	rows, err := l.query.OrderVerb(l.t.Context(), db.OrderVerbParams{
		OrderNo: no, Seq: seq, StopRequested: new("cancel"), Next: "same", Verb: "cancel"})
	l.must(err)
	assert.Require(l.t, len(rows) == 1, "order", no, "was not stopped")
}

// set expects of all orders what the first one is.
func (l *books) set(orderNos ...int64) ledger.Batch {
	l.t.Helper()
	rows, err := l.query.OrdersByNo(l.t.Context(), db.OrdersByNoParams{OrderNos: orderNos[:1]})
	l.must(err)
	o := rows[0]
	return ledger.Batch{OrderNos: orderNos, Expected: o.Status, Fence: o.Fence, Seq: o.Seq}
}

// move sends the statement of the state the set is expected in.
func (l *books) move(set ledger.Batch) []ledger.Moved {
	l.t.Helper()
	moved, err := ledger.Moves[set.Expected](l.t.Context(), l.query, set)
	l.must(err)
	return moved
}

// all moves a set of which nothing may stay behind.
func (l *books) all(set ledger.Batch) {
	l.t.Helper()
	moved := l.move(set)
	assert.Require(l.t, len(moved) == len(set.OrderNos), len(moved), "of", len(set.OrderNos), "orders left", set.Expected)
}

// stays checks that a statement moved nothing and wrote nothing.
func (l *books) stays(set ledger.Batch) {
	l.t.Helper()
	before := l.snapshot()
	moved := l.move(set)
	assert.True(l.t, len(moved) == 0, set, "moved", moved)
	assert.Equal(l.t, l.snapshot(), before, set)
}

// snapshot is every row with the transaction that wrote it and its place: a write of the same values shows.
func (l *books) snapshot() string {
	l.t.Helper()
	return value[string](l, `SELECT string_agg(line, E'\n' ORDER BY line) FROM (
		SELECT format('orders %s %s %s', o.xmin, o.ctid, o.*) FROM orders AS o
		UNION ALL SELECT format('transitions %s %s %s', t.xmin, t.ctid, t.*) FROM transitions AS t
		UNION ALL SELECT format('charges %s %s %s', c.xmin, c.ctid, c.*) FROM charges AS c
		UNION ALL SELECT format('refunds %s %s %s', r.xmin, r.ctid, r.*) FROM charge_operations AS r
		UNION ALL SELECT format('reservations %s %s %s', v.xmin, v.ctid, v.*) FROM reservations AS v
		UNION ALL SELECT format('inventory %s %s %s', i.xmin, i.ctid, i.*) FROM inventory AS i) AS lines(line)`)
}

func (l *books) exec(statement string, args ...any) {
	l.t.Helper()
	_, err := l.pool.Exec(l.t.Context(), statement, args...)
	l.must(err)
}

func (l *books) must(err error) {
	l.t.Helper()
	assert.NoError(l.t, err)
}

func value[T any](l *books, query string, args ...any) (v T) {
	l.t.Helper()
	assert.NoError(l.t, l.pool.QueryRow(l.t.Context(), query, args...).Scan(&v), query)
	return v
}
