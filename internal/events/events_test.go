package events_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/govalues/decimal"
	"github.com/jackc/pgx/v5"

	"pawl/db"
	"pawl/engine"
	"pawl/internal/events"
	"pawl/internal/orders"
	"pawl/internal/pg"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

// TestFeed shows which events come of the histories of two orders and a shelf, and which of them a filter selects.
func TestFeed(t *testing.T) {
	t.Parallel()
	f := newFeed(t)
	f.hold()
	f.exec(`INSERT INTO transitions (order_no, seq, from_status, to_status, fence, verb, actor) VALUES
		(1, 1, 'pending', 'charging', 1, NULL, NULL), (1, 2, 'charging', 'charging', 1, 'retry', NULL),
		(1, 3, 'charging', 'charging', 1, 'retry', 'ann'), (1, 4, 'charging', 'reserving', 1, NULL, NULL),
		(2, 1, 'pending', 'charging', 1, NULL, NULL), (2, 2, 'charging', 'charging', 1, 'of a newer release', NULL)`)
	f.exec(`INSERT INTO stock_movements (item, version, kind, change, on_hand, sold, actor, request_id)
		VALUES ('widget', 1, 'set', 5, 5, 0, 'ann', 'x')`)
	f.numberUntil(7)
	for _, c := range []struct {
		chosen string
		by     events.Filter
		want   string
	}{
		{"all", events.Filter{}, "1 order.charging, 2 order.awaiting_retry, 3 order.retry_requested, 4 order.reserving, 5 order.charging, 6 order.changed, 7 stock.set"},
		{"an order", events.Filter{OrderID: "order-2"}, "5 order.charging, 6 order.changed"},
		{"a type", events.Filter{Types: []string{"order.charging"}}, "1 order.charging, 5 order.charging"},
		{"some types", events.Filter{Types: []string{"order.reserving", "stock.*"}}, "4 order.reserving, 7 stock.set"},
		{"a status after the event", events.Filter{Statuses: []string{"reserving"}}, "4 order.reserving"},
		{"a type of an order", events.Filter{OrderID: "order-1", Types: []string{"order.charging"}}, "1 order.charging"},
	} {
		for _, limit := range []int{1, 100} {
			var got []string
			for _, e := range f.all(events.Cursor{}, c.by, limit) {
				got = append(got, fmt.Sprintf("%d %s", e.No, e.Type))
			}
			assert.Equal(t, strings.Join(got, ", "), c.want, c.chosen, "in pages of", limit, got)
		}
	}
}

// TestEventsInOrder shows the trap of the feed: an order whose row 6 has an older transaction than its row 5. A reader that
// stops at the oldest open transaction would get 6 alone, and then continue after it.
func TestEventsInOrder(t *testing.T) {
	t.Parallel()
	f := newFeed(t)
	f.hold()
	first := f.begin()
	for seq := range 4 {
		f.write(first, 1, seq+1)
	}
	f.commit(first)
	older, open, younger := f.begin(), f.begin(), f.begin()
	f.write(younger, 1, 5)
	f.commit(younger)
	f.write(older, 1, 6)
	f.commit(older)

	f.numberUntil(6)
	var naive []int
	if err := f.Pool.QueryRow(t.Context(), `SELECT array_agg(seq ORDER BY seq) FROM transitions
		WHERE position < (SELECT max(position_to) FROM event_batches)`).Scan(&naive); err != nil || slices.Contains(naive, 5) {
		t.Fatal("not the case that is meant: ", naive, err)
	}
	want := []string{"1 evt_1_1", "2 evt_1_2", "3 evt_1_3", "4 evt_1_4", "5 evt_1_5", "6 evt_1_6"}
	assert.Equal(t, shown(f.all(events.Cursor{}, events.Filter{}, 100)), want)
	state, err := f.query.EventRelayState(t.Context())
	assert.True(t, err == nil && state.Lag == 0, "an early event waits for a number", state, err)
	f.write(open, 2, 1)
	f.commit(open)
	f.numberUntil(7)
	want = append(want, "7 evt_2_1")
	for _, limit := range []int{1, 4, 100} {
		assert.Equal(t, shown(f.all(events.Cursor{}, events.Filter{}, limit)), want, "in pages of", limit)
	}
	assert.Equal(t, shown(f.all(events.Cursor{}, events.Filter{OrderID: "order-1"}, 2)), want[:6], "of one order: ")
}

