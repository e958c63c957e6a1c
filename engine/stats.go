package engine

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/sony/gobreaker/v2"

	"pawl/fsm"
	"pawl/orders"
)

// Stats counts what the engine did since it was made. The counters only rise; read
// them at any time.
type Stats struct {
	Admitted       atomic.Int64 // orders this replica inserted
	Known          atomic.Int64 // requests for orders that existed
	Batches        atomic.Int64 // statements that committed for orders that we drive
	Moves          atomic.Int64 // orders written by them
	CASMisses      atomic.Int64 // orders a move statement did not return
	Fenced         atomic.Int64 // orders found to be another's after a lost move
	TakenOver      atomic.Int64 // orders claimed after their lease had ended
	Held           atomic.Int64 // orders held for attention
	UnknownOutcome atomic.Int64 // statements whose outcome had to be read back
	Retried        atomic.Int64 // statements sent again after a rollback
	Overloaded     atomic.Int64 // requests turned away
	UnknownPolicy  atomic.Int64 // due orders left alone: their policy is not known here
	FencedAnswers  atomic.Int64 // answers of providers that came when the order was another's
	Expired        atomic.Int64 // orders asked to stop because their time was up
	Calls          callCounts
}

// callCounts counts calls by step, operation and outcome.
type callCounts struct{ counts sync.Map } // CallCount without Count → *atomic.Int64

// CallCount is how many calls of a kind this replica made.
type CallCount struct {
	Step, Operation, Outcome string
	Count                    int64
}

func (c *callCounts) add(made *call) {
	outcome, _ := namedResult(made.result)
	key := CallCount{Step: string(made.step), Operation: string(made.operation), Outcome: outcome}
	n, ok := c.counts.Load(key)
	if !ok {
		n, _ = c.counts.LoadOrStore(key, new(atomic.Int64))
	}
	n.(*atomic.Int64).Add(1)
}

// All returns the counts so far, in no order.
func (c *callCounts) All() []CallCount {
	var all []CallCount
	c.counts.Range(func(key, n any) bool {
		k := key.(CallCount)
		k.Count = n.(*atomic.Int64).Load()
		all = append(all, k)
		return true
	})
	return all
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

// CountsMost is where Waiting stops counting.
const CountsMost = 10_000

// Waiting is what waits in the database, for all replicas together; each number goes up to
// CountsMost.
type Waiting struct {
	Held      map[string]int64 // orders by what they wait for, zeroes too
	LateUndos int64            // effects that were reported too late and are not undone yet
	Refunds   int64            // refunds that were asked for and are neither done nor failed
}

// Waiting asks the database. Errors: orders.ErrUnavailable.
func (e *Engine) Waiting(ctx context.Context) (Waiting, error) {
	rows, err := orders.Read(ctx, e.Orders, e.query.OrdersHeldCounts, CountsMost)
	if err != nil {
		return Waiting{}, orders.Unavailable("count held orders", err)
	}
	w := Waiting{Held: map[string]int64{}}
	for _, row := range rows {
		w.Held[row.Hold] = row.Orders
	}
	if w.LateUndos, err = orders.Read(ctx, e.Orders, e.query.LateUndosCount, CountsMost); err != nil {
		return Waiting{}, orders.Unavailable("count late effects", err)
	}
	if w.Refunds, err = orders.Read(ctx, e.Orders, e.query.RefundsCount, CountsMost); err != nil {
		return Waiting{}, orders.Unavailable("count refunds", err)
	}
	return w, nil
}
