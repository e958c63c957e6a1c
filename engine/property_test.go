package engine_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/govalues/decimal"
	"pgregory.net/rapid"

	"pawl/engine"
	"pawl/fsm"
	"pawl/internal/orders"
	"pawl/internal/pg"
	"pawl/test/dbtest"
)

// TestAgainstModel does random things to engines and to a model of them in plain Go, and compares every answer; at the
// end the books. The engines look for nothing by themselves, so that what happens is what was asked for.
func TestAgainstModel(t *testing.T) {
	t.Parallel()
	dbtest.SkipIfShort(t)
	b := setupWith(t, byCallers)
	pool := openPool(t, b.URL)
	var runs atomic.Int64
	dbtest.Check(t, func(rt *rapid.T) {
		w := &world{
			t: t, rapid: rt, bundle: b, pool: pool, prefix: fmt.Sprintf("%d/", runs.Add(1)), ghost: newGhost(b.Pool),
			model: model{orders: map[string]*modelOrder{}, stock: map[string]*modelStock{}},
		}
		w.engines = []*engine.Engine{w.newEngine(), w.newEngine()}
		defer w.end()
		rt.Repeat(map[string]func(*rapid.T){
			"process new":     w.processNew,
			"process known":   w.processKnown,
			"process other":   w.processConflicting,
			"leave behind":    w.leaveBehind,
			"expire lease":    w.expireLease,
			"cancel":          w.cancel,
			"set stock":       w.setStock,
			"adjust stock":    w.adjustStock,
			"replace engine":  w.replaceEngine,
			"read":            w.read,
			"several at once": w.processAtOnce,
			"":                w.check,
		})
		w.compareBooks()
	})
	proveBooks(t, b.Pool)
}

// world is the engines, the model, and what is drawn for both.
type world struct {
	*bundle
	pool    *pg.Pool // the engines'
	t       *testing.T
	rapid   *rapid.T
	model   model
	engines []*engine.Engine
	ghost   *ghost
	prefix  string // of ids and items, so that one database serves all runs
	made    int

	adjustments int
}

func (w *world) newEngine() *engine.Engine {
	e := engine.New(w.pool, byCallers)
	e.Start()
	return e
}

func (w *world) end() {
	for _, e := range w.engines {
		w.stop(e)
	}
}

func (w *world) stop(e *engine.Engine) {
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	if err := e.Stop(ctx); err != nil {
		w.rapid.Errorf("stop: %v", err)
	}
}

func (w *world) anyEngine(t *rapid.T) *engine.Engine {
	return w.engines[rapid.IntRange(0, len(w.engines)-1).Draw(t, "engine")]
}

func (w *world) input(t *rapid.T) engine.Input {
	w.made++
	return engine.Input{
		OrderID:  fmt.Sprintf("%s%d", w.prefix, w.made),
		Amount:   decimal.MustParse(rapid.SampledFrom([]string{"0", "0.01", "99.99", "12345678901.23", "7"}).Draw(t, "amount")),
		Item:     w.prefix + rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "item"),
		Quantity: rapid.Int32Range(1, 4).Draw(t, "quantity"),
		Currency: rapid.SampledFrom([]string{"USD", "EUR"}).Draw(t, "currency"),
	}
}

// known draws an order that exists, and skips the step when there is none.
func (w *world) known(t *rapid.T) *modelOrder {
	ids := slices.Sorted(maps.Keys(w.model.orders))
	if len(ids) == 0 {
		t.Skip("no order")
	}
	return w.model.orders[rapid.SampledFrom(ids).Draw(t, "order")]
}

func (w *world) processNew(t *rapid.T) {
	in := w.input(t)
	w.process(t, in, w.model.admit(in))
}

func (w *world) processKnown(t *rapid.T) {
	o := w.known(t)
	in := o.input
	if rapid.Bool().Draw(t, "without currency") {
		in.Currency = ""
	}
	w.process(t, in, o)
}

// wait has a caller wait for an order: in vain for one that is driven elsewhere.
func (w *world) wait(o *modelOrder, call func(context.Context) (orders.Order, error)) (orders.Order, error) {
	if o.driven {
		o.watched = true
		return inVain(w.t, call)
	}
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	return call(ctx)
}

// process sends a request and expects what the model makes of it: an order whose lease has not ended is waited for in
// vain, any other is brought to its end.
func (w *world) process(t *rapid.T, in engine.Input, o *modelOrder) {
	if !o.driven {
		w.model.finish(o)
	}
	e := w.anyEngine(t)
	order, err := w.wait(o, func(ctx context.Context) (orders.Order, error) { return deref(e.Process(ctx, in)) })
	if err != nil {
		t.Fatalf("process %+v: %v", in, err)
	}
	w.same(t, o, &order)
}

