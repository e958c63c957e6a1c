package engine

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"hash/fnv"
	"iter"
	"maps"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/govalues/decimal"

	"pawl/engine/batch"
	"pawl/fsm"
	"pawl/internal/orders"
)

// Input is a checked request. Currency and Quantity are zero if they were left out: a new order then gets the
// default, and an existing one matches whatever it has.
type Input struct {
	OrderID  string
	Amount   decimal.Decimal
	Currency string
	Item     string
	Quantity int32
	Metadata []byte // a JSON object, or nil; compared only by a key
	Terms

	SubmittedBy   string          // the principal; empty: the caller was not identified
	Key           *IdempotencyKey // nil: the request has none
	HTTPRequestID string          // X-Request-Id of the request, for the log; stored nowhere
}

// Terms are the optional parts of a request that few orders have. Zero values were left out.
type Terms struct {
	CustomerID     string
	PaymentMethod  string // opaque; never logged or shown
	ConcurrencyKey string
	StartAt        time.Time
	CompleteBy     time.Time     // the deadline
	ReservationTTL time.Duration // how long a reservation waits for its confirmation

	// Lines, as orders.FormatLines writes them. Item is empty then, and Quantity is the sum of their units.
	Lines string
}

// IdempotencyKey is the name that a principal gave to one request for an order. No other request can use it.
type IdempotencyKey struct {
	Principal   string // keys of different principals are different
	Key         string
	fingerprint []byte
}

// SetKey gives the request a key. Call it last: the fingerprint covers the other fields.
func (in *Input) SetKey(principal, key string) {
	in.Key = &IdempotencyKey{Principal: principal, Key: key, fingerprint: fingerprint(
		in.OrderID, in.Amount.Trim(0).String(), in.Currency, in.Item, strconv.Itoa(int(in.Quantity)), string(in.Metadata),
		in.CustomerID, in.PaymentMethod, in.ConcurrencyKey, shown(in.StartAt), shown(in.CompleteBy), in.ReservationTTL.String(), in.Lines)}
}

// size is the size of the parts that can be large, in bytes.
func (in *Input) size() int64 { return int64(len(in.Metadata) + len(in.Lines)) }

