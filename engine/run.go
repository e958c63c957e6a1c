package engine

import (
	"context"
	"iter"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/govalues/decimal"

	"pawl/fsm"
	"pawl/orders"
)

// Input is a checked request. A Currency or Quantity left zero was left out: it takes
// the default for a new order and matches what is stored for a known one.
type Input struct {
	OrderID  string
	Amount   decimal.Decimal
	Currency string
	Item     string
	Quantity int32
	Metadata []byte // a JSON object, or nil; compared only by a key
	Terms

	SubmittedBy   string          // the principal; empty: nobody was identified
	Key           *IdempotencyKey // nil: the request has none
	HTTPRequestID string          // X-Request-Id of the request, for the log; stored nowhere
}

// Terms are what most orders do without. Zero values were left out.
type Terms struct {
	CustomerID     string
	PaymentMethod  string // opaque; never logged, shown to nobody
	ConcurrencyKey string
	StartAt        time.Time
	CompleteBy     time.Time     // the deadline
	ReservationTTL time.Duration // how long a reservation waits for its confirmation
}

// run is one order in the memory of this replica: being admitted, driven, or watched
// while another replica drives it. One goroutine holds it at a time; it changes hands
// through a queue. There is at most one run per order, and it is the latch on which
// concurrent callers wait.
type run struct {
	orderID string
	input   Input        // of the request that made it; when a claim did, only what registry.bytes counts and the log shows, and no OrderID
	stored  terms        // valid once known is closed; never changes then
	order   orders.Order // the holder's; anybody's once done is closed

	sent      bool // an admission was sent: it may be stored even if no answer came
	complete  bool // order shows all that is stored: it was read at its end, or we committed each of its steps
	vainTries int  // tries in a row that moved nothing

	call      *call        // of a remote step: under way, or answered and not committed
	preflight *preflight   // what was read before its call; nil: nothing yet
	wait      string       // what a pending order is to be held for
	waiters   atomic.Int32 // callers that wait for the end of the run

	kept atomic.Pointer[IdempotencyKey] // a key that is known to stand for a request for this order

	known chan struct{} // closed when the order is stored
	found chan struct{} // closed when it was there before: then it may have other input
	done  chan struct{} // closed when it is final, held, or this replica gave up
	err   error         // set before done is closed

	wasKnown, wasFound bool
}

// terms are what a request is compared with.
type terms struct {
	Amount                    decimal.Decimal
	Currency, Item            string
	Quantity                  int32
	CustomerID, PaymentMethod string

	StartAt, CompleteBy *time.Time
	ReservationTTL      *float64 // seconds
	ConcurrencyKey      *string  // with its kind, as a policy makes it
	Policy              *int32
	Generation          int32
}

func newRun(orderID string, in Input) *run {
	r := &run{orderID: orderID, input: in, known: make(chan struct{}), found: make(chan struct{}), done: make(chan struct{})}
	r.order.OrderID = orderID
	return r
}

func (r *run) no() int64         { return r.order.OrderNo }
func (r *run) status() fsm.State { return r.order.Status }

// hasResult reports whether a call, or somebody without one, has given an answer that is to be committed. Of a step that
// the order has left, there is nothing to commit any more.
func (r *run) hasResult() bool {
	return r.call != nil && r.call.result != nil && r.call.stands(&r.order)
}

// markKnown lets those go on who wait for the order to be stored. Only the holder calls it.
func (r *run) markKnown() {
	if !r.wasKnown {
		r.wasKnown = true
		o := &r.order
		r.stored = terms{
			Amount: o.Amount, Currency: o.Currency, Item: o.Item, Quantity: o.Quantity, CustomerID: or(o.CustomerID), PaymentMethod: or(o.PaymentMethod),
			StartAt: o.StartAt, CompleteBy: o.CompleteBy, ReservationTTL: o.ReservationTtl,
			ConcurrencyKey: o.ConcurrencyKey, Policy: o.Policy, Generation: o.Generation,
		}
		close(r.known)
	}
}

