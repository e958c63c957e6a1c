package httpapi

import (
	"net/http"
	"strings"
	"testing"

	"pawl/internal/access"
)

// TestForeignOrders: for who may only submit, an order of somebody else is not there, whatever is asked of it. A conflict
// shows it to those who may read it.
func TestForeignOrders(t *testing.T) {
	t.Parallel()
	b, tokens := withTokens(t, map[string]access.Roles{
		"shop": {access.Submit}, "other": {access.Submit}, "reader": {access.Submit, access.Read}, "desk": {access.Operate}})
	b.elsewhere(t, "old") // from the time when the service was open
	as := func(name, request, body string) answer {
		return b.call(t, request, body, "Authorization", tokens[name])
	}
	const process = "POST /api/orders/process"
	as("shop", process, `{"orderId":"mine","amount":"7.77","item":"widget"}`).wantStatus(t, http.StatusOK)
	for _, path := range []string{"", "?wait=60", "/transitions", "/calls"} {
		as("shop", "GET /api/orders/mine"+strings.Replace(path, "60", "1", 1), "").wantStatus(t, http.StatusOK)
		as("reader", "GET /api/orders/mine"+path, "").wantStatus(t, http.StatusOK)
		foreign, absent := as("other", "GET /api/orders/mine"+path, ""), as("other", "GET /api/orders/none"+path, "")
		if foreign.wantProblem(t, http.StatusNotFound, "not_found"); strings.ReplaceAll(foreign.body, "mine", "none") != absent.body {
			t.Errorf("%s of a foreign order %s, of none %s", path, foreign.body, absent.body)
		}
		as("desk", "GET /api/orders/mine"+path, "").wantProblem(t, http.StatusForbidden, "forbidden")
	}
	as("other", "GET /api/orders/old", "").wantStatus(t, http.StatusOK)
	same := as("other", process, `{"orderId":"mine","amount":"7.77","item":"widget"}`)
	different := as("other", process, `{"orderId":"mine","amount":"8.88","item":"widget"}`)
	if same.wantProblem(t, http.StatusConflict, "order_conflict"); same.body != different.body || strings.Contains(same.body, "7.77") {
		t.Errorf("a conflict tells what is stored:\n%s\n%s", same.body, different.body)
	}
	for _, name := range []string{"shop", "reader"} {
		p := as(name, process, `{"orderId":"mine","amount":"8.88","item":"widget"}`).wantProblem(t, http.StatusConflict, "order_conflict")
		if p.Order == nil || p.Order.Amount != "7.77" {
			t.Errorf("%s is not shown what is stored: %+v", name, p)
		}
	}
	as("reader", process, `{"orderId":"mine","amount":"7.77","item":"widget"}`).wantStatus(t, http.StatusOK)
	if n := b.count(t, `SELECT count(*) FROM orders WHERE order_id = 'mine' AND submitted_by = 'token:shop'`); n != 1 {
		t.Error("it has another submitter now")
	}
}
