package events_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"pawl/db"
	"pawl/internal/events"
	"pawl/internal/orders"
	"pawl/internal/pg"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

// follow starts a tail of the feed, and counts what it reads.
func (f *feed) follow() (*events.Tail, *dbtest.Statements) {
	f.Helper()
	counted := &dbtest.Statements{}
	query := db.New(dbtest.Open(f, f.URL, pg.Options{MaxConns: 2, Observe: counted.Observe}))
	return f.tail(events.NewReader(query, orders.NewReader(f.Context(), query))), counted
}

// tail starts a tail that reads by a reader.
func (f *feed) tail(reader *events.Reader) *events.Tail {
	f.Helper()
	tail := events.NewTail(reader, events.TailConfig{})
	tail.Start()
	f.Cleanup(func() { tail.Stop(context.WithoutCancel(f.Context())) })
	return tail
}

// relay starts the real one.
func (f *feed) relay() *events.Relay {
	f.Helper()
	relay := events.NewRelay(f.query, events.RelayConfig{})
	relay.Start()
	f.Cleanup(relay.Stop)
	return relay
}

// latest is the end of the feed.
func (f *feed) latest() events.Cursor {
	f.Helper()
	c, err := f.reader.Latest(f.Context())
	assert.NoError(f, err)
	return c
}

// hear collects events until there are so many.
func hear(ctx context.Context, l *events.Listener, n int) (heard []string, err error) {
	for len(heard) < n {
		news, older, err := l.Take(func(e *events.Kept) bool {
			heard = append(heard, e.Cursor+" "+string(e.JSON))
			return len(heard) < n
		})
		if err != nil {
			return heard, err
		}
		if older {
			page, err := l.Older(ctx, 7)
			if err != nil {
				return heard, err
			}
			for i := range page {
				heard = append(heard, page[i].Cursor+" "+string(page[i].JSON()))
			}
			continue
		}
		if len(heard) < n {
			select {
			case <-news:
			case <-ctx.Done():
				return heard, ctx.Err()
			}
		}
	}
	return heard, nil
}

// texts are events as hear collects them.
func texts(all []events.Event) (out []string) {
	for i := range all {
		out = append(out, all[i].Cursor+" "+string(all[i].JSON()))
	}
	return out
}

// script writes the history of all nine orders, a row of each at a time.
func (f *feed) script(from, to int) {
	f.Helper()
	for seq := from; seq <= to; seq++ {
		tx := f.begin()
		for order := range int64(9) {
			f.write(tx, order+1, seq)
		}
		f.commit(tx)
	}
}

// TestTail has many listeners follow the feed while it grows. Each hears what it has chosen, once and in order, and the
// events are read from the database once for all of them.
func TestTail(t *testing.T) {
	t.Parallel()
	f := newFeed(t)
	f.relay()
	f.script(1, 5)
	assert.Eventually(t, "there are old events", func() bool { return len(f.all(events.Cursor{}, events.Filter{}, 100)) == 45 })
	tail, counted := f.follow()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	filters := []events.Filter{
		{}, {OrderID: "order-3"}, {Types: []string{"order.step_called"}}, {Statuses: []string{"charging"}},
		{Types: []string{"order.*"}, OrderID: "order-9"}, {OrderID: "nobody"}, {Types: []string{"stock.*"}},
	}
	const rows = 30
	var hearing sync.WaitGroup
	check := func(i int, after events.Cursor, first int) {
		filter := filters[i%len(filters)]
		l, err := tail.Listen(ctx, after, filter)
		if err != nil {
			t.Error(err)
			return
		}
		hearing.Go(func() {
			defer l.Close()
			var want int
			switch {
			case filter.OrderID == "nobody", filter.Types != nil && filter.Types[0] == "stock.*":
			case filter.OrderID != "":
				want = rows - first + 1
			default:
				want = 9 * (rows - first + 1)
			}
			heard, err := hear(ctx, l, want)
			if err != nil {
				t.Errorf("%+v after %v: %d of %d: %v", filter, after, len(heard), want, err)
				return
			}
			all := texts(f.all(events.Cursor{}, filter, 1000))
			assert.Equal(t, heard, all[len(all)-want:], filter, "after", after, "heard")
		})
	}
	latest := f.latest()
	for i := range 70 {
		if i%2 == 0 {
			check(i, events.Cursor{}, 1)
		} else {
			check(i, latest, 6)
		}
	}
	f.script(6, rows)
	hearing.Wait()
	var batches int
	assert.NoError(t, f.Pool.QueryRow(ctx, `SELECT count(*) FROM event_batches`).Scan(&batches))
	if n := counted.Named("EventsOfBatch"); n > 2*batches+5 {
		t.Errorf("%d reads of %d batches for 70 listeners", n, batches)
	}
	assert.Eventually(t, "no listeners are left", func() bool { return tail.Listeners() == 0 })
}

