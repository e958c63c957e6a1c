package engine

import (
	"cmp"
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/sony/gobreaker/v2"

	"pawl/db"
	"pawl/fsm"
	"pawl/orders"
)

// Stats counts what the engine did since it was made. The counters only rise; read
// them at any time. What has labels is in Config.Registerer.
type Stats struct {
	Admitted       atomic.Int64 // orders this replica inserted
	Known          atomic.Int64 // requests for orders that existed
	Batches        atomic.Int64 // statements that committed for orders that we drive
	Moves          atomic.Int64 // orders written by them
	CASMisses      atomic.Int64 // orders a move statement did not return
	Fenced         atomic.Int64 // orders found to be another's after a lost move
	TakenOver      atomic.Int64 // orders claimed after their lease had ended
	UnknownOutcome atomic.Int64 // statements whose outcome had to be read back
	Retried        atomic.Int64 // statements sent again after a rollback
	Overloaded     atomic.Int64 // requests turned away
	UnknownPolicy  atomic.Int64 // due orders left alone: their policy is not known here
	FencedAnswers  atomic.Int64 // answers of providers that came when the order was another's
	Expired        atomic.Int64 // orders asked to stop because their time was up
}

// InFlight is the number of orders in this replica's memory.
func (e *Engine) InFlight() int64 { return e.runs.size.Load() }

// BatchesAtOnce is how many statements of the ledger may be under way at the same time now. See batch.Turns.
func (e *Engine) BatchesAtOnce() int64 { return int64(e.turns.AtOnce()) }

// CallPoolStats is how busy this replica is with a step of a policy that is done remotely.
type CallPoolStats struct {
	Policy   int32
	Step     fsm.Step
	InFlight int // calls under way, or about to be
	Queued   int // orders that wait for a call
	Breaker  gobreaker.State
}

// CallPools returns the steps this replica has made calls for, by policy and step.
func (e *Engine) CallPools() []CallPoolStats {
	e.callPoolsMu.Lock()
	defer e.callPoolsMu.Unlock()
	all := make([]CallPoolStats, 0, len(e.callPools))
	for key, p := range e.callPools {
		p.mu.Lock()
		all = append(all, CallPoolStats{Policy: key.version, Step: key.step, InFlight: p.calling, Queued: len(p.waiting), Breaker: p.breaker.State()})
		p.mu.Unlock()
	}
	slices.SortFunc(all, func(a, b CallPoolStats) int {
		return cmp.Or(cmp.Compare(a.Policy, b.Policy), cmp.Compare(a.Step, b.Step))
	})
	return all
}

// LeasesHeld is the number of orders that this replica drives.
func (e *Engine) LeasesHeld() int64 { return e.runs.leases() }

const (
	// CountsMost is where Waiting stops counting.
	CountsMost = 10_000
	// OldestMost is of how many orders of a hold Waiting looks how long they have waited: those that were created first.
	OldestMost = 1000
)

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

// Held are the orders that wait for one thing.
type Held struct {
	Orders  int64
	Longest time.Duration // how long the longest wait of the OldestMost oldest orders has lasted
}

// Waiting asks the database. Errors: orders.ErrUnavailable.
func (e *Engine) Waiting(ctx context.Context) (Waiting, error) {
	w, err := e.waiting(ctx, CountsMost)
	if err == nil {
		e.activity.noteHeld(w.Held)
	}
	return w, err
}

// waiting counts the held orders up to a number: with 0, whoever asks counts them.
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

// duration is a time that the database has given in seconds.
func duration(seconds float64) time.Duration { return time.Duration(seconds * float64(time.Second)) }