// processAtOnce sends one new order from several callers.
func (w *world) processAtOnce(t *rapid.T) {
	in := w.input(t)
	o := w.model.admit(in)
	w.model.finish(o)
	answers := make(chan answer)
	for n := range 4 {
		go func() {
			order, err := deref(w.engines[n%2].Process(w.t.Context(), in))
			answers <- answer{in.OrderID, order, err}
		}()
	}
	for range 4 {
		a := <-answers
		if a.err != nil {
			t.Fatalf("process %+v: %v", in, a.err)
		}
		w.same(t, o, &a.order)
	}
}

func (w *world) processConflicting(t *rapid.T) {
	o := w.known(t)
	in, want := o.input, "/quantity"
	switch rapid.IntRange(0, 3).Draw(t, "field") {
	case 0:
		in.Amount, want = decimal.MustParse("1.23"), "/amount"
	case 1:
		in.Item, want = in.Item+"'", "/item"
	case 2:
		in.Currency, want = "GBP", "/currency"
	default:
		in.Quantity++
	}
	e := w.anyEngine(t)
	_, err := w.wait(o, func(ctx context.Context) (orders.Order, error) { return deref(e.Process(ctx, in)) })
	var conflict *orders.Conflict
	if !errors.As(err, &conflict) || len(conflict.Differences) != 1 || conflict.Differences[0].Pointer != want {
		t.Fatalf("%+v for %+v: %v", in, o, err)
	}
	// Refused is the request; an order that was left behind is taken up all the same.
	w.process(t, o.input, o)
}

// leaveBehind has a replica that dies take a new order some way.
func (w *world) leaveBehind(t *rapid.T) {
	in := w.input(t)
	state := rapid.SampledFrom([]fsm.State{fsm.Charging, fsm.Reserving, fsm.Confirming}).Draw(t, "left")
	p := w.ghost.admission(time.Minute, []string{in.OrderID})
	p.Amounts, p.Items, p.Quantities, p.Currencies = []string{in.Amount.String()}, []string{in.Item}, []int32{in.Quantity}, []string{in.Currency}
	if _, err := w.ghost.query.OrdersAdmit(w.t.Context(), p); err != nil {
		t.Fatal(err)
	}
	o := w.model.admit(in)
	o.driven = true
	w.model.advance(o, state)
	w.ghost.advance(w.t, o.status, in.OrderID)
}

func (w *world) expireLease(t *rapid.T) {
	o := w.known(t)
	if !o.driven {
		t.Skip("nobody drives it")
	}
	o.driven = false
	w.must(t, `UPDATE orders SET due_at = now() WHERE order_id = $1`, o.input.OrderID)
	if o.watched { // whoever waited for it takes it over now: be sure that he has
		w.process(t, o.input, o)
	}
}

func (w *world) cancel(t *rapid.T) {
	o := w.known(t)
	applies := w.model.cancel(o)
	e := w.anyEngine(t)
	order, err := w.wait(o, func(ctx context.Context) (orders.Order, error) {
		return e.Do(ctx, engine.Request{Verb: orders.Cancel, OrderID: o.input.OrderID})
	})
	var refusal *orders.NotApplicable
	switch {
	case !applies && errors.As(err, &refusal):
		order = refusal.Order
	case err != nil, !applies:
		t.Fatalf("cancel %+v: %v", o, err)
	}
	w.same(t, o, &order)
}

func (w *world) setStock(t *rapid.T) {
	item := w.prefix + rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "item")
	onHand := rapid.Int64Range(0, 9).Draw(t, "on hand")
	s := w.model.stock[item]
	var ifVersion *int64
	if s != nil && rapid.Bool().Draw(t, "with a version") {
		seen := s.version - rapid.Int64Range(0, 1).Draw(t, "sets missed")
		ifVersion = &seen
	}
	want := w.model.setStock(item, onHand, ifVersion)
	e := w.anyEngine(t)
	var err error
	if ifVersion == nil {
		_, err = setStock(w.t.Context(), e, item, onHand)
	} else {
		_, err = e.ChangeStock(w.t.Context(), setTo(item, onHand, *ifVersion))
	}
	var low *orders.StockTooLow
	got := map[bool]string{err == nil: "set", errors.As(err, &low): "too low", errors.Is(err, orders.ErrPrecondition): "changed"}[true]
	if got != want {
		t.Fatalf("%q to %d: %v, want %s", item, onHand, err, want)
	}
}

