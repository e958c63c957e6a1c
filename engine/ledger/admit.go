package ledger

import (
	"context"
	"strings"

	"pawl/db"
)

// Admit inserts the new orders of a batch, charging, with fence 1 and seq 1, and returns them. It leaves out orders
// that exist or were forgotten, and orders whose key belongs to another request. After an error, pg.FaultOf says what
// is known. SubmittedBy and the three slices of keys may be nil.
func Admit(ctx context.Context, q *db.Queries, p db.OrdersAdmitParams) ([]db.OrdersAdmitRow, error) {
	if p.Keys != nil || len(p.OrderIds) != 1 {
		return q.OrdersAdmit(ctx, p)
	}
	rows, err := q.OrdersAdmitOne(ctx, db.OrdersAdmitOneParams{
		OrderID: p.OrderIds[0], Suspected: p.Suspected, Known: p.Known, Amount: p.Amounts[0], Currency: p.Currencies[0], Item: p.Items[0], Quantity: p.Quantities[0],
		Metadata: p.Metadata[0], SubmittedBy: strings.Join(p.SubmittedBy, ""), Owner: p.Owner,
		LeaseSeconds: p.LeaseSeconds, PreviousNo: p.PreviousNo, EndedNo: p.EndedNo,
	})
	admitted := make([]db.OrdersAdmitRow, len(rows))
	for i, row := range rows {
		admitted[i] = db.OrdersAdmitRow(row)
	}
	return admitted, err
}
