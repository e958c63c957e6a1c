package httpapi

import (
	"net/http"
	"strings"
	"testing"

	"pawl/internal/access"
	"pawl/internal/webhooks"
	"pawl/test/assert"
)

// TestWebhookEndpointsAreChecked: what can't work is refused before anything is stored, and says why.
func TestWebhookEndpointsAreChecked(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, c := range []struct{ body, pointer, code string }{
		{`{}`, "/url", "required"},
		{`{"url":"shop.example"}`, "/url", "not_url"},
		{`{"url":"ftp://shop.example/"}`, "/url", "not_url"},
		{`{"url":"https://user:secret@shop.example/"}`, "/url", "not_url"},
		{`{"url":"https://0x7f.1/"}`, "/url", "not_url"},
		{`{"url":"https://169.254.169.254/latest"}`, "/url", "address_refused"},
		{`{"url":"https://[::ffff:169.254.169.254]/latest"}`, "/url", "address_refused"},
		{`{"url":"https://shop.example/","types":["order.complete"]}`, "/types/0", "unknown_type"},
		{`{"url":"https://shop.example/","types":["order.*","o*"]}`, "/types/1", "unknown_type"},
		{`{"url":"https://shop.example/","types":[]}`, "/types", "out_of_range"},
	} {
		p := b.call(t, "POST /api/webhook-endpoints", c.body).wantProblem(t, http.StatusUnprocessableEntity, "invalid_input")
		assert.True(t, len(p.Errors) == 1 && p.Errors[0].Pointer == c.pointer && p.Errors[0].Code == c.code &&
			!strings.Contains(p.Errors[0].Detail, "secret@") &&
			(c.pointer == "/types/0") == strings.Contains(p.Errors[0].Detail, "did you mean order.completed?"), c.body, p.Errors)
	}
	assert.Equal(t, b.count(t, `SELECT count(*) FROM webhook_endpoints`), 0, "endpoints are stored")
}

// TestWebhookEndpointOverHTTP: what each request is answered with, from the first to the last.
func TestWebhookEndpointOverHTTP(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const one = "/api/webhook-endpoints/whe_1"
	made := b.call(t, "POST /api/webhook-endpoints", `{"url":"http://127.0.0.1:9/pawl","types":["order.*"],"colour":"red"}`)
	assert.Require(t, made.status == http.StatusOK && made.header.Get("ETag") == `"1"` &&
		strings.Contains(made.body, `"secret":"whsec_`) && strings.Contains(made.body, `"ignoredFields":["colour"]`),
		made.header, made.body)
	for _, shown := range []answer{b.get(t, one), b.get(t, "/api/webhook-endpoints"), b.call(t, "POST "+one+"/disable", ""),
		b.call(t, "POST "+one+"/enable", "")} {
		assert.True(t, shown.status == http.StatusOK && !strings.Contains(shown.body, "whsec_") &&
			strings.Contains(shown.body, "http://127.0.0.1:9/pawl"), shown.status, shown.body)
	}
	change := func(match string) answer {
		return b.call(t, "PUT "+one, `{"url":"http://127.0.0.1:9/other"}`, "If-Match", match)
	}
	change("").wantProblem(t, http.StatusPreconditionRequired, "precondition_required")
	change(`"1"`).wantProblem(t, http.StatusPreconditionFailed, "precondition_failed")
	changed := change(`"3"`)
	assert.True(t, changed.status == http.StatusOK && changed.header.Get("ETag") == `"4"` && strings.Contains(changed.body, `"types":[]`),
		changed.status, changed.body)
	b.exec(t, `INSERT INTO webhook_deliveries (endpoint_no, delivery_no, event_id, type, subject, body, state, finished_at)
		VALUES (1, 100, 'evt_1', 'test', 'evt_1', '{}', 'pending', NULL), (1, 101, 'evt_2', 'test', 'evt_2', '{}', 'delivered', now())`)
	for _, target := range []string{one, "/api/webhook-endpoints"} {
		assert.Contains(t, b.get(t, target).body, `"undelivered":1`)
	}
	b.exec(t, `DELETE FROM webhook_deliveries`)
	b.call(t, "POST "+one+"/deliveries/1/skip", `{"reason":"none"}`).wantProblem(t, http.StatusNotFound, "not_found")
	b.call(t, "POST "+one+"/deliveries/x/skip", `{"reason":"none"}`).wantProblem(t, http.StatusNotFound, "not_found")
	b.call(t, "POST "+one+"/deliveries/1/skip", `{}`).wantProblem(t, http.StatusUnprocessableEntity, "invalid_input")
	b.call(t, "POST "+one+"/recover", `{"since":"yesterday"}`).wantProblem(t, http.StatusUnprocessableEntity, "invalid_input")
	b.get(t, one+"/deliveries?cursor=x").wantProblem(t, http.StatusUnprocessableEntity, "invalid_parameter")
	b.get(t, one+"/deliveries?orderId=o&item=i").wantProblem(t, http.StatusUnprocessableEntity, "invalid_parameter")
	gone := b.call(t, "DELETE "+one, "", "If-Match", `"4"`)
	assert.True(t, gone.status == http.StatusNoContent && gone.body == "", gone.status, gone.body)
	b.call(t, "DELETE "+one, "").wantProblem(t, http.StatusNotFound, "not_found")
	b.call(t, "POST "+one+"/test", "").wantProblem(t, http.StatusNotFound, "not_found")
}

