package faults

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"

	"pawl/test/assert"
)

// receiver takes what is sent to an endpoint, and drops what has an id that it knows, as docs/events.md advises.
type receiver struct {
	t   *testing.T
	url string

	mu       sync.Mutex
	events   map[string]string // that were taken: order and seq, by id
	numbers  map[string]int64  // of orders, as the ids of their events have them
	requests int
}

func openReceiver(t *testing.T) *receiver {
	t.Helper()
	r := &receiver{t: t, events: map[string]string{}, numbers: map[string]int64{}}
	server := httptest.NewServer(r)
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	r.url = server.URL + "/hook"
	return r
}

func (r *receiver) ServeHTTP(_ http.ResponseWriter, request *http.Request) {
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
	is := fmt.Sprintf("%s %d", e.Data.OrderID, e.Data.Seq)
	if was, known := r.events[id]; known {
		assert.Equal(r.t, was, is, id, "is not what came before: it would be dropped")
		return
	}
	r.events[id] = is
	r.numbers[e.Data.OrderID], _ = strconv.ParseInt(strings.Split(id, "_")[1], 10, 64)
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
