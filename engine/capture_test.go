package engine_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/govalues/decimal"

	"pawl/engine"
	"pawl/internal/orders"
	"pawl/test/assert"
)

// capturesLater are policies whose charges only authorize.
func capturesLater(t *testing.T, s *shop, name string) string {
	t.Helper()
	s.stripe = strings.HasPrefix(name, "stripe")
	return map[string]string{
		"simulator": "charge: {executor: simulator, url: SIM, capture: later}",
		"http": "charge: {executor: http, url: SIM/charge, undoUrl: SIM/charge/undo, refundUrl: SIM/charge/refund, " +
			"capture: later, captureUrl: SIM/charge/capture, voidUrl: SIM/charge/void}",
		"stripe": strings.Replace(executors(t, s)["stripe"].policy, "}", ", capture: later}", 1),
	}[name]
}

// operate requests a charge operation, of all that is left where the amount is empty. A final capture is said by an id
// that begins so.
func (s *shop) operate(t *testing.T, verb orders.Verb, id, amount string) (orders.Order, error) {
	t.Helper()
	q := engine.Request{Verb: verb, OrderID: s.refunded, Actor: "ann", Reason: "parcel", RequestID: id,
		ChargeOperation: &engine.ChargeOperation{Final: strings.HasPrefix(id, "final")}}
	if amount != "" {
		q.ChargeOperation.Amount = new(decimal.MustParse(amount))
	}
	return s.anyone().Do(t.Context(), q)
}

func (s *shop) operated(t *testing.T, verb orders.Verb, id, amount string) orders.Order {
	t.Helper()
	o, err := s.operate(t, verb, id, amount)
	assert.NoError(t, err, verb, id, amount)
	return o
}

func (s *shop) operationRefused(t *testing.T, code string, verb orders.Verb, amount string) {
	t.Helper()
	before := s.get(t, s.refunded).Seq
	_, err := s.operate(t, verb, "refused", amount)
	var refusal *orders.NotApplicable
	assert.True(t, errors.As(err, &refusal) && refusal.Code == code && s.get(t, s.refunded).Seq == before,
		verb, "of", amount, err, code)
}

// sums are the sums of the order, as its reader sees them: captured, voided and refunded, and what is left of both.
func (s *shop) sums(t *testing.T, want string) {
	t.Helper()
	o := s.get(t, s.refunded)
	sum := orders.Totals(&o)
	assert.Equal(t, fmt.Sprintf("%s captured, %s voided, %s refunded, %s and %s left", sum.Captured, sum.Voided, sum.Refunded,
		orders.Capturable(&o), orders.Refundable(&o)), want)
}

func (s *shop) operationsNow(t *testing.T) string {
	t.Helper()
	return value[string](t, s.Pool, `SELECT coalesce(string_agg(concat_ws(' ', c.kind, c.number, c.state), ', ' ORDER BY c.number), '')
		FROM charge_operations AS c WHERE c.number > 0 AND c.order_no = (SELECT order_no FROM orders WHERE order_id = $1)`, s.refunded)
}

// hurry is untilRefunds for all charge operations, without the pauses between two tries.
func (s *shop) hurry(t *testing.T, want string) {
	t.Helper()
	eventually(t, want, func() bool {
		s.exec(t, `UPDATE charge_operations SET due_at = now() WHERE due_at > now() AND code IS NOT NULL
			AND NOT EXISTS (SELECT FROM step_calls AS c WHERE c.order_no = charge_operations.order_no AND c.finished_at IS NULL)`)
		return s.operationsNow(t) == want
	})
}

// provided is what the simulator has captured and voided of the order.
func (s *shop) provided(t *testing.T, want string) {
	t.Helper()
	got := ""
	for _, e := range s.sim.Books(s.refunded) {
		if e.Step == "charge" {
			got += fmt.Sprintf("%s of %s captured, %s voided", e.Captured.Pad(2), e.Amount, e.Voided.Pad(2))
		}
	}
	assert.Equal(t, got, want, "the provider has")
}

