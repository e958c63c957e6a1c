package ledger

import (
	"context"

	"pawl/db"
)

// Admit stores the orders of a batch that do not exist yet, charging, with fence 1 and seq 1, and returns them. The
// others existed, or came to exist meanwhile. The orders returned are stored if and only if the error is nil.
func Admit(ctx context.Context, q *db.Queries, p db.OrdersAdmitParams) ([]db.OrdersAdmitRow, error) {
	if len(p.OrderIds) != 1 {
		return q.OrdersAdmit(ctx, p)
	}
	rows, err := q.OrdersAdmitOne(ctx, db.OrdersAdmitOneParams{
		OrderID: p.OrderIds[0], Amount: p.Amounts[0], Currency: p.Currencies[0], Item: p.Items[0],
		Quantity: p.Quantities[0], Metadata: p.Metadata[0], Owner: p.Owner, LeaseSeconds: p.LeaseSeconds, PreviousNo: p.PreviousNo,
	})
	admitted := make([]db.OrdersAdmitRow, len(rows))
	for i, row := range rows {
		admitted[i] = db.OrdersAdmitRow(row)
	}
	return admitted, err
}
