package events_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"pawl/db"
	"pawl/internal/cell"
	"pawl/internal/events"
	"pawl/internal/orders"
	"pawl/internal/pg"
	"pawl/migrations"
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
	n := counted.Named("EventsOfBatch")
	assert.True(t, n <= 2*batches+5, n, "reads of", batches, "batches for 70 listeners")
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
	want := texts(f.all(events.Cursor{}, events.Filter{}, 100))
	assert.True(t, err == nil && slices.Equal(heard, want), "heard", heard, want, err)
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
	expired, ok := errors.AsType[*events.Expired](err)
	assert.True(t, ok && expired.Lost, err)
	at := l.At()
	_, err = tail.Listen(ctx, at, events.Filter{})
	expired, ok = errors.AsType[*events.Expired](err)
	assert.True(t, ok && expired.Lost, err)
	_, err = tail.Listen(ctx, events.Cursor{Epoch: at.Epoch, No: 1 << 40}, events.Filter{})
	assert.True(t, errors.As(err, new(*events.Expired)), "a number that there never was: ", err)
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
	_, err = tail.Listen(t.Context(), f.latest(), events.Filter{})
	assert.ErrorIs(t, err, orders.ErrStopping, fmt.Sprint("afterwards: ", err))
}

// TestTailBehindAPooler: the relay, the tail and its listeners do without what a transaction pooler can't do.
func TestTailBehindAPooler(t *testing.T) {
	t.Parallel()
	f := newFeed(t)
	direct := f.query
	f.query = db.New(dbtest.Open(t, dbtest.Pooler(t, f.URL, "transaction"), pg.Options{MaxConns: 2}))
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
	want := texts(f.all(events.Cursor{}, events.Filter{}, 100))
	assert.True(t, err == nil && slices.Equal(heard, want), "heard", heard, want, err)
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
	heard, err := hear(ctx, l, 3)
	assert.True(t, err == nil, "heard", heard, err)
}

// pgProgram finds a program of PostgreSQL that a database is restored with.
func pgProgram(t *testing.T, name string) string {
	t.Helper()
	folders, _ := filepath.Glob("/usr/lib/postgresql/*/bin")
	for _, folder := range append([]string{os.Getenv("PAWL_TEST_PG_BIN")}, folders...) {
		if path := filepath.Join(folder, name); folder != "" {
			if _, err := os.Stat(path); err == nil {
				return path
			}
		}
	}
	t.Skip("there is no ", name, " here: see TestEventsOfAnotherCluster")
	return ""
}