// TestCaptures captures an authorization in parts with every executor that can, refunds some of it, and voids the rest.
func TestCaptures(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"simulator", "http", "stripe"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := openShop(t, 2, quick)
			s.sold(t, capturesLater(t, s, name))
			s.sums(t, "0.00 captured, 0.00 voided, 0.00 refunded, 99.99 and 0.00 left")
			s.refundRefused(t, orders.RefusedRefundTooLarge, "1", 0)
			s.operationRefused(t, orders.RefusedCaptureTooLarge, orders.Capture, "100")
			s.refundsAre(t, s.operated(t, orders.Capture, "first", "40"), "1 done 40")
			s.refundsAre(t, s.operated(t, orders.Capture, "first", "40"), "1 done 40") // it comes again
			assert.ErrorIs(t, assert.Err(s.operate(t, orders.Void, "first", "")), orders.ErrKeyReused)
			s.refundRefused(t, orders.RefusedRefundTooLarge, "40.01", 0)
			s.asks(t, "back", "15")
			s.operated(t, orders.Capture, "second", "20")
			s.operationRefused(t, orders.RefusedCaptureTooLarge, orders.Capture, "40")
			s.operated(t, orders.Void, "rest", "")
			s.sums(t, "60.00 captured, 39.99 voided, 15.00 refunded, 0.00 and 45.00 left")
			s.operationRefused(t, orders.RefusedCaptureTooLarge, orders.Capture, "1")
			s.operationRefused(t, orders.RefusedCaptureTooLarge, orders.Void, "")
			s.provided(t, "60.00 of 99.99 captured, 39.99 voided")
			s.compare(t)
			s.another(t, "final")
			s.sold(t, capturesLater(t, s, name))
			s.operated(t, orders.Capture, "final", "60")
			s.sums(t, "60.00 captured, 39.99 voided, 0.00 refunded, 0.00 and 60.00 left")
			s.provided(t, "60.00 of 99.99 captured, 39.99 voided")
			s.another(t, "all")
			s.sold(t, capturesLater(t, s, name))
			s.operated(t, orders.Capture, "all", "")
			s.sums(t, "99.99 captured, 0.00 voided, 0.00 refunded, 0.00 and 99.99 left")
			s.another(t, "none")
			s.sold(t, capturesLater(t, s, name))
			s.operated(t, orders.Void, "none", "")
			s.sums(t, "0.00 captured, 99.99 voided, 0.00 refunded, 0.00 and 0.00 left")
			s.compare(t)
			s.settled(t)
		})
	}
}

// What is taken at once can't be captured or voided.
func TestNoCapture(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"ledger", "simulator", "stripe, captured on confirm"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := openShop(t, 1, quick)
			s.sold(t, executors(t, s)[name].policy)
			s.operationRefused(t, orders.RefusedState, orders.Capture, "1")
			s.operationRefused(t, orders.RefusedState, orders.Void, "")
		})
	}
}

// What goes wrong with one capture or void: it is done once, or refused for good.
func TestCaptureFaults(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"simulator", "http", "stripe"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := openShop(t, 1, quick)
			policy := strings.Replace(capturesLater(t, s, name), "url: SIM", "timeout: 500ms, url: SIM", 1)
			void := "void"
			if s.stripe {
				void = "cancel"
			}
			for _, rule := range []string{"timeout-after1", "timeout-before1", "error-after1", "error1:503", "cut-after1",
				"not-done1", "rate-limit1", "refuse-connection1", "decline1", "slow1:1s"} {
				t.Run(rule, func(t *testing.T) {
					defer s.faults(t)
					s.another(t, rule)
					s.sold(t, policy)
					s.faults(t, rule+"@charge/capture", rule+"@charge/"+void)
					q := engine.Request{Verb: orders.Capture, OrderID: rule, RequestID: "a", Async: true,
						ChargeOperation: &engine.ChargeOperation{Amount: new(decimal.MustParse("40"))}}
					s.do(t, q)
					done := map[bool]string{true: "done", false: "failed"}[rule != "decline1"]
					s.hurry(t, "capture 1 "+done)
					q.Verb, q.RequestID, q.ChargeOperation = orders.Void, "b", &engine.ChargeOperation{}
					s.do(t, q)
					if s.stripe && rule == "decline1" { // an intent that is not canceled can be canceled later
						return
					}
					s.hurry(t, "capture 1 "+done+", void 2 "+done)
					s.faults(t)
					if rule == "decline1" {
						s.operated(t, orders.Capture, "c", "")
						s.provided(t, "99.99 of 99.99 captured, 0.00 voided")
						return
					}
					s.provided(t, "40.00 of 99.99 captured, 59.99 voided")
				})
			}
			if s.stripe { // settle what is left
				s.hurry(t, "capture 1 done, void 2 done")
			}
			s.compare(t)
		})
	}
}

// A hundred callers ask two replicas at once for captures, voids and refunds: never more is taken than was authorized,
// nor given back than was captured.
func TestCapturesOfManyCallers(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"simulator", "stripe"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := openShop(t, 2, quick)
			s.sold(t, capturesLater(t, s, name))
			s.operated(t, orders.Capture, "before", "10")
			var callers sync.WaitGroup
			var done atomic.Int32
			for n := range 100 {
				callers.Go(func() {
					verb, amount := orders.Capture, "10"
					switch {
					case n%3 == 1:
						verb = orders.Refund
					case n%10 == 9:
						verb, amount = orders.Void, ""
					}
					err := orders.ErrUnavailable
					for errors.Is(err, orders.ErrUnavailable) {
						_, err = s.operate(t, verb, fmt.Sprint(n), amount)
					}
					if _, refused := errors.AsType[*orders.NotApplicable](err); err != nil && !refused {
						t.Error(err)
					} else if err == nil {
						done.Add(1)
					}
				})
			}
			callers.Wait()
			s.hurry(t, strings.NewReplacer("pending", "done", "in_doubt", "done").Replace(s.operationsNow(t)))
			within := value[bool](t, s.Pool, `SELECT sum(amount + coalesce(voided, 0)) FILTER (WHERE kind <> 'refund') <= 99.99
				AND sum(amount) FILTER (WHERE kind = 'refund') <= sum(amount) FILTER (WHERE kind = 'capture') FROM charge_operations WHERE state <> 'failed'`)
			if !within || done.Load() == 0 {
				t.Errorf("%d done: %s", done.Load(), s.operationsNow(t))
			}
			s.compare(t)
		})
	}
}

