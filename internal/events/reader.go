package events

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"pawl/db"
	"pawl/internal/orders"
)

// Filter selects events. Its zero value selects all.
type Filter struct {
	OrderID  string
	Types    []string // any of these: see MatchesType
	Statuses []string // only events of orders, with any of these after the event
}

// all reports whether the filter selects every event.
func (f *Filter) all() bool { return f.OrderID == "" && len(f.Types) == 0 && len(f.Statuses) == 0 }

func (f *Filter) selects(orderID, name, status string) bool {
	return (f.OrderID == "" || orderID == f.OrderID) && MatchesType(f.Types, name) &&
		(len(f.Statuses) == 0 || slices.Contains(f.Statuses, status))
}

// Page is a part of the feed.
type Page struct {
	Events []Event
	Next   Cursor // after all events that were examined, selected or not
	More   bool   // there are more events now
}

// Reader reads the feed. It is safe for concurrent use.
type Reader struct {
	query  *db.Queries
	reads  *orders.Reader
	wanted atomic.Int64 // the last call of Want that ran its statement, in nanoseconds since start
}

// NewReader returns a reader. Like those of orders, its reads are repeated for a moment if a connection is lost.
func NewReader(query *db.Queries, reads *orders.Reader) *Reader {
	return &Reader{query: query, reads: reads}
}

const (
	pageBatches = 4    // batches examined for a page
	rowsAtOnce  = 4000 // events read by a statement
)

// After returns up to limit events after a cursor. If the filter selects few of many events, the page is short:
// Page.More says whether there are more. Errors: *Expired, orders.ErrUnavailable.
func (r *Reader) After(ctx context.Context, after Cursor, f Filter, limit int) (Page, error) {
	r.Want(ctx)
	feed, err := r.feed(ctx)
	if err != nil {
		return Page{}, err
	}
	if after, err = resume(after, &feed); err != nil || after.No == feed.LastEventNo {
		return Page{Next: after}, err
	}
	batches, err := r.batches(ctx, after.No, f)
	if err != nil {
		return Page{}, orders.Unavailable("find events", err)
	}
	// Batches that were added since the feed was read wait for the next page.
	batches = slices.DeleteFunc(batches, func(b db.EventBatch) bool { return b.FirstEventNo > feed.LastEventNo })
	page := Page{Next: Cursor{epochOf(feed.LastEventNo, &feed), feed.LastEventNo}}
	if len(batches) > pageBatches {
		batches = batches[:pageBatches]
		last := batches[pageBatches-1]
		page.Next = Cursor{last.Epoch, last.LastEventNo}
	}
	for _, batch := range batches {
		if page.Events, err = r.collect(ctx, page.Events, batch, request{after.No, f, limit + 1}); err != nil {
			return Page{}, err
		}
		if len(page.Events) > limit {
			page.Events = page.Events[:limit]
			page.Next, _ = ParseCursor(page.Events[limit-1].Cursor)
			break
		}
	}
	page.More = page.Next.No < feed.LastEventNo
	return page, nil
}

// request is what collect reads of a batch.
type request struct {
	after int64
	Filter
	limit int
}

// collect appends the selected events of a batch, up to the limit.
func (r *Reader) collect(ctx context.Context, to []Event, batch db.EventBatch, q request) ([]Event, error) {
	for after := max(q.after, batch.FirstEventNo-1); ; {
		most := rowsAtOnce
		if q.all() {
			most = min(most, q.limit-len(to))
		}
		found, err := r.rows(ctx, batch.FirstEventNo, after, most)
		if err != nil {
			return nil, err
		}
		for i := range found {
			e := &found[i]
			if after = e.No; q.selects(e.Data.OrderID, e.Type, e.Data.Status) {
				if to = append(to, *e); len(to) == q.limit {
					return to, nil
				}
			}
		}
		if len(found) < most {
			return to, nil
		}
	}
}

func (r *Reader) rows(ctx context.Context, firstEventNo, after int64, most int) ([]Event, error) {
	params := db.EventsOfBatchParams{FirstEventNo: firstEventNo, After: after, Most: int32(most)}
	rows, err := orders.Read(ctx, r.reads, r.query.EventsOfBatch, params)
	if err != nil {
		return nil, orders.Unavailable("read events", err)
	}
	found := make([]Event, len(rows))
	for i := range rows {
		found[i] = eventOf(&rows[i])
	}
	return found, nil
}

