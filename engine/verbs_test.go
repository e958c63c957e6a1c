package engine_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"pawl/engine"
	"pawl/fsm"
	"pawl/internal/books"
	"pawl/internal/orders"
	"pawl/internal/simulator"
)

// impatient is a policy whose steps come to a person after their first try. Calls may take so long.
func (p *simulated) impatient(timeout time.Duration) string {
	text := ""
	for _, step := range []string{"charge", "reserve", "confirm"} {
		text += fmt.Sprintf(`
%s:
  executor: simulator
  url: %s
  timeout: %s
  retry: {initial: 1ms, cap: 5ms, maxRetries: 0, budget: 0s}
`, step, p.url, timeout)
	}
	return text
}

func (p *simulated) fail(t testing.TB, rules ...simulator.Rule) {
	t.Helper()
	if err := p.SetFaults(rules...); err != nil {
		t.Fatal(err)
	}
}

// stuck is a bundle whose order is held for a person, because of what the provider does.
func stuck(t testing.TB, rules ...simulator.Rule) (*bundle, *simulated) {
	t.Helper()
	var faults []simulator.Fault
	for _, rule := range rules {
		faults = append(faults, rule.Fault)
	}
	b, p := impatient(t, faults...)
	p.fail(t, rules...)
	b.sticks(t, "order")
	return b, p
}

// impatient is a bundle whose steps come to a person after their first try, with a provider that will have these faults.
func impatient(t testing.TB, faults ...simulator.Fault) (*bundle, *simulated) {
	t.Helper()
	p, timeout := newProvider(t), time.Minute
	if slices.Contains(faults, simulator.TimeoutAfter) {
		timeout = 2 * time.Second // it is waited for
	}
	return remote(t, quick, p.impatient(timeout)), p
}

// sticks has an order held for a person.
func (b *bundle) sticks(t testing.TB, orderID string) {
	t.Helper()
	if o := b.process(t, request(orderID)); text(o.Hold) != "attention" {
		t.Fatalf("%s, held %s", o.Status, text(o.Hold))
	}
}

func asked(verb orders.Verb) engine.Request {
	return engine.Request{Verb: verb, OrderID: "order", Actor: "ann", Reason: "a test"}
}

const allStands, noneStands = "charge 1 reserve 1 confirm 1", "charge 0 reserve 0 confirm 0"

// ends checks how the order ended, here and at the provider.
func (b *bundle) ends(t testing.TB, o orders.Order, p *simulated, want fsm.State) {
	t.Helper()
	stands := noneStands
	if want == fsm.Completed {
		stands = allStands
	}
	if o.Status != want || p.standing(o.OrderID) != stands {
		t.Errorf("%s, held %s (%s); at the provider %s", o.Status, text(o.Hold), text(o.HoldReason), p.standing(o.OrderID))
	}
	if sum := p.Summary(); !sum.OK() {
		t.Errorf("something happened twice: %+v", sum)
	}
	b.verified(t)
}

// verified proves the books, over all generations.
func (b *bundle) verified(t testing.TB) {
	t.Helper()
	b.settled(t)
	report, err := books.Verify(t.Context(), b.Pool, books.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, check := range report.Checks {
		if check.Violations > 0 {
			t.Errorf("%s: %+v", check.Name, check)
		}
	}
}

func TestConfirmInDoubt(t *testing.T) {
	t.Parallel()
	b, p := stuck(t, simulator.Rule{Fault: simulator.Error, Step: "confirm"})
	b.refused(t, asked(orders.Cancel), orders.RefusedConfirmInDoubt)
	o, err := b.engine.Orders.Get(t.Context(), "order")
	if allowed := orders.AllowedActions(&o); err != nil || !slices.Equal(allowed, []string{"retry", "step-result"}) {
		t.Errorf("%v, allowed %q", err, allowed)
	}
	p.fail(t)
	b.ends(t, b.do(t, asked(orders.Retry)), p, fsm.Completed)
}

func TestRequestIDs(t *testing.T) {
	t.Parallel()
	b := setupWith(t, byCallers)
	b.hold(t, fsm.Reserving, "order")
	q := asked(orders.Resume)
	q.RequestID = "r"
	b.do(t, q)
	q.Verb = orders.Cancel
	b.writesNothing(t, func() {
		if _, err := b.engine.Do(t.Context(), q); !errors.Is(err, orders.ErrKeyReused) {
			t.Error(err)
		}
	})
}

// A verb whose answer is lost was done or not, and the caller is told which.
func TestVerbsWithoutTheirAnswer(t *testing.T) {
	t.Parallel()
	for _, f := range []fate{loseRequest, loseReply, loseClient} {
		t.Run(fmt.Sprint(f), func(t *testing.T) {
			t.Parallel()
			b, p := setupBehind(t, byCallers)
			b.hold(t, fsm.Reserving, "order")
			p.cut(3, 3, f) // after the read of the order
			order, err := b.engine.Do(t.Context(), asked(orders.Resume))
			p.On(nil)
			for errors.Is(err, orders.ErrUnavailable) {
				order, err = b.engine.Do(t.Context(), asked(orders.Resume))
				var done *orders.NotApplicable
				if errors.As(err, &done) {
					order, err = b.engine.Process(t.Context(), request("order"))
				}
			}
			if err != nil || order.Status != fsm.Completed {
				t.Errorf("%v %s", err, order.Status)
			}
			b.verified(t)
		})
	}
}

// Callers whose verb waits for a locked row give its connection back soon: others are
// served.
func TestVerbsOnLockedRows(t *testing.T) {
	t.Parallel()
	b := setup(t)
	newGhost(b.Pool).admit(t, time.Minute, "locked")
	b.setStock(t, "shelf", 5)
	tx, err := b.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(t.Context()))
	if _, err := tx.Exec(t.Context(), `SELECT 1 FROM orders, inventory FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	var callers sync.WaitGroup
	for range 20 {
		callers.Go(func() {
			if _, err := b.engine.Do(t.Context(), engine.Request{Verb: orders.Cancel, OrderID: "locked"}); !errors.Is(err, orders.ErrUnavailable) {
				t.Errorf("cancel of a locked order: %v", err)
			}
		})
		callers.Go(func() {
			if _, err := setStock(t.Context(), b.engine, "shelf", 6); !errors.Is(err, orders.ErrUnavailable) {
				t.Errorf("stock of a locked item: %v", err)
			}
		})
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience) // the locks are there until the callers have left
	defer cancel()
	if o, err := b.engine.Process(ctx, request("free")); err != nil || o.Status != fsm.Completed {
		t.Errorf("another order meanwhile: %v %s", err, o.Status)
	}
	callers.Wait()
}
