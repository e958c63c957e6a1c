package client

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"pawl/test/assert"
)

// lineService answers each line of a request by a function of the order and of how often it came. It returns a status, or 0 to cut
// the connection.
func lineService(t *testing.T, options Options, status func(orderID string, times int) int) *Client {
	t.Helper()
	var mu sync.Mutex
	times := map[string]int{}
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/api/orders/process" || r.Header.Get("Content-Type") != "application/x-ndjson" || r.Header.Get("Idempotency-Key") != "" {
			t.Errorf("%s %v", r.URL, r.Header)
		}
		_ = http.NewResponseController(w).EnableFullDuplex()
		lines := bufio.NewScanner(r.Body)
		for n := 1; lines.Scan(); n++ {
			var order ProcessBody
			if json.Unmarshal(lines.Bytes(), &order) != nil {
				return // the caller has gone
			}
			mu.Lock()
			times[order.OrderID]++
			now := status(order.OrderID, times[order.OrderID])
			mu.Unlock()
			switch {
			case now == 0:
				panic(http.ErrAbortHandler)
			case now < 300:
				fmt.Fprintf(w, `{"line":%d,"status":%d,"order":{"orderId":%q,"status":"completed"}}`+"\n", n, now, order.OrderID)
			default:
				fmt.Fprintf(w, `{"line":%d,"status":%d,"problem":{"status":%d,"code":"c"}}`+"\n", n, now, now)
			}
			_ = http.NewResponseController(w).Flush()
		}
	}))
	t.Cleanup(service.Close)
	c, err := New(service.URL, options)
	assert.NoError(t, err)
	return c
}

func bodies(n int) func(func(ProcessBody) bool) {
	return func(yield func(ProcessBody) bool) {
		for i := range n {
			if !yield(ProcessBody{OrderID: fmt.Sprint("o-", i), Amount: "1", Item: "i"}) {
				return
			}
		}
	}
}

// TestProcessAll: each order has one result, although connections are cut and the service is busy.
func TestProcessAll(t *testing.T) {
	t.Parallel()
	const orders = 5000
	cuts := 0
	c := lineService(t, Options{}, func(id string, times int) int {
		n, err := strconv.Atoi(strings.TrimPrefix(id, "o-"))
		switch {
		case err != nil:
			return http.StatusBadRequest
		case n%900 == 13 && times == 1:
			cuts++
			return 0
		case n%700 == 17 && times < 3:
			return http.StatusServiceUnavailable
		case n%50 == 7:
			return http.StatusUnprocessableEntity
		}
		return http.StatusOK
	})
	results := make([]int, orders)
	for p, err := range c.ProcessAll(t.Context(), bodies(orders)) {
		assert.NoError(t, err)
		results[p.Index]++
		rejected := p.Index%50 == 7
		if rejected != (p.Problem != nil && p.Problem.Status == 422) || !rejected && (p.Order == nil || p.Order.OrderID != fmt.Sprint("o-", p.Index)) {
			t.Errorf("%+v", p)
		}
	}
	if slices.ContainsFunc(results, func(n int) bool { return n != 1 }) || cuts == 0 {
		t.Error("not each order has one result")
	}
}

func TestProcessAllEnds(t *testing.T) {
	t.Parallel()
	run := func(c *Client, n int) (results int, err error) {
		for _, err = range c.ProcessAll(t.Context(), bodies(n)) {
			if err == nil {
				results++
			}
		}
		return results, err
	}
	t.Run("with nothing", func(t *testing.T) {
		t.Parallel()
		if n, err := run(lineService(t, Options{}, nil), 0); n != 0 || err != nil {
			t.Error(n, err)
		}
	})
	t.Run("when the service does not come back", func(t *testing.T) {
		t.Parallel()
		c := lineService(t, Options{RetryFor: time.Second}, func(id string, _ int) int { return map[string]int{"o-0": 200}[id] })
		if n, err := run(c, 10); n != 1 || !retryable(err) {
			t.Error(n, err)
		}
	})
	t.Run("with the problem of an order that the service stays too busy for", func(t *testing.T) {
		t.Parallel()
		c := lineService(t, Options{RetryFor: time.Second}, func(string, int) int { return http.StatusServiceUnavailable })
		for p, err := range c.ProcessAll(t.Context(), bodies(3)) {
			if err != nil || p.Problem == nil || p.Problem.Status != http.StatusServiceUnavailable {
				t.Errorf("%+v, %v", p, err)
			}
		}
	})
	t.Run("when the request is refused", func(t *testing.T) {
		t.Parallel()
		c := clientOf(t, Options{}, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) })
		problem, ok := errors.AsType[*Problem](func() error { _, err := run(c, 1000); return err }())
		if !ok || problem.Status != http.StatusUnauthorized {
			t.Error(problem)
		}
	})
	t.Run("with its context, and with the loop, although more orders come", func(t *testing.T) {
		t.Parallel()
		c := lineService(t, Options{}, func(string, int) int { return http.StatusOK })
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		reading := false
		endless := func(yield func(ProcessBody) bool) {
			reading = true
			for yield(ProcessBody{Amount: "1", Item: "i"}) {
			}
			reading = false
		}
		for p, err := range c.ProcessAll(ctx, endless) {
			if err != nil || len(p.Order.OrderID) != len(NewID()) {
				t.Fatalf("%+v, %v", p, err)
			}
			break
		}
		if reading {
			t.Error("the sequence is still read")
		}
		var last error
		for _, err := range c.ProcessAll(ctx, endless) {
			last = err
			cancel()
		}
		if !errors.Is(last, context.Canceled) || reading {
			t.Error(last)
		}
	})
}
