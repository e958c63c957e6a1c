package events

import (
	"context"

	"pawl/db"
	"pawl/internal/orders"
)

// Key names an event by its row, for those who keep its number longer than the feed does.
type Key struct {
	EventNo   int64
	OrderNo   int64  // 0: it is a stock movement
	StockItem string // empty: it is about an order
	Seq       int64  // of the order, or the version of the item
}

// ByKey reads events by their rows, also those whose numbers the feed has forgotten. One that is in an archive is left out.
// Errors: orders.ErrUnavailable.
func (r *Reader) ByKey(ctx context.Context, keys []Key) ([]Event, error) {
	feed, err := r.feed(ctx)
	if err != nil {
		return nil, err
	}
	params := db.EventsByKeyParams{}
	for _, k := range keys {
		params.EventNos = append(params.EventNos, k.EventNo)
		params.Epochs = append(params.Epochs, epochOf(k.EventNo, &feed))
		params.OrderNos = append(params.OrderNos, k.OrderNo)
		params.Items = append(params.Items, k.StockItem)
		params.Seqs = append(params.Seqs, k.Seq)
	}
	rows, err := orders.Read(ctx, r.reads, r.query.EventsByKey, params)
	if err != nil {
		return nil, orders.Unavailable("read events", err)
	}
	found := make([]Event, len(rows))
	for i := range rows {
		row := db.EventsOfBatchRow(rows[i])
		found[i] = eventOf(&row)
	}
	return found, nil
}

// CursorAt is the cursor behind the event with a number, as the feed stands now. Errors: orders.ErrUnavailable.
func (r *Reader) CursorAt(ctx context.Context, eventNo int64) (Cursor, error) {
	feed, err := r.feed(ctx)
	return Cursor{epochOf(eventNo, &feed), eventNo}, err
}
