package faults

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestWebhooks takes away from the replica that sends to an endpoint whatever can go, while the receiver flaps: it fails the
// first attempt of some events, in all ways, and for some time all attempts. Every event arrives, and none before the one before it
// of its order was taken.
func TestWebhooks(t *testing.T) {
	build(t)
	t.Parallel()
	f := openFleet(t, "WebhookDeliveriesRecord")
	r := openReceiver(t, true)
	f.subscribe(r.url)
	load := &traffic{url: f.any, callers: 2, idle: 100 * time.Millisecond, seed: seed(t), order: smallOrders("hook"), cuts: true}
	load.start(t)
	stored := func() [2]int64 {
		return query[[2]int64](t, f.database.AdminURL, `SELECT ARRAY[e.fence, (SELECT count(*) FROM pawl.webhook_deliveries AS d WHERE d.state = 'delivered')]
			FROM pawl.webhook_endpoints AS e`)[0]
	}
	for i, fault := range fleetFaults {
		load.flows(15)
		before := stored()
		r.down.Store(i%2 == 1)
		f.strike(fault, func() bool {
			now := stored()
			r.down.Store(r.down.Load() && now[0] == before[0])
			return now[0] > before[0] && now[1] > before[1]
		})
	}
	load.finish()
	settle(t, f.database.URL, patience)
	f.delivered()
	rows := query[string](t, f.database.AdminURL, `SELECT 'evt_' || t.order_no || '_' || t.seq || '_' || to_hex((extract(epoch FROM t.at) * 1000000)::bigint) FROM pawl.transitions AS t`)
	r.proves(rows)
	t.Logf("%d events, %d requests, %d failed; %s", len(rows), r.requests, r.failures, load.seen())
}

// subscribe makes an endpoint for all events of orders.
func (f *fleet) subscribe(url string) {
	f.t.Helper()
	c := newClient(1, false)
	a := c.send(f.t.Context(), request{method: http.MethodPost, url: f.any(newRandom(1)) + "/api/webhook-endpoints",
		body: fmt.Sprintf(`{"url":%q,"types":["order.*"]}`, url)})
	if a.err != nil || a.code/100 != 2 {
		f.t.Fatalf("make an endpoint: %s", a)
	}
}

// delivered waits until nothing is to be sent any more. It skips pauses of minutes.
func (f *fleet) delivered() {
	f.t.Helper()
	eventually(f.t, 2*patience, "all is delivered", func() bool {
		_, err := f.database.Pool.Exec(f.t.Context(), `WITH e AS (UPDATE pawl.webhook_endpoints SET seq = seq + 1, paused_until = NULL WHERE EXISTS (
				SELECT FROM pawl.webhook_deliveries WHERE due_at > now() OR state = 'pending' AND attempts > 0 AND due_at > now()) RETURNING endpoint_no)
			UPDATE pawl.webhook_deliveries AS d SET due_at = now() FROM e WHERE d.endpoint_no = e.endpoint_no AND d.due_at > now()`)
		if err != nil {
			f.t.Fatal(err)
		}
		return count(f.t, f.database.AdminURL, `SELECT count(*) FROM pawl.webhook_deliveries AS d WHERE d.state <> 'delivered'`) == 0 &&
			count(f.t, f.database.AdminURL, `SELECT count(*) FROM pawl.webhook_endpoints AS e WHERE e.event_no < (SELECT max(b.last_event_no) FROM pawl.event_batches AS b)
				OR (SELECT max(b.last_event_no) FROM pawl.event_batches AS b) < (SELECT count(*) FROM pawl.transitions) + (SELECT count(*) FROM pawl.stock_movements)`) == 0
	})
}

