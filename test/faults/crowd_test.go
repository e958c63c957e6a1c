package faults

import (
	"testing"

	"pawl/test/dbtest"
)

// TestCrowd sends every order many times at once, to all replicas.
func TestCrowd(t *testing.T) {
	build(t)
	t.Parallel()
	const orders, crowd = 60, 12
	database := dbtest.New(t)
	r := startReplicas(t, 3, database.URL)
	c := newClient(64, true)
	defer c.close()
	stockUp(t, r.addresses()[0], scarce, orders/4)
	ask := smallOrders("crowd")
	for n := range orders {
		o := ask(n, newRandom(uint64(n)))
		if n%2 == 0 {
			o.item = scarce
		}
		answers := make([]*answer, crowd)
		each(crowd, func(i int) { answers[i] = c.insist(t.Context(), r.addresses()[i%3], o) })
		for _, a := range answers {
			if !a.final() || a.wrong(o) != "" || a.state() != answers[0].state() {
				t.Errorf("order %s: %s, another caller got %s", o.id, a, answers[0])
			}
		}
	}
	prove(t, database.URL)
	proveStock(t, database.URL, scarce, orders/4)
	if n := count(t, database.URL, `SELECT count(*) FROM books.orders`); n != orders {
		t.Errorf("%d orders", n)
	}
}
