package client

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pawl/test/assert"
)

// roundTripper answers requests without a network.
type roundTripper func(*http.Request) (*http.Response, error)

// RoundTrip is that of http.RoundTripper.
func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// clientOf returns a client whose requests are answered by a handler.
func clientOf(t *testing.T, options Options, handler http.HandlerFunc) *Client {
	t.Helper()
	options.HTTPClient = &http.Client{Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
		recorder := httptest.NewRecorder()
		handler(recorder, r)
		return recorder.Result(), nil
	})}
	c, err := New("http://pawl.example/shop/", options)
	assert.NoError(t, err)
	return c
}

// TestWhatIsTriedAgain: each answer comes once, and then the order.
func TestWhatIsTriedAgain(t *testing.T) {
	t.Parallel()
	for status, again := range map[int]bool{
		http.StatusFound: false, http.StatusBadRequest: false, http.StatusUnauthorized: false, http.StatusConflict: false,
		http.StatusUnprocessableEntity: false, http.StatusTooManyRequests: true, http.StatusInternalServerError: false,
		http.StatusBadGateway: true, http.StatusServiceUnavailable: true, http.StatusGatewayTimeout: true,
	} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			t.Parallel()
			var tries atomic.Int64
			c := clientOf(t, Options{}, func(w http.ResponseWriter, _ *http.Request) {
				if tries.Add(1) == 1 {
					w.WriteHeader(status)
				}
				fmt.Fprint(w, `{"orderId":"a"}`)
			})
			_, err := c.GetOrder(t.Context(), "a")
			var problem *Problem
			assert.True(t, (!again || err == nil && tries.Load() == 2) && (again || errors.As(err, &problem) &&
				problem.Status == int64(status) && tries.Load() == 1), tries.Load(), "tries, and then", err)
		})
	}
}

// TestCells: each order goes to the cell that the service takes it for.
func TestCells(t *testing.T) {
	t.Parallel()
	addresses := []string{"http://a.example", "http://b.example", "http://c.example", "http://d.example"}
	cells, err := NewCells(addresses, Options{})
	assert.NoError(t, err)
	for id, want := range map[string]int{"order-123": 0, "a": 3, "Zürich 1": 0, "m": 1, "h": 2} {
		assert.Equal(t, cells.For(id).base, addresses[want], id)
	}
	for _, n := range []int{0, 3} {
		assert.True(t, assert.Err(NewCells(addresses[:n], Options{})) != nil, n, "cells")
	}
}

// TestWhatIsSent: parameters where they belong, and a key where nothing else names the request.
func TestWhatIsSent(t *testing.T) {
	t.Parallel()
	var sent *http.Request
	c := clientOf(t, Options{Token: "pawl_x"}, func(w http.ResponseWriter, r *http.Request) {
		sent = r
		fmt.Fprint(w, `{}`)
	})
	ctx, order := t.Context(), ProcessBody{OrderID: "a", Amount: "1", Item: "b"}
	list := ListOrdersParams{Status: []Status{StatusFailed, StatusCanceled}, CreatedTo: time.Date(2026, 11, 22, 1, 2, 3, 4000, time.UTC), Limit: 3}
	for name, use := range map[string]struct {
		call func() error
		url  string
		key  string // "-": one that was made
	}{
		"a list": {func() error { return assert.Err(c.ListOrders(ctx, list)) },
			"/shop/api/orders?createdTo=2026-11-22T01%3A02%3A03.000004Z&limit=3&status=failed%2Ccanceled", ""},
		"an order": {func() error { return assert.Err(c.ProcessOrder(ctx, order)) }, "/shop/api/orders/process", ""},
		"an order with a key": {func() error {
			return assert.Err(c.ProcessOrder(ctx, order, ProcessOrderParams{IdempotencyKey: "mine"}))
		},
			"/shop/api/orders/process", "mine"},
		"a verb": {func() error { return assert.Err(c.CancelOrder(ctx, "a/b", VerbBody{})) }, "/shop/api/orders/a%2Fb/cancel", "-"},
		"a dry run": {func() error { return assert.Err(c.CancelOrder(ctx, "a", VerbBody{}, CancelOrderParams{DryRun: true})) },
			"/shop/api/orders/a/cancel?dryRun=true", "-"},
		"without a body": {func() error {
			return assert.Err(call[Order](ctx, c, request{http.MethodPost, "/api/x", CancelOrderParams{}, nil}, nil))
		}, "/shop/api/x", "-"},
		"a verb with a name": {func() error {
			return assert.Err(c.ApplyVerb(ctx, OrderVerb{"a/b", "refund", &RefundBody{RequestID: "mine"}}))
		}, "/shop/api/orders/a%2Fb/refunds", ""},
	} {
		assert.NoError(t, use.call(), name)
		key := sent.Header.Get("Idempotency-Key")
		assert.True(t, sent.URL.RequestURI() == use.url && (use.key == "-") == (len(key) == len(NewID())) && (use.key == "-" || key == use.key),
			name, "sent", sent.URL.RequestURI(), "with the key", key)
		assert.Equal(t, sent.Header.Get("Authorization"), "Bearer pawl_x", name, "Authorization")
	}
}

