package engine_test

import (
	"errors"
	"fmt"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/govalues/decimal"
	"github.com/stripe/stripe-go/v85/webhook"

	"pawl/engine"
	"pawl/fsm"
	"pawl/internal/books"
	"pawl/internal/orders"
	"pawl/internal/provider"
	"pawl/internal/provider/stripe"
	"pawl/internal/simulator"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

// refund asks for a refund of the order, of all that is left where the amount is empty, under a request id.
func (s *shop) refund(t *testing.T, id, amount string, restock int32) (orders.Order, error) {
	t.Helper()
	q := engine.Request{Verb: orders.Refund, OrderID: s.refunded, Actor: "ann", Reason: "broken", RequestID: id, ChargeOperation: &engine.ChargeOperation{Restock: restock}}
	if amount != "" {
		q.ChargeOperation.Amount = new(decimal.MustParse(amount))
	}
	return s.anyone().Do(t.Context(), q)
}

// asks is refund where it is not refused.
func (s *shop) asks(t *testing.T, id, amount string) orders.Order {
	t.Helper()
	o, err := s.refund(t, id, amount, 0)
	assert.NoError(t, err, "refund", id, amount)
	return o
}

func (s *shop) refundRefused(t *testing.T, code, amount string, restock int32) {
	t.Helper()
	before := s.get(t, s.refunded).Seq
	_, err := s.refund(t, "refused", amount, restock)
	var refusal *orders.NotApplicable
	assert.True(t, errors.As(err, &refusal) && refusal.Code == code && s.get(t, s.refunded).Seq == before,
		"refund of", amount, "with", restock, "units", err, code)
}

// refundsAre checks the refunds of an order as its answer has them, in short.
func (s *shop) refundsAre(t *testing.T, o orders.Order, want string) {
	t.Helper()
	var got []string
	for _, r := range orders.ChargeOperations(&o) {
		got = append(got, fmt.Sprintf("%d %s %s", r.Number, r.State, r.Amount))
	}
	assert.Equal(t, strings.Join(got, ", "), want, "refunds", got)
}

// untilRefunds waits for the refunds of the order to be as is said.
func (s *shop) untilRefunds(t *testing.T, want string) {
	t.Helper()
	eventually(t, want, func() bool { return s.refundsNow(t) == want })
}

// hurryRefunds is untilRefunds without the pauses between two tries.
func (s *shop) hurryRefunds(t *testing.T, want string) {
	t.Helper()
	eventually(t, want, func() bool {
		s.exec(t, `UPDATE charge_operations SET due_at = now() WHERE due_at > now() AND code IS NOT NULL
			AND NOT EXISTS (SELECT FROM step_calls AS c WHERE c.order_no = charge_operations.order_no AND c.finished_at IS NULL)`)
		return s.refundsNow(t) == want
	})
}

func (s *shop) refundsNow(t *testing.T) string {
	t.Helper()
	return value[string](t, s.Pool, `SELECT coalesce(string_agg(refund || ' ' || state, ', ' ORDER BY refund), '') FROM books.refunds WHERE refund > 0 AND order_id = $1`, s.refunded)
}

// given is what the simulator has given back of the order, and how often.
func (s *shop) given(t *testing.T, want string) {
	t.Helper()
	effects := 0
	for _, e := range s.sim.Books(s.refunded) {
		if e.Step == "refund" {
			effects += e.Effects
		}
	}
	money, err := s.givenInAll(t).Sub(s.before)
	assert.NoError(t, err)
	assert.Equal(t, fmt.Sprintf("%d of %s", effects, money), want, "the provider has given")
}

// givenInAll is what the simulator has given back of all orders.
func (s *shop) givenInAll(t *testing.T) decimal.Decimal {
	t.Helper()
	if money := s.sim.Summary().Money; len(money) > 0 {
		return decimal.MustParse(money[0].Refunded)
	}
	return decimal.Zero
}

// another has the next order of the shop be that whose refunds are looked at.
func (s *shop) another(t *testing.T, orderID string) {
	t.Helper()
	s.refunded, s.before = orderID, s.givenInAll(t)
}

// sold has the order completed: three units for 99.99.
func (s *shop) sold(t *testing.T, policy string) {
	t.Helper()
	s.use(t, policy)
	in := paid(s.refunded)
	in.Quantity = 3
	isNow(t, s.process(t, in), "completed")
}

// compare compares the books with the simulator's, as verify --provider does.
func (s *shop) compare(t *testing.T) {
	t.Helper()
	installation := uuid.MustParse(value[string](t, s.Pool, `SELECT id::text FROM installation`))
	at := &books.Provider{URLs: []string{s.urls.Replace("SIM")}, Compared: []string{"SIM"}, Key: func(sent books.Sent) (string, string) {
		c := provider.Call{Installation: installation, OrderID: sent.OrderID, Step: sent.Step, Generation: sent.Generation, OperationKind: provider.Operation(sent.OperationKind), OperationID: sent.OperationID}
		if s.stripe {
			return stripe.EffectKey(&c), "SIM"
		}
		return c.LookupKey(), "SIM"
	}}
	report, err := books.Verify(t.Context(), s.Pool, books.Options{Provider: at})
	assert.True(t, err == nil && report.OK(), "compared with the provider", err, report)
}

// TestRefunds refunds an order in two parts with every executor: the answer, the books, the history and the provider
// say so, and nothing more than the charge can be asked for.
func TestRefunds(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"ledger", "simulator", "http", "stripe", "stripe, captured on confirm"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := openShop(t, 2, quick)
			s.stripe = strings.HasPrefix(name, "stripe")
			s.sold(t, executors(t, s)[name].policy)
			s.refundRefused(t, orders.RefusedRefundTooLarge, "100", 0)
			s.refundRefused(t, orders.RefusedRefundTooLarge, "0", 0)
			s.refundRefused(t, orders.RefusedRestockTooLarge, "1", 4)
			s.refundsAre(t, s.asks(t, "first", "12.50"), "1 done 12.50")
			s.refundsAre(t, s.asks(t, "first", "12.50"), "1 done 12.50") // it comes again
			assert.ErrorIs(t, assert.Err(s.refund(t, "first", "12.51", 0)), orders.ErrKeyReused)
			s.refundRefused(t, orders.RefusedRefundTooLarge, "87.50", 0)
			o := s.asks(t, "rest", "")
			s.refundsAre(t, o, "1 done 12.50, 2 done 87.49")
			s.refundRefused(t, orders.RefusedRefundTooLarge, "", 0)
			assert.True(t, o.Status == "completed" && orders.Totals(&o).Refunded.String() == "99.99" && len(orders.AllowedActions(&o)) == 0,
				brief(o), "allowed", orders.AllowedActions(&o))
			if asked := value[string](t, s.Pool, `SELECT string_agg(concat_ws(' ', actor, reason, request_id), ', ' ORDER BY seq) FROM books.transitions WHERE verb = 'refund'`); asked != "ann broken first, ann broken rest" {
				t.Errorf("the history has %q", asked)
			}
			if name != "ledger" {
				s.given(t, "2 of 99.99")
				s.compare(t)
			}
			s.settled(t)
		})
	}
}

