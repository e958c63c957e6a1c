package campaign

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"time"

	"pawl/test/assert"
)

// witness reads the feed of events, and is told of them by webhooks. What it has heard once must be so for ever.
type witness struct {
	*people
	jumps int // of the order numbers

	mu       sync.Mutex
	events   map[string]string // by cursor
	messages map[string]string // of webhooks, by id
	lost     []string          // events of commits that may have been lost
	since    time.Time         // what was asked before is not known any more, and what webhooks said
}

func newWitness(ctx context.Context, p *people) *witness {
	w := &witness{people: p, events: map[string]string{}, messages: map[string]string{}}
	receiver := httptest.NewServer(w)
	p.t.Cleanup(func() { receiver.CloseClientConnections(); receiver.Close() })
	body := fmt.Appendf(nil, `{"url":%q,"requestId":"witness"}`, receiver.URL)
	a := p.repeat(ctx, call{method: http.MethodPost, path: "/api/webhook-endpoints", body: body})
	assert.Require(p.t, a.status < 300, "make an endpoint", a.status, a.code)
	return w
}

// ServeHTTP takes what a webhook says.
func (w *witness) ServeHTTP(answer http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the sender was killed
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.since.IsZero() {
		w.messages[r.Header.Get("webhook-id")] = string(body)
	}
}

// follow reads the feed until the context ends.
func (w *witness) follow(ctx context.Context) {
	for next := "oldest"; pause(ctx, 10*time.Millisecond); {
		sent, page := time.Now(), map[string]string{}
		next, _ = w.page(ctx, next, page)
		w.mu.Lock()
		if sent.After(w.since) {
			maps.Copy(w.events, page)
		}
		w.mu.Unlock()
	}
}

// forget keeps what was heard only to know which order had which number.
func (w *witness) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lost, w.since = slices.Collect(maps.Values(w.events)), time.Now()
	clear(w.events)
	clear(w.messages)
}

// page reads what comes after a cursor, from any replica.
func (w *witness) page(ctx context.Context, after string, into map[string]string) (next string, n int) {
	var page struct {
		Events     []json.RawMessage
		NextCursor string
	}
	a := w.repeat(ctx, call{method: http.MethodGet, path: "/api/events?limit=1000&wait=1&after=" + after})
	if a.status != http.StatusOK || json.Unmarshal(a.body, &page) != nil {
		return "oldest", 0 // the place may have been lost
	}
	for _, text := range page.Events {
		var e struct{ Cursor string }
		_ = json.Unmarshal(text, &e) // it is JSON
		into[e.Cursor] = string(text)
	}
	return page.NextCursor, len(page.Events)
}

// toldLost reports whether a reader who continues after an event hears that it was lost with its database. For a moment
// after a failover, a replica may still tell what it has in memory.
func (w *witness) toldLost(ctx context.Context, cursor string) bool {
	return !w.since.IsZero() && w.repeat(ctx, call{method: http.MethodGet, path: "/api/events?limit=1&after=" + cursor}).code == "410 cursor_expired"
}

// told is a row of a history as an event has it.
type told struct {
	ID   string
	Data struct {
		OrderID, Status string
		Seq             int
	}
	Timestamp time.Time
}

// checkEvents: the feed has each row of a history once, as it is, and says again what it has said before. An order number is of
// one order. Webhooks said nothing else.
func (f *field) checkEvents(ctx context.Context) (broken []string) {
	w, history := f.witness, map[move]int{}
	for _, m := range f.history() {
		history[m]++
	}
	moved := f.server.ask(ctx, "SELECT count(*) FROM books.stock_movements")
	feed, next := map[string]string{}, "oldest"
	await(ctx, settleLimit, func() bool {
		for n := 1; n > 0; {
			next, n = w.page(ctx, next, feed)
		}
		return len(feed) >= len(history)+moved
	})
	byID, orders := map[string]string{}, map[int]string{}
	for i, text := range slices.Concat(slices.Collect(maps.Values(feed)), w.lost) {
		var e told
		_ = json.Unmarshal([]byte(text), &e) // it is JSON
		if e.Data.OrderID == "" {
			byID[e.ID] = text
			continue
		}
		var number int
		_, _ = fmt.Sscanf(e.ID, "evt_%d_", &number)
		if other, known := orders[number]; known && other != e.Data.OrderID {
			broken = append(broken, fmt.Sprintf("orders %s and %s have the same number", other, e.Data.OrderID))
		}
		if orders[number] = e.Data.OrderID; i >= len(feed) {
			continue
		}
		byID[e.ID] = text
		of := move{e.Data.OrderID, e.Data.Seq, e.Data.Status, e.Timestamp.UnixMicro()}
		if history[of]--; history[of] != 0 {
			broken = append(broken, "the feed has an event that is none, or twice: "+text)
		}
	}
	if len(feed) != len(history)+moved {
		broken = append(broken, fmt.Sprintf("the feed has %d events of %d", len(feed), len(history)+moved))
	}
	for cursor, text := range w.events {
		if feed[cursor] != text && !w.toldLost(ctx, cursor) {
			broken = append(broken, fmt.Sprintf("event %s was %s, and is %s", cursor, text, feed[cursor]))
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for id, text := range w.messages {
		if byID[id] != text {
			broken = append(broken, fmt.Sprintf("webhook %s was %s, and the event is %s", id, text, byID[id]))
		}
	}
	const least = 500_000_000 // half of what is skipped
	numbers := slices.Sorted(maps.Keys(orders))
	for i := 1; i < len(numbers); i++ {
		if numbers[i]-numbers[i-1] > least {
			w.jumps++
		}
	}
	return broken
}