func TestNew(t *testing.T) {
	t.Parallel()
	for address, good := range map[string]bool{
		"http://localhost:3000": true, "https://shop.example/pawl/": true,
		"localhost:3000": false, "ftp://shop.example": false, "http://": false, "https://ann:secret@shop.example": false, "https://shop.example/?a=b": false,
	} {
		c, err := New(address, Options{})
		assert.True(t, (err == nil) == good && (!good || !strings.HasSuffix(c.base, "/")), address, c, err)
		assert.True(t, err == nil || !strings.Contains(err.Error(), "secret"), err)
	}
}

// TestLostConnections: calls are retried, except after a certificate that can't be verified.
func TestLostConnections(t *testing.T) {
	t.Parallel()
	for _, lost := range []struct {
		err   error
		tries int64
	}{{io.ErrUnexpectedEOF, 2}, {&tls.CertificateVerificationError{Err: errors.New("another name")}, 1}} {
		var tries atomic.Int64
		c, err := New("http://pawl.example", Options{HTTPClient: &http.Client{Transport: roundTripper(func(*http.Request) (*http.Response, error) {
			if tries.Add(1) == 1 {
				return nil, lost.err
			}
			return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(`{}`))}, nil
		})}})
		assert.NoError(t, err)
		_, err = c.Livez(t.Context())
		assert.True(t, tries.Load() == lost.tries && (err == nil) == (lost.tries == 2), lost.err, tries.Load(), "tries, and then", err)
	}
}

func TestProblem(t *testing.T) {
	t.Parallel()
	c := clientOf(t, Options{RetryFor: -1}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Request-Id", "r-1")
		w.Header().Set("Retry-After", time.Now().Add(time.Hour).UTC().Format(http.TimeFormat))
		w.WriteHeader(http.StatusServiceUnavailable)
		if r.URL.Path == "/shop/livez" {
			fmt.Fprint(w, `<html>`)
			return
		}
		fmt.Fprint(w, `{"type":"/problems/overloaded","title":"Too much.","status":503,"code":"overloaded","errors":[{"pointer":"/amount","code":"x","detail":"is odd"}]}`)
	})
	var problem *Problem
	_, err := c.Health(t.Context())
	assert.Require(t, errors.As(err, &problem) && problem.Code == ProblemCodeOverloaded && problem.RetryAfter >= 50*time.Minute, err)
	assert.Equal(t, "503 overloaded: Too much. /amount is odd. (request r-1)", problem.Error(), problem)
	_, err = c.Livez(t.Context())
	assert.True(t, errors.As(err, &problem) && problem.Code == "" && problem.Status == http.StatusServiceUnavailable,
		"of a proxy", err)
}