// What goes wrong with one request for a refund: it is done once, or refused for good and asked for again as another
// one.
func TestRefundFaults(t *testing.T) {
	t.Parallel()
	for _, executor := range []string{"simulator", "http", "stripe"} {
		t.Run(executor, func(t *testing.T) {
			t.Parallel()
			s := openShop(t, 1, quick)
			s.stripe = executor == "stripe"
			policy := executors(t, s)[executor].policy
			for _, rule := range []string{"timeout-after1", "timeout-before1", "error-after1", "error1:503", "cut-after1",
				"not-done1", "rate-limit1", "refuse-connection1", "decline1", "slow1:1s"} {
				want := "1 done"
				if rule == "decline1" {
					want = "1 failed"
				}
				t.Run(rule, func(t *testing.T) {
					defer s.faults(t) // the next one is not to meet this rule
					s.another(t, rule)
					s.refundsWithFault(t, policy, rule, want)
				})
			}
			s.compare(t)
		})
	}
}

func (s *shop) refundsWithFault(t *testing.T, policy, rule, want string) {
	t.Helper()
	timeout := "1m"
	if strings.HasPrefix(rule, "timeout") || strings.HasPrefix(rule, "slow") {
		timeout = "500ms" // it is waited for
	}
	s.sold(t, strings.Replace(policy, "url: SIM", "timeout: "+timeout+", url: SIM", 1))
	s.faults(t, rule+"@charge/refund")
	s.do(t, engine.Request{Verb: orders.Refund, OrderID: s.refunded, RequestID: "a", Async: true, ChargeOperation: &engine.ChargeOperation{Amount: new(decimal.MustParse("40"))}})
	s.hurryRefunds(t, want)
	s.faults(t)
	s.asks(t, "b", "")
	s.untilRefunds(t, want+", 2 done")
	if want == "1 done" {
		s.given(t, "2 of 99.99")
	} else {
		s.given(t, "1 of 99.99")
	}
}