func shown(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

// keyedMembers are the names of the parts that SetKey passes to fingerprint.
var keyedMembers = []string{"orderId", "amount", "currency", "item", "quantity", "metadata",
	"customerId", "paymentMethod", "concurrencyKey", "startAt", "completeBy", "reservationTtl", "lines"}

// fingerprint is a hash of the parts of a request. Different lists of parts have different hashes. Two bytes for each
// part follow, which tell which parts differ.
func fingerprint(parts ...string) []byte {
	var text []byte
	for _, part := range parts {
		text = append(binary.AppendUvarint(text, uint64(len(part))), part...)
	}
	sum := sha256.Sum256(text)
	hashes := sum[:]
	for _, part := range parts {
		hash := fnv.New32a()
		_, _ = hash.Write([]byte(part))
		hashes = binary.BigEndian.AppendUint16(hashes, uint16(hash.Sum32()))
	}
	return hashes
}

// reused is the error of two requests with the same key. It names the parts by which their fingerprints differ.
func reused(first, second []byte, names []string) error {
	refusal := &orders.KeyReused{}
	for i, name := range names {
		at := sha256.Size + 2*i
		switch {
		case at+2 > min(len(first), len(second)), bytes.Equal(first[at:at+2], second[at:at+2]):
		case name == verbPart:
			refusal.Verb = true
		default:
			refusal.Members = append(refusal.Members, name)
		}
	}
	return refusal
}

// equals reports whether both are the same key of the same request.
func (k *IdempotencyKey) equals(other *IdempotencyKey) bool {
	return other != nil && k.Key == other.Key && k.Principal == other.Principal && bytes.Equal(k.fingerprint, other.fingerprint)
}

// run is one order in the memory of this replica: being admitted, driven, or watched while another replica drives it.
// One goroutine holds it at a time, and passes it on through a queue. An order has at most one run, and all its
// callers wait for the end of that run.
type run struct {
	orderID string
	input   Input        // of the request that made the run; of a claimed order, only Metadata, Lines (see registry.bytes) and HTTPRequestID
	stored  terms        // constant, and valid once isStored is closed
	order   orders.Order // belongs to the holder; readable by all once done is closed

	next destination // where it goes next; set by the handler
	err  error       // what its callers get; set before done is closed

	sent      bool // an admission was sent: the order may be stored even if no answer came
	complete  bool // order has all that is stored: it was read at its end, or this process committed each of its steps
	vainTries int  // consecutive tries without a move; they lengthen the pause (pauseAfter)

	call      *call        // of a remote step: under way, or answered and not committed
	preflight *preflight   // what was read before its call; nil: nothing yet
	hold      *hold        // what to hold the order for: see toHold
	hotItem   string       // in the hot-key queue: the item whose stock row is locked
	soldOut   string       // an item of which too little was seen
	waiters   atomic.Int32 // callers that wait for the end of the run

	kept atomic.Pointer[IdempotencyKey] // a key that is stored for this order

	isStored  chan struct{} // closed when the order is stored
	wasStored chan struct{} // closed when it was stored before this run, so its input may differ
	done      chan struct{} // closed when the order is final or held, or this replica gave up

	markedStored, markedFoundStored bool // isStored and wasStored are closed
}

// queue is a queue of orders that wait for the same statement.
type queue = batch.Queue[*run]

// destination is where a run goes after the handler that holds it. A handler does one thing to a batch of runs, sets their
// next destinations, and returns those that continue; dispatch sends them there. So handlers don't call each other, except
// that the hot-key queue tries the handlers of its orders.
type destination uint8

// The destinations. dispatch serves them in this order: first what only keeps data, then the way of an order from
// admission to its end.
const (
	toHandBack  destination = iota // nothing: the engine has stopped, and Stop releases what is in memory (core.handBack)
	toFenced                       // the storing of an answer that arrived after the order was lost
	toUnwritten                    // the same, repeated until it succeeds
	toStep                         // route, which chooses by state, policy and row
	toAdmit                        // the statement that stores new orders
	toMove                         // the ledger's statement for its state
	toPreflight                    // the reading of earlier calls
	toPermit                       // the wait for a permit of its call pool
	toBegin                        // the statement that begins its call
	toCall                         // its call, which is committed
	toResult                       // the statement that commits the result of its call
	toHold                         // the statement that puts the order on hold, for run.hold
	toApproval                     // the end of its wait for an approval
	toReadBack                     // the reading of its row, because its state is not known here
	toKeyCheck                     // the reading of its idempotency key, because the order is not stored
	toHot                          // the hot-key queue, because its stock row stayed locked
	toRetry                        // toStep, after a pause
	toReadmit                      // toAdmit, after a pause
	toWatch                        // the watcher, because another replica drives the order
	toRelease                      // the release of its lease: this process does not continue with the order
	toGiveBack                     // the same at once, because its statement can't run on the schema
	toEnd                          // the end: the order is final or held, or run.err says why it goes no further
	destinations
)

// goTo sets the next destination of runs.
func goTo(next destination, runs ...*run) []*run {
	for _, r := range runs {
		r.next = next
	}
	return runs
}

// endRuns sends runs to their end. With an error, their callers get that instead of the order.
func endRuns(err error, runs ...*run) []*run {
	for _, r := range runs {
		r.next, r.err = toEnd, err
	}
	return runs
}

// hold is a hold without a result: before the order starts, paused, or because it can't be moved.
type hold struct {
	code, reason string
	atMost       time.Duration // 0: no limit, or that of the row
}

// terms are what a request is compared with.
type terms struct {
	OrderNo                   int64 // of the order that has them
	Amount                    decimal.Decimal
	Currency, Item            string
	Quantity                  int32
	Lines                     []byte
	CustomerID, PaymentMethod string

	StartAt, CompleteBy *time.Time
	ReservationTTL      *float64 // seconds
	ConcurrencyKey      *string  // with its kind, as a policy makes it
	Policy              *int32
	Generation          int32
}

func newRun(orderID string, in Input) *run {
	r := &run{orderID: orderID, input: in, isStored: make(chan struct{}), wasStored: make(chan struct{}),
		done: make(chan struct{})}
	r.order.OrderID = orderID
	return r
}

func (r *run) no() int64         { return r.order.OrderNo }
func (r *run) status() fsm.State { return r.order.Status }

// hasResult reports whether there is an answer to commit, from a call, a callback or a person. An answer for a step
// that the order has left is none.
func (r *run) hasResult() bool {
	return r.call != nil && r.call.result != nil && r.call.isCurrent(&r.order)
}

// markStored wakes callers that wait for the order to be stored. Only the holder calls it.
func (r *run) markStored() {
	if !r.markedStored {
		r.markedStored = true
		o := &r.order
		r.stored = terms{
			OrderNo: o.OrderNo, Amount: o.Amount, Currency: o.Currency, Item: o.Item, Quantity: o.Quantity, Lines: o.Lines,
			CustomerID: or(o.CustomerID), PaymentMethod: or(o.PaymentMethod),
			StartAt: o.StartAt, CompleteBy: o.CompleteBy, ReservationTTL: o.ReservationTtl,
			ConcurrencyKey: o.ConcurrencyKey, Policy: o.Policy, Generation: o.Generation,
		}
		close(r.isStored)
	}
}

// markFoundStored is markStored for an order whose row was read. It also wakes the request that made the run, to
// compare its input with the row. For a new order, that would be one wake-up too many.
func (r *run) markFoundStored() {
	r.markStored()
	if !r.markedFoundStored {
		r.markedFoundStored = true
		close(r.wasStored)
	}
}

// wakeCallers wakes the callers that wait for the end of the run. Only remove's caller may call it, once.
func (r *run) wakeCallers() { close(r.done) }

// registry has every run by its order id, and for each order that this process drives, by number, the time when its
// lease was last known to be ours.
type registry struct {
	mu     sync.Mutex
	byID   map[string]*run
	driven map[int64]time.Time
	claims map[string]orders.Order // by order id: rows that were claimed for us while the order had a run
	closed bool                    // takes no more runs
	empty  chan struct{}           // made by waitEmpty; closed when the last run has gone
	size   atomic.Int64
	bytes  atomic.Int64 // of metadata and lines, the parts of an order that can be large
}

func (reg *registry) init() {
	reg.byID, reg.driven, reg.claims = map[string]*run{}, map[int64]time.Time{}, map[string]orders.Order{}
}

// join returns the run of the order, and makes one if there is none. It is nil if the registry is closed.
func (reg *registry) join(orderID string, in Input) (r *run, made bool) {
	reg.mu.Lock()
	defer reg.mu.Unlock()
	if r, ok := reg.byID[orderID]; ok {
		return r, false
	}
	r = reg.add(orderID, in)
	return r, r != nil
}

// add makes a run, or returns nil if the registry is closed.
func (reg *registry) add(orderID string, in Input) *run {
	if reg.closed {
		return nil
	}
	r := newRun(orderID, in)
	reg.byID[orderID] = r
	reg.size.Add(1)
	reg.bytes.Add(in.size())
	return r
}

// claimed returns a new run for an order that this process has claimed. If the order has a run, its holder will read
// the claim. If that run ends first, remove returns the row, for a new run.
func (reg *registry) claimed(row orders.Order, httpRequestID string) (r *run, driven bool) {
	reg.mu.Lock()
	defer reg.mu.Unlock()
	o := &row
	if _, ok := reg.byID[o.OrderID]; ok {
		reg.claims[o.OrderID] = row
		_, driven = reg.driven[o.OrderNo]
		return nil, driven
	}
	if r = reg.add(o.OrderID, Input{Metadata: o.Metadata, Terms: Terms{Lines: string(o.Lines)}, HTTPRequestID: httpRequestID}); r != nil {
		r.order = row
	}
	return r, false
}

// own records that this process drives the orders from now on. It does not change the lease time of those that it
// drives already.
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

// leases is the number of orders that this process drives.
func (reg *registry) leases() int64 {
	reg.mu.Lock()
	defer reg.mu.Unlock()
	return int64(len(reg.driven))
}

// oldest is the lowest number of an order that this process drives, or 0.
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

// disown records that this process no longer drives the orders. Their runs stay, to be watched.
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

// renewed records that the leases of these orders were renewed after t.
func (reg *registry) renewed(orderNos []int64, t time.Time) {
	reg.mu.Lock()
	defer reg.mu.Unlock()
	for _, no := range orderNos {
		if _, led := reg.driven[no]; led {
			reg.driven[no] = t
		}
	}
}

// remove removes ended runs, and returns those that it found; their callers must be woken. claimed are orders that
// were claimed for us meanwhile and need a new run. An order whose run ended with an error is left to the replica
// that claims it next.
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
		reg.bytes.Add(-r.input.size())
		removed = append(removed, r)
		row, ok := reg.claims[r.orderID]
		delete(reg.claims, r.orderID)
		another := ok && row.OrderNo != r.no() // r's order was lost in a crash, and another one was admitted with its id
		switch {
		case another:
			claimed = append(claimed, row)
		case r.err != nil:
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

// takeAll returns the remaining runs, and closes the registry: no goroutine is left that would end a new run.
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

// divide splits runs in two. Both parts keep the order.
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

// groupBy groups runs by what one statement can take. A group may be the batch itself, whose array its queue reuses:
// clone a group that outlives the flush.
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

// or returns the value of a column, and the zero value where it is null.
func or[T any](column *T) (value T) {
	if column != nil {
		value = *column
	}
	return value
}
