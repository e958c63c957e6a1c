package orders

import (
	"cmp"
	"context"
	"time"

	"pawl/db"
	"pawl/fsm"
)

const errorGroupsMost = 200

// ErrorGroup counts the orders of one currency that failed or are held for attention, at the same step for the same
// reason, that are retried at the same step, or whose last refund, capture or void has failed with the same code.
type ErrorGroup struct {
	Status      fsm.State // failed, completed, or the state in which they are held
	Hold        string    // empty: they, or their operation, failed
	Step        fsm.Step  // or operation; empty: none failed
	Route       string    // of those held at a charge
	Code        string    // of the failure; of a hold, its reason up to a colon; of a retry, the most frequent one
	Orders      int64
	Trying      int64 // of Orders: the retry is under way, so that they are not held now
	More        bool  // older orders of its kind were not counted
	First, Last time.Time
	Example     string // id of the one that failed last; of a retry, of the newest
	Detail      string // of the example: what the failure says, or the whole reason of the hold

	Currency, Amount string // of all of them; a decimal with the fraction digits of the currency
}

// ErrorGroups are the groups of the newest orders, that with the last error first.
type ErrorGroups struct {
	Groups []ErrorGroup
	More   bool // older orders, or smaller groups, were left out
}

// ErrorGroups asks the database at most once a second for all callers. Errors: ErrUnavailable.
func (r *Reader) ErrorGroups(ctx context.Context) (ErrorGroups, error) {
	return r.errorGroups.get(ctx, r.later, r.readErrorGroups)
}

// readErrorGroups looks at as many failed orders, and of each hold.
func (r *Reader) readErrorGroups(ctx context.Context, most int32) (found ErrorGroups, cut bool, err error) {
	rows, err := Read(ctx, r, r.query.ErrorGroups, db.ErrorGroupsParams{Most: most, Groups: errorGroupsMost})
	counted := map[string]int64{} // by hold, or status
	for _, row := range rows {
		counted[cmp.Or(row.Hold, row.Status)] += row.Orders - row.Trying
	}
	for _, row := range rows {
		more := counted[cmp.Or(row.Hold, row.Status)] >= int64(most)
		g := ErrorGroup{fsm.State(row.Status), row.Hold, fsm.Step(row.Step), row.Route, row.Code, row.Orders, row.Trying, more, row.FirstAt, row.LastAt,
			row.Example, row.Detail, row.Currency, row.Amount}
		if g.Hold != "" {
			g.Step = g.Status.Step()
		}
		cut = cut || more
		found.Groups = append(found.Groups, g)
	}
	found.More = cut || len(rows) == errorGroupsMost
	return found, cut, Unavailable("group errors", err)
}
