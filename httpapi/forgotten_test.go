package httpapi

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"pawl/engine"
	"pawl/test/assert"
)

// TestForgottenOrder shows what callers get about an order that was forgotten.
func TestForgottenOrder(t *testing.T) {
	t.Parallel()
	b := setupWith(t, engine.Config{OrderRetention: 31 * 24 * time.Hour, RecoveryInterval: 10 * time.Millisecond}, Config{ResponseTimeout: patience})
	const ordered = `{"orderId":"o","amount":"10.00","item":"cup","quantity":2,"customerId":"c"}`
	first := b.call(t, "POST /api/orders/process", ordered)
	assert.Equal(t, first.status, http.StatusOK)
	assert.Equal(t, b.call(t, "POST /api/orders/o/refunds", `{"amount":"4.00","requestId":"r","reason":"broken"}`).status, http.StatusOK)
	b.call(t, "POST /api/orders/process", `{"orderId":"p","amount":"1.00","item":"cup"}`)
	page := b.call(t, "GET /api/orders?limit=1", "")
	b.Age(t, 40*24*time.Hour)
	assert.Eventually(t, "the orders are forgotten", func() bool { return b.count(t, `SELECT count(*) FROM orders`) == 0 })

	again := b.call(t, "POST /api/orders/process", ordered)
	for _, part := range []string{`"status":"completed"`, `"amount":"10.00","currency":"USD","item":"cup","quantity":2`, `"refunded":"4.00"`,
		`"charge":{"completed":true}`, `"forgotten":true`, `"seq":`} {
		assert.Contains(t, again.body, part, "again")
	}
	assert.Equal(t, again.status, http.StatusOK)
	lines := b.processLines(t, ordered+"\n"+`{"orderId":"o","amount":"11.00","item":"cup"}`+"\n"+`{"orderId":"new","amount":"1.00","item":"cup"}`)
	assert.Equal(t, []string{lines[0].String(), lines[1].String(), lines[2].String()},
		[]string{"1 200 o completed", "2 409 order_conflict", "3 200 new completed"})
	for request, body := range map[string]string{
		"GET /api/orders/o": "", "GET /api/orders/o?wait=1": "", "GET /api/orders/o/transitions": "", "GET /api/orders/o/calls": "",
		"GET /api/orders/o/deliveries": "", "POST /api/orders/o/retry": "{}", "POST /api/orders/o/refunds": `{"amount":"1.00","reason":"x","requestId":"r2"}`,
		"POST /api/orders/o/disputes": `{"reference":"d","state":"opened","amount":"1.00"}`,
	} {
		a := b.call(t, request, body)
		assert.True(t, a.status == http.StatusGone && strings.Contains(a.body, `"code":"order_forgotten"`), request, a.status, a.body)
	}
	// A cursor of a list stays valid.
	_, next, _ := strings.Cut(page.body, `"nextCursor":"`)
	next, _, _ = strings.Cut(next, `"`)
	assert.Equal(t, b.call(t, "GET /api/orders?limit=1&cursor="+next, "").body, `{"orders":[]}`)
	assert.Equal(t, b.count(t, `SELECT count(*) FROM orders`), 1, "orders: the new one")
}
