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

	"pawl/engine"
	"pawl/internal/events"
	"pawl/internal/orders"
	"pawl/internal/pg"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

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
		if err := e.Stop(t.Context()); err != nil {
			t.Error(err)
		}
	}

	rows := f.rows() // after the last write
	assert.Eventually(t, "every row has been numbered and read", func() bool { return follower.count.Load() >= int64(len(rows)) })
	follower.stop()
	all := f.all(events.Cursor{}, events.Filter{}, 1000)
	checkFeed(t, all, rows)
	if len(follower.found) != len(all) {
		t.Fatalf("%d were read as they came, and %d later", len(follower.found), len(all))
	}
	for i, e := range follower.found {
		if string(e.JSON()) != string(all[i].JSON()) {
			t.Fatalf("read again it is %s, and was %s", all[i].JSON(), e.JSON())
		}
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
		if e.No != int64(i+1) || seq <= seqs[subject] {
			t.Errorf("event %d at place %d: %s has %d after %d", e.No, i+1, subject, seq, seqs[subject])
		}
		seqs[subject] = seq
		got = append(got, fmt.Sprint(subject, " ", seq))
		if !slices.Contains(events.Types(), e.Type) || e.Type == "order.changed" {
			t.Errorf("the type %s is not documented", e.Type)
		}
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
	if _, err := e.Admit(ctx, engine.Input{OrderID: id, Amount: decimal.MustParse("9.99"), Currency: "EUR", Item: "widget", Quantity: 1}); err != nil {
		t.Error(err)
	}
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