// An authorization that is about to end is told of; when it should have ended, the provider is asked.
func TestAuthorizationEnds(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"simulator", "stripe"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := openShop(t, 2, quick)
			s.sold(t, capturesLater(t, s, name))
			s.operated(t, orders.Capture, "a", "40")
			o := s.get(t, "o")
			assert.True(t, o.CaptureBy != nil && o.CaptureBy.Sub(*o.ChargedAt).Hours() == 168, "captured by", o.CaptureBy)
			verbs := func() string {
				return value[string](t, s.Pool, `SELECT coalesce(string_agg(verb, ' ' ORDER BY seq), '') FROM books.transitions WHERE verb ^@ 'void' OR verb = 'capture_due'`)
			}
			s.exec(t, `UPDATE charges SET capture_by = now() + interval '20 hours', capture_due_at = now()`)
			eventually(t, "warned", func() bool { return verbs() == "capture_due" })
			w, err := s.engine.Orders.Waiting(t.Context(), s.engine.Backlog())
			assert.True(t, err == nil && w.Authorizations == 1, w.Authorizations, "authorizations end", err)
			s.exec(t, `UPDATE charges SET capture_by = now(), capture_due_at = now()`)
			s.hurry(t, "capture 1 done, void 2 failed") // it has not ended
			s.sums(t, "40.00 captured, 0.00 voided, 0.00 refunded, 59.99 and 40.00 left")
			s.operated(t, orders.Capture, "b", "10")
			assert.True(t, value[bool](t, s.Pool, `SELECT capture_due_at > now() + interval '23 hours' FROM charges`),
				"it is not asked again")
			end := func() {
				t.Helper()
				if s.stripe {
					intent := value[string](t, s.Pool, `SELECT reference FROM charges ORDER BY order_no DESC LIMIT 1`)
					assert.NoError(t, s.sim.Happen(intent, "expire", ""))
				} else {
					assert.NoError(t, s.sim.Expire(s.refunded))
				}
			}
			end()
			s.operated(t, orders.Capture, "late", "1") // refused by the provider, which is asked at once what is left
			s.hurry(t, "capture 1 done, void 2 failed, capture 3 done, capture 4 failed, void 5 done")
			s.sums(t, "50.00 captured, 49.99 voided, 0.00 refunded, 0.00 and 50.00 left")
			assert.Equal(t, verbs(), "capture_due void void_failed void void_done")
			s.another(t, "final")
			s.sold(t, capturesLater(t, s, name))
			end()
			s.operated(t, orders.Capture, "final", "60")
			s.hurry(t, "capture 1 failed, void 2 done")
			s.another(t, "void")
			s.sold(t, capturesLater(t, s, name))
			end()
			s.operated(t, orders.Void, "rest", "") // refused, but nothing is left, as was asked for
			s.hurry(t, "void 1 done")
			s.sums(t, "0.00 captured, 99.99 voided, 0.00 refunded, 0.00 and 0.00 left")
			assert.True(t, strings.Contains(string(s.get(t, "void").ChargeOperationList), `"authorization_expired"`), "the provider's words are kept")
			s.compare(t)
			s.settled(t)
		})
	}
}

// An authorization that was undone has no end: a redrive authorizes anew.
func TestUndoneAuthorizationDoesNotEnd(t *testing.T) {
	t.Parallel()
	s := openShop(t, 1, quick)
	s.use(t, capturesLater(t, s, "simulator")+"\nreserve: {executor: simulator, url: SIM}")
	s.faults(t, "decline@reserve")
	isNow(t, s.process(t, paid("o")), "failed")
	s.faults(t)
	s.do(t, engine.Request{Verb: orders.Retry, OrderID: "o", Actor: "ann", Reason: "again"})
	s.until(t, "o", "completed")
	assert.Equal(t, value[string](t, s.Pool, `SELECT string_agg(generation || ' ' || (capture_due_at IS NOT NULL), ', ' ORDER BY generation) FROM charges`), "0 false, 1 true")
	s.settled(t)
}
