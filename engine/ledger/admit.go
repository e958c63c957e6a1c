package ledger

import (
	"context"
	"strings"

	"pawl/db"
)

// Admit stores the orders of a batch that do not exist yet, charging, with fence 1 and seq 1, and returns them. The
// others existed, or came to exist meanwhile, or their key stands for another request. The orders returned are stored, each with
// its key, if and only if the error is nil. What no order of a batch has may be nil: submitters, and keys with all that belongs to them.
func Admit(ctx context.Context, q *db.Queries, p db.OrdersAdmitKeyedParams) ([]db.OrdersAdmitRow, error) {
	switch {
	case p.Keys != nil:
		rows, err := q.OrdersAdmitKeyed(ctx, p)
		return admitted(rows), err
	case len(p.OrderIds) == 1:
		rows, err := q.OrdersAdmitOne(ctx, db.OrdersAdmitOneParams{
			OrderID: p.OrderIds[0], Amount: p.Amounts[0], Currency: p.Currencies[0], Item: p.Items[0], Quantity: p.Quantities[0],
			Metadata: p.Metadata[0], SubmittedBy: strings.Join(p.SubmittedBy, ""), Owner: p.Owner, LeaseSeconds: p.LeaseSeconds, PreviousNo: p.PreviousNo,
		})
		return admitted(rows), err
	}
	return q.OrdersAdmit(ctx, db.OrdersAdmitParams{
		OrderIds: p.OrderIds, Amounts: p.Amounts, Currencies: p.Currencies, Items: p.Items, Quantities: p.Quantities,
		Metadata: p.Metadata, SubmittedBy: p.SubmittedBy, Owner: p.Owner, LeaseSeconds: p.LeaseSeconds, PreviousNo: p.PreviousNo,
	})
}

// admitted are the rows of one of the forms of the statement.
func admitted[R db.OrdersAdmitKeyedRow | db.OrdersAdmitOneRow](rows []R) []db.OrdersAdmitRow {
	out := make([]db.OrdersAdmitRow, len(rows))
	for i, row := range rows {
		out[i] = db.OrdersAdmitRow(row)
	}
	return out
}