// adjustStock is asked twice with one request id, at any engine, and is done once.
func (w *world) adjustStock(t *rapid.T) {
	w.adjustments++
	q := engine.StockChange{
		Item: w.prefix + rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "item"), Kind: engine.StockAdjustment,
		Units: rapid.Int64Range(-5, 5).Filter(func(n int64) bool { return n != 0 }).Draw(t, "change"), RequestID: fmt.Sprint(w.adjustments),
	}
	want := w.model.adjustStock(q.Item, q.Units)
	for range 2 {
		_, err := w.anyEngine(t).ChangeStock(w.t.Context(), q)
		var low *orders.StockTooLow
		got := map[bool]string{err == nil: "adjusted", errors.As(err, &low): "too low"}[true]
		if got != want {
			t.Fatalf("%q by %d: %v, want %s", q.Item, q.Units, err, want)
		}
	}
}

func (w *world) replaceEngine(t *rapid.T) {
	i := rapid.IntRange(0, 1).Draw(t, "engine")
	w.stop(w.engines[i])
	w.engines[i] = w.newEngine()
}

func (w *world) read(t *rapid.T) {
	e, o := w.anyEngine(t), w.known(t)
	order, err := e.Orders.Get(w.t.Context(), o.input.OrderID)
	if err != nil {
		t.Fatal(err)
	}
	w.same(t, o, &order)
	history, err := e.Orders.Transitions(w.t.Context(), o.input.OrderID, orders.Span{Before: math.MaxInt32, Limit: 100})
	if err != nil || len(history) != int(order.Seq) || history[len(history)-1].ToStatus != o.status {
		t.Fatalf("%v: history %+v of %+v", err, history, o)
	}
	list, _, err := e.Orders.List(w.t.Context(), orders.Filter{Item: o.input.Item, Statuses: []fsm.State{o.status}, Limit: 200})
	if err != nil || !slices.ContainsFunc(list, func(l orders.Order) bool { return l.OrderID == o.input.OrderID }) {
		t.Fatalf("%v: %+v is not in the list", err, o)
	}
}

// check compares the stock after every step.
func (w *world) check(t *rapid.T) {
	for item, s := range w.model.stock {
		stock, err := w.engines[0].Orders.StockOf(w.t.Context(), item)
		if want := (orders.Stock{Item: item, OnHand: s.onHand, Reserved: s.reserved, Sold: s.sold, Tracked: s.tracked, Version: s.version}); err != nil || stock != want {
			t.Fatalf("%v\nis   %+v\nwant %+v", err, stock, want)
		}
	}
}

// same compares an answer with the model.
func (w *world) same(t *rapid.T, o *modelOrder, got *orders.Order) {
	g := got
	said := fmt.Sprintf("%s charged %v refunded %v reserved %v released %v failure %s stop %s", g.Status, got.ChargedAt != nil,
		got.RefundedAt != nil, got.ReservedAt != nil, got.ReleasedAt != nil, text(g.FailureCode), text(g.StopRequested))
	if want := o.String(); said != want || g.OrderID != o.input.OrderID || g.Amount.Cmp(o.input.Amount) != 0 || g.Item != o.input.Item ||
		g.Quantity != o.input.Quantity || g.Currency != o.input.Currency {
		t.Fatalf("%s\nis   %s %+v\nwant %s", o.input.OrderID, said, g, want)
	}
}

func (w *world) must(t *rapid.T, statement string, args ...any) {
	if tag, err := w.Pool.Exec(w.t.Context(), statement, args...); err != nil || tag.RowsAffected() != 1 {
		t.Fatalf("%s: %v %v", statement, tag, err)
	}
}

// compareBooks reads what people and reports read.
func (w *world) compareBooks() {
	rows, err := w.Pool.Query(w.t.Context(), `SELECT o.order_id, format('%s charged %s refunded %s reserved %s released %s', o.status,
		(SELECT coalesce(sum(c.amount), 0) FROM books.charges AS c WHERE c.order_id = o.order_id),
		(SELECT coalesce(sum(r.amount), 0) FROM books.refunds AS r WHERE r.order_id = o.order_id),
		(SELECT coalesce(sum(v.quantity), 0) FROM books.reservations AS v WHERE v.order_id = o.order_id),
		(SELECT coalesce(sum(v.quantity), 0) FROM books.reservations AS v WHERE v.order_id = o.order_id AND v.state = 'released'))
		FROM books.orders AS o WHERE starts_with(o.order_id, $1)`, w.prefix)
	if err != nil {
		w.rapid.Fatal(err)
	}
	defer rows.Close()
	seen := 0
	for rows.Next() {
		var id, said string
		if err := rows.Scan(&id, &said); err != nil {
			w.rapid.Fatal(err)
		}
		o := w.model.orders[id]
		if o == nil || said != o.booked() {
			w.rapid.Errorf("books of %q\nis   %s\nwant %s", id, said, o.booked())
		}
		seen++
	}
	if err := rows.Err(); err != nil || seen != len(w.model.orders) {
		w.rapid.Errorf("%v: %d orders in the books, want %d", err, seen, len(w.model.orders))
	}
}

