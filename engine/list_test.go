package engine_test

import (
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/govalues/decimal"
	"pgregory.net/rapid"

	"pawl/engine"
	"pawl/fsm"
	"pawl/internal/orders"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

// populate stores orders in every state there can be, for three items, over four days.
func (b *bundle) populate(t testing.TB) {
	t.Helper()
	b.setStock(t, "none", 0)
	g := newGhost(b.Pool)
	for day := range 4 {
		for _, state := range []fsm.State{fsm.Pending, fsm.Charging, fsm.Reserving, fsm.Confirming} {
			b.hold(t, state, fmt.Sprintf("held %s %d", state, day))
			if state != fsm.Pending {
				driven := fmt.Sprintf("driven %s %d", state, day)
				g.admit(t, time.Minute, driven)
				g.advance(t, state, driven)
			}
			b.hold(t, state, fmt.Sprintf("canceled %s %d", state, day))
			b.cancel(t, engine.Request{OrderID: fmt.Sprintf("canceled %s %d", state, day)})
		}
		for n, item := range []string{"widget", "gadget", "none"} {
			in := request(fmt.Sprintf("%s %d", item, day))
			in.Item, in.CustomerID = item, []string{"", "ann", "ann"}[n]
			b.process(t, in)
		}
		b.undoing(t, g, fmt.Sprintf("%d", day))
		b.exec(t, `ALTER TABLE orders DISABLE TRIGGER orders_guard_input`) // nobody else can
		b.exec(t, `UPDATE orders SET created_at = now() - make_interval(days => $1) WHERE order_id LIKE '%' || $2`, 4-day, fmt.Sprint(day))
	}
}

// undoing leaves an order releasing and one refunding, driven by a replica that does no more.
func (b *bundle) undoing(t testing.TB, g *ghost, suffix string) {
	t.Helper()
	for _, state := range []fsm.State{fsm.Releasing, fsm.Refunding} {
		id := string(state) + " " + suffix
		g.admit(t, time.Minute, id)
		g.advance(t, fsm.Confirming, id)
		b.exec(t, `WITH stopped AS (UPDATE orders SET stop_requested = 'cancel', seq = seq + 1 WHERE order_id = $1 RETURNING *)
			INSERT INTO transitions (order_no, seq, from_status, to_status, fence, verb)
			SELECT order_no, seq, status, status, fence, 'cancel' FROM stopped`, id)
		g.advance(t, state, id)
	}
}

// expected says, in other words than the statements of the service, what a list must show.
func (b *bundle) expected(t testing.TB, f orders.Filter) []string {
	t.Helper()
	to := f.CreatedTo
	if to.IsZero() {
		to = time.Now().AddDate(1, 0, 0)
	}
	ids := column[string](t, b.Pool, `SELECT o.order_id FROM orders AS o
		WHERE (coalesce(cardinality($1::text[]), 0) = 0 OR o.status = ANY($1)) AND ($2 = '' OR o.item = $2) AND o.created_at >= $3 AND o.created_at < $4
		AND ($5 = 0 OR CASE WHEN $8 THEN o.order_no > $5 ELSE o.order_no < $5 END) AND ($6 = '' OR o.customer_id = $6) AND ($7 = '' OR o.hold = $7)
		AND ($9 = '' OR o.failure_step = $9) AND ($10 = '' OR o.failure_code = $10) AND o.amount BETWEEN $11 AND $12
		ORDER BY o.order_no DESC`, f.Statuses, f.Item, f.CreatedFrom, to, f.After, f.CustomerID, f.Hold, f.Oldest,
		f.FailureStep, f.FailureCode, amountOr(f.AmountFrom, "0"), amountOr(f.AmountTo, "1e14"))
	if f.Oldest {
		slices.Reverse(ids)
	}
	return ids[:min(len(ids), int(f.Limit))]
}

func amountOr(amount *decimal.Decimal, otherwise string) string {
	if amount == nil {
		return otherwise
	}
	return amount.String()
}

func (b *bundle) list(t testing.TB, f orders.Filter) (page []orders.Order, ids []string) {
	t.Helper()
	page, _, err := b.engine.Orders.List(t.Context(), f)
	assert.NoError(t, err)
	for _, order := range page {
		ids = append(ids, order.OrderID)
	}
	return page, ids
}

// someStatuses are none, each alone, and pairs that more than one index serves.
func someStatuses() [][]fsm.State {
	of := [][]fsm.State{
		nil, {fsm.Failed, fsm.Canceled}, {fsm.Canceled, fsm.Charging, fsm.Refunding}, {fsm.Pending, fsm.Reserving},
		{fsm.Completed, fsm.Failed}, {fsm.Releasing, fsm.Completed}, fsm.States(),
	}
	for _, status := range fsm.States() {
		of = append(of, []fsm.State{status})
	}
	return of
}

// TestList compares lists with what a slow query finds.
func TestList(t *testing.T) {
	t.Parallel()
	dbtest.SkipIfShort(t)
	b := setupWith(t, byCallers)
	b.populate(t)
	b.exec(t, `ALTER TABLE orders DISABLE TRIGGER USER`)
	b.exec(t, `UPDATE orders SET amount = order_no % 7 + 0.5`)
	for what, lists := range map[string]func(*testing.T){
		"by all filters together": b.listsByAll, "by amount or failure": b.listsByAmountOrFailure,
		"of a customer or a hold": b.listsOfACustomerOrAHold, "show what get shows": b.listsShowWhatGetShows,
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			lists(t)
		})
	}
}