// TestEventsAfterARestore takes a dump into another cluster, where transactions count from another number. The feed goes on where it
// was, in another epoch, once the owner has adopted it. What happened last before the dump and was lost, and what happens instead, have
// different ids; what was restored keeps its own.
func TestEventsAfterARestore(t *testing.T) {
	t.Parallel()
	dump := pgProgram(t, "pg_dump")
	f := newFeed(t)
	assert.NoError(t, assert.Err(migrations.Settle(t.Context(), f.query, "", cell.All)))
	f.hold()
	for range 300 { // beyond where the other cluster stands
		f.exec(`SELECT txid_current()`)
	}
	tx := f.begin()
	f.write(tx, 1, 1)
	f.write(tx, 2, 1)
	f.commit(tx)
	f.numberUntil(2)
	f.add(1, 2) // it has no number yet when the dump is taken
	before := f.all(events.Cursor{}, events.Filter{}, 10)
	assert.NoError(t, assert.Err(f.query.EventRelayRelease(t.Context(), db.EventRelayReleaseParams{Owner: f.owner, Fence: f.fence})))
	file := filepath.Join(t.TempDir(), "dump.sql")
	if out, err := exec.CommandContext(t.Context(), dump, "--no-owner", "--no-privileges", "-f", file, f.AdminURL).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	f.add(1, 3) // the dump does not have it
	f.hold()
	f.numberUntil(4)
	lost := f.all(events.Cursor{}, events.Filter{}, 10)

	elsewhere := dbtest.Restartable(t)
	r := &feed{T: t, Database: &dbtest.Database{URL: elsewhere.URL}, owner: f.owner}
	for _, arguments := range [][]string{{"-c", "DROP SCHEMA pawl, books, public CASCADE; CREATE SCHEMA public"}, {"-f", file}} {
		restore := exec.CommandContext(t.Context(), pgProgram(t, "psql"),
			append([]string{"-v", "ON_ERROR_STOP=1", "-q", "-d", elsewhere.URL}, arguments...)...)
		out, err := restore.CombinedOutput()
		assert.NoError(t, err, out)
	}
	r.open()
	held, err := r.query.EventRelayHold(t.Context(), db.EventRelayHoldParams{Owner: r.owner, LeaseSeconds: 60})
	assert.Require(t, errors.Is(err, pgx.ErrNoRows), held, "events get numbers of another cluster's transactions", err)
	assert.NoError(t, migrations.Adopt(t.Context(), elsewhere.URL, migrations.Adoption{Actor: "test"}))
	r.hold()
	r.add(1, 3)
	r.numberUntil(4)
	want := []string{"1 evt_1_1", "2 evt_2_1", "3 evt_1_2", "4 evt_1_3"}
	after := r.all(events.Cursor{}, events.Filter{}, 10)
	assert.Equal(t, shown(after), want)
	assert.True(t, after[3].ID != lost[3].ID && after[2].ID == lost[2].ID && after[3].Cursor != lost[3].Cursor,
		"lost", lost[2].ID, lost[3].ID, "restored", after[2].ID, "and instead", after[3].ID)
	assert.True(t, string(after[0].JSON()) == string(before[0].JSON()) && after[2].Cursor != before[1].Cursor,
		after[0].JSON(), before[0].JSON())
	last, _ := events.ParseCursor(before[1].Cursor)
	assert.Equal(t, shown(r.all(last, events.Filter{}, 10)), want[2:], "after the last event before the dump")
}

// TestEventsOfAnotherCluster does the same without a second cluster: positions that are far beyond the transactions of this one.
func TestEventsOfAnotherCluster(t *testing.T) {
	t.Parallel()
	f := newFeed(t)
	f.hold()
	f.add(1, 1)
	f.numberUntil(1)
	f.exec(`INSERT INTO transitions (order_no, seq, to_status, fence, position) VALUES (1, 2, 'charging', 1, 1000000000000)`)
	f.exec(`UPDATE installation SET system_identifier = 17`)
	assert.ErrorIs(t, migrations.Adopt(t.Context(), f.URL, migrations.Adoption{Actor: "test"}), migrations.ErrNotOwner,
		"the role of the service adopts")
	var inUse *migrations.InUse
	err := migrations.Adopt(t.Context(), f.AdminURL, migrations.Adoption{Actor: "test"})
	assert.True(t, errors.As(err, &inUse) && time.Until(inUse.Until) >= 0, "adopted while a relay has its lease", err)
	f.exec(`UPDATE event_relay SET due_at = now()`)
	for range 2 {
		assert.NoError(t, migrations.Adopt(t.Context(), f.AdminURL, migrations.Adoption{Actor: "test"}))
	}
	f.add(1, 3)
	f.exec(`INSERT INTO stock_movements (item, version, kind, change, on_hand, sold, actor, request_id)
		VALUES ('widget', 1, 'set', 5, 5, 0, 'local', 'x')`)
	f.hold()
	f.numberUntil(4)
	got := shown(f.all(events.Cursor{}, events.Filter{}, 10))
	assert.Equal(t, []string{"1 evt_1_1", "2 evt_1_2", "3 evt_1_3", "4 stk_8ac140ceb6ca8d6e_1"}, got)
}