// Twenty callers ask two replicas at once: for different refunds, as many are done as the charge has room for; for the
// same one, it is done once.
func TestRefundsOfManyCallers(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ same, executor, want, given string }{
		"different, by the ledger":       {"", "ledger", "9 done of 90.00", ""},
		"different, at Stripe":           {"", "stripe", "9 done of 90.00", "9 of 90.00"},
		"the same one, by the ledger":    {"same", "ledger", "1 done of 10.00", ""},
		"the same one, at the simulator": {"same", "simulator", "1 done of 10.00", "1 of 10.00"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := openShop(t, 2, quick)
			s.stripe = c.executor == "stripe"
			s.sold(t, executors(t, s)[c.executor].policy)
			var callers sync.WaitGroup
			var refused atomic.Int32
			for n := range 20 {
				callers.Go(func() {
					id := c.same
					if id == "" {
						id = fmt.Sprint(n)
					}
					_, err := s.refund(t, id, "10.00", 0)
					for errors.Is(err, orders.ErrUnavailable) { // the order was written to all the time: asking again is safe
						_, err = s.refund(t, id, "10.00", 0)
					}
					var refusal *orders.NotApplicable
					switch {
					case errors.As(err, &refusal) && refusal.Code == orders.RefusedRefundTooLarge:
						refused.Add(1)
					case err != nil:
						t.Error(err)
					}
				})
			}
			callers.Wait()
			eventually(t, c.want, func() bool {
				return value[string](t, s.Pool, `SELECT count(*) || ' ' || min(state) || ' of ' || sum(amount) FROM books.refunds`) == c.want
			})
			assert.True(t, c.same != "" || refused.Load() == 11, refused.Load(), "of 20 refused")
			if c.given != "" {
				s.given(t, c.given)
				s.compare(t)
			}
		})
	}
}

// Units come back into stock that is tracked, at once, and never more than were sold from it.
func TestRestock(t *testing.T) {
	t.Parallel()
	s := openShop(t, 1, quick)
	s.setStock(t, "widget", 10)
	s.sold(t, "{}")
	assert.NoError(t, assert.Err(s.refund(t, "a", "1", 2)))
	s.refundRefused(t, orders.RefusedRestockTooLarge, "1", 2)
	s.stock(t, "widget", orders.Stock{Item: "widget", OnHand: 9, Sold: 3, Tracked: true, Version: 3})
	moves, err := s.engine.Orders.StockMovements(t.Context(), "widget", orders.StockSpan{After: 2, Limit: 2})
	assert.True(t, err == nil && len(moves) == 1 && moves[0].Kind == "restock" && moves[0].Change == 2 && moves[0].OnHand == 9 &&
		moves[0].Actor == "ann" && text(moves[0].Reason) == "broken" && moves[0].RequestID == "refund 1 of o", err, moves)
	proveBooks(t, s.Pool)
	elsewhere := openShop(t, 1, quick)
	elsewhere.sold(t, "reserve: {executor: simulator, url: SIM}")
	elsewhere.refundRefused(t, orders.RefusedRestockTooLarge, "1", 1)
}

