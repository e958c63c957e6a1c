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
	"syscall"
	"testing"
	"time"

	"pawl/test/dbtest"
)

// fleet is two replicas, each with a wire of its own to the database. One of them holds what is looked at: it is the
// one that sends a certain statement, again and again.
type fleet struct {
	t         *testing.T
	database  *dbtest.Database
	statement string
	wires     [2]*dbtest.Proxy
	replicas  [2]*replicas

	mu     sync.Mutex
	sender int // of the last such statement
	times  int // that it has sent it since the other one did
}

func openFleet(t *testing.T, statement string, flags ...string) *fleet {
	t.Helper()
	f := &fleet{t: t, database: dbtest.New(t), statement: statement}
	for i := range f.wires {
		f.wires[i] = dbtest.NewProxy(t, f.database.URL)
		f.heal(i)
		f.replicas[i] = startReplicas(t, 1, f.wires[i].URL, append(slices.Clone(hasty), flags...)...)
	}
	stockUp(t, f.replicas[0].addresses()[0], scarce, stock)
	return f
}

func (f *fleet) any(random *rand.Rand) string {
	return f.replicas[random.IntN(len(f.replicas))].addresses()[0]
}

func (f *fleet) process(i int) *process { return f.replicas[i].all[0] }

// heal lets pass whatever a replica sends.
func (f *fleet) heal(i int) {
	f.wires[i].On(func(statement string) dbtest.Fate {
		if statement == f.statement {
			f.sent(i)
		}
		return dbtest.Passes
	})
}

func (f *fleet) sent(i int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.sender != i {
		f.times = 0
	}
	f.sender = i
	f.times++
}

// holder waits until it is clear who holds: one statement may be a late one.
func (f *fleet) holder() (i int) {
	f.t.Helper()
	f.mu.Lock()
	f.times = 0
	f.mu.Unlock()
	eventually(f.t, patience, "one of them holds", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		i = f.sender
		return f.times >= 3
	})
	return i
}

// fleetFault is what becomes of the holder when it sends its statement. Afterwards it is as before, or replaced.
type fleetFault struct {
	name   string
	fate   dbtest.Fate
	signal syscall.Signal // for the process, where a request or a reply was lost
	late   bool           // the statement is on its way until another one holds
	rest   dbtest.Fate    // of all that it sends until then
}

var fleetFaults = []fleetFault{
	{name: "killed before the server has heard it", fate: dbtest.LoseRequest, signal: syscall.SIGKILL},
	{name: "killed before it has heard the server", fate: dbtest.LoseReply, signal: syscall.SIGKILL},
	{name: "stopped for longer than its lease", fate: dbtest.LoseReply, signal: syscall.SIGSTOP},
	{name: "heard by the server when another one holds", late: true, rest: dbtest.HushRequest},
	{name: "cut off from the database", fate: dbtest.HushRequest, rest: dbtest.HushRequest},
}

// strike does it to the holder, once, and waits until another one holds.
func (f *fleet) strike(fault fleetFault, taken func() bool) {
	f.t.Helper()
	i := f.holder()
	var struck atomic.Bool
	released := make(chan struct{})
	defer f.recover(i, fault)
	defer close(released)
	f.wires[i].OnLost(sync.OnceFunc(func() {
		if fault.signal != 0 {
			f.process(i).signal(fault.signal)
		}
	}))
	f.wires[i].On(func(statement string) dbtest.Fate {
		switch {
		case statement != f.statement && !struck.Load():
			return dbtest.Passes
		case statement != f.statement || struck.Swap(true):
			return fault.rest
		case fault.late:
			<-released
		}
		return fault.fate
	})
	eventually(f.t, patience, fault.name+": another one holds", func() bool { return struck.Load() && taken() })
}

// recover makes a replica as it was, or a new one in its place.
func (f *fleet) recover(i int, fault fleetFault) {
	f.t.Helper()
	f.wires[i].OnLost(func() {})
	f.heal(i)
	switch fault.signal {
	case syscall.SIGKILL:
		f.process(i).kill()
		f.replicas[i].replace(0)
	case syscall.SIGSTOP:
		f.process(i).signal(syscall.SIGCONT)
	default:
	}
}

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

// TestWebhooks takes away from the replica that sends to an endpoint whatever can go, while the receiver flaps: it
// fails the first attempt of some events, in all ways, and for some time all attempts. Every event arrives, and none
// before the one before it of its order was taken.
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
