package engine

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"

	"pawl/db"
	"pawl/fsm"
	"pawl/internal/orders"
	"pawl/internal/pg"
)

// Overview is how all replicas together stand. Each number goes up to CountsMost.
type Overview struct {
	At time.Time
	Waiting
	Statuses []StatusCount // of each state, in their order
	Oldest   *OldestOrder  // that has not ended; nil: there is none
	Replicas []Replica     // by name
}

// StatusCount is how many orders are in a state.
type StatusCount struct {
	Status fsm.State
	Orders int64
	More   bool // there may be more than that
}

// OldestOrder is an order that has not ended. Hold is nil where a replica drives it.
type OldestOrder struct {
	OrderID   string
	Status    fsm.State
	Hold      *string
	CreatedAt time.Time
}

// Replica is a running service on the same database, as its connections name it.
type Replica struct {
	Name        string
	Connections int64
	Since       time.Time // when the oldest of these began
}

// overview is what Overview remembers.
type overview struct {
	shared        shared[Overview]
	manyCompleted atomic.Bool // there are CountsMost completed orders; they stay
}

// Overview asks the database, at most once a second for all who ask. Errors: orders.ErrUnavailable.
func (e *Engine) Overview(ctx context.Context) (Overview, error) {
	return e.overview.shared.get(ctx, e.lookOver)
}

func (e *Engine) lookOver(ctx context.Context) (v Overview, err error) {
	if v.Waiting, err = e.waiting(ctx, 0); err != nil {
		return v, err
	}
	counts := map[fsm.State]StatusCount{}
	if err := e.countUnfinished(ctx, &v, counts); err != nil {
		return v, orders.Unavailable("count unfinished orders", err)
	}
	e.activity.noteHeld(v.Held)
	if err := e.countEnded(ctx, counts); err != nil {
		return v, orders.Unavailable("count orders that have ended", err)
	}
	for _, state := range fsm.States() {
		count := counts[state]
		count.Status = state
		v.Statuses = append(v.Statuses, count)
	}
	replicas, err := orders.Read(ctx, e.Orders, e.query.ServerReplicas, pg.ServiceName)
	if err != nil {
		return v, orders.Unavailable("look for replicas", err)
	}
	for _, row := range replicas {
		v.Replicas = append(v.Replicas, Replica{strings.TrimSpace(strings.TrimPrefix(row.Name, pg.ServiceName)), row.Connections, row.Since})
	}
	v.At = e.now()
	return v, nil
}

func (e *Engine) countUnfinished(ctx context.Context, v *Overview, counts map[fsm.State]StatusCount) error {
	rows, err := orders.Read(ctx, e.Orders, e.query.OrdersUnfinished, CountsMost)
	if err != nil || len(rows) == 0 {
		return err
	}
	v.Oldest = &OldestOrder{rows[0].OrderID, rows[0].Status, rows[0].Hold, rows[0].CreatedAt}
	cut := addHeld(rows, v.Held)
	for _, row := range rows {
		counts[row.Status] = StatusCount{Orders: min(counts[row.Status].Orders+row.Orders, CountsMost)}
	}
	for _, state := range fsm.States() {
		if count := counts[state]; !state.Final() {
			count.More = cut || count.Orders >= CountsMost
			counts[state] = count
		}
	}
	return nil
}

// addHeld adds up the orders of each hold, and says whether some were left out, of whatever state.
func addHeld(rows []db.OrdersUnfinishedRow, held map[string]Held) (cut bool) {
	for _, row := range rows {
		cut = cut || row.DrivenCut
		if row.Hold == nil {
			continue
		}
		sum := held[*row.Hold]
		sum.Orders = min(sum.Orders+row.Orders, CountsMost)
		held[*row.Hold] = sum
		cut = cut || sum.Orders >= CountsMost
	}
	return cut
}

// countEnded looks for completed orders among twice as many of the newest, until it has once found enough of them.
func (e *Engine) countEnded(ctx context.Context, counts map[fsm.State]StatusCount) error {
	p := db.OrdersEndedParams{Most: CountsMost}
	many := e.overview.manyCompleted.Load()
	if !many {
		p.Newest = 2 * CountsMost
	}
	row, err := orders.Read(ctx, e.Orders, e.query.OrdersEnded, p)
	if err != nil {
		return err
	}
	if many || row.Completed >= CountsMost {
		e.overview.manyCompleted.Store(true)
		row.Completed = CountsMost
	}
	all := row.Completed + row.Failed + row.Canceled
	counts[fsm.Failed] = StatusCount{Orders: row.Failed, More: row.Failed >= CountsMost}
	counts[fsm.Canceled] = StatusCount{Orders: row.Canceled, More: row.Canceled >= CountsMost}
	counts[fsm.Completed] = StatusCount{Orders: row.Completed, More: all >= CountsMost}
	return nil
}

const (
	errorOrdersMost = 10_000 // failed orders that are looked at, and held ones
	errorGroupsMost = 200
)

// ErrorGroup are failed orders, or orders that wait for a person, at the same step for the same reason.
type ErrorGroup struct {
	Status      fsm.State // failed, or where they wait
	Step        fsm.Step  // empty: none was at fault
	Code        string    // of the failure; of a hold, its reason up to a colon
	Orders      int64
	First, Last time.Time
	Example     string // the id of the newest
	Detail      string // of the newest: what the failure says, or the whole reason of the hold
}