// Who chooses the request ids of stock changes does not keep units from coming back, nor does what came back stand in
// his way.
func TestRestockAndRequestIDs(t *testing.T) {
	t.Parallel()
	s := openShop(t, 1, quick)
	s.setStock(t, "widget", 10)
	s.sold(t, "{}")
	for i, id := range []string{"refund 1 of o", "refund 2 of o"} {
		if i == 1 {
			assert.NoError(t, assert.Err(s.refund(t, "a", "1", 2)))
			assert.NoError(t, assert.Err(s.refund(t, "b", "1", 1)))
		}
		for range 2 {
			got, err := s.engine.ChangeStock(t.Context(), adjustment("widget", 5, id))
			assert.True(t, err == nil && got.OnHand == []int64{12, 20}[i], id, got, err)
		}
	}
	proveBooks(t, s.Pool)
}

// An order that is not completed has nothing to refund, nor one whose provider has no place for it.
func TestNoChargeOperation(t *testing.T) {
	t.Parallel()
	s := openShop(t, 1, quick)
	s.use(t, "charge: {executor: http, url: SIM/charge, undoUrl: SIM/charge/undo}")
	s.process(t, request("o"))
	s.refundRefused(t, orders.RefusedNoRefundURL, "", 0)
	in := request("later")
	in.StartAt = time.Now().Add(time.Hour)
	s.admit(t, in)
	_, err := s.engine.Do(t.Context(), engine.Request{Verb: orders.Refund, OrderID: "later", RequestID: "x", ChargeOperation: &engine.ChargeOperation{}})
	var refusal *orders.NotApplicable
	assert.True(t, errors.As(err, &refusal) && refusal.Code == orders.RefusedState, err)
}

// openRefunds checks what the metrics show of refunds that are not settled.
func (s *shop) openRefunds(t *testing.T, want int64) {
	t.Helper()
	if w, err := s.engine.Orders.Waiting(t.Context(),
		s.engine.Backlog()); err != nil || w.ChargeOperations != want || (w.OldestChargeOperation > 0) != (want > 0) {
		t.Errorf("%d refunds are open, the oldest for %s: %v", w.ChargeOperations, w.OldestChargeOperation, err)
	}
}