// TestCursorsOfALostHistory: another timeline begins another epoch. A cursor from before it is good, one from what was lost is not.
func TestCursorsOfALostHistory(t *testing.T) {
	t.Parallel()
	f := newFeed(t)
	f.hold()
	write := func(seq int) {
		t.Helper()
		f.add(1, seq)
		f.numberUntil(int64(seq))
	}
	write(1)
	write(2)
	old := f.all(events.Cursor{}, events.Filter{}, 10)
	f.exec(`UPDATE event_relay SET history = '00000000/1', epoch = epoch - 1000`) // as if it had begun long ago, on another timeline
	f.exec(`ALTER TABLE event_epochs DISABLE TRIGGER kept`)
	f.exec(`UPDATE event_epochs SET epoch = epoch - 1000`)
	epoch := func(c string, no int64) events.Cursor {
		cursor, err := events.ParseCursor(c)
		assert.NoError(t, err)
		return events.Cursor{Epoch: cursor.Epoch - 1000, No: no}
	}
	f.add(1, 3)
	added := f.number()
	assert.True(t, !added.Ours && added.Events == 0, "an event of another timeline is numbered as one of the old", added)
	f.hold()
	f.numberUntil(3)
	for no, want := range map[int64]int{0: 3, 1: 2, 2: 1} {
		got := f.all(epoch(old[0].Cursor, no), events.Filter{}, 10)
		assert.Equal(t, len(got), want, "after", no, shown(got))
	}
	expired := func(c events.Cursor) *events.Expired {
		t.Helper()
		_, err := f.reader.After(t.Context(), c, events.Filter{}, 10)
		var e *events.Expired
		assert.Require(t, errors.As(err, &e), c, err)
		return e
	}
	lost := expired(epoch(old[0].Cursor, 3)) // the old history had a third event, too
	want := epoch(old[0].Cursor, 2)
	assert.True(t, lost.Lost && lost.Continue == want, lost, want)
	assert.Equal(t, shown(f.all(lost.Continue, events.Filter{}, 10)), []string{"3 evt_1_3"})
	e := expired(events.Cursor{Epoch: 5, No: 1})
	assert.True(t, e.Lost && e.Continue.No == 0, "of an unknown history", e)
	// Then the numbers of the first two are forgotten.
	f.exec(`UPDATE event_batches SET at = now() - interval '2 days'`)
	n, err := f.query.EventBatchesPurge(t.Context(), db.EventBatchesPurgeParams{RetentionSeconds: 86400, Most: 100})
	assert.True(t, err == nil && n == 2, n, err)
	e = expired(epoch(old[0].Cursor, 1))
	assert.True(t, !e.Lost && e.Continue.No == 2, e)
	assert.Equal(t, shown(f.all(events.Cursor{}, events.Filter{}, 10)), []string{"3 evt_1_3"})
}

// TestNumbersAreKeptForEndpoints: what an enabled endpoint has not taken over is not forgotten.
func TestNumbersAreKeptForEndpoints(t *testing.T) {
	t.Parallel()
	f := newFeed(t)
	f.hold()
	for seq := range 3 {
		f.add(1, seq+1)
		f.numberUntil(int64(seq + 1))
	}
	f.exec(`UPDATE event_batches SET at = now() - interval '2 days'`)
	f.exec(`INSERT INTO webhook_endpoints (event_no, created_by, secret, url) VALUES (1, 'test', 'whsec_AAAA', 'https://shop.example/')`)
	purge := func() int64 {
		n, err := f.query.EventBatchesPurge(t.Context(), db.EventBatchesPurgeParams{RetentionSeconds: 86400, Most: 100})
		assert.NoError(t, err)
		return n
	}
	assert.Equal(t, purge(), 1, "batches are forgotten, of which an endpoint wants one")
	f.exec(`UPDATE webhook_endpoints SET state = 'disabled', disabled_at = now(), disabled_reason = 'test'`)
	assert.Equal(t, purge(), 1, "batches are forgotten")
	assert.Equal(t, purge(), 0, "the newest batch is forgotten: numbers would begin anew")
}