// TestDeliveriesPageByPage: newest first, and each once.
func TestDeliveriesPageByPage(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exec(t, `INSERT INTO webhook_endpoints (url, event_no, created_by, secret) VALUES ('https://shop.example/', 0, 'test', 'whsec_')`)
	b.exec(t, `INSERT INTO webhook_deliveries (endpoint_no, delivery_no, type, event_id, subject, state, body)
		SELECT 1, n, 'order.completed', 'evt_' || n, 's' || n, CASE WHEN n % 2 = 0 THEN 'exhausted' ELSE 'pending' END, '{}' FROM generate_series(1, 5) AS n`)
	for filter, want := range map[string]string{"": "5 4 3 2 1", "&state=exhausted": "4 2", "&state=delivered": ""} {
		var got []string
		for cursor := ""; ; {
			page := b.get(t, "/api/webhook-endpoints/whe_1/deliveries?limit=2"+filter+cursor).wantStatus(t, http.StatusOK)
			for _, d := range page.Deliveries {
				got = append(got, decimalText(d.Delivery))
			}
			if page.NextCursor == "" {
				break
			}
			cursor = "&cursor=" + page.NextCursor
		}
		assert.Equal(t, strings.Join(got, " "), want, filter, got)
	}
}

// TestDeliveriesOfAnOrderOverHTTP at all endpoints.
func TestDeliveriesOfAnOrderOverHTTP(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.process(t, body("orderId", `"o"`)).wantStatus(t, http.StatusOK)
	const path = "/api/orders/o/deliveries"
	a := b.get(t, path)
	assert.True(t, a.status == http.StatusOK && a.body == `{"deliveries":[]}`, a.status, a.body)
	b.exec(t, `INSERT INTO webhook_endpoints (url, event_no, created_by, secret) SELECT 'https://shop.example/', 0, 'test', 'whsec_' FROM generate_series(1, 2)`)
	b.exec(t, `INSERT INTO webhook_deliveries (endpoint_no, delivery_no, event_no, seq, type, event_id, subject) SELECT e, s, s, s, 'order.completed', 'evt_' || s, 'order ' || order_no
		FROM orders, generate_series(1, 2) AS e, generate_series(1, 3) AS s`)
	page := b.get(t, path+"?limit=1").wantStatus(t, http.StatusOK)
	got := each(page.Deliveries, func(d *delivery) string { return d.EndpointID + " " + decimalText(d.Delivery) + " " + d.OrderID })
	assert.Equal(t, "whe_1 3 o, whe_1 1 o, whe_2 1 o", strings.Join(got, ", "), got)
	b.get(t, "/api/orders/none/deliveries").wantProblem(t, http.StatusNotFound, "not_found")
	b.get(t, path+"?limit=0").wantProblem(t, http.StatusUnprocessableEntity, "invalid_parameter")
}

// TestWhoChangesEndpoints: the caller, on behalf of somebody only with the role for it.
func TestWhoChangesEndpoints(t *testing.T) {
	t.Parallel()
	b, tokens := withTokens(t, map[string]access.Roles{"ops": {access.Admin, access.Operate}, "desk": {access.Admin, access.Delegate}})
	as := func(name, request, body string) answer {
		return b.call(t, request, body, "Authorization", tokens[name])
	}
	as("ops", "POST /api/webhook-endpoints", `{"url":"http://127.0.0.1:9/","onBehalfOf":"maria"}`).wantProblem(t, http.StatusForbidden, "forbidden")
	as("ops", "POST /api/webhook-endpoints", `{"url":"http://127.0.0.1:9/","requestId":"1"}`).wantStatus(t, http.StatusOK)
	as("desk", "POST /api/webhook-endpoints/"+webhooks.EndpointID(1)+"/rotate-secret",
		`{"onBehalfOf":"maria","reason":"it was in a log","requestId":"1"}`).wantStatus(t, http.StatusOK)
	for _, row := range []string{
		`(event, actor, subject) = ('webhook_endpoint_created', 'token:ops', 'whe_1')`,
		`(event, actor, on_behalf_of, detail) = ('webhook_endpoint_secret_rotated', 'token:desk', 'maria', 'it was in a log')`,
	} {
		assert.Equal(t, b.count(t, `SELECT count(*) FROM books.access_log WHERE `+row), 1, "rows with", row)
	}
}