// listsByAll draws the filters at random.
func (b *bundle) listsByAll(t *testing.T) {
	t.Helper()
	middle := value[int64](t, b.Pool, `SELECT max(order_no) / 2 FROM orders`)
	day := func(n int) time.Time { return time.Now().AddDate(0, 0, -n).Add(-time.Hour) }
	windows := [][2]time.Time{{}, {day(3), {}}, {{}, day(2)}, {day(3), day(1)}, {day(1), day(3)}, {day(-1), {}}}
	dbtest.Check(t, func(rt *rapid.T) {
		for range 25 {
			f := rapid.SampledFrom([]orders.Filter{{Limit: 3}, {Limit: 3, Oldest: true}, {Limit: 200}}).Draw(rt, "page")
			f.Statuses = rapid.SampledFrom(someStatuses()).Draw(rt, "statuses")
			f.Item = rapid.SampledFrom([]string{"", "widget", "gadget", "none", "nobody's"}).Draw(rt, "item")
			window := rapid.SampledFrom(windows).Draw(rt, "window")
			f.CreatedFrom, f.CreatedTo = window[0], window[1]
			f.After = rapid.SampledFrom([]int64{0, middle}).Draw(rt, "after")
			if _, ids := b.list(t, f); !slices.Equal(ids, b.expected(t, f)) {
				rt.Errorf("%+v\nis   %q\nwant %q", f, ids, b.expected(t, f))
			}
		}
	})
}

// Filters that no index serves choose among what another one finds, from either end.
func (b *bundle) listsByAmountOrFailure(t *testing.T) {
	t.Helper()
	amount := func(text string) *decimal.Decimal { return new(decimal.MustParse(text)) }
	for _, chosen := range []orders.Filter{
		{AmountFrom: amount("3.5")}, {AmountTo: amount("3.49")}, {AmountFrom: amount("2"), AmountTo: amount("4.5")}, {AmountTo: amount("0")},
		{FailureStep: "reserve"}, {FailureCode: "out_of_stock"}, {FailureStep: "charge"}, {FailureCode: "of_nobody"},
		{FailureStep: "reserve", FailureCode: "out_of_stock", AmountFrom: amount("1")},
	} {
		for _, statuses := range [][]fsm.State{nil, {fsm.Failed}, {fsm.Completed, fsm.Failed}, {fsm.Charging, fsm.Canceled}} {
			for _, by := range []orders.Filter{{}, {Item: "none"}, {CustomerID: "ann"}, {Hold: fsm.HoldPaused}} {
				for _, oldest := range []bool{false, true} {
					f := chosen
					f.Statuses, f.Item, f.CustomerID, f.Hold, f.Oldest, f.Limit = statuses, by.Item, by.CustomerID, by.Hold, oldest, 5
					_, ids := b.list(t, f)
					assert.Equal(t, ids, b.expected(t, f), f)
				}
			}
		}
	}
}

