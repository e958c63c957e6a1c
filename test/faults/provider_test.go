package faults

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	pawl "pawl/client"
	"pawl/internal/simulator"
)

// TestProviderThatBreaksTheContract charges an order after its key was undone, or its payment intent canceled. The service
// can't prevent that; the comparison of the books names the order.
func TestProviderThatBreaksTheContract(t *testing.T) {
	build(t)
	t.Parallel()
	for name, executor := range map[string]string{"the simulator": looking, "Stripe": stripeNow} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := openShop(t, executor, callLimit)
			s.faults(simulator.Rule{Fault: simulator.LateAfterVoid, Step: "charge", Delay: longest, OrderPrefix: "late"})
			s.open(1)
			s.order("good")
			s.order("late")
			s.lateCharge()
		})
	}
}

// lateCharge cancels an order that is charged afterwards.
func (s *shop) lateCharge() {
	s.t.Helper()
	t := s.t
	eventually(t, patience, "the order is canceled", func() bool { return s.ask("cancel", "late") })
	s.settle(3 * patience)
	if o := s.outcomes()["late"]; o.Status != "canceled" {
		t.Fatalf("%s\n%s", o, s.trace("late"))
	}
	eventually(t, patience, "it is charged all the same", func() bool { k := s.books()["late"]; return k != nil && k.live["charge"] == 1 })
	code, said := run(t, "verify", "--database-url", s.database.URL, "--provider", s.url)
	if code != 1 || !strings.Contains(said, `"late": canceled, charge of generation 0: undone here, live at the provider`) {
		t.Errorf("pawl verify --provider ends with %d:\n%s\n%s", code, said, s.trace("late"))
	}
	if strings.Contains(said, `"good"`) {
		t.Errorf("the good order is named:\n%s", said)
	}
	verify(t, s.database.URL) // ours are in order
}

// TestPausedInACall stops a replica in the middle of calls to its provider, lets another one finish the orders, and wakes
// it up: the answers it finds then are too late. They are kept, counted, and move nothing.
func TestPausedInACall(t *testing.T) {
	build(t)
	t.Parallel()
	for round := range rounds(t, 1) {
		t.Run(fmt.Sprint("round ", round), func(t *testing.T) {
			t.Parallel()
			pausedInACall(t)
		})
	}
}

func pausedInACall(t *testing.T) {
	t.Helper()
	const late = `SELECT count(*) FROM books.step_calls AS a WHERE a.order_id = $1 AND a.step = $2 AND a.fence = 1 AND a.fenced`
	s := openShop(t, looking, 10*time.Second)
	steps := []string{"charge", "reserve", "confirm"}
	var rules []simulator.Rule
	for _, step := range steps {
		rules = append(rules, simulator.Rule{Fault: simulator.Slow, Delay: overlong, Times: 1, Step: step, OrderPrefix: "paused-" + step})
	}
	s.faults(rules...)
	sleeps := s.open(1)
	for _, step := range steps {
		s.order("paused-" + step)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for _, step := range steps {
		_, err := s.provider.Await(ctx, func(r simulator.Request) bool { return r.OrderID == "paused-"+step && r.Step == step })
		if err != nil {
			t.Fatal(err)
		}
	}
	sleeps.all[0].signal(syscall.SIGSTOP)
	s.open(1)
	took := s.settle(3 * patience)
	sleeps.all[0].signal(syscall.SIGCONT)
	for _, step := range steps {
		eventually(t, patience, "the late answer is kept", func() bool { return count(t, s.database.URL, late, "paused-"+step, step) == 1 })
		for _, o := range s.provider.Books("paused-" + step) {
			if o.Effects != 1 {
				t.Errorf("%s happened %d times\n%s", o.Step, o.Effects, s.trace(o.OrderID))
			}
		}
	}
	if n := metric(t, sleeps.addresses()[0], "pawl_step_answers_fenced_total"); n != int64(len(steps)) {
		t.Errorf("%d answers were fenced, want %d", n, len(steps))
	}
	for id, o := range s.outcomes() {
		if o.Status != "completed" {
			t.Errorf("order %s: %s\n%s", id, o, s.trace(id))
		}
	}
	s.prove()
	t.Logf("taken over and finished in %s; late answers: %v", took, query[string](t, s.database.URL,
		`SELECT format('%s %s %s', a.order_id, a.outcome, a.code) FROM books.step_calls AS a WHERE a.fenced`))
}

// until waits until an order is as the books are to have it.
func (s *shop) until(id, status, hold string) {
	s.t.Helper()
	eventually(s.t, patience, id+" is "+status+" "+hold, func() bool {
		o := s.outcomes()[id]
		return o.Status == status && o.Hold == hold
	})
}

// proveBoth has the command prove the books, and compare them with the provider's.
func (s *shop) proveBoth(id string) {
	s.t.Helper()
	if code, said := run(s.t, "verify", "--database-url", s.database.URL, "--provider", s.url); code != 0 {
		s.t.Errorf("pawl verify --provider ends with %d:\n%s\n%s", code, said, s.trace(id))
	}
}

// An order is charged in vain, started again, and canceled while the void of its first key is not answered: nothing of a
// second charge is in the books, and the void goes on until it is answered.
func TestStoppedWhileAVoidIsUnanswered(t *testing.T) {
	build(t)
	t.Parallel()
	s := openShop(t, blind, callLimit)
	s.faults(simulator.Rule{Fault: simulator.Decline, Step: "charge"}, simulator.Rule{Fault: simulator.Error, Step: "charge", Operation: "undo"})
	s.open(2)
	s.order("one")
	s.until("one", "failed", "")
	eventually(t, patience, "it is started again", func() bool { return s.ask("retry", "one") })
	s.until("one", "charging", "retry")
	eventually(t, patience, "it is canceled", func() bool { return s.ask("cancel", "one") })
	s.until("one", "canceled", "")
	for _, view := range []string{"charges", "refunds"} {
		if n := count(t, s.database.URL, `SELECT count(*) FROM books.`+view); n != 0 {
			t.Errorf("%d %s of an order that nobody has charged\n%s", n, view, s.trace("one"))
		}
	}
	s.faults()
	eventually(t, patience, "the first key is voided", func() bool {
		return count(t, s.database.URL, `SELECT count(*) FROM books.late_undos AS u WHERE u.step = 'charge' AND u.generation = 0 AND u.finished_at IS NOT NULL`) == 1
	})
	s.proveBoth("one")
}

// An order that its provider certainly did nothing for goes on under a policy whose steps are the ledger's: the provider's
// books lack what was never asked of it, and that is no difference.
func TestTheLedgerAfterAProvider(t *testing.T) {
	build(t)
	t.Parallel()
	s := openShop(t, looking, callLimit)
	s.faults(simulator.Rule{Fault: simulator.NotDone, Step: "charge"})
	s.open(1)
	s.order("one")
	s.until("one", "charging", "retry")
	policy := filepath.Join(t.TempDir(), "ledger.yaml")
	write(t, policy, "charge: {executor: ledger}\nreserve: {executor: ledger}\nconfirm: {executor: ledger}\n")
	newest := s.open(1, "--policy", policy).addresses()[0] // the other one may not have heard yet which policy is active
	eventually(t, patience, "it goes on under the other policy", func() bool {
		_, err := s.api(newest).RetryOrder(t.Context(), "one", &pawl.RetryOrderParams{Prefer: "respond-async"}, pawl.RetryBody{OnBehalfOf: "test", Policy: "active"})
		return err == nil
	})
	s.until("one", "completed", "")
	s.proveBoth("one")
}
