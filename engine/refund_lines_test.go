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
	"pawl/fsm"
	"pawl/internal/orders"
	"pawl/test/assert"
)

func priced(item, kind string, quantity int32, amount string) orders.Line {
	return orders.Line{Item: item, Kind: kind, Quantity: quantity, Amount: new(decimal.MustParse(amount))}
}

// soldBasket has a basket of three teas, a cup, shipping and a discount completed.
func (s *shop) soldBasket(t *testing.T, policy string) {
	t.Helper()
	s.use(t, policy)
	s.setStock(t, "tea", 10)
	s.setStock(t, "cup", 10)
	in := basket(s.refunded, priced("tea", "", 3, "85.00"), priced("cup", "", 1, "12.00"),
		priced("by air", orders.LineShipping, 1, "4.99"), priced("WELCOME", orders.LineDiscount, 1, "-2.00"))
	in.PaymentMethod = "pm_card_visa"
	isNow(t, s.process(t, in), fsm.Completed)
}

func refundOf(id string, lines ...orders.LinePart) engine.Request {
	return engine.Request{Verb: orders.Refund, OrderID: "o", Actor: "ann", Reason: "broken", RequestID: id, ChargeOperation: &engine.ChargeOperation{Lines: lines}}
}

// TestRefundByLine refunds a basket line by line with every executor, until nothing is left of it.
func TestRefundByLine(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"ledger", "simulator", "http", "stripe"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := openShop(t, 2, quick)
			s.stripe = name == "stripe"
			s.soldBasket(t, executors(t, s)[name].policy)
			refused := func(code string, lines ...orders.LinePart) {
				t.Helper()
				_, err := s.anyone().Do(t.Context(), refundOf("refused", lines...))
				refusal, _ := errors.AsType[*orders.NotApplicable](err)
				assert.True(t, refusal != nil && refusal.Code == code, lines, err, code)
			}
			refunds := func(want string, q engine.Request) {
				t.Helper()
				for range 2 { // it comes again
					s.refundsAre(t, s.do(t, q), want)
				}
			}
			refused(orders.RefusedRefundTooLarge, orders.LinePart{Line: 1, Quantity: 4})
			refused(orders.RefusedRefundTooLarge, orders.LinePart{Line: 1, Quantity: 2}, orders.LinePart{Line: 1, Quantity: 2})
			refused(orders.RefusedRefundTooLarge, orders.LinePart{Line: 5, Quantity: 1})
			refused(orders.RefusedRefundTooLarge, orders.LinePart{Line: 4, Quantity: 1}) // less than nothing
			refused(orders.RefusedRestockTooLarge, orders.LinePart{Line: 3, Quantity: 1, Restock: true})
			refunds("1 done 28.33", refundOf("a", orders.LinePart{Line: 1, Quantity: 1, Restock: true}))
			refunds("1 done 28.33, 2 done 40.34", refundOf("b", orders.LinePart{Line: 1, Quantity: 1}, orders.LinePart{Line: 2, Quantity: 1, Restock: true}))
			refused(orders.RefusedRefundTooLarge, orders.LinePart{Line: 2, Quantity: 1})
			kind := refundOf("c", orders.LinePart{Line: 3, Quantity: 1})
			kind.ChargeOperation.Amount = new(decimal.MustParse("1.50"))
			refunds("1 done 28.33, 2 done 40.34, 3 done 1.50", kind)
			other := refundOf("a", orders.LinePart{Line: 1, Quantity: 1})
			assert.ErrorIs(t, assert.Err(s.engine.Do(t.Context(), other)), orders.ErrKeyReused)
			part := func(line int, amount string) orders.LinePart {
				return orders.LinePart{Line: line, Amount: new(decimal.MustParse(amount))}
			}
			refused(orders.RefusedRefundTooLarge, orders.LinePart{Line: 1, Quantity: 1}, part(4, "2.01"))
			refused(orders.RefusedRefundTooLarge, orders.LinePart{Line: 1, Quantity: 1}, part(3, "1"), orders.LinePart{Line: 3, Quantity: 1})
			refused(orders.RefusedRefundTooLarge, part(1, "1"))
			refunds("1 done 28.33, 2 done 40.34, 3 done 1.50, 4 done 27.58",
				refundOf("d", orders.LinePart{Line: 1, Quantity: 1, Restock: true}, part(4, "0.75")))
			refused(orders.RefusedRefundTooLarge, part(4, "1.25")) // less than nothing
			s.stock(t, "tea", orders.Stock{Item: "tea", OnHand: 9, Sold: 3, Tracked: true, Version: 4})
			s.stock(t, "cup", orders.Stock{Item: "cup", OnHand: 10, Sold: 1, Tracked: true, Version: 3})
			lines := value[string](t, s.Pool, `SELECT string_agg(lines::text, ' ' ORDER BY refund) FROM books.refunds WHERE refund > 1`)
			assert.Equal(t, lines, `[{"line":1,"item":"tea","quantity":1,"amount":"28.34"},{"line":2,"item":"cup","quantity":1,"amount":"12.00","restock":true}] `+
				`[{"line":3,"item":"by air","quantity":1,"amount":"4.99","kind":"shipping"}] `+
				`[{"line":1,"item":"tea","quantity":1,"amount":"28.33","restock":true},{"line":4,"item":"WELCOME","quantity":0,"amount":"-0.75","kind":"discount"}]`)
			if name == "simulator" || name == "http" {
				s.compare(t)
				sent := 0
				for _, e := range s.sim.Books("o") {
					sent += len(e.RefundLines)
				}
				assert.Equal(t, sent, 6, "lines of refunds at the provider")
			}
			s.verifies(t)
			proveBooks(t, s.Pool)
		})
	}
}