// batches returns the batches after a number, one more than a page examines.
func (r *Reader) batches(ctx context.Context, after int64, f Filter) ([]db.EventBatch, error) {
	if f.OrderID != "" {
		params := db.EventBatchesOfOrderParams{After: after, Most: pageBatches + 1, OrderID: f.OrderID}
		return orders.Read(ctx, r.reads, r.query.EventBatchesOfOrder, params)
	}
	params := db.EventBatchesFromParams{EventNo: after + 1, Most: pageBatches + 1}
	return orders.Read(ctx, r.reads, r.query.EventBatchesFrom, params)
}

// Unnumbered returns the newest position, up to a limit, of a committed event without a number; 0: there is none.
// Errors: orders.ErrUnavailable.
func (r *Reader) Unnumbered(ctx context.Context, upTo int64) (position int64, err error) {
	position, err = orders.Read(ctx, r.reads, r.query.EventsUnnumbered, upTo)
	return position, orders.Unavailable("look for events without a number", err)
}

// Latest returns the cursor after the last numbered event. Errors: orders.ErrUnavailable.
func (r *Reader) Latest(ctx context.Context) (Cursor, error) {
	feed, err := r.feed(ctx)
	return Cursor{epochOf(feed.LastEventNo, &feed), feed.LastEventNo}, err
}

// Recent returns the cursor before the last n events, or before all if there are fewer. Errors: orders.ErrUnavailable.
func (r *Reader) Recent(ctx context.Context, n int64) (Cursor, error) {
	feed, err := r.feed(ctx)
	if err != nil {
		return Cursor{}, err
	}
	no := max(feed.LastEventNo-n, feed.FirstEventNo-1)
	return Cursor{epochOf(no+1, &feed), no}, nil
}

// Resolve checks a cursor. The zero Cursor becomes the one before the oldest event. Errors: *Expired,
// orders.ErrUnavailable.
func (r *Reader) Resolve(ctx context.Context, c Cursor) (Cursor, error) {
	feed, err := r.feed(ctx)
	if err != nil {
		return Cursor{}, err
	}
	return resume(c, &feed)
}

const wantedFor = 10 * time.Second

var start = time.Now()

// Want tells the relay, on whichever replica it runs, that there are listeners. For ten seconds, events are then
// numbered within a tenth of a second; otherwise within one or two seconds. After calls it, too. Many calls cost one
// statement in five seconds.
func (r *Reader) Want(ctx context.Context) {
	now, last := int64(time.Since(start)), r.wanted.Load()
	if last != 0 && time.Duration(now-last) < wantedFor/2 || !r.wanted.CompareAndSwap(last, now) {
		return
	}
	if _, err := r.query.EventsWanted(ctx, wantedFor.Seconds()); err != nil {
		r.wanted.CompareAndSwap(now, last) // the next call tries again; until then, events come a second later
	}
}

// feed reads the bounds of the feed. Errors: orders.ErrUnavailable.
func (r *Reader) feed(ctx context.Context) (db.EventFeedRow, error) {
	feed, err := orders.Read(ctx, r.reads, func(ctx context.Context, _ struct{}) (db.EventFeedRow, error) {
		return r.query.EventFeed(ctx)
	}, struct{}{})
	return feed, orders.Unavailable("read the feed", err)
}

// Key identifies an event by its row, which outlives its number in the feed.
type Key struct {
	EventNo   int64
	OrderNo   int64  // 0: a stock movement
	StockItem string // empty: an event of an order
	Seq       int64  // of the order, or the version of the item
}

// ByKey reads events by their rows, including those that are no longer in the feed. Archived events are left out.
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

// CursorAt returns the cursor after the event with a number. Errors: orders.ErrUnavailable.
func (r *Reader) CursorAt(ctx context.Context, eventNo int64) (Cursor, error) {
	feed, err := r.feed(ctx)
	return Cursor{epochOf(eventNo, &feed), eventNo}, err
}
