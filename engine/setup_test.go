package engine_test

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/govalues/decimal"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"pawl/engine"
	"pawl/internal/orders"
	"pawl/internal/pg"
	"pawl/internal/policy"
	"pawl/test/dbtest"
)

func TestMain(m *testing.M) { dbtest.Main(m) }

// patience is how long a test waits for what must come about. It is no measure of speed: a machine that is busy with
// other things must not fail a test.
const patience = time.Minute

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
	pool, err := pg.Open(t.Context(), url, pg.Options{MaxConns: 4, Patience: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// stop ends an engine whatever is left in it.
func stop(t testing.TB, e *engine.Engine) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
	defer cancel()
	if err := e.Stop(ctx); err != nil {
		t.Errorf("stop engine: %v", err)
	}
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
	order, err := insist(func() (orders.Order, error) { return b.engine.Process(t.Context(), in) })
	if err != nil {
		t.Fatalf("process %q: %v", in.OrderID, err)
	}
	return order
}

// setStock gives an item stock, which tracks it from then on.
func (b *bundle) setStock(t testing.TB, item string, onHand int64) {
	t.Helper()
	if _, err := setStock(t.Context(), b.engine, item, onHand); err != nil {
		t.Fatalf("set stock of %q: %v", item, err)
	}
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
	if _, err := b.Pool.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// value reads the one value that a query answers with.
func value[T any](t testing.TB, pool *pgxpool.Pool, sql string, args ...any) (v T) {
	t.Helper()
	if err := pool.QueryRow(t.Context(), sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// column reads the values of a query with one column.
func column[T any](t testing.TB, pool *pgxpool.Pool, sql string, args ...any) []T {
	t.Helper()
	rows, err := pool.Query(t.Context(), sql, args...)
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	values, err := pgx.CollectRows(rows, pgx.RowTo[T])
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return values
}

// eventually looks until what is said has come about, at first at once, then less and less often: looking keeps the
// machine from what is waited for.
func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	deadline := time.After(patience)
	for pause := time.Millisecond; !holds(); pause = min(pause*5/4, 50*time.Millisecond) {
		select {
		case <-time.After(pause):
		case <-deadline:
			t.Fatalf("in vain: %s", what)
		}
	}
}