// model is the service as it should be, without a database, without time, and with one order moving at a time.
type model struct {
	orders map[string]*modelOrder
	stock  map[string]*modelStock
}

type modelOrder struct {
	input   engine.Input
	status  fsm.State
	outcome fsm.State
	driven  bool // by a replica that does no more, under a lease that has not ended
	watched bool // some engine has waited for it, and may take it over when the lease ends

	charged, refunded, reserved, released, outOfStock, stopped bool
}

type modelStock struct {
	onHand, reserved, sold, version int64
	tracked                         bool
}

func (m *model) admit(in engine.Input) *modelOrder {
	o := &modelOrder{input: in, status: fsm.Charging}
	m.orders[in.OrderID] = o
	return o
}

// finish takes an order to its end.
func (m *model) finish(o *modelOrder) {
	for !o.status.Final() {
		m.step(o)
	}
}

// advance takes an order forward to a state, or to where it is turned back.
func (m *model) advance(o *modelOrder, to fsm.State) {
	for o.status != to && !o.status.Undoing() {
		m.step(o)
	}
}

func (m *model) step(o *modelOrder) {
	quantity := int64(o.input.Quantity)
	switch o.status {
	case fsm.Charging:
		if o.stopped {
			o.status = fsm.Canceled
			return
		}
		o.charged, o.status = true, fsm.Reserving
	case fsm.Reserving:
		o.status = m.reserve(o, quantity)
	case fsm.Confirming:
		if o.stopped {
			o.status, o.outcome = fsm.Releasing, fsm.Canceled
			return
		}
		s := m.stock[o.input.Item]
		s.reserved -= quantity
		s.sold += quantity
		s.version++
		if s.tracked {
			s.onHand -= quantity
		}
		o.status = fsm.Completed
	case fsm.Releasing:
		m.stock[o.input.Item].reserved -= quantity
		o.released, o.status = true, fsm.Refunding
	case fsm.Refunding:
		o.refunded, o.status = true, o.outcome
	default:
		panic("no move leads out of " + string(o.status))
	}
}

func (m *model) reserve(o *modelOrder, quantity int64) fsm.State {
	s := m.stock[o.input.Item]
	switch {
	case o.stopped:
		o.outcome = fsm.Canceled
		return fsm.Refunding
	case s != nil && s.tracked && s.onHand-s.reserved < quantity:
		o.outcome, o.outOfStock = fsm.Failed, true
		return fsm.Refunding
	case s == nil:
		s = &modelStock{version: 1}
		m.stock[o.input.Item] = s
	}
	s.reserved += quantity
	o.reserved = true
	return fsm.Confirming
}

// cancel asks an order to stop and says whether that applies.
func (m *model) cancel(o *modelOrder) bool {
	switch {
	case o.status.Final():
		return false
	case o.stopped:
		return true // waits with whoever asked first
	case o.status.Undoing():
		return false
	}
	o.stopped = true
	if !o.driven {
		m.finish(o)
	}
	return true
}

// setStock says what comes of it: set, changed (another version) or too low.
func (m *model) setStock(item string, onHand int64, ifVersion *int64) string {
	s := m.stock[item]
	switch {
	case s == nil && ifVersion == nil:
		m.stock[item] = &modelStock{onHand: onHand, version: 1, tracked: true}
	case s == nil || ifVersion != nil && *ifVersion != s.version:
		return "changed"
	case s.reserved > onHand:
		return "too low"
	default:
		s.onHand, s.tracked, s.version = onHand, true, s.version+1
	}
	return "set"
}

// adjustStock says what comes of it: adjusted or too low.
func (m *model) adjustStock(item string, change int64) string {
	s := m.stock[item]
	switch {
	case s == nil && change < 0, s != nil && s.onHand+change < s.reserved:
		return "too low"
	case s == nil:
		m.stock[item] = &modelStock{onHand: change, version: 1, tracked: true}
	default:
		s.onHand, s.tracked, s.version = s.onHand+change, true, s.version+1
	}
	return "adjusted"
}

// String is what a caller is told of the order.
func (o *modelOrder) String() string {
	word := func(is bool, word string) string {
		if is {
			return word
		}
		return "none"
	}
	return fmt.Sprintf("%s charged %v refunded %v reserved %v released %v failure %s stop %s", o.status, o.charged, o.refunded,
		o.reserved, o.released, word(o.outOfStock, "out_of_stock"), word(o.stopped, "cancel"))
}

// booked is what the books say of the order.
func (o *modelOrder) booked() string {
	amount, quantity := map[bool]string{true: o.input.Amount.String(), false: "0"}, map[bool]int32{true: o.input.Quantity}
	return fmt.Sprintf("%s charged %s refunded %s reserved %d released %d", o.status, amount[o.charged], amount[o.refunded],
		quantity[o.reserved], quantity[o.released])
}
