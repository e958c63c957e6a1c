package httpapi

import "testing"

// TestWhatIsNotThere: an answer says which thing is not there, where a request names several.
func TestWhatIsNotThere(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exec(t, `INSERT INTO webhook_endpoints (url, secret, event_no, created_by) VALUES ('https://shop.example/', 'whsec_', 0, 'test')`)
	for target, want := range map[string]string{
		"/api/orders/nobody":                                     `There is no order "nobody".`,
		"/api/orders/nobody?wait=1":                              `There is no order "nobody".`,
		"/api/orders/nobody/transitions":                         `There is no order "nobody".`,
		"/api/orders/nobody/deliveries":                          `There is no order "nobody".`,
		"/api/orders/nobody/calls":                               `There is no order "nobody".`,
		"/api/orders/%00":                                        `There is no such order.`,
		"/api/policies/7":                                        `There is no such policy.`,
		"/api/inventory/nothing":                                 `There is no item "nothing".`,
		"/api/inventory/nothing/movements":                       `There is no item "nothing".`,
		"/api/webhook-endpoints/whe_9":                           `There is no webhook endpoint "whe_9".`,
		"/api/webhook-endpoints/9":                               `There is no such webhook endpoint.`,
		"/api/webhook-endpoints/whe_9/deliveries/1":              `There is no webhook endpoint "whe_9".`,
		"/api/webhook-endpoints/whe_1/deliveries/7":              `There is no delivery at whe_1 with the number "7".`,
		"/api/webhook-endpoints/whe_9/deliveries?orderId=nobody": `There is no webhook endpoint "whe_9".`,
		"/api/webhook-endpoints/whe_1/deliveries?orderId=nobody": `There is no order "nobody".`,
	} {
		if p := b.get(t, target).wantProblem(t, 404, "not_found"); p.Detail != want {
			t.Errorf("%s: %s", target, p.Detail)
		}
	}
	if p := b.verb(t, "nobody/cancel", `{}`).wantProblem(t, 404, "not_found"); p.Detail != `There is no order "nobody".` {
		t.Error(p.Detail)
	}
	callback := b.call(t, "POST /api/callbacks/forged", `{"outcome":"done"}`)
	if p := callback.wantProblem(t, 404, "not_found"); p.Detail != "There is no such callback." {
		t.Error(p.Detail)
	}
}