// A provider without look-ups that never answers: nothing is sent once it may have forgotten the key, and a person
// settles it.
func TestRefundIsSettledByAPerson(t *testing.T) {
	t.Parallel()
	for outcome, want := range map[string]string{engine.SettledDone: "1 done", engine.SettledRefused: "1 failed", engine.SettledNotDone: "1 done"} {
		t.Run(outcome, func(t *testing.T) {
			t.Parallel()
			s := openShop(t, 1, quick)
			s.sold(t, strings.ReplaceAll(atEndpoint(", refundUrl: ENDPOINT/charge/refund", "charge"), "timeout: 60s, ", ""))
			s.provider.says("charge/refund: error")
			s.refundAsync(t)
			s.untilRefunds(t, "1 in_doubt")
			comes(true, `SELECT string_agg(reason, '; ' ORDER BY seq) = 'refund 1; refund 1: in_doubt, http_500' FROM transitions WHERE verb LIKE 'refund\_%'`)(t, s)
			s.exec(t, `UPDATE charge_operations SET sent_at = now() - interval '1 day', due_at = now()`)
			comes(true, `SELECT coalesce(code = 'outcome_unknown', false) FROM charge_operations`)(t, s)
			sent := len(s.provider.made("charge/refund"))
			s.exec(t, `UPDATE charge_operations SET due_at = now()`)
			comes(true, `SELECT due_at > now() + interval '5 minutes' FROM charge_operations`)(t, s)
			made(sent, "charge/refund")(t, s)
			s.openRefunds(t, 1)
			v, err := s.engine.Orders.Overview(t.Context(), s.engine.Backlog())
			assert.True(t, err == nil && len(v.Operations) == 1 && v.Operations[0].Unknown && v.Operations[0].Amount == "99.99", v.Operations, err)
			s.provider.says("charge/refund: done")
			q := engine.Request{Verb: orders.StepResult, OrderID: "o", Actor: "ann", Reason: "seen to it", RequestID: "settle",
				Settle: &engine.Settled{Step: "charge", Kind: orders.OperationRefund, ChargeOperation: new(int32(1)), Outcome: outcome}}
			s.exec(t, `UPDATE charge_operations SET calling = true, due_at = now() + interval '1 hour'`) // its answer may still come
			s.bundle.refused(t, q, orders.RefusedBusy)
			s.exec(t, `UPDATE charge_operations SET calling = NULL`)
			for range 2 { // it comes again
				s.do(t, q)
			}
			s.untilRefunds(t, want)
			s.openRefunds(t, 0)
			q.RequestID = "again"
			s.bundle.refused(t, q, orders.RefusedNoChargeOperation)
		})
	}
}

// A refund that failed is tried at once if a person says so, and soon after its provider has done anything else.
func TestRefundsAfterAnOutage(t *testing.T) {
	t.Parallel()
	s := openShop(t, 1, quick)
	s.sold(t, "charge: {executor: simulator, url: SIM, retry: {initial: 5ms, cap: 10ms}, breaker: {failures: 1, open: 50ms}}")
	s.faults(t, "error:500", "not-done@charge/refund")
	s.refundAsync(t)
	retry := engine.Request{Verb: orders.Retry, OrderID: "o", RequestID: "hurry"}
	for tries := range 2 {
		comes(int64(tries+1), `SELECT count(*) FROM step_calls WHERE charge_operation = 1 AND outcome = 'retry'`)(t, s)
		s.exec(t, `UPDATE charge_operations SET due_at = now() + interval '10 minutes'`)
		s.do(t, retry) // the second time it comes again
	}
	s.bundle.refused(t, engine.Request{Verb: orders.Retry, OrderID: "o", ActivePolicy: true}, orders.RefusedPolicySwitch)
	s.admit(t, request("other"))
	s.until(t, "other", "retry")
	s.faults(t)
	s.untilRefunds(t, "1 done")
	comes(1, `SELECT count(*) FROM orders WHERE order_id = 'other' AND status = 'completed'`)(t, s) // or it would move meanwhile
	s.bundle.refused(t, engine.Request{Verb: orders.Retry, OrderID: "o"}, orders.RefusedState)
}

// Side calls of an order that are due at one moment are all made: none is put off because another has taken its number.
func TestSideCallsOfOneOrderAtOnce(t *testing.T) {
	t.Parallel()
	s := openShop(t, 2, quick)
	s.refunded = "order"
	s.use(t, "charge: {executor: simulator, url: SIM, capture: later}\nreserve: {executor: simulator, url: SIM}\nconfirm: {executor: simulator, url: SIM}")
	s.faults(t, "decline1@confirm")
	isNow(t, s.process(t, paid("order")), fsm.Failed)
	s.exec(t, `INSERT INTO late_undos (order_no, generation, step, reason) SELECT order_no, 0, s, 'a test' FROM orders, unnest('{charge,reserve}'::text[]) AS s`)
	comes(2, `SELECT count(*) FROM late_undos WHERE finished_at IS NOT NULL`)(t, s)
	s.faults(t)
	s.ends(t, s.do(t, asked(orders.Retry)), fsm.Completed)
	s.operated(t, orders.Capture, "first", "50")
	s.faults(t, "error:503@charge/refund", "error:503@charge/capture")
	for n := range 8 {
		s.do(t, engine.Request{Verb: []orders.Verb{orders.Refund, orders.Capture}[n%2], OrderID: "order", RequestID: fmt.Sprint(n), Async: true,
			ChargeOperation: &engine.ChargeOperation{Amount: new(decimal.One)}})
	}
	comes(8, `SELECT count(*) FROM charge_operations WHERE code IS NOT NULL AND calling IS NULL`)(t, s)
	s.faults(t)
	s.exec(t, `UPDATE charge_operations SET due_at = now() WHERE code IS NOT NULL`)
	comes(0, `SELECT count(*) FROM charge_operations WHERE state <> 'done'`)(t, s)
	s.counts(t, true, `SELECT sum(claims) = (SELECT count(*) FROM step_calls WHERE call < 0)
		FROM (SELECT claims FROM late_undos UNION ALL SELECT claims FROM charge_operations) AS c`)
}

