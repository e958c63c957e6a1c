package events

import (
	"cmp"
	"context"
	"slices"

	"pawl/internal/orders"
)

// Listener is somebody who follows the feed. One goroutine uses it at a time.
type Listener struct {
	tail   *Tail
	filter Filter
	at     Cursor // behind all that he was given, or that the filter did not choose
	round  int    // of the tail: in this one at is known to be part of the feed
}

// Listen lets somebody follow the feed from behind a cursor. Whoever has a listener closes it. Errors: *Expired, orders.ErrStopping,
// orders.ErrUnavailable.
func (t *Tail) Listen(ctx context.Context, after Cursor, filter Filter) (*Listener, error) {
	if !t.enter() {
		return nil, orders.ErrStopping
	}
	l := &Listener{tail: t, filter: filter, at: after}
	if err := l.begin(ctx); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// Close ends it.
func (l *Listener) Close() { l.tail.leave() }

// At is where he stands: to go on from there is to miss nothing.
func (l *Listener) At() Cursor { return l.at }

// More reports whether there is more right now than he has looked at.
func (l *Listener) More() bool {
	now := l.tail.now()
	return now.running && l.at.No < now.to.No
}

// begin waits until the end of the feed is known, and finds out whether the cursor is part of the feed.
func (l *Listener) begin(ctx context.Context) error {
	now := l.tail.now()
	for !now.running {
		select {
		case <-now.news:
		case <-ctx.Done():
			return orders.ErrUnavailable
		}
		if now = l.tail.now(); now.stopping {
			return orders.ErrStopping
		}
	}
	if !now.has(l.at) {
		at, err := l.tail.reader.Resolve(ctx, l.at)
		if err != nil {
			return err
		}
		l.at = at
	}
	if l.at.Epoch == now.to.Epoch && l.at.No >= now.from.No { // also ahead of the tail, which is a little behind
		l.round = now.round
	}
	return nil
}

// Take calls take with what the tail keeps for the listener, until take says no: then that event is the last one that he has been given. older
// reports that there are events for him which the tail does not keep any more; Older reads those. When news is closed, there may be more. Errors:
// orders.ErrStopping.
func (l *Listener) Take(take func(*Kept) bool) (news <-chan struct{}, older bool, err error) {
	now := l.tail.now()
	switch {
	case now.stopping:
		return nil, false, orders.ErrStopping
	case !now.running:
		return now.news, false, nil
	case l.round != now.round || l.at.No < now.from.No:
		return now.news, true, nil
	}
	first, _ := slices.BinarySearchFunc(now.kept, l.at.No+1, func(s stretch, no int64) int { return cmp.Compare(s.last().No, no) })
	for i := first; i < len(now.kept); i++ {
		whole := now.kept[i].each(l.at.No, &l.filter, func(e *Kept) bool {
			l.at = e.at
			return take(e)
		})
		if !whole {
			return now.news, false, nil
		}
		l.at = now.kept[i].last()
	}
	if l.at.No < now.to.No {
		l.at = now.to
	}
	return now.news, false, nil
}

// Older reads events from the database, so many at most. Errors: *Expired, orders.ErrUnavailable.
func (l *Listener) Older(ctx context.Context, most int) ([]Event, error) {
	round := l.tail.now().round // before: what is found is part of the feed as it is now, or later
	page, err := l.tail.reader.After(ctx, l.at, l.filter, most)
	if err != nil {
		return nil, err
	}
	l.at, l.round = page.Next, round
	return page.Events, nil
}