// However many orders there are of which none is meant, one page looks at some of them only, and the next goes on there.
func TestListLooksAtSomeOrders(t *testing.T) {
	t.Parallel()
	dbtest.SkipIfShort(t)
	b := setupWith(t, byCallers)
	b.exec(t, `ALTER TABLE orders DISABLE TRIGGER USER`)
	b.exec(t, `INSERT INTO orders (order_id, currency, item, amount, status, hold, hold_reason)
		SELECT n::text, 'USD', 'widget', CASE WHEN n IN (1, 25000) THEN 500 ELSE 1 END, 'charging', 'attention', 'retry_after: later' FROM generate_series(1, 25000) AS n`)
	for _, f := range []orders.Filter{{}, {Hold: fsm.HoldAttention}, {Oldest: true}, {Hold: fsm.HoldAttention, HoldReason: "retry_after", Oldest: true}, {Statuses: []fsm.State{fsm.Charging}}, {Item: "widget", Oldest: true}} {
		f.AmountFrom, f.Limit = new(decimal.MustParse("100")), 10
		var pages [][]string
		for next := int64(1); next != 0; f.After = next {
			var page []orders.Order
			var err error
			page, next, err = b.engine.Orders.List(t.Context(), f)
			assert.NoError(t, err)
			var ids []string
			for i := range page {
				ids = append(ids, page[i].OrderID)
			}
			pages = append(pages, ids)
		}
		want := [][]string{{"25000"}, nil, {"1"}}
		if f.Oldest {
			slices.Reverse(want)
		}
		assert.True(t, reflect.DeepEqual(pages, want), f, pages)
	}
	page, next, err := b.engine.Orders.List(t.Context(), orders.Filter{Item: "lamp", Limit: 10})
	assert.True(t, len(page) == 0 && next == 0 && err == nil, "among orders for something else", len(page), next, err)
	found, err := b.engine.DoAll(t.Context(), engine.Bulk{
		Request: engine.Request{Verb: orders.Cancel, DryRun: true},
		Filter:  &orders.Filter{AmountFrom: new(decimal.MustParse("100")), Limit: 10},
	})
	assert.True(t, err == nil && len(found) == 2, "in bulk", found, err)
	b.exec(t, `UPDATE orders SET stop_requested = 'cancel', hold = 'retry', hold_reason = NULL, due_at = now() + interval '1 day' WHERE order_no = 1`)
	found, err = b.engine.DoAll(t.Context(), engine.Bulk{Request: engine.Request{Verb: orders.Cancel, DryRun: true}, OrderIDs: []string{"1"}})
	assert.NoError(t, err)
	assert.Contains(t, fmt.Sprint(found[0].Err), "the order is already being canceled")
	// Those that are due first are others than those with the lowest numbers.
	b.exec(t, `UPDATE orders SET hold = 'retry', hold_reason = NULL, due_at = now() + interval '12 hours' - make_interval(secs => order_no)`)
	b.overviewCuts(t, "all wait for a retry", map[string]int64{"retry": orders.CountsMost})
	b.exec(t, `UPDATE orders SET hold = NULL`)
	b.overviewCuts(t, "all are driven by somebody", map[string]int64{})
}