// refundOfAll asks for all that is left of an order, and waits for nothing.
var refundOfAll = engine.Request{Verb: orders.Refund, OrderID: "o", RequestID: "a", Async: true, ChargeOperation: &engine.ChargeOperation{}}

// refundAsync asks for all that is left, and waits for nothing.
func (s *shop) refundAsync(t *testing.T) {
	t.Helper()
	s.do(t, refundOfAll)
}

// What Stripe has not paid yet is accepted; its events have Pawl ask, also when the bank returns what was done.
func TestRefundThatStripePaysLater(t *testing.T) {
	t.Parallel()
	s := openShop(t, 1, quick)
	s.stripe = true
	s.useStripe(t, &bank{Server: &httptest.Server{URL: s.urls.Replace("SIM")}}, "}")
	in := paid("o")
	in.PaymentMethod = "pm_card_pendingRefund"
	s.process(t, in)
	s.refundAsync(t)
	s.untilRefunds(t, "1 accepted")
	if w, err := s.engine.Orders.Waiting(t.Context(), s.engine.Backlog()); err != nil || w.ChargeOperations != 1 || w.OldestChargeOperation != 0 {
		t.Errorf("%d refunds are open, the oldest for %s, which a bank takes its time with: %v", w.ChargeOperations, w.OldestChargeOperation, err)
	}
	for _, happens := range []struct{ what, state string }{{simulator.RefundPaid, "1 done"}, {simulator.RefundReturned, "1 failed"}} {
		s.exec(t, `UPDATE charge_operations SET due_at = now() + interval '1 hour' WHERE due_at IS NOT NULL`)
		assert.NoError(t, s.sim.Happen(text(s.get(t, "o").ChargeReference), happens.what, ""))
		payload, header := refundEvent(t, s)
		eventually(t, happens.state, func() bool { // it may come while the refund is being asked after
			assert.NoError(t, s.engine.StripeEvent(t.Context(), payload, header))
			return value[string](t, s.Pool, `SELECT refund || ' ' || state FROM books.refunds`) == happens.state
		})
	}
	o := s.get(t, "o")
	assert.Equal(t, orders.AllowedActions(&o), []string{"refund"}, "allowed")
	s.compare(t)
}

// An order is refunded under the policy that it goes by, which may have the refundUrl that the one that charged it
// lacks.
func TestRefundGoesByThePolicyOfTheOrder(t *testing.T) {
	t.Parallel()
	const charge = "charge: {executor: http, url: SIM/charge, undoUrl: SIM/charge/undo"
	s := openShop(t, 1, quick)
	s.use(t, charge+"}\nreserve: {executor: http, url: 'http://127.0.0.1:1/', undoUrl: SIM/reserve/undo}")
	s.admit(t, request("o"))
	eventually(t, "reserving", func() bool { o := s.get(t, "o"); return o.Status == fsm.Reserving && o.Hold != nil })
	s.use(t, charge+", refundUrl: SIM/charge/refund}")
	eventually(t, "retried", func() bool { // it does not apply while the step is tried
		_, err := s.engine.Do(t.Context(), engine.Request{Verb: orders.Retry, OrderID: "o", ActivePolicy: true})
		return err == nil
	})
	s.refundsAre(t, s.asks(t, "a", ""), "1 done 99.99")
	s.given(t, "1 of 99.99")
}

