package engine_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"pawl/db"
	"pawl/engine/ledger"
	"pawl/fsm"
	"pawl/internal/orders"
	"pawl/test/assert"
)

// ghost is a replica that does what the test tells it, by the statements of a real one, and otherwise nothing: it
// renews no lease and finishes no order.
type ghost struct {
	query *db.Queries
	owner uuid.UUID
}

func newGhost(pool *pgxpool.Pool) *ghost {
	return &ghost{query: db.New(pool), owner: uuid.New()}
}

// admit stores orders of one widget at 99.99, charging, under a lease of its own.
func (g *ghost) admit(t testing.TB, lease time.Duration, orderIDs ...string) {
	t.Helper()
	assert.NoError(t, assert.Err(g.query.OrdersAdmit(t.Context(), g.admission(lease, orderIDs))), "admit")
}

func (g *ghost) admission(lease time.Duration, orderIDs []string) db.OrdersAdmitParams {
	n := len(orderIDs)
	return db.OrdersAdmitParams{
		OrderIds: orderIDs, Amounts: slices.Repeat([]string{"99.99"}, n), Currencies: slices.Repeat([]string{"USD"}, n),
		Items: slices.Repeat([]string{"widget"}, n), Quantities: slices.Repeat([]int32{1}, n), Metadata: make([]string, n),
		Owner: g.owner, LeaseSeconds: lease.Seconds(),
	}
}

// stored reads orders, in the order of their ids.
func (g *ghost) stored(t testing.TB, orderIDs ...string) []orders.Order {
	t.Helper()
	rows, err := g.query.OrdersByID(t.Context(), db.OrdersByIDParams{OrderIds: orderIDs})
	assert.NoError(t, err, "read orders")
	place := map[string]int{}
	for i, orderID := range orderIDs {
		place[orderID] = i
	}
	orders := make([]orders.Order, len(orderIDs))
	for _, row := range rows {
		orders[place[row.OrderID]] = row
	}
	return orders
}

// move sends the move that leaves the state the orders are expected in, as if they were still what the ghost once saw.
func (g *ghost) move(t testing.TB, seen []orders.Order) []ledger.Moved {
	t.Helper()
	moved, err := g.try(t, seen)
	assert.NoError(t, err, "move out of", seen[0].Status)
	return moved
}

// try is move for moves that may fail.
func (g *ghost) try(t testing.TB, seen []orders.Order) ([]ledger.Moved, error) {
	t.Helper()
	set := ledger.Batch{Expected: seen[0].Status, Fence: seen[0].Fence, Seq: seen[0].Seq}
	for _, order := range seen {
		set.OrderNos = append(set.OrderNos, order.OrderNo)
	}
	return ledger.Moves[set.Expected](t.Context(), g.query, set)
}

// advance moves orders on until they are where they are wanted.
func (g *ghost) advance(t testing.TB, to fsm.State, orderIDs ...string) {
	t.Helper()
	for orders := g.stored(t, orderIDs...); orders[0].Status != to; orders = g.stored(t, orderIDs...) {
		moved := g.move(t, orders)
		assert.Require(t, len(moved) == len(orders), len(moved), "of", len(orders), "orders moved out of", orders[0].Status)
	}
}

// letGo hands orders back, due at once.
func (g *ghost) letGo(t testing.TB, orderIDs ...string) {
	t.Helper()
	var numbers []int64
	for _, order := range g.stored(t, orderIDs...) {
		numbers = append(numbers, order.OrderNo)
	}
	released, err := g.query.LeasesRelease(t.Context(), db.LeasesReleaseParams{OrderNos: numbers, Owner: g.owner})
	assert.True(t, err == nil && len(released) == len(orderIDs), len(released), "of", len(orderIDs), "orders released", err)
}

// claim takes orders over whose lease has ended, with a lease that has ended as well.
func (g *ghost) claim(t testing.TB, orderIDs ...string) {
	t.Helper()
	var numbers []int64
	for _, order := range g.stored(t, orderIDs...) {
		numbers = append(numbers, order.OrderNo)
	}
	claimed, err := g.query.LeasesClaim(t.Context(), db.LeasesClaimParams{OrderNos: numbers, Owner: g.owner})
	assert.True(t, err == nil && len(claimed) == len(orderIDs), len(claimed), "of", len(orderIDs), "orders claimed", err)
}