// TestWaitForEndsWithItsContext gives the order as it was last seen.
func TestWaitForEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	c := clientOf(t, Options{}, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet { // at once, as by a service that does not wait
			cancel()
			w.WriteHeader(http.StatusNotModified)
			return
		}
		w.WriteHeader(http.StatusAccepted)
		fmt.Fprint(w, `{"orderId":"a","seq":3,"status":"charging"}`)
	})
	order, err := c.ProcessAndWait(ctx, ProcessBody{Amount: "1", Item: "b"})
	assert.True(t, errors.Is(err, context.Canceled) && order != nil && order.ETag() == `"3"`, order, err)
}

// TestEvents: the next page is asked for behind what was looked at, which the filter may not have chosen; the loop ends
// with what can't get better.
func TestEvents(t *testing.T) {
	t.Parallel()
	pages := map[string]string{
		"latest": `{"events":[],"nextCursor":"1.0","more":false}`,
		"1.0":    `{"events":[{"cursor":"1.1","type":"order.charging"}],"nextCursor":"1.9","more":true}`,
		"1.9":    `{"events":[],"nextCursor":"1.20","more":true}`,
	}
	c := clientOf(t, Options{}, func(w http.ResponseWriter, r *http.Request) {
		assert.True(t, (r.FormValue("wait") == "") == (r.FormValue("after") == "latest") && r.FormValue("order") == "a" &&
			r.FormValue("type") == "order.*,stock.set", "asked for", r.URL)
		page, ok := pages[r.FormValue("after")]
		if !ok {
			w.WriteHeader(http.StatusGone)
			page = `{"status":410,"code":"cursor_expired","title":"Gone.","nextCursor":"2.1"}`
		}
		fmt.Fprint(w, page)
	})
	var seen []string
	for event, err := range c.Events(t.Context(), ListEventsParams{Order: "a", Type: []string{"order.*", "stock.set"}}) {
		if err == nil {
			seen = append(seen, event.Cursor)
			continue
		}
		var problem *Problem
		assert.True(t, errors.As(err, &problem) && problem.Code == ProblemCodeCursorExpired && problem.NextCursor == "2.1", err)
		seen = append(seen, "the end")
	}
	assert.Equal(t, seen, []string{"1.1", "the end"}, "saw")
}

// TestEventsEndWithTheirContext: nothing else ends an outage.
func TestEventsEndWithTheirContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	tries := 0
	c := clientOf(t, Options{RetryFor: 1}, func(w http.ResponseWriter, _ *http.Request) {
		if tries++; tries == 3 {
			cancel()
		}
		w.WriteHeader(http.StatusServiceUnavailable)
	})
	for _, err := range c.Events(ctx, ListEventsParams{}) {
		assert.Require(t, err != nil, "an event out of nowhere")
	}
	assert.Equal(t, tries, 3, "tries")
}

// TestParametersOfAnotherOperation: they are rejected, and nothing is sent.
func TestParametersOfAnotherOperation(t *testing.T) {
	t.Parallel()
	c := clientOf(t, Options{}, func(http.ResponseWriter, *http.Request) { t.Error("a request") })
	_, err := c.GetOrder(t.Context(), "o-1", RefundOrderParams{DryRun: true})
	assert.True(t, err != nil && !retryable(err), err)
	assert.True(t, assert.Err(c.GetOverview(t.Context(), RefundOrderParams{})) != nil, "an operation without parameters takes some")
}

