package engine

import (
	"context"
	"strings"
	"sync/atomic"
	"time"

	"pawl/db"
	"pawl/fsm"
	"pawl/orders"
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

// OldestOrder is an order that has not ended. Hold is nil where somebody drives it.
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
	replicas, err := orders.Read(ctx, e.Orders, e.query.ServerReplicas, db.ServiceName)
	if err != nil {
		return v, orders.Unavailable("look for replicas", err)
	}
	for _, row := range replicas {
		v.Replicas = append(v.Replicas, Replica{strings.TrimSpace(strings.TrimPrefix(row.Name, db.ServiceName)), row.Connections, row.Since})
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