// TestTailIsShort: a listener that falls behind what is kept in memory reads the rest from the database.
func TestTailIsShort(t *testing.T) {
	t.Parallel()
	f := newFeed(t)
	f.relay()
	tail, _ := f.follow()
	tail.Keep(4000)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	slow, err := tail.Listen(ctx, f.latest(), events.Filter{})
	assert.NoError(t, err)
	defer slow.Close()
	quick, err := tail.Listen(ctx, f.latest(), events.Filter{OrderID: "order-1"})
	assert.NoError(t, err)
	defer quick.Close()
	for seq := 1; seq <= 5; seq++ {
		f.script(seq, seq)
		assert.NoError(t, assert.Err(hear(ctx, quick, 1)))
	}
	if _, older, err := slow.Take(func(*events.Kept) bool { return true }); !older || err != nil {
		t.Fatal("he is not behind", err)
	}
	heard, err := hear(ctx, slow, 45)
	if want := texts(f.all(events.Cursor{}, events.Filter{}, 100)); err != nil || !slices.Equal(heard, want) {
		t.Errorf("heard %s\nwant %s\n%v", heard, want, err)
	}
}

// TestTailOfALostHistory: a listener that has seen lost events gets an error, even while it listens.
func TestTailOfALostHistory(t *testing.T) {
	t.Parallel()
	f := newFeed(t)
	f.hold()
	f.script(1, 2)
	f.numberUntil(18)
	tail, _ := f.follow()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	l, err := tail.Listen(ctx, events.Cursor{}, events.Filter{})
	assert.NoError(t, err)
	defer l.Close()
	assert.NoError(t, assert.Err(hear(ctx, l, 18)))
	f.exec(`DELETE FROM event_batches WHERE last_event_no > 0`) // as after a standby took over that did not have them
	f.exec(`INSERT INTO event_epochs (epoch, first_event_no) SELECT max(epoch) + 1, 1 FROM event_epochs`)
	_, err = hear(ctx, l, 1)
	if expired := (*events.Expired)(nil); !errors.As(err, &expired) || !expired.Lost {
		t.Error(err)
	}
	at := l.At()
	_, err = tail.Listen(ctx, at, events.Filter{})
	if expired := (*events.Expired)(nil); !errors.As(err, &expired) || !expired.Lost {
		t.Error(err)
	}
	if _, err := tail.Listen(ctx, events.Cursor{Epoch: at.Epoch, No: 1 << 40}, events.Filter{}); !errors.As(err, new(*events.Expired)) {
		t.Error("a number that there never was: ", err)
	}
}

// TestTailStops: Stop tells the listeners to end, and waits for them.
func TestTailStops(t *testing.T) {
	t.Parallel()
	f := newFeed(t)
	tail, _ := f.follow()
	l, err := tail.Listen(t.Context(), f.latest(), events.Filter{})
	assert.NoError(t, err)
	stopped := make(chan struct{})
	go func() {
		tail.Stop(t.Context())
		close(stopped)
	}()
	assert.ErrorIs(t, assert.Err(hear(t.Context(), l, 1)), orders.ErrStopping)
	select {
	case <-stopped:
		t.Error("it has not waited for him")
	default:
	}
	l.Close()
	<-stopped
	if _, err := tail.Listen(t.Context(), f.latest(), events.Filter{}); !errors.Is(err, orders.ErrStopping) {
		t.Error(fmt.Sprint("afterwards: ", err))
	}
}

// TestTailBehindAPooler: the relay, the tail and its listeners do without what a transaction pooler can't do.
func TestTailBehindAPooler(t *testing.T) {
	t.Parallel()
	f := newFeed(t)
	direct := f.query
	f.query = db.New(dbtest.Open(t, dbtest.Pooler(t, f.URL), pg.Options{MaxConns: 2}))
	f.reader = events.NewReader(f.query, orders.NewReader(t.Context(), f.query))
	f.relay()
	tail := f.tail(f.reader)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	l, err := tail.Listen(ctx, events.Cursor{}, events.Filter{})
	assert.NoError(t, err)
	defer l.Close()
	f.script(1, 3)
	heard, err := hear(ctx, l, 27)
	f.reader = events.NewReader(direct, orders.NewReader(ctx, direct))
	if want := texts(f.all(events.Cursor{}, events.Filter{}, 100)); err != nil || !slices.Equal(heard, want) {
		t.Errorf("heard %s\nwant %s\n%v", heard, want, err)
	}
}

// TestTailWithoutADatabase: after an outage of the database, a listener gets the events in between.
func TestTailWithoutADatabase(t *testing.T) {
	t.Parallel()
	f := newFeed(t)
	f.relay()
	proxy := dbtest.NewProxy(t, f.URL)
	query := db.New(dbtest.Open(t, proxy.URL, pg.Options{MaxConns: 2}))
	tail := f.tail(events.NewReader(query, orders.NewReader(t.Context(), query)))
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	l, err := tail.Listen(ctx, f.latest(), events.Filter{OrderID: "order-2"})
	assert.NoError(t, err)
	defer l.Close()
	proxy.On(func(string) dbtest.Fate { return dbtest.LoseRequest })
	f.script(1, 3)
	proxy.On(nil)
	if heard, err := hear(ctx, l, 3); err != nil {
		t.Errorf("heard %s: %v", heard, err)
	}
}
