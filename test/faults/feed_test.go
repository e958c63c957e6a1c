package faults

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestFeed takes away from the replica that numbers events whatever can go, under load: it is killed, it stands still, it is
// cut off from the database, what it has sent arrives late. A follower of the feed gets every event once, those
// of an order in order, with numbers without a gap. Reading it again later gives the same bytes.
func TestFeed(t *testing.T) {
	build(t)
	t.Parallel()
	f := openFleet(t, "EventBatchAdd")
	load := &traffic{url: f.any, callers: 4, idle: 200 * time.Millisecond, seed: seed(t), order: smallOrders("feed"), cuts: true}
	load.start(t)
	follower := follow(t, f)
	numbered := func() [2]int64 {
		return query[[2]int64](t, f.database.AdminURL, `SELECT ARRAY[r.fence, (SELECT coalesce(max(b.last_event_no), 0) FROM pawl.event_batches AS b)] FROM pawl.event_relay AS r`)[0]
	}
	for _, fault := range fleetFaults {
		load.flows(20)
		before := numbered()
		f.strike(fault, func() bool { now := numbered(); return now[0] > before[0] && now[1] > before[1] })
	}
	load.flows(20)
	load.finish()
	settle(t, f.database.URL, patience)
	rows := query[string](t, f.database.AdminURL, `SELECT 'evt_' || t.order_no || '_' || t.seq || '_' || to_hex((extract(epoch FROM t.at) * 1000000)::bigint) FROM pawl.transitions AS t
		UNION ALL SELECT 'stk_' || substr(encode(sha256(convert_to(m.item, 'UTF8')), 'hex'), 1, 16) || '_' || m.version || '_' || to_hex((extract(epoch FROM m.at) * 1000000)::bigint) FROM pawl.stock_movements AS m`)
	seen := follower.until(len(rows))
	proveEvents(t, seen, rows)
	again := &feedReader{t: t, url: f.any}
	eventually(t, patience, "all is read again", func() bool { return !again.page(0) && len(again.events) >= len(seen) })
	if !slices.EqualFunc(seen, again.events, func(a, b json.RawMessage) bool { return string(a) == string(b) }) {
		t.Errorf("%d events were followed, and %d, or others, are read later", len(seen), len(again.events))
	}
	prove(t, f.database.URL, load)
	t.Logf("%d events in %d batches; %s", len(seen), count(t, f.database.AdminURL, "SELECT count(*) FROM pawl.event_batches"), load.seen())
}

// proveEvents compares events with the rows that they are.
func proveEvents(t *testing.T, events []json.RawMessage, rows []string) {
	t.Helper()
	var ids []string
	last := map[string]int64{}
	for i, text := range events {
		var e struct {
			ID, Cursor string
			Data       struct {
				OrderID string
				Seq     int64
			}
		}
		var epoch, number int
		if err := json.Unmarshal(text, &e); err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Sscanf(e.Cursor, "%d.%d", &epoch, &number); err != nil || number != i+1 {
			t.Errorf("event %d has the cursor %s", i+1, e.Cursor)
		}
		if ids = append(ids, e.ID); e.Data.OrderID == "" {
			continue
		}
		if last[e.Data.OrderID]++; e.Data.Seq != last[e.Data.OrderID] {
			t.Errorf("event %s comes where that with seq %d should", text, last[e.Data.OrderID])
		}
	}
	slices.Sort(ids)
	slices.Sort(rows)
	if !slices.Equal(ids, rows) {
		t.Errorf("%d events, %d different ones, of %d rows", len(ids), len(slices.Compact(ids)), len(rows))
	}
}

// feedReader reads the feed page by page, from any replica.
type feedReader struct {
	t      testing.TB
	url    func(*rand.Rand) string
	cursor string

	mu     sync.Mutex
	events []json.RawMessage
}

// page reads a page, and waits for one for some seconds. It is false without one, or without an answer.
func (r *feedReader) page(wait int) (more bool) {
	client := newClient(1, false)
	defer client.close()
	address := fmt.Sprintf("%s/api/events?limit=1000&wait=%d", r.url(newRandom(rand.Uint64())), wait)
	if r.cursor != "" {
		address += "&after=" + r.cursor
	}
	a := client.get(r.t.Context(), address)
	var page struct {
		Events     []json.RawMessage
		NextCursor string
	}
	if a.err != nil || a.code == 503 {
		return false
	}
	if err := json.Unmarshal([]byte(a.text), &page); err != nil || a.code != 200 {
		r.t.Errorf("%s: %s", address, a)
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events, r.cursor = append(r.events, page.Events...), page.NextCursor
	return len(page.Events) > 0
}

// feedFollower reads the feed all the time.
type feedFollower struct {
	feedReader
	done    atomic.Bool
	running sync.WaitGroup
}

func follow(t *testing.T, f *fleet) *feedFollower {
	t.Helper()
	follower := &feedFollower{feedReader: feedReader{t: t, url: f.any}}
	follower.running.Go(func() {
		for !follower.done.Load() {
			if !follower.page(2) {
				<-time.After(pace)
			}
		}
	})
	t.Cleanup(follower.stop)
	return follower
}

func (f *feedFollower) stop() {
	f.done.Store(true)
	f.running.Wait()
}

// until waits for a number of events, and returns what has come.
func (f *feedFollower) until(n int) []json.RawMessage {
	f.t.Helper()
	eventually(f.t, patience, fmt.Sprint(n, " events come"), func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return len(f.events) >= n
	})
	f.stop()
	return f.events
}
