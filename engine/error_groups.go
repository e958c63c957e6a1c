package engine

import (
	"context"
	"time"

	"pawl/db"
	"pawl/fsm"
	"pawl/orders"
)

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
