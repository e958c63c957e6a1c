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

	SubmittedBy   string          // the principal; empty: the caller was not identified
	Key           *IdempotencyKey // nil: the request has none
	HTTPRequestID string          // X-Request-Id of the request, for the log; stored nowhere
}

// Terms are what most orders do without. Zero values were left out.
type Terms struct {
	CustomerID     string
	PaymentMethod  string // opaque; never logged or shown
	ConcurrencyKey string
	StartAt        time.Time
	CompleteBy     time.Time     // the deadline
	ReservationTTL time.Duration // how long a reservation waits for its confirmation
}

// IdempotencyKey is the name that a principal gave to a request for an order, so that it stands for that request alone.
type IdempotencyKey struct {
	Principal   string // others may use the same key
	Key         string
	fingerprint []byte
}

// SetKey gives the request a key. It is to be called when all else of the request has been read.
func (in *Input) SetKey(principal, key string) {
	in.Key = &IdempotencyKey{Principal: principal, Key: key, fingerprint: fingerprint(
		in.OrderID, in.Amount.Trim(0).String(), in.Currency, in.Item, strconv.Itoa(int(in.Quantity)), string(in.Metadata),
		in.CustomerID, in.PaymentMethod, in.ConcurrencyKey, shown(in.StartAt), shown(in.CompleteBy), in.ReservationTTL.String())}
}