// markFound is markKnown for an order whose row was read. Its maker wakes up once more for
// it, which the maker of a new order must not have to.
func (r *run) markFound() {
	r.markKnown()
	if !r.wasFound {
		r.wasFound = true
		close(r.found)
	}
}

// wakeCallers tells those who wait for the end of the run that it has come. Only who has removed the run does that.
func (r *run) wakeCallers(err error) {
	r.err = err
	close(r.done)
}

// registry knows every run by its order id, and those we drive by number with the time
// their lease was last known to be ours.
type registry struct {
	mu     sync.Mutex
	byID   map[string]*run
	driven map[int64]time.Time
	claims map[int64]orders.Order // rows that were claimed for us while their order had a run
	closed bool                   // takes no more runs
	empty  chan struct{}          // closed when somebody waits and the last run has gone
	size   atomic.Int64
	bytes  atomic.Int64 // of metadata, which is what can be large of an order
}

func (reg *registry) init() {
	reg.byID, reg.driven, reg.claims = map[string]*run{}, map[int64]time.Time{}, map[int64]orders.Order{}
}

// join returns the run of the order, making it if there is none; nil when it is too late
// for another.
func (reg *registry) join(orderID string, in Input) (r *run, made bool) {
	reg.mu.Lock()
	defer reg.mu.Unlock()
	if r, ok := reg.byID[orderID]; ok {
		return r, false
	}
	r = reg.add(orderID, in)
	return r, r != nil
}

// add makes a run; nil when it is too late for another.
func (reg *registry) add(orderID string, in Input) *run {
	if reg.closed {
		return nil
	}
	r := newRun(orderID, in)
	reg.byID[orderID] = r
	reg.size.Add(1)
	reg.bytes.Add(int64(len(in.Metadata)))
	return r
}

// claimed returns a new run for an order that was claimed for us. One that has a run is left to whoever
// holds that: should it end without having seen the claim, remove returns the row, and somebody has to take the order up again.
func (reg *registry) claimed(row orders.Order, httpRequestID string) (r *run, driven bool) {
	reg.mu.Lock()
	defer reg.mu.Unlock()
	o := &row
	if _, ok := reg.byID[o.OrderID]; ok {
		reg.claims[o.OrderNo] = row
		_, driven = reg.driven[o.OrderNo]
		return nil, driven
	}
	if r = reg.add(o.OrderID, Input{Metadata: o.Metadata, HTTPRequestID: httpRequestID}); r != nil {
		r.order = row
	}
	return r, false
}

// own notes that these runs are driven by us from now on. For one that was, nothing
// changes: this does not reset its lease.
func (reg *registry) own(runs []*run) {
	now := time.Now()
	reg.mu.Lock()
	defer reg.mu.Unlock()
	for _, r := range runs {
		if _, led := reg.driven[r.no()]; !led {
			reg.driven[r.no()] = now
		}
	}
}

func (reg *registry) owns(orderNo int64) bool {
	reg.mu.Lock()
	defer reg.mu.Unlock()
	_, ok := reg.driven[orderNo]
	return ok
}

// leases is how many orders we drive.
func (reg *registry) leases() int64 {
	reg.mu.Lock()
	defer reg.mu.Unlock()
	return int64(len(reg.driven))
}

// oldest is the order that we drive with the lowest number; 0: there is none.
func (reg *registry) oldest() (orderNo int64) {
	reg.mu.Lock()
	defer reg.mu.Unlock()
	for no := range reg.driven {
		if orderNo == 0 || no < orderNo {
			orderNo = no
		}
	}
	return orderNo
}

// disown keeps the runs, as watched ones.
func (reg *registry) disown(runs []*run) {
	reg.mu.Lock()
	defer reg.mu.Unlock()
	for _, r := range runs {
		delete(reg.driven, r.no())
	}
}

