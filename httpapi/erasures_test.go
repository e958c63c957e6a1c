package httpapi

import (
	"net/http"
	"strings"
	"testing"

	"pawl/internal/access"
	"pawl/test/assert"
)

// TestErasureOverHTTP erases a customer as the API does: only with the role, not while an order is open, and without a trace
// of the customer in the record, which readers see. The history of each order tells of it.
func TestErasureOverHTTP(t *testing.T) {
	t.Parallel()
	b, tokens := withTokens(t, map[string]access.Roles{"shop": {access.Submit, access.Operate, access.Read, access.Admin}, "privacy": {access.Erase}})
	b.guard(t)
	post := func(token, path, body string) answer {
		return b.call(t, "POST "+path, body, "Authorization", tokens[token])
	}
	post("shop", "/api/orders/process", `{"orderId":"o","amount":"10","item":"cup","customerId":"anna","metadata":{"name":"anna"}}`).wantStatus(t, http.StatusOK)
	b.held(t, "open", nil)
	b.exec(t, `ALTER TABLE orders DISABLE TRIGGER orders_guard_terms`)
	b.exec(t, `UPDATE orders SET customer_id = 'anna' WHERE order_id = 'open'`)
	b.exec(t, `ALTER TABLE orders ENABLE TRIGGER orders_guard_terms`)
	const body = `{"customerId":"anna","reason":"request 4711","requestId":"r"}`
	post("shop", "/api/erasures", body).wantProblem(t, http.StatusForbidden, "forbidden")
	post("privacy", "/api/erasures", strings.Replace(body, "request 4711", "for anna", 1)).wantProblem(t, http.StatusUnprocessableEntity, "invalid_input")
	post("privacy", "/api/erasures", strings.Replace(body, `,"requestId":"r"`, "", 1)).wantProblem(t, http.StatusUnprocessableEntity, "invalid_input")
	p := post("privacy", "/api/erasures", body).wantProblem(t, http.StatusConflict, "orders_open")
	assert.Equal(t, p.Errors[0].Detail, `has the open order "open"`)
	post("shop", "/api/orders/open/cancel", `{}`).wantStatus(t, http.StatusOK)
	post("privacy", "/api/erasures", strings.Replace(body, "anna", "bob", 1)).wantProblem(t, http.StatusNotFound, "not_found")
	done := post("privacy", "/api/erasures", body)
	assert.Equal(t, done.status, http.StatusOK, done.body)
	list := b.get(t, "/api/erasures?limit=1", "Authorization", tokens["privacy"])
	assert.Equal(t, strings.TrimSpace(list.body), `{"erasures":[`+strings.TrimSpace(done.body)+`]}`)
	for _, part := range []string{`"orders":2`, `"actor":"token:privacy"`, `"reason":"request 4711"`, `"finishedAt":`, `"archiveFiles":0`} {
		assert.Contains(t, done.body, part)
	}
	o := b.get(t, "/api/orders/o", "Authorization", tokens["shop"])
	assert.True(t, !strings.Contains(o.body, "anna") && strings.Contains(o.body, `"customerId":"erased_`), o.body)
	for _, id := range []string{"o", "open"} {
		history := b.get(t, "/api/orders/"+id+"/transitions", "Authorization", tokens["shop"]).body
		assert.True(t, !strings.Contains(history, "anna") && strings.Contains(history, `"verb":"erase","actor":"token:privacy"`),
			history)
	}
}