// overviewCuts waits until the overview says how many orders are on hold, and that there may be more unfinished ones of
// every state than it has seen: the orders that it has not looked at may be in any.
func (b *bundle) overviewCuts(t *testing.T, what string, want map[string]int64) {
	t.Helper()
	eventually(t, what, func() bool {
		v, err := b.engine.Orders.Overview(t.Context(), b.engine.Backlog())
		held := map[string]int64{}
		for hold, h := range v.Held {
			if h.Orders > 0 {
				held[hold] = h.Orders
			}
		}
		cut := len(v.Statuses) > 0
		for _, count := range v.Statuses {
			n := int64(0)
			if count.Status == fsm.Charging {
				n = orders.CountsMost
			}
			cut = cut && count.Orders == n && count.More != count.Status.Final()
		}
		return err == nil && cut && maps.Equal(held, want)
	})
}

func (b *bundle) listsOfACustomerOrAHold(t *testing.T) {
	t.Helper()
	for _, statuses := range someStatuses() {
		for _, item := range []string{"", "none"} {
			for _, limit := range []int32{3, 200} {
				for _, f := range []orders.Filter{{CustomerID: "ann"}, {CustomerID: "nobody"}, {Hold: fsm.HoldAttention}, {Hold: fsm.HoldPaused, CustomerID: "ann"}, {Hold: fsm.HoldPaused}} {
					f.Statuses, f.Item, f.Limit = statuses, item, limit
					f.CreatedTo = time.Now().AddDate(0, 0, -1)
					_, ids := b.list(t, f)
					assert.Equal(t, ids, b.expected(t, f), f)
				}
			}
		}
	}
}

func (b *bundle) listsShowWhatGetShows(t *testing.T) {
	t.Helper()
	for _, f := range []orders.Filter{
		{}, {Statuses: []fsm.State{fsm.Completed}}, {Statuses: []fsm.State{fsm.Failed, fsm.Canceled}}, {Statuses: []fsm.State{fsm.Refunding}}, {Item: "widget"},
	} {
		f.Limit = 200
		page, _ := b.list(t, f)
		assert.True(t, len(page) != 0, f, "shows nothing")
		for _, order := range page {
			b.sameAsStored(t, order)
		}
	}
}

// Whoever walks along the cursor sees what was there when he began exactly once, whatever comes meanwhile.
func TestListCursor(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const there = 50
	b.completes(t, ask(t, b.engine, requests("there", there)...), there)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			assert.Succeeds(t, assert.Err(b.engine.Process(t.Context(), request(fmt.Sprintf("meanwhile %d", n)))))
		}
	}()
	for _, f := range []orders.Filter{{Limit: 7}, {Limit: 1, Item: "widget"}, {Limit: 20, Statuses: []fsm.State{fsm.Completed}}, {Limit: 200}} {
		came := value[int](t, b.Pool, `SELECT count(*) FROM orders WHERE status = 'completed'`)
		seen, last := map[string]int{}, int64(0)
		for next := int64(1); next != 0; f.After = next {
			var page []orders.Order
			var err error
			page, next, err = b.engine.Orders.List(t.Context(), f)
			assert.NoError(t, err)
			for _, order := range page {
				no := order.OrderNo
				assert.True(t, last <= 0 || no < last, f, no, "follows", last)
				last = order.OrderNo
				seen[order.OrderID]++
			}
		}
		assert.True(t, len(seen) >= came, f, len(seen), "of", came, "orders")
		for _, in := range requests("there", there) {
			assert.Equal(t, seen[in.OrderID], 1, f, in.OrderID, "seen times")
		}
	}
	close(stop)
	<-stopped
}