// TestRelayIsFenced: who has lost the lease numbers nothing any more, and nothing is numbered twice.
func TestRelayIsFenced(t *testing.T) {
	t.Parallel()
	f := newFeed(t)
	f.hold()
	f.add(1, 1)
	f.exec(`UPDATE event_relay SET owner = gen_random_uuid(), fence = fence + 1`)
	assert.Eventually(t, "the row is below the horizon", func() bool {
		added := f.number()
		assert.Require(t, !added.Ours && added.Events == 0, added)
		var below bool
		assert.NoError(t, f.Pool.QueryRow(t.Context(), `SELECT max(position) < $1 FROM transitions`, added.Horizon).Scan(&below))
		return below
	})
	_, err := f.query.EventRelayHold(t.Context(), db.EventRelayHoldParams{Owner: f.owner, LeaseSeconds: relayLease})
	assert.True(t, err != nil, "the lease was taken from its holder")
	f.exec(`UPDATE event_relay SET due_at = now()`)
	f.hold()
	f.numberUntil(1)
	again := f.number()
	assert.True(t, again.Events == 0 && again.Ours, again)
}

// TestSmallTransactions: one look numbers what many transactions have written, not one after the other.
func TestSmallTransactions(t *testing.T) {
	t.Parallel()
	f := newFeed(t)
	f.hold()
	txs := make([]pgx.Tx, 3)
	for i := range txs {
		txs[i] = f.begin()
	}
	for i, tx := range txs {
		f.write(tx, 1, i+1)
	}
	f.commit(txs...)
	assert.Eventually(t, "all rows are below the horizon", func() bool {
		var below bool
		if err := f.Pool.QueryRow(t.Context(), `SELECT max(t.position) < r.position_offset + pg_snapshot_xmin(pg_current_snapshot())::text::bigint
			FROM transitions AS t, event_relay AS r GROUP BY r.position_offset`).Scan(&below); err != nil {
			t.Fatal(err)
		}
		return below
	})
	added := f.number()
	assert.True(t, added.Events >= 2, added.Events, "events of", len(txs), "transactions in one look")
}

// TestLargeTransactions: batches end with a transaction, however many rows it has.
func TestLargeTransactions(t *testing.T) {
	t.Parallel()
	f := newFeed(t)
	f.hold()
	var rows int64
	for _, n := range []int64{400, 599, 1, 999, 1000, 1001, 2500, 3} {
		f.exec(`INSERT INTO transitions (order_no, seq, from_status, to_status, fence, verb)
			SELECT 1, $1::bigint + n, 'charging', 'charging', 1, 'call' FROM generate_series(1, $2::bigint) AS n`, rows, n)
		rows += n
	}
	f.numberUntil(rows)
	all := f.all(events.Cursor{}, events.Filter{}, 1000)
	for i := range all {
		assert.Require(t, all[i].No == int64(i+1) && all[i].Data.Seq == all[i].No,
			"event", all[i].No, "at place", i+1, "has seq", all[i].Data.Seq)
	}
	assert.Equal(t, int64(len(all)), rows, len(all), "events of rows")
}

// TestEveryWriteIsOneEvent has two replicas take orders, stop and start them again as people ask, and somebody write to orders in
// transactions that began earlier, while two relays number the rows and a reader follows. Each row of the history and each stock movement
// is one event, numbers are without gaps, the events of an order are in the order of seq, and read again they have the same bytes.
func TestEveryWriteIsOneEvent(t *testing.T) {
	t.Parallel()
	const load = 15 // orders of each caller
	f := newFeed(t)
	pool := dbtest.Open(t, f.URL, pg.Options{MaxConns: 8, Patience: time.Minute})
	relays := []*events.Relay{f.relay(), f.relay()}
	var follower follower
	follower.start(f)

	var writers sync.WaitGroup
	var engines []*engine.Engine
	for replica := range 2 {
		e := engine.New(pool, engine.Config{Lease: 2 * time.Second, RecoveryInterval: 50 * time.Millisecond})
		e.Start()
		t.Cleanup(func() { e.Stop(context.WithoutCancel(t.Context())) }) //nolint:errcheck // what it leaves is another one's
		engines = append(engines, e)
		for caller := range 2 {
			writers.Go(func() {
				for n := range load {
					disturb(t, e, fmt.Sprintf("load-%d-%d-%d", replica, caller, n))
				}
			})
			writers.Go(func() {
				for n := range load {
					f.touch(fmt.Sprintf("load-%d-%d-%d", replica, caller, n))
				}
			})
		}
	}
	writers.Wait()
	relays[0].Stop() // the other one takes over
	for _, e := range engines {
		assert.NoError(t, e.Stop(t.Context()))
	}

	rows := f.rows() // after the last write
	assert.Eventually(t, "every row has been numbered and read", func() bool { return follower.count.Load() >= int64(len(rows)) })
	follower.stop()
	all := f.all(events.Cursor{}, events.Filter{}, 1000)
	checkFeed(t, all, rows)
	assert.Require(t, len(follower.found) == len(all), len(follower.found), "were read as they came, and", len(all), "later")
	for i, e := range follower.found {
		assert.Require(t, string(e.JSON()) == string(all[i].JSON()), "read again it is", all[i].JSON(), "and was", e.JSON())
	}
	var early int
	assert.NoError(t, f.Pool.QueryRow(t.Context(), `SELECT count(*) FROM early_events`).Scan(&early))
	t.Logf("%d events, %d of them early", len(all), early)
}

