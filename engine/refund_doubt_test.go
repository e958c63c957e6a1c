package engine_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/govalues/decimal"

	"pawl/engine"
	"pawl/internal/orders"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

// A statement of a refund, or its answer, is lost: whoever asks again with the same id is told what came of it, the money
// is back once, and so are the units.
func TestRefundsWithoutTheirAnswer(t *testing.T) {
	t.Parallel()
	for charge, statements := range map[string][]string{
		"{}": {"RefundAsk"},
		"charge: {executor: simulator, url: SIM}": {"RefundAsk", "RefundsClaim", "RefundBegin", "RefundFinish"},
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
	if !lost.Load() {
		t.Error("nothing was lost")
	}
	s.refundsAre(t, s.get(t, s.refunded), "1 done 40")
	s.stock(t, "widget", orders.Stock{Item: "widget", OnHand: 9, Sold: before.Sold + 3, Tracked: true, Version: before.Version + 2})
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
		o, err := s.engine.Do(t.Context(), engine.Request{Verb: orders.Refund, OrderID: s.refunded, Actor: "ann", Reason: "broken", RequestID: "a", Async: true,
			Refund: &engine.Refund{Amount: new(decimal.MustParse("40")), Restock: 2}})
		if err != nil && !errors.Is(err, orders.ErrUnavailable) {
			t.Fatal(err)
		}
		s.exec(t, `UPDATE refunds SET due_at = now() WHERE state <> 'done'`)
		return err == nil && len(orders.Refunds(&o)) == 1 && orders.Refunds(&o)[0].Settled()
	})
}

// A request is still on its way when the look-up says that the key was not seen, and those that follow are turned away. The first one
// arrives; a day later the provider has forgotten the key. To send it again would give the money back twice.
func TestRefundNotSeenIsStillInDoubt(t *testing.T) {
	t.Parallel()
	var sent atomic.Int32
	bank := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == http.MethodGet:
			w.WriteHeader(http.StatusNotFound)
		case sent.Add(1) == 1:
			w.WriteHeader(http.StatusServiceUnavailable) // a gateway gives up on it
		default:
			w.WriteHeader(http.StatusTooManyRequests)
		}
	}))
	t.Cleanup(bank.Close)
	s := openShop(t, 1, quick)
	s.sold(t, fmt.Sprintf("charge: {executor: http, url: SIM/charge, undoUrl: SIM/charge/undo, refundUrl: %q, lookupUrl: %q}", bank.URL, bank.URL))
	s.refundAsync(t)
	s.untilRefunds(t, "1 in_doubt")
	s.exec(t, `UPDATE refunds SET due_at = now()`)
	eventually(t, "sent again", func() bool { return sent.Load() == 2 })
	eventually(t, "answered", s.answers(t, true, `SELECT coalesce(code = 'too_many_requests', false) FROM refunds`))
	s.untilRefunds(t, "1 in_doubt")
	if age := value[time.Duration](t, s.Pool, `SELECT r.sent_at - (SELECT min(started_at) FROM step_calls WHERE operation = 'refund') FROM refunds r`); age > 0 {
		t.Errorf("the age of the key counts from %s after it was sent", age)
	}
	for _, state := range []string{orders.RefundInDoubt, orders.RefundPending} { // the second: the replica died before it sent it again
		s.exec(t, `UPDATE refunds SET sent_at = now() - interval '1 day', due_at = now(), code = NULL, state = $1`, state)
		eventually(t, "nobody knows", s.answers(t, true, `SELECT coalesce(code = 'outcome_unknown', false) FROM refunds`))
		s.untilRefunds(t, "1 in_doubt")
	}
	assert.Equal(t, sent.Load(), 2, "sent times")
}