// Of a refund that is done, nobody but its provider tells that the bank has returned it. Pawl asks until it has an
// answer, and takes no event of an order whose policy this process can't run.
func TestRefundThatIsReturnedIsHeardOf(t *testing.T) {
	t.Parallel()
	s := openShop(t, 1, quick)
	s.stripe = true
	b := &bank{Server: &httptest.Server{URL: s.urls.Replace("SIM")}}
	s.useStripe(t, b, "}")
	isNow(t, s.process(t, paid("o")), fsm.Completed)
	s.refundsAre(t, s.asks(t, "a", ""), "1 done 99.99")
	stop(t, s.engine)
	source := value[string](t, s.Pool, `SELECT source FROM policies`)
	write := `UPDATE policies SET source = $1, hash = sha256(convert_to($1, 'UTF8')) WHERE version = 1`
	s.exec(t, `ALTER TABLE policies DISABLE TRIGGER USER`)
	s.exec(t, write, "of: a newer release")
	s.only(s.replica(t, s.cfg))
	s.use(t, source+"\n")
	payload, header := refundEvent(t, s)
	assert.ErrorIs(t, s.engine.StripeEvent(t.Context(), payload, header), orders.ErrUnavailable, "an event that can't be heeded")
	s.exec(t, `UPDATE charge_operations SET due_at = now()`) // another one has heeded it
	eventually(t, "tried", s.answers(t, true, `SELECT coalesce(code = 'policy_unusable', false) FROM charge_operations`))
	assert.True(t, value[bool](t, s.Pool, `SELECT due_at IS NOT NULL FROM charge_operations`), "nobody asks any more")
	assert.NoError(t, s.sim.Happen(text(s.get(t, "o").ChargeReference), simulator.RefundReturned, ""))
	stop(t, s.engine)
	s.exec(t, write, source+" ")
	s.only(s.replica(t, s.cfg))
	s.exec(t, `UPDATE charge_operations SET due_at = now()`)
	s.untilRefunds(t, "1 failed")
}

// refundEvent is an event of refund "a" of order "o", signed.
func refundEvent(t *testing.T, s *shop) (payload []byte, header string) {
	t.Helper()
	payload = fmt.Appendf(nil, `{"object":"event","id":"evt_1","type":"refund.updated","data":{"object":{"object":"refund","id":"re_1","payment_intent":%q,
		"metadata":{"pawl_installation":%q,"pawl_order":"o","pawl_generation":"0","pawl_refund":"a"}}}}`,
		text(s.get(t, "o").ChargeReference), value[string](t, s.Pool, `SELECT id::text FROM installation`))
	return payload, webhook.GenerateTestSignedPayload(&webhook.UnsignedPayload{Payload: payload, Secret: "whsec_of_stripes_hook", Timestamp: time.Now()}).Header
}

// A statement of a refund, or its answer, is lost: whoever asks again with the same id is told what came of it, the
// money is back once, and so are the units.
func TestRefundsWithoutTheirAnswer(t *testing.T) {
	t.Parallel()
	for charge, statements := range map[string][]string{
		"{}": {"ChargeOperationAsk"},
		"charge: {executor: simulator, url: SIM}": {"ChargeOperationAsk", "ChargeOperationsClaim", "ChargeOperationBegin", "ChargeOperationFinish"},
	} {
		t.Run(charge, func(t *testing.T) {
			t.Parallel()
			s := openBehind(t)
			for _, statement := range statements {
				for _, f := range []fate{loseRequest, loseReply, loseClient, dbtest.HushReply} {
					t.Run(fmt.Sprintf("%v of %s", f, statement), func(t *testing.T) {
						s.another(t, fmt.Sprintf("%v of %s", f, statement))
						s.refundsWithLoss(t, charge, statement, f)
					})
				}
			}
			if charge != "{}" {
				s.compare(t)
			}
			proveBooks(t, s.Pool)
		})
	}
}

