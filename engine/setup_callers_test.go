package engine_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"pawl/engine"
	"pawl/internal/orders"
)

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
			order, err := insist(func() (orders.Order, error) { return e.Process(t.Context(), in) })
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
	if stored != n {
		t.Errorf("told that %d orders are completed, and %d are", n, stored)
	}
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