// checkFeed compares all events with the rows.
func checkFeed(t *testing.T, all []events.Event, rows []string) {
	t.Helper()
	var got []string
	seqs := map[string]int64{}
	for i := range all {
		e := &all[i]
		subject, seq := fmt.Sprint("order ", e.OrderNo), e.Data.Seq
		if e.StockItem != "" {
			subject, seq = "item "+e.StockItem, e.Data.Version
		}
		assert.True(t, e.No == int64(i+1) && seq > seqs[subject],
			"event", e.No, "at place", i+1, subject, "has", seq, "after", seqs[subject])
		seqs[subject] = seq
		got = append(got, fmt.Sprint(subject, " ", seq))
		assert.True(t, slices.Contains(events.Types(), e.Type) && e.Type != "order.changed", "the type", e.Type, "is not documented")
	}
	slices.Sort(got)
	assert.Equal(t, got, rows, len(got), "events of", len(rows), "rows")
}

// follower reads the feed as it grows.
type follower struct {
	stop    func() // waits until it has ended
	count   atomic.Int64
	found   []events.Event // once it has ended
	running sync.WaitGroup
}

func (w *follower) start(f *feed) {
	f.Helper()
	ctx, end := context.WithCancel(f.Context())
	w.stop = func() { end(); w.running.Wait() }
	f.Cleanup(w.stop)
	w.running.Go(func() {
		var after events.Cursor
		for ctx.Err() == nil {
			page, err := f.reader.After(ctx, after, events.Filter{}, 50)
			if err != nil {
				pg.Sleep(ctx, 10*time.Millisecond) // the database is busy, or the test has ended
				continue
			}
			w.found, after = append(w.found, page.Events...), page.Next
			w.count.Add(int64(len(page.Events)))
			if !page.More {
				pg.Sleep(ctx, 10*time.Millisecond)
			}
		}
	})
}

// disturb sends an order, and asks things of it meanwhile.
func disturb(t *testing.T, e *engine.Engine, id string) {
	t.Helper()
	ctx := t.Context()
	if rand.N(3) == 0 {
		_, _ = e.ChangeStock(ctx, engine.StockChange{Item: id, Kind: engine.StockAdjustment, Units: 3, Actor: "test", RequestID: "r"})
	}
	_, err := e.Admit(ctx, engine.Input{OrderID: id, Amount: decimal.MustParse("9.99"), Currency: "EUR", Item: "widget", Quantity: 1})
	assert.True(t, err == nil, err)
	for range 3 { // whether it applies is up to chance
		verb := []orders.Verb{orders.Pause, orders.Resume, orders.Cancel, orders.Retry}[rand.N(4)]
		_, _ = e.Do(ctx, engine.Request{OrderID: id, Verb: verb, Actor: "test", Reason: strings.Repeat("r", rand.N(9)+1), Async: true})
	}
}

// touch writes a row to the history of an order in a transaction that has its number from before the order.
func (f *feed) touch(id string) {
	ctx := f.Context()
	tx, err := f.Pool.Begin(ctx)
	if err != nil {
		f.Error(err)
		return
	}
	defer tx.Rollback(ctx)
	_, err = tx.Exec(ctx, `SELECT txid_current()`)
	for found := false; err == nil && !found && ctx.Err() == nil && !f.Failed(); {
		err = tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM orders WHERE order_id = $1 AND seq > 1)`, id).Scan(&found)
		pg.Sleep(ctx, time.Millisecond)
	}
	if err == nil {
		_, err = tx.Exec(ctx, `WITH touched AS (UPDATE orders SET seq = seq + 1 WHERE order_id = $1 RETURNING *)
			INSERT INTO transitions (order_no, seq, from_status, to_status, fence, verb)
				SELECT order_no, seq, status, status, fence, 'answer' FROM touched`, id)
	}
	if err == nil {
		err = tx.Commit(ctx)
	}
	if err != nil {
		f.Error(err)
	}
}

// rows are the rows that are events, as shown above, sorted.
func (f *feed) rows() (all []string) {
	f.Helper()
	if err := f.Pool.QueryRow(f.Context(), `SELECT coalesce(array_agg(line ORDER BY line COLLATE "C"), '{}') FROM (
		SELECT 'order ' || order_no || ' ' || seq FROM transitions UNION ALL SELECT 'item ' || item || ' ' || version
			FROM stock_movements) AS r(line)`).Scan(&all); err != nil {
		f.Fatal(err)
	}
	return all
}
