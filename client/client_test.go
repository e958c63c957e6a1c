package client

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
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
			_, err := c.GetOrder(t.Context(), "a", nil)
			var problem *Problem
			if again && (err != nil || tries.Load() != 2) || !again && (!errors.As(err, &problem) || problem.Status != int64(status) || tries.Load() != 1) {
				t.Errorf("%d tries, and then %v", tries.Load(), err)
			}
		})
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
	at := time.Date(2026, 11, 22, 1, 2, 3, 4000, time.UTC)
	for name, use := range map[string]struct {
		call func(context.Context) error
		url  string
		key  string // "-": one that was made
	}{
		"a list": {func(ctx context.Context) error {
			_, err := c.ListOrders(ctx, &ListOrdersParams{Status: []Status{StatusFailed, StatusCanceled}, CreatedTo: at, Limit: 3})
			return err
		}, "/shop/api/orders?createdTo=2026-11-22T01%3A02%3A03.000004Z&limit=3&status=failed%2Ccanceled", ""},
		"an order": {func(ctx context.Context) error {
			_, err := c.ProcessOrder(ctx, nil, ProcessBody{OrderID: "a", Amount: "1", Item: "b"})
			return err
		}, "/shop/api/orders/process", ""},
		"an order with a key": {func(ctx context.Context) error {
			_, err := c.ProcessOrder(ctx, &ProcessOrderParams{IdempotencyKey: "mine"}, ProcessBody{OrderID: "a", Amount: "1", Item: "b"})
			return err
		}, "/shop/api/orders/process", "mine"},
		"a verb": {func(ctx context.Context) error {
			_, err := c.CancelOrder(ctx, "a/b", nil, VerbBody{})
			return err
		}, "/shop/api/orders/a%2Fb/cancel", "-"},
		"a dry run": {func(ctx context.Context) error {
			_, err := c.CancelOrder(ctx, "a", &CancelOrderParams{DryRun: true}, VerbBody{})
			return err
		}, "/shop/api/orders/a/cancel?dryRun=true", "-"},
		"without a body": {func(ctx context.Context) error {
			_, err := call[Order](ctx, c, request{http.MethodPost, "/api/x", (*CancelOrderParams)(nil), nil}, nil)
			return err
		}, "/shop/api/x", "-"},
		"a verb with a name": {func(ctx context.Context) error {
			_, err := c.CancelOrder(ctx, "a", nil, VerbBody{RequestID: "mine"})
			return err
		}, "/shop/api/orders/a/cancel", ""},
	} {
		assert.NoError(t, use.call(t.Context()), name)
		key := sent.Header.Get("Idempotency-Key")
		if sent.URL.RequestURI() != use.url || (use.key == "-") != (len(key) == len(NewID())) || use.key != "-" && key != use.key {
			t.Errorf("%s: sent %s with the key %q", name, sent.URL.RequestURI(), key)
		}
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
		if (err == nil) != good || good && strings.HasSuffix(c.base, "/") {
			t.Errorf("%s: %+v, %v", address, c, err)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Error(err)
		}
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
		if _, err := c.Livez(t.Context()); tries.Load() != lost.tries || (err == nil) != (lost.tries == 2) {
			t.Errorf("%v: %d tries, and then %v", lost.err, tries.Load(), err)
		}
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
	if !errors.As(err, &problem) || problem.Code != ProblemCodeOverloaded || problem.RetryAfter < 50*time.Minute {
		t.Fatal(err)
	}
	assert.Equal(t, "503 overloaded: Too much. /amount is odd. (request r-1)", problem.Error(), problem)
	_, err = c.Livez(t.Context())
	if !errors.As(err, &problem) || problem.Code != "" || problem.Status != http.StatusServiceUnavailable {
		t.Errorf("of a proxy: %v", err)
	}
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
	if !errors.Is(err, context.Canceled) || order == nil || order.ETag() != `"3"` {
		t.Errorf("%+v, %v", order, err)
	}
}