// receiver takes what is sent to an endpoint, and drops what has an id that it knows, as docs/events.md advises.
type receiver struct {
	t     *testing.T
	url   string
	flaps bool // it fails the first attempt of some events, and wants those of an order in order
	down  atomic.Bool

	mu                 sync.Mutex
	random             *rand.Rand
	tried              map[string]bool   // by event
	events             map[string]string // that were taken: order and seq, by id
	numbers            map[string]int64  // of orders, as the ids of their events have them
	last               map[string]int    // by order: the seq that was taken last
	requests, failures int
}

func openReceiver(t *testing.T, flaps bool) *receiver {
	t.Helper()
	r := &receiver{t: t, flaps: flaps, random: newRandom(seed(t)),
		tried: map[string]bool{}, events: map[string]string{}, numbers: map[string]int64{}, last: map[string]int{}}
	server := httptest.NewServer(r)
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	r.url = server.URL + "/hook"
	return r
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	text, err := io.ReadAll(request.Body)
	if err != nil {
		return // the sender was killed
	}
	id := request.Header.Get("webhook-id")
	var e struct {
		ID   string
		Data struct {
			OrderID string
			Seq     int
		}
	}
	if err := json.Unmarshal(text, &e); err != nil || e.ID != id {
		r.t.Errorf("%s with the id %s: %v", text, id, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.requests++
	fails := r.flaps && (r.down.Load() || !r.tried[id] && len(r.tried)%20 == 0)
	if r.tried[id] = true; fails {
		r.failures++
		r.fail(w)
		return
	}
	is := fmt.Sprintf("%s %d", e.Data.OrderID, e.Data.Seq)
	if was, known := r.events[id]; known {
		if was != is {
			r.t.Errorf("%s is %s, and was %s: it would be dropped", id, is, was)
		}
		return
	}
	r.events[id] = is
	r.numbers[e.Data.OrderID], _ = strconv.ParseInt(strings.Split(id, "_")[1], 10, 64)
	if r.last[e.Data.OrderID]++; r.flaps && e.Data.Seq != r.last[e.Data.OrderID] {
		r.t.Errorf("%s comes where that with seq %d should", text, r.last[e.Data.OrderID])
	}
}

// fail is one of the ways not to take something.
func (r *receiver) fail(w http.ResponseWriter) {
	switch r.random.IntN(4) {
	case 0:
		http.Error(w, "no", http.StatusInternalServerError)
	case 1:
		w.Header().Set("Location", r.url)
		w.WriteHeader(http.StatusFound)
	case 2:
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(http.StatusServiceUnavailable)
	case 3:
		panic(http.ErrAbortHandler) // hangs up
	}
}

// proves compares what was taken with the rows of which each is an event.
func (r *receiver) proves(rows []string) {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	taken := slices.Sorted(maps.Keys(r.events))
	slices.Sort(rows)
	if !slices.Equal(taken, rows) {
		r.t.Errorf("%d events were taken, there are %d", len(taken), len(rows))
	}
	if r.failures < 5 {
		r.t.Errorf("the receiver failed %d times: the fault did not bite", r.failures)
	}
}

func (r *receiver) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.requests
}

// numbersOf are the numbers of orders whose names begin so.
func (r *receiver) numbersOf(prefix string) (numbers []int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, no := range r.numbers {
		if strings.HasPrefix(id, prefix) {
			numbers = append(numbers, no)
		}
	}
	return numbers
}

// awaits returns when the inbox has all events of the orders that have ended at a service.
func (r *receiver) awaits(s *service) {
	r.t.Helper()
	eventually(r.t, patience, "all webhooks have come", func() bool {
		rows := query[string](r.t, s.database, `SELECT o.order_id || ' ' || t.seq FROM pawl.orders AS o JOIN pawl.transitions AS t USING (order_no) WHERE o.ended_as IS NOT NULL`)
		r.mu.Lock()
		defer r.mu.Unlock()
		have := map[string]bool{}
		for _, is := range r.events {
			have[is] = true
		}
		for _, row := range rows {
			if !have[row] {
				return false
			}
		}
		return true
	})
}
