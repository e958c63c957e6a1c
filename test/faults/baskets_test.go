package faults

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"pawl/test/assert"
	"pawl/test/dbtest"
)

// TestScarceBaskets has many callers fill baskets with 1 to 8 of 20 scarce items, in any order, at two replicas, while
// replicas are killed, and PostgreSQL ends connections. Nothing comes back, so a refused basket must want more of an
// item than is left in the end: otherwise it was refused although it fitted.
func TestScarceBaskets(t *testing.T) {
	build(t)
	t.Parallel()
	callers, orders, kills := 64, 600, 3
	if repeated() {
		callers, orders, kills = 2000, 8000, 4*rounds(t, 1)
	}
	database := dbtest.New(t)
	r := startReplicas(t, 2, database.URL, hasty...)
	for n := range scarceItems {
		stockUp(t, r.addresses()[0], scarceItem(n), orders/5)
	}
	f := &traffic{url: r.any, callers: callers, seed: seed(t), cuts: true, order: baskets}
	f.start(t)
	for i := range kills {
		f.flows(orders / (kills + 1))
		spared(t, database.URL)
		r.all[i%2].kill()
		cutConnections(t, database)
		r.replace(i % 2)
	}
	f.flows(orders / (kills + 1))
	f.finish()
	settle(t, database.URL, patience)
	t.Logf("%d callers: %s; %d killed, %d orders taken over", callers, f.seen(), kills, takeOvers(t, database.URL))
	prove(t, database.URL, f)
	for n := range scarceItems {
		proveStock(t, database.URL, scarceItem(n), int64(orders/5))
	}
	assert.Equal(t, count(t, database.URL, `SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()`), 0, "deadlocks")
	assert.Equal(t, query[string](t, database.URL, refusedThatFit), nil, "refused, and there is enough of all their items")
	for _, status := range []string{"completed", "failed"} {
		assert.True(t, count(t, database.URL, `SELECT count(*) FROM books.orders WHERE status = $1`, status) != 0,
			"no basket has", status)
	}
}

const refusedThatFit = `
SELECT o.order_id FROM pawl.orders AS o WHERE o.status = 'failed' AND NOT EXISTS (
  SELECT FROM pawl.items_of(o.item, o.quantity, o.lines) AS w JOIN pawl.inventory AS i ON i.item = w.name WHERE w.units > i.on_hand)`

const scarceItems = 20

func scarceItem(n int) string { return fmt.Sprintf("scarce-%d", n) }

// baskets are orders of 1 to 8 items. Some of one item have no lines.
func baskets(n int, random *rand.Rand) order {
	o := order{id: fmt.Sprintf("basket-%d", n), amount: fmt.Sprintf("%d.%02d", random.IntN(500), 1+random.IntN(99))}
	items := random.Perm(scarceItems)[:1+random.IntN(8)]
	if len(items) == 1 && n%2 == 0 {
		o.item = scarceItem(items[0])
		return o
	}
	type line struct {
		Item     string `json:"item"`
		Quantity int    `json:"quantity"`
	}
	var lines []line
	for _, item := range items {
		lines = append(lines, line{scarceItem(item), 1 + random.IntN(3)})
	}
	if len(lines) == 1 {
		lines = append(lines, line{lines[0].Item, 1}) // twice the same
	}
	var text strings.Builder
	_ = json.NewEncoder(&text).Encode(lines) // our own type
	o.lines = text.String()
	return o
}

// cutConnections has PostgreSQL end every third connection of the service.
func cutConnections(t *testing.T, database *dbtest.Database) {
	t.Helper()
	_, err := database.Pool.Exec(t.Context(), `SELECT pg_terminate_backend(a.pid) FROM pg_stat_activity AS a
		WHERE a.datname = current_database() AND a.pid <> pg_backend_pid() AND a.pid % 3 = 0 AND a.query ~ 'pawl'`)
	assert.NoError(t, err)
}
