package events_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"pawl/db"
	"pawl/internal/events"
	"pawl/test/assert"
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
	if state, err := f.query.EventRelayState(t.Context()); err != nil || state.Lag != 0 {
		t.Error("an early event waits for a number: ", state, err)
	}
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
		if added.Ours || added.Events != 0 {
			t.Fatalf("%+v", added)
		}
		var below bool
		assert.NoError(t, f.Pool.QueryRow(t.Context(), `SELECT max(position) < $1 FROM transitions`, added.Horizon).Scan(&below))
		return below
	})
	if _, err := f.query.EventRelayHold(t.Context(), db.EventRelayHoldParams{Owner: f.owner, LeaseSeconds: relayLease}); err == nil {
		t.Error("the lease was taken from its holder")
	}
	f.exec(`UPDATE event_relay SET due_at = now()`)
	f.hold()
	f.numberUntil(1)
	if again := f.number(); again.Events != 0 || !again.Ours {
		t.Errorf("%+v", again)
	}
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
	if added := f.number(); added.Events < 2 {
		t.Errorf("%d events of %d transactions in one look", added.Events, len(txs))
	}
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
		if all[i].No != int64(i+1) || all[i].Data.Seq != all[i].No {
			t.Fatalf("event %d at place %d has seq %d", all[i].No, i+1, all[i].Data.Seq)
		}
	}
	assert.Equal(t, int64(len(all)), rows, len(all), "events of rows")
}
