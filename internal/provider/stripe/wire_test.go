package stripe_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"pawl/internal/policy"
	"pawl/test/assert"
)

// TestStripeWire sends every request to stripe-mock, Stripe's own check of requests against
// its description of the API. It refuses a parameter, a path or a type that is not there;
// it knows no states, so those are put into its answers on the way back.
func TestStripeWire(t *testing.T) {
	t.Parallel()
	mock := startStripeMock(t)
	t.Run("stripe-mock refuses what is not in the API", func(t *testing.T) {
		t.Parallel()
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, mock.String()+"/v1/payment_intents",
			strings.NewReader("amount=ten&currency=usd"))
		assert.NoError(t, err)
		request.Header.Set("Authorization", "Bearer sk_test_123")
		request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		response, err := http.DefaultTransport.RoundTrip(request)
		assert.NoError(t, err)
		defer response.Body.Close()
		want(t, "status", response.Status, "400 Bad Request")
	})
	for _, tt := range []struct {
		name, capture, state string
		act                  func(*stripeShop) string
		result, sent         string
	}{
		{"charge", policy.CaptureImmediately, "succeeded", (*stripeShop).do, "done", "POST, POST confirm"},
		{"authorize", policy.CaptureOnConfirm, "requires_capture", (*stripeShop).do, "done", "POST, POST confirm"},
		{"look up", policy.CaptureImmediately, "processing", (*stripeShop).lookup, "waiting", "POST, GET"},
		{"refund", policy.CaptureImmediately, "succeeded", (*stripeShop).undo, "done", "POST, GET, POST refunds"},
		{"cancel", policy.CaptureImmediately, "requires_action", (*stripeShop).undo, "done", "POST, GET, POST cancel"},
		{"capture", policy.CaptureOnConfirm, "succeeded", (*stripeShop).take, "done", "POST capture"},
		{"refund of a part", policy.CaptureImmediately, "", func(s *stripeShop) string { return s.refund("a", "4") }, "done", "POST refunds"},
		{"look up of a refund", policy.CaptureImmediately, "",
			func(s *stripeShop) string { return s.refundLookup("a", "4") }, "retry not_seen", "GET refunds"},
	} {
		t.Run(tt.name+" is in the API", func(t *testing.T) {
			t.Parallel()
			front := newMockFront(t, mock, tt.state)
			shop := newStripeShop(t, front.URL, tt.capture)
			shop.call.CustomerID = "cus_1"
			if tt.state == "" || tt.name == "capture" {
				shop.call.Reference = "pi_1"
			}
			result := tt.act(shop)
			assert.True(t, strings.HasPrefix(result, tt.result), result, tt.result)
			want(t, "sent", strings.Join(front.sent, ", "), tt.sent)
		})
	}
}

// startStripeMock builds stripe-mock, pinned in tools/stripemock, and runs it until the end
// of the test.
func startStripeMock(t *testing.T) *url.URL {
	t.Helper()
	program := filepath.Join(t.TempDir(), "stripe-mock")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, "github.com/stripe/stripe-mock")
	build.Dir = filepath.Join("..", "..", "..", "test", "tools", "stripemock")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build stripe-mock: %v\n%s", err, out)
	}
	// Without an address for HTTPS it listens on a fixed port of all interfaces.
	mock := exec.Command(program, "-http-addr", "127.0.0.1:0", "-https-addr", "127.0.0.1:0")
	out, err := mock.StdoutPipe()
	if err == nil {
		err = mock.Start()
	}
	assert.NoError(t, err)
	t.Cleanup(func() {
		assert.Succeeds(t, mock.Process.Kill())
		_ = mock.Wait() // says that it was killed
	})
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if _, address, ok := strings.Cut(lines.Text(), "HTTP at address: "); ok {
			return &url.URL{Scheme: "http", Host: address}
		}
	}
	t.Fatal("stripe-mock does not say where it listens")
	return nil
}

// mockFront stands before stripe-mock: it puts a state into answers and notes requests.
type mockFront struct {
	*httptest.Server
	mu   sync.Mutex
	sent []string
}

func newMockFront(t *testing.T, mock *url.URL, state string) *mockFront {
	t.Helper()
	front := &mockFront{}
	front.Server = httptest.NewServer(&httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(mock) },
		ModifyResponse: func(response *http.Response) error {
			front.mu.Lock()
			defer front.mu.Unlock()
			words := strings.Split(response.Request.URL.Path, "/")
			words = slices.DeleteFunc(words[2:], func(word string) bool { return word == "payment_intents" || strings.HasPrefix(word, "pi_") })
			front.sent = append(front.sent, strings.TrimSpace(response.Request.Method+" "+strings.Join(words, " ")))
			return putState(t, response, state)
		},
	})
	t.Cleanup(front.Close)
	return front
}

func putState(t *testing.T, response *http.Response, state string) error {
	t.Helper()
	var object map[string]any
	if err := json.NewDecoder(response.Body).Decode(&object); err != nil {
		return err
	}
	assert.Equal(t, response.StatusCode, http.StatusOK, response.Request.Method, response.Request.URL.Path, object)
	if object["object"] == "payment_intent" {
		object["status"] = state
		if strings.HasSuffix(response.Request.URL.Path, "/cancel") {
			object["status"] = "canceled"
		}
	}
	text, err := json.Marshal(object)
	if err != nil {
		return fmt.Errorf("encode answer: %w", err)
	}
	response.Body = io.NopCloser(bytes.NewReader(text))
	response.ContentLength = int64(len(text))
	response.Header.Set("Content-Length", fmt.Sprint(len(text)))
	return nil
}