// ErrorGroups are the groups of the newest orders, the largest first.
type ErrorGroups struct {
	Groups []ErrorGroup
	More   bool // older orders, or groups, were left out
}

// ErrorGroups asks the database, at most once a second for all who ask. Errors: orders.ErrUnavailable.
func (e *Engine) ErrorGroups(ctx context.Context) (ErrorGroups, error) {
	return e.errorGroups.get(ctx, e.groupErrors)
}

func (e *Engine) groupErrors(ctx context.Context) (found ErrorGroups, err error) {
	rows, err := orders.Read(ctx, e.Orders, e.query.ErrorGroups, db.ErrorGroupsParams{Most: errorOrdersMost, Groups: errorGroupsMost})
	if err != nil {
		return found, orders.Unavailable("group errors", err)
	}
	counted := map[bool]int64{} // by whether they failed
	for _, row := range rows {
		g := ErrorGroup{fsm.State(row.Status), fsm.Step(row.Step), row.Code, row.Orders, row.FirstAt, row.LastAt, row.Example, row.Detail}
		failed := g.Status == fsm.Failed
		if !failed {
			g.Step = g.Status.Step()
		}
		counted[failed] += g.Orders
		found.Groups = append(found.Groups, g)
	}
	found.More = len(rows) == errorGroupsMost || max(counted[true], counted[false]) >= errorOrdersMost
	return found, nil
}

// shared is a read whose result serves all callers for a while: however many ask, and however much is stored, it costs a
// replica little.
type shared[T any] struct {
	reads singleflight.Group
	last  atomic.Pointer[lookedUp[T]]
}

type lookedUp[T any] struct {
	value T
	until time.Time
}

const (
	sharedFor   = time.Second      // how long it is good, at least
	sharedTimes = 50               // and this many times as long as it took
	sharedLimit = 10 * time.Second // how long it may take
)

// get returns what was looked up lately, or looks it up. A caller who goes does not end it for others.
func (s *shared[T]) get(ctx context.Context, read func(context.Context) (T, error)) (T, error) {
	if last := s.last.Load(); last != nil && time.Now().Before(last.until) {
		return last.value, nil
	}
	found, err, _ := s.reads.Do("", func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), sharedLimit)
		defer cancel()
		began := time.Now()
		value, err := read(ctx)
		if err == nil {
			s.last.Store(&lookedUp[T]{value, time.Now().Add(max(sharedFor, sharedTimes*time.Since(began)))})
		}
		return value, err
	})
	value, _ := found.(T)
	return value, err
}

// Waiting is what waits in the database, for all replicas together; each number goes up to
// CountsMost.
type Waiting struct {
	Held       map[string]Held // orders by what they wait for, those for which none waits, too
	Overdue    time.Duration   // how long an order was due when this replica last looked at all that are; 0: none was
	Unfinished time.Duration   // the age of the oldest order that is held, was due then, or is driven by this replica; 0: there is none
	LateUndos  int64           // effects that were reported too late and are not undone yet
	Refunds    int64           // refunds that were asked for and are neither done nor failed
	Refund     time.Duration   // the age of the oldest of these that its provider has not accepted; 0: there is none
}

// Waiting asks the database. Errors: orders.ErrUnavailable.
func (e *Engine) Waiting(ctx context.Context) (Waiting, error) {
	w, err := e.waiting(ctx, CountsMost)
	if err == nil {
		e.activity.noteHeld(w.Held)
	}
	return w, err
}

// waiting counts the held orders up to a number: with 0, the caller counts them.
func (e *Engine) waiting(ctx context.Context, most int32) (Waiting, error) {
	rows, err := orders.Read(ctx, e.Orders, e.query.OrdersHeldStats, db.OrdersHeldStatsParams{Most: most, Oldest: OldestMost})
	if err != nil {
		return Waiting{}, orders.Unavailable("count held orders", err)
	}
	overdue := e.overdue.Load()
	oldest, err := orders.Read(ctx, e.Orders, e.query.OrderAge, lowest(e.runs.oldest(), overdue.orderNo))
	if err != nil {
		return Waiting{}, orders.Unavailable("look for the oldest order", err)
	}
	w := Waiting{Held: map[string]Held{}, Overdue: overdue.age}
	for _, row := range rows {
		w.Held[row.Hold] = Held{Orders: row.Orders, Longest: duration(row.Longest)}
		oldest = max(oldest, row.Oldest)
	}
	w.Unfinished = duration(oldest)
	if w.LateUndos, err = orders.Read(ctx, e.Orders, e.query.LateUndosCount, CountsMost); err != nil {
		return Waiting{}, orders.Unavailable("count late effects", err)
	}
	refunds, err := orders.Read(ctx, e.Orders, e.query.RefundsOpen, CountsMost)
	if err != nil {
		return Waiting{}, orders.Unavailable("count refunds", err)
	}
	w.Refunds, w.Refund = refunds.Open, duration(refunds.Oldest)
	return w, nil
}

// lowest is the lower of two order numbers; 0 is no order.
func lowest(a, b int64) int64 {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}

// Activity returns what the replica did in the last hour, the oldest first. It is the caller's, but for the maps.
func (e *Engine) Activity() []Activity {
	e.activity.mu.Lock()
	defer e.activity.mu.Unlock()
	return slices.Clone(e.activity.points)
}