// TestVerifyWebhook has the example of the specification, and what must not pass for it, besides that of cases.json.
func TestVerifyWebhook(t *testing.T) {
	t.Parallel()
	const secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	const signature, body = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=", `{"test": 2432232314}`
	at := time.Unix(1614265330, 0)
	for _, c := range []struct {
		name, signature, body string
		secrets               []string
		now                   time.Time
		good                  bool
	}{
		{"as signed", signature, body, []string{secret}, at, true},
		{"a slow network", signature, body, []string{secret}, at.Add(4 * time.Minute), true},
		{"another scheme", "v1a" + signature[2:], body, []string{secret}, at, false},
		{"no signature", "", body, []string{secret}, at, false},
		{"no secret", signature, body, nil, at, false},
		{"an empty secret", signature, body, []string{""}, at, false},
		{"a secret without a key", "v1,woH/1mJtZGSMCmpFTxRYbStS24eLLD/oXIYr4PYyZ7g=", body, []string{"whsec_"}, at, false},
		{"no base64", signature, body, []string{"whsec_?"}, at, false},
		{"from the future", signature, body, []string{secret}, at.Add(-6 * time.Minute), false},
	} {
		header := http.Header{"Webhook-Id": {"msg_p5jXN8AQM9LWM0D4loKWxJek"}, "Webhook-Timestamp": {"1614265330"}, "Webhook-Signature": {c.signature}}
		event, err := VerifyWebhook(c.secrets, header, []byte(c.body), c.now)
		assert.True(t, (err == nil) == c.good && (event == nil) != c.good, c.name, err)
	}
	assert.True(t, assert.Err(VerifyWebhook([]string{secret}, http.Header{}, nil, at)) != nil,
		"a request without the headers is taken for a webhook")
}

// lineService answers each line of a request by a function of the order and of how often it came. It returns a status, or 0 to cut
// the connection.
func lineService(t *testing.T, options Options, status func(orderID string, times int) int) *Client {
	t.Helper()
	var mu sync.Mutex
	times := map[string]int{}
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		assert.True(t, r.URL.Path == "/api/orders/process" && r.Header.Get("Content-Type") == "application/x-ndjson" &&
			r.Header.Get("Idempotency-Key") == "", r.URL, r.Header)
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
		assert.True(t, rejected == (p.Problem != nil && p.Problem.Status == 422) && (rejected || p.Order != nil &&
			p.Order.OrderID == fmt.Sprint("o-", p.Index)), p)
	}
	assert.True(t, !slices.ContainsFunc(results, func(n int) bool { return n != 1 }) && cuts != 0, "not each order has one result")
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
		n, err := run(lineService(t, Options{}, nil), 0)
		assert.True(t, n == 0 && err == nil, n, err)
	})
	t.Run("when the service does not come back", func(t *testing.T) {
		t.Parallel()
		c := lineService(t, Options{RetryFor: time.Second}, func(id string, _ int) int { return map[string]int{"o-0": 200}[id] })
		n, err := run(c, 10)
		assert.True(t, n == 1 && retryable(err), n, err)
	})
	t.Run("with the problem of an order that the service stays too busy for", func(t *testing.T) {
		t.Parallel()
		c := lineService(t, Options{RetryFor: time.Second}, func(string, int) int { return http.StatusServiceUnavailable })
		for p, err := range c.ProcessAll(t.Context(), bodies(3)) {
			assert.True(t, err == nil && p.Problem != nil && p.Problem.Status == http.StatusServiceUnavailable, p, err)
		}
	})
	t.Run("when the request is refused", func(t *testing.T) {
		t.Parallel()
		c := clientOf(t, Options{}, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) })
		problem, ok := errors.AsType[*Problem](func() error { _, err := run(c, 1000); return err }())
		assert.True(t, ok && problem.Status == http.StatusUnauthorized, problem)
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
			assert.Require(t, err == nil && len(p.Order.OrderID) == len(NewID()), p, err)
			break
		}
		assert.True(t, !reading, "the sequence is still read")
		var last error
		for _, err := range c.ProcessAll(ctx, endless) {
			last = err
			cancel()
		}
		assert.True(t, errors.Is(last, context.Canceled) && !reading, last)
	})
}