func shown(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

// keyedMembers are the members whose values SetKey takes the fingerprint of.
var keyedMembers = []string{"orderId", "amount", "currency", "item", "quantity", "metadata",
	"customerId", "paymentMethod", "concurrencyKey", "startAt", "completeBy", "reservationTtl"}

// fingerprint is a hash of the parts of a request. No two lists of parts have the same one. Behind it are two bytes for each
// part, which tell what differs.
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

// reused says in which members two requests with one key differ, by their fingerprints. Their parts have these names.
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

// stands reports whether it is the same key for the same request.
func (k *IdempotencyKey) stands(other *IdempotencyKey) bool {
	return other != nil && k.Key == other.Key && k.Principal == other.Principal && bytes.Equal(k.fingerprint, other.fingerprint)
}

// run is one order in the memory of this replica: being admitted, driven, or watched
// while another replica drives it. One goroutine holds it at a time; it changes hands
// through a queue. There is at most one run per order, and it is the latch on which
// concurrent callers wait.
type run struct {
	orderID string
	input   Input        // of the request that made it; when a claim did, only what registry.bytes counts and the log shows, and no OrderID
	stored  terms        // valid once known is closed; never changes then
	order   orders.Order // the holder's; read by all once done is closed

	next destination // where the holder sends it; each handler sets it
	err  error       // what its callers are told; set before done is closed

	sent      bool // an admission was sent: it may be stored even if no answer came
	complete  bool // order shows all that is stored: it was read at its end, or we committed each of its steps
	vainTries int  // tries in a row that moved nothing

	call      *call        // of a remote step: under way, or answered and not committed
	preflight *preflight   // what was read before its call; nil: nothing yet
	hold      *hold        // what it is to be held for: see toHold
	waiters   atomic.Int32 // callers that wait for the end of the run

	kept atomic.Pointer[IdempotencyKey] // a key that is known to stand for a request for this order

	known chan struct{} // closed when the order is stored
	found chan struct{} // closed when it was there before: then it may have other input
	done  chan struct{} // closed when it is final, held, or this replica gave up

	wasKnown, wasFound bool
}

// queue is a queue of orders that wait for the same statement.
type queue = batch.Queue[*run]

// destination is where a run goes after the handler that holds it. A handler does one thing to a batch of runs, says of
// each where it goes next, and returns those that go on; dispatch sends them there. So no handler calls another.
type destination uint8

// The destinations, in the order of an order's way.
const (
	toHandBack  destination = iota // the engine stops, and hands back what is left
	toFenced                       // an answer that came when the order was not ours any more is kept
	toUnwritten                    // the same, again and again until it is written
	toStep                         // its state, its policy and its row say where: route
	toAdmit                        // the statement that stores new orders
	toMove                         // the ledger's statement of its state
	toPreflight                    // what was sent before is read
	toPermit                       // a permit of its call pool
	toBegin                        // the statement that begins its call
	toCall                         // its call, which is committed
	toResult                       // the statement that commits the result of its call
	toHold                         // the statement that holds it for run.hold
	toApproval                     // the end of its wait for an approval
	toReadBack                     // its row, which alone says how it stands
	toKeyCheck                     // its idempotency key: the order is not stored
	toHot                          // its stock row stayed locked
	toRetry                        // toStep, after a pause
	toReadmit                      // toAdmit, after a pause
	toWatch                        // another replica drives it
	toRelease                      // this process does not go on with it: its lease is released
	toGiveBack                     // the same at once, because its statement can't run on the schema
	toEnd                          // it is final or held, or run.err says why it goes no further: its callers are told
	destinations
)

// goTo says where runs go next.
func goTo(next destination, runs ...*run) []*run {
	for _, r := range runs {
		r.next = next
	}
	return runs
}

// end says that runs go no further, and what their callers are told instead of the order.
func end(err error, runs ...*run) []*run {
	for _, r := range runs {
		r.next, r.err = toEnd, err
	}
	return runs
}

// hold is what an order is held for without a result: before it starts, paused, or because it can't be moved.
type hold struct {
	code, reason string
	atMost       time.Duration // how long; 0: as long as it takes, or as the row says
}

// terms are what a request is compared with.
type terms struct {
	OrderNo                   int64 // whose terms they are
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

// hasResult reports whether a call, or a person or callback without one, has given an answer that is to be committed. Of a step that
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
			OrderNo: o.OrderNo, Amount: o.Amount, Currency: o.Currency, Item: o.Item, Quantity: o.Quantity, CustomerID: or(o.CustomerID), PaymentMethod: or(o.PaymentMethod),
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

// wakeCallers tells those who wait for the end of the run that it has come. Only the goroutine that removed the run calls it.
func (r *run) wakeCallers() { close(r.done) }

// registry knows every run by its order id, and those we drive by number with the time
// their lease was last known to be ours.
type registry struct {
	mu     sync.Mutex
	byID   map[string]*run
	driven map[int64]time.Time
	claims map[string]orders.Order // rows that were claimed for us while their order had a run, by its id
	closed bool                    // takes no more runs
	empty  chan struct{}           // made by waitEmpty; closed when the last run has gone
	size   atomic.Int64
	bytes  atomic.Int64 // of metadata, which is what can be large of an order
}

func (reg *registry) init() {
	reg.byID, reg.driven, reg.claims = map[string]*run{}, map[int64]time.Time{}, map[string]orders.Order{}
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

// claimed returns a new run for an order that was claimed for us. One that has a run is left to
// its holder: should it end without having seen the claim, remove returns the row, and the order is taken up again.
func (reg *registry) claimed(row orders.Order, httpRequestID string) (r *run, driven bool) {
	reg.mu.Lock()
	defer reg.mu.Unlock()
	o := &row
	if _, ok := reg.byID[o.OrderID]; ok {
		reg.claims[o.OrderID] = row
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

// remove forgets runs that have ended and returns those that were there: only the caller wakes who waits for them.
// claimed are their orders that were claimed for us meanwhile, and that another run has to go on with. The order of a run
// that ends with an error is left to the replica that claims it next.
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
		row, ok := reg.claims[r.orderID]
		delete(reg.claims, r.orderID)
		another := ok && row.OrderNo != r.no() // r's was lost in a crash, and one with its id was admitted elsewhere
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

// takeAll returns what is left, and lets nothing in any more: no goroutine is left that would end it.
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

// or returns the value of a column, and the zero value where it is null.
func or[T any](column *T) (value T) {
	if column != nil {
		value = *column
	}
	return value
}
