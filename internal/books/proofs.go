package books

import (
	"context"
	"fmt"

	"pawl/db"
	"pawl/fsm"
)

// span is a range of order numbers, both ends included, and how many offenders to name.
type span = struct {
	Most  int32
	First int64
	Last  int64
}

// finding is what a proof says about one range.
type finding = struct {
	Checked    int64
	Violations int64
	Offenders  []string
	Faults     []string
}

// proof reads one range in the snapshot of q and enters what it finds.
type proof func(ctx context.Context, q *db.Queries, r span, l *ledger) error

// orderProofs stand in two groups that take about as long.
var orderProofs = [2][]proof{
	{provePath, plain(undone, (*db.Queries).VerifyUndone), proveMoney, plain(calls, (*db.Queries).VerifyCalls)},
	{
		proveEffects,
		plain(orphans, (*db.Queries).VerifyOrphans),
		plain(numbers, (*db.Queries).VerifyNumbers),
		plain(protocol, (*db.Queries).VerifyProtocol),
		plain(refunds, (*db.Queries).VerifyRefunds),
	},
}

// The statements take the parameters of span and answer with the columns of finding.
// sqlc gives each its own types; one that strays from the shape does not compile.
type (
	params interface{ ~span }
	row    interface{ ~finding }
)

func plain[P params, R row](name string, statement func(*db.Queries, context.Context, P) (R, error)) proof {
	return func(ctx context.Context, q *db.Queries, r span, l *ledger) error {
		found, err := statement(q, ctx, P(r))
		return l.enter(name, finding(found), err)
	}
}

// proveEffects is one statement for two checks: completed orders are what most readers
// ask for.
func proveEffects(ctx context.Context, q *db.Queries, r span, l *ledger) error {
	rows, err := q.VerifyEffects(ctx, db.VerifyEffectsParams(r))
	if err != nil {
		return fmt.Errorf("prove effects: %w", err)
	}
	for _, found := range rows {
		name := states
		if found.Status == fsm.Completed {
			name = completed
		}
		l.add(name, finding{found.Checked, found.Violations, found.Offenders, found.Faults})
		l.count(string(found.Status), found.Checked)
	}
	return nil
}

// provePath hands the machine to the database, which has no table of it.
func provePath(ctx context.Context, q *db.Queries, r span, l *ledger) error {
	params := db.VerifyPathParams{Most: r.Most, First: r.First, Last: r.Last}
	for _, edge := range fsm.Edges() {
		params.FromStates = append(params.FromStates, string(edge.From))
		params.ToStates = append(params.ToStates, string(edge.To))
	}
	found, err := q.VerifyPath(ctx, params)
	return l.enter(path, finding(found), err)
}

func proveMoney(ctx context.Context, q *db.Queries, r span, l *ledger) error {
	rows, err := q.VerifyMoney(ctx, db.VerifyMoneyParams{First: r.First, Last: r.Last})
	if err != nil {
		return fmt.Errorf("prove %s: %w", money, err)
	}
	for _, m := range rows {
		found := finding{Checked: m.Charges}
		if !m.Balanced {
			found.Violations = 1
			found.Offenders = []string{m.Currency}
			found.Faults = []string{fmt.Sprintf("order_no %d to %d: charged %s, refunded %s, charges of %s stand, orders hold %s",
				r.First, r.Last, m.Charged, m.Refunded, m.Standing, m.Held)}
		}
		l.add(money, found)
		l.sum(Money{Currency: m.Currency, Charges: m.Charges, Charged: m.Charged, Refunded: m.Refunded, Authorized: m.Authorized, Kept: m.Kept})
	}
	return nil
}