// older returns the orders whose lease was last renewed before t.
func (reg *registry) older(t time.Time) []int64 {
	reg.mu.Lock()
	defer reg.mu.Unlock()
	var out []int64
	for no, renewed := range reg.driven {
		if renewed.Before(t) {
			out = append(out, no)
		}
	}
	return out
}

// renewed notes that the leases of these orders were renewed after t.
func (reg *registry) renewed(orderNos []int64, t time.Time) {
	reg.mu.Lock()
	defer reg.mu.Unlock()
	for _, no := range orderNos {
		if _, led := reg.driven[no]; led {
			reg.driven[no] = t
		}
	}
}

// remove forgets runs that have ended and returns those that were there: the caller, and
// nobody else, wakes who waits for them. claimed are their orders that were claimed for us behind their backs.
func (reg *registry) remove(runs []*run) (removed []*run, claimed []orders.Order) {
	reg.mu.Lock()
	defer reg.mu.Unlock()
	removed = make([]*run, 0, len(runs))
	for _, r := range runs {
		if reg.byID[r.orderID] != r {
			continue
		}
		delete(reg.byID, r.orderID)
		delete(reg.driven, r.no())
		reg.bytes.Add(-int64(len(r.input.Metadata)))
		removed = append(removed, r)
		row, ok := reg.claims[r.no()]
		delete(reg.claims, r.no())
		switch {
		case ok && row.Fence > r.order.Fence:
			claimed = append(claimed, row)
		case r.order.Hold == nil && !r.status().Final() && r.order.Owner != nil:
			claimed = append(claimed, r.order) // it was read after the claim
		}
	}
	reg.size.Store(int64(len(reg.byID)))
	reg.signalEmpty()
	return removed, claimed
}

// has reports whether the order has a run.
func (reg *registry) has(orderID string) bool {
	reg.mu.Lock()
	defer reg.mu.Unlock()
	_, ok := reg.byID[orderID]
	return ok
}

// takeAll returns what is left, and lets nothing in any more: nobody would end it.
func (reg *registry) takeAll() []*run {
	reg.mu.Lock()
	defer reg.mu.Unlock()
	reg.closed = true
	out := slices.Collect(maps.Values(reg.byID))
	clear(reg.byID)
	clear(reg.driven)
	reg.size.Store(0)
	reg.bytes.Store(0)
	return out
}

func (reg *registry) waitEmpty(ctx context.Context) error {
	reg.mu.Lock()
	reg.empty = make(chan struct{})
	empty := reg.empty
	reg.signalEmpty()
	reg.mu.Unlock()
	select {
	case <-empty:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (reg *registry) signalEmpty() {
	if reg.empty != nil && len(reg.byID) == 0 {
		close(reg.empty)
		reg.empty = nil
	}
}

// divide keeps the order on both sides.
func divide(runs []*run, first func(*run) bool) (yes, no []*run) {
	for _, r := range runs {
		if first(r) {
			yes = append(yes, r)
		} else {
			no = append(no, r)
		}
	}
	return yes, no
}

// groupBy groups runs by what one statement can take. A group may be the batch itself, whose array its queue uses again: a
// group that outlives the flush has to be cloned.
func groupBy[K comparable](runs []*run, key func(*run) K) iter.Seq2[K, []*run] {
	return func(yield func(K, []*run) bool) {
		if len(runs) == 0 {
			return
		}
		first := key(runs[0])
		if !slices.ContainsFunc(runs[1:], func(r *run) bool { return key(r) != first }) {
			yield(first, runs) // nearly always
			return
		}
		groups := map[K][]*run{}
		for _, r := range runs {
			k := key(r)
			groups[k] = append(groups[k], r)
		}
		maps.All(groups)(yield)
	}
}

func numbersOf(runs []*run) []int64 {
	out := make([]int64, 0, len(runs))
	for _, r := range runs {
		if r.no() != 0 {
			out = append(out, r.no())
		}
	}
	return out
}
