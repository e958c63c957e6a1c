package events

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"pawl/db"
	"pawl/internal/orders"
)

// Filter chooses events. Zero values choose all.
type Filter struct {
	OrderID  string
	Types    []string // any of them, as MatchesType says
	Statuses []string // only of orders, in any of these statuses after the event
}

// all reports whether the filter chooses every event.
func (f *Filter) all() bool { return f.OrderID == "" && len(f.Types) == 0 && len(f.Statuses) == 0 }

func (f *Filter) chooses(orderID, name, status string) bool {
	return (f.OrderID == "" || orderID == f.OrderID) && MatchesType(f.Types, name) &&
		(len(f.Statuses) == 0 || slices.Contains(f.Statuses, status))
}

// Page is a part of the feed.
type Page struct {
	Events []Event
	Next   Cursor // where to go on: behind all that was looked at, whether the filter chose it or not
	More   bool   // there is more right now
}

// Reader reads the feed. It is safe for concurrent use.
type Reader struct {
	query  *db.Queries
	reads  *orders.Reader
	wanted atomic.Int64 // when this process last said that there are listeners, in nanoseconds since start
}

// NewReader returns a reader. A read whose connection is lost is repeated for a moment, as those of orders are.
func NewReader(query *db.Queries, reads *orders.Reader) *Reader {
	return &Reader{query: query, reads: reads}
}

const (
	pageBatches = 4    // how many batches a page looks at, at most
	rowsAtOnce  = 4000 // how many events are read by a statement, at most
)

// After reads up to limit events after a cursor that the filter chooses. A page that looked at much and found little is short:
// More says whether to go on. Errors: *Expired, orders.ErrUnavailable.
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
	batches = slices.DeleteFunc(batches, func(b db.EventBatch) bool { return b.FirstEventNo > feed.LastEventNo }) // they came since
	page := Page{Next: Cursor{epochOf(feed.LastEventNo, &feed), feed.LastEventNo}}
	if len(batches) > pageBatches {
		batches = batches[:pageBatches]
		last := batches[pageBatches-1]
		page.Next = Cursor{last.Epoch, last.LastEventNo}
	}
	for _, batch := range batches {
		if page.Events, err = r.choose(ctx, page.Events, batch, request{after.No, f, limit + 1}); err != nil {
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

// request is what is wanted of a batch.
type request struct {
	after int64
	Filter
	limit int
}

// choose adds to chosen what the filter chooses of a batch, until they are as many as the limit.
func (r *Reader) choose(ctx context.Context, chosen []Event, batch db.EventBatch, q request) ([]Event, error) {
	for after := max(q.after, batch.FirstEventNo-1); ; {
		most := rowsAtOnce
		if q.all() {
			most = min(most, q.limit-len(chosen))
		}
		found, err := r.rows(ctx, batch.FirstEventNo, after, most)
		if err != nil {
			return nil, err
		}
		for i := range found {
			e := &found[i]
			if after = e.No; q.chooses(e.Data.OrderID, e.Type, e.Data.Status) {
				if chosen = append(chosen, *e); len(chosen) == q.limit {
					return chosen, nil
				}
			}
		}
		if len(found) < most {
			return chosen, nil
		}
	}
}

func (r *Reader) rows(ctx context.Context, firstEventNo, after int64, most int) ([]Event, error) {
	rows, err := orders.Read(ctx, r.reads, r.query.EventsOfBatch, db.EventsOfBatchParams{FirstEventNo: firstEventNo, After: after, Most: int32(most)})
	if err != nil {
		return nil, orders.Unavailable("read events", err)
	}
	found := make([]Event, len(rows))
	for i := range rows {
		found[i] = eventOf(&rows[i])
	}
	return found, nil
}

// batches are those to look at after a number, one more than a page looks at.
func (r *Reader) batches(ctx context.Context, after int64, f Filter) ([]db.EventBatch, error) {
	if f.OrderID != "" {
		return orders.Read(ctx, r.reads, r.query.EventBatchesOfOrder, db.EventBatchesOfOrderParams{After: after, Most: pageBatches + 1, OrderID: f.OrderID})
	}
	return orders.Read(ctx, r.reads, r.query.EventBatchesFrom, db.EventBatchesFromParams{EventNo: after + 1, Most: pageBatches + 1})
}

// Unnumbered is the newest position, up to one, of what is committed and has no number yet; 0: all of it has. Errors: orders.ErrUnavailable.
func (r *Reader) Unnumbered(ctx context.Context, upTo int64) (position int64, err error) {
	position, err = orders.Read(ctx, r.reads, r.query.EventsUnnumbered, upTo)
	return position, orders.Unavailable("look for events without a number", err)
}

// Latest is the cursor behind the last event that has a number now. Errors: orders.ErrUnavailable.
func (r *Reader) Latest(ctx context.Context) (Cursor, error) {
	feed, err := r.feed(ctx)
	return Cursor{epochOf(feed.LastEventNo, &feed), feed.LastEventNo}, err
}

// Recent is the cursor before the last so many events, or before the oldest that is kept. Errors: orders.ErrUnavailable.
func (r *Reader) Recent(ctx context.Context, events int64) (Cursor, error) {
	feed, err := r.feed(ctx)
	if err != nil {
		return Cursor{}, err
	}
	no := max(feed.LastEventNo-events, feed.FirstEventNo-1)
	return Cursor{epochOf(no+1, &feed), no}, nil
}

// Resolve finds out where a cursor is in the feed. Errors: *Expired, orders.ErrUnavailable.
func (r *Reader) Resolve(ctx context.Context, c Cursor) (Cursor, error) {
	feed, err := r.feed(ctx)
	if err != nil {
		return Cursor{}, err
	}
	return resume(c, &feed)
}

const wantedFor = 10 * time.Second

var start = time.Now()

// Want tells the relay, whichever replica it is on, that there are listeners: then events have a number within a tenth of a second,
// and otherwise within one or two seconds. It holds for ten seconds, and After says it, too. Many calls cost one statement in five seconds.
func (r *Reader) Want(ctx context.Context) {
	now, last := int64(time.Since(start)), r.wanted.Load()
	if last != 0 && time.Duration(now-last) < wantedFor/2 || !r.wanted.CompareAndSwap(last, now) {
		return
	}
	if _, err := r.query.EventsWanted(ctx, wantedFor.Seconds()); err != nil {
		r.wanted.CompareAndSwap(now, last) // the events come a second later, or it is said next time
	}
}

// feed is how far the feed goes. Errors: orders.ErrUnavailable.
func (r *Reader) feed(ctx context.Context) (db.EventFeedRow, error) {
	feed, err := orders.Read(ctx, r.reads, func(ctx context.Context, _ struct{}) (db.EventFeedRow, error) { return r.query.EventFeed(ctx) }, struct{}{})
	return feed, orders.Unavailable("read the feed", err)
}

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