// refundsWithLoss loses one statement of a refund.
func (s *behind) refundsWithLoss(t *testing.T, charge, statement string, f fate) {
	t.Helper()
	before := s.restocked(t)
	s.sold(t, charge)
	lost := s.proxy.loseOne(statement, f)
	s.refundUntilDone(t)
	s.proxy.On(nil)
	assert.True(t, lost.Load(), "nothing was lost")
	s.refundsAre(t, s.get(t, s.refunded), "1 done 40")
	s.stock(t, "widget", orders.Stock{Item: "widget", OnHand: 9, Sold: before.Sold + 3, Tracked: true,
		Version: before.Version + 2})
	if charge != "{}" {
		s.given(t, "1 of 40.00")
	}
}

// restocked has ten widgets there.
func (s *behind) restocked(t *testing.T) orders.Stock {
	t.Helper()
	stock, err := setStock(t.Context(), s.engine, "widget", 10)
	assert.NoError(t, err)
	return stock
}

// refundUntilDone asks for one refund again and again, and has leases end that nobody keeps, until it is done.
func (s *behind) refundUntilDone(t *testing.T) {
	t.Helper()
	eventually(t, "it is refunded", func() bool {
		o, err := s.engine.Do(t.Context(), engine.Request{Verb: orders.Refund, OrderID: s.refunded, Actor: "ann",
			Reason: "broken", RequestID: "a", Async: true,
			ChargeOperation: &engine.ChargeOperation{Amount: new(decimal.MustParse("40")), Restock: 2}})
		assert.Require(t, err == nil || errors.Is(err, orders.ErrUnavailable), err)
		s.exec(t, `UPDATE charge_operations SET due_at = now() WHERE state <> 'done'`)
		return err == nil && len(orders.ChargeOperations(&o)) == 1 && orders.ChargeOperations(&o)[0].Settled()
	})
}

// A request is still on its way when the look-up says that the key was not seen, and those that follow are turned away.
// The first one arrives; a day later the provider has forgotten the key. To send it again would give the money back
// twice.
func TestRefundNotSeenIsStillInDoubt(t *testing.T) {
	t.Parallel()
	s := openShop(t, 1, quick)
	s.provider.says("charge/refund: error; not done", "charge/lookup: 404") // a gateway gives up on the first
	s.sold(t, "charge: {executor: http, url: SIM/charge, undoUrl: SIM/charge/undo, refundUrl: ENDPOINT/charge/refund, lookupUrl: ENDPOINT/charge/lookup}")
	s.refundAsync(t)
	s.untilRefunds(t, "1 in_doubt")
	s.exec(t, `UPDATE charge_operations SET due_at = now()`)
	eventually(t, "sent again", func() bool { return len(s.provider.made("charge/refund")) == 2 })
	comes(true, `SELECT coalesce(code = 'too_many_requests', false) FROM charge_operations`)(t, s)
	s.untilRefunds(t, "1 in_doubt")
	// The age of the key counts from when it was sent first.
	s.counts(t, true, `SELECT r.sent_at <= (SELECT min(started_at) FROM step_calls WHERE operation = 'refund') FROM charge_operations r`)
	for _, state := range []string{orders.OperationInDoubt,
		orders.OperationPending} { // the second: the replica died before it sent it again
		s.exec(t, `UPDATE charge_operations SET sent_at = now() - interval '1 day', due_at = now(), code = NULL, state = $1`, state)
		comes(true, `SELECT coalesce(code = 'outcome_unknown', false) FROM charge_operations`)(t, s)
		s.untilRefunds(t, "1 in_doubt")
	}
	made(2, "charge/refund")(t, s)
}
