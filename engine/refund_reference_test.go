package engine_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
)

// An order that was taken up while it reserved goes back in the same run. Its refund needs what Stripe calls the charge:
// without it a day later, when the key is forgotten, an undo finds nothing to take back.
func TestRefundKnowsTheCharge(t *testing.T) {
	t.Parallel()
	var refuses atomic.Bool
	stock := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		status := http.StatusTooManyRequests // certainly not done
		if refuses.Load() {
			status = http.StatusPaymentRequired
		}
		w.WriteHeader(status)
	}))
	t.Cleanup(stock.Close)
	s, b := openShop(t, 1, quick), openBank(t, "succeeded")
	s.useStripe(t, b, fmt.Sprintf("}\nreserve: {executor: http, url: %q, undoUrl: %q, retry: {initial: 30m, cap: 30m}}", stock.URL, stock.URL+"/undo"))
	s.admit(t, paid("o"))
	s.until(t, "o", "retry")
	refuses.Store(true)
	s.exec(t, `UPDATE orders SET due_at = now()`)
	s.until(t, "o", "failed")
	b.mu.Lock()
	defer b.mu.Unlock()
	creations := slices.Index(b.requests, "POST ")
	if slices.Contains(b.requests[creations+1:], "POST ") || !slices.Contains(b.requests, "POST /v1/refunds") {
		t.Errorf("asked for: %s", strings.Join(b.requests, ", "))
	}
}