// TestUnitsOfAFailedRefund can be refunded again, but not put back again.
func TestUnitsOfAFailedRefund(t *testing.T) {
	t.Parallel()
	s := openShop(t, 1, quick)
	s.soldBasket(t, "charge: {executor: simulator, url: SIM}")
	s.faults(t, "decline:no_funds@charge/refund")
	all := orders.LinePart{Line: 1, Quantity: 3, Restock: true}
	air := orders.LinePart{Line: 3, Amount: new(decimal.MustParse("1"))}
	s.refundsAre(t, s.do(t, refundOf("a", all, air)), "1 failed 86.00")
	s.faults(t)
	_, err := s.engine.Do(t.Context(), refundOf("b", all))
	refusal, _ := errors.AsType[*orders.NotApplicable](err)
	assert.True(t, refusal != nil && refusal.Code == orders.RefusedRestockTooLarge, err)
	all.Restock = false
	air = orders.LinePart{Line: 3, Quantity: 1}
	s.refundsAre(t, s.do(t, refundOf("b", all, air)), "1 failed 86.00, 2 done 89.99")
	s.stock(t, "tea", orders.Stock{Item: "tea", OnHand: 10, Sold: 3, Tracked: true, Version: 3})
	s.verifies(t)
}

// TestManyRefundALine has a hundred callers refund one of twenty units at the same time, at two replicas: twenty get
// it.
func TestManyRefundALine(t *testing.T) {
	t.Parallel()
	b := setup(t)
	other := b.replica(t, engine.Config{})
	b.setStock(t, "tea", 20)
	isNow(t, b.process(t, basket("o", priced("tea", "", 20, "99.99"), priced("cup", "", 1, "0.00"))), fsm.Completed)
	var all sync.WaitGroup
	var done atomic.Int32
	for n := range 100 {
		all.Go(func() {
			e := []*engine.Engine{b.engine, other}[n%2]
			err := orders.ErrUnavailable
			for errors.Is(err, orders.ErrUnavailable) { // the others were faster, twelve times
				_, err = e.Do(t.Context(), refundOf(fmt.Sprint(n), orders.LinePart{Line: 1, Quantity: 1, Restock: true}))
			}
			if refusal, ok := errors.AsType[*orders.NotApplicable](err); err == nil {
				done.Add(1)
			} else if !ok || !strings.HasSuffix(refusal.Code, "too_large") {
				t.Error(err)
			}
		})
	}
	all.Wait()
	assert.Equal(t, done.Load(), 20, "refunds")
	b.counts(t, "20 of 99.99", `SELECT count(*) || ' of ' || sum(amount) FROM books.refunds`)
	b.stock(t, "tea", orders.Stock{Item: "tea", OnHand: 20, Sold: 20, Tracked: true, Version: 22})
	b.verifies(t)
	proveBooks(t, b.Pool)
}