func TestTransitions(t *testing.T) {
	t.Parallel()
	b := setupWith(t, byCallers)
	b.hold(t, fsm.Confirming, "order")
	b.cancel(t, engine.Request{OrderID: "order", Actor: "ann", Reason: "why not", RequestID: "7"})
	const want = `1 pending charging 1 - -
2 charging reserving 1 - -
3 reserving confirming 1 - -
4 confirming confirming 1 paused -
5 confirming confirming 2 cancel ann
6 confirming releasing 2 - -
7 releasing refunding 2 - -
8 refunding canceled 2 - -
`
	for limit := int32(1); limit < 12; limit++ {
		var got strings.Builder
		for after := int32(0); ; {
			page, err := b.engine.Orders.Transitions(t.Context(), "order", orders.Span{After: after, Before: math.MaxInt32, Limit: limit})
			assert.NoError(t, err)
			for _, tr := range page {
				dash := func(s *string) string { return strings.Replace(text(s), "none", "-", 1) }
				fmt.Fprintf(&got, "%d %s %s %d %s %s\n", tr.Seq, *tr.FromStatus, tr.ToStatus, tr.Fence, dash(tr.Verb), dash(tr.Actor))
				after = tr.Seq
			}
			if len(page) < int(limit) {
				break
			}
		}
		assert.Equal(t, got.String(), want, limit, "at a time")
	}
	for _, c := range []struct {
		span orders.Span
		want string
	}{
		{orders.Span{Before: math.MaxInt32, Descending: true, Limit: 3}, "876"}, {orders.Span{Before: 3, Descending: true, Limit: 3}, "21"},
		{orders.Span{After: 5, Before: 8, Descending: true, Limit: 3}, "76"}, {orders.Span{After: 5, Before: 7, Limit: 3}, "6"}, {orders.Span{Before: 1, Limit: 3}, ""},
	} {
		page, err := b.engine.Orders.Transitions(t.Context(), "order", c.span)
		var got strings.Builder
		for _, tr := range page {
			fmt.Fprint(&got, tr.Seq)
		}
		assert.True(t, got.String() == c.want && err == nil, c.span, got.String(), err, c.want)
	}
	assert.ErrorIs(t, assert.Err(b.engine.Orders.Transitions(t.Context(), "nobody's", orders.Span{Limit: 10})), orders.ErrNotFound)
	assert.ErrorIs(t, assert.Err(b.engine.Orders.Get(t.Context(), "nobody's")), orders.ErrNotFound)
}

// The time an order bears is that of the beginning of its admission, so it can be some seconds older than that of an
// order with a lower number. No window may lose it for that.
func TestListWindows(t *testing.T) {
	t.Parallel()
	b := setupWith(t, byCallers)
	b.exec(t, `ALTER TABLE orders DISABLE TRIGGER USER`)
	b.exec(t, `INSERT INTO orders (order_id, created_at, currency, item, amount, status, ended_as)
		SELECT n::text, now() - make_interval(secs => 3000 - n + 30 * random()), 'USD', 'item ' || n % 3, 1, s, s
		FROM generate_series(1, 3000) AS n, LATERAL (SELECT (ARRAY['completed', 'failed', 'canceled'])[1 + n % 7 % 3]) AS e(s)
		WHERE n NOT BETWEEN 1000 AND 1500 AND n % 10 <> 0`)
	b.exec(t, `INSERT INTO reservations (order_no, generation, item, quantity) SELECT order_no, 0, item, 1 FROM orders WHERE status = 'completed'`)
	now := time.Now()
	for n := range 60 {
		for i, length := range []time.Duration{time.Second, 40 * time.Second, 700 * time.Second} {
			if !thorough && (n/3+i)%3 != 0 {
				continue
			}
			from := now.Add(-time.Duration(n*60) * time.Second)
			f := orders.Filter{CreatedFrom: from, CreatedTo: from.Add(length), Limit: 50}
			f.Statuses = [][]fsm.State{nil, {fsm.Canceled, fsm.Failed}, {fsm.Completed}, {fsm.Failed}}[n%4]
			f.Item, f.Oldest = []string{"", "item 1", "nobody's"}[n%3], n%5 == 0
			for range 4 { // and the pages after it
				page, ids := b.list(t, f)
				assert.Equal(t, b.expected(t, f), ids, f)
				if len(page) == 0 {
					break
				}
				f.After = page[len(page)-1].OrderNo
			}
		}
	}
}
