package engine_test

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/govalues/decimal"

	"pawl/engine"
	"pawl/internal/orders"
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
	var lost atomic.Bool
	s.proxy.On(func(sent string) fate {
		if sent == statement && !lost.Swap(true) {
			return f
		}
		return passes
	})
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
	if err != nil {
		t.Fatal(err)
	}
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
