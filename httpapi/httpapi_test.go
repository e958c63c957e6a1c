package httpapi

import (
	"strings"
	"testing"
	"time"
)

// TestTour makes one request after the other, as a client would, and says what each is answered with.
func TestTour(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const process = "POST /api/orders/process"
	tomorrow := time.Now().Add(24 * time.Hour).Format(time.RFC3339)
	for _, c := range []struct {
		request, body string
		status        int
		answer        string // what is in it, besides other things
	}{
		{"GET /health", ``, 200, `"status":"ok"`},
		{"PUT /api/inventory/widget", `{"onHand":1}`, 428, `"code":"precondition_required"`}, // how many were there, when they were counted?
		{"POST /api/inventory/widget/adjustments", `{"change":1,"reason":"delivery","requestId":"1"}`, 200, `"available":1`},
		{process, `{"orderId":"order-1","amount":99.99,"item":"widget"}`, 200, `"status":"completed"`},
		{process, `{"orderId":"order-1","amount":99.99,"item":"widget"}`, 200, `"status":"completed"`}, // nothing happens twice
		{process, `{"orderId":"order-1","amount":50,"item":"widget"}`, 409, `"code":"order_conflict"`},
		{process, `{"orderId":"order-2","amount":99.99,"item":"widget"}`, 200, `"code":"out_of_stock"`},
		{process, `{"orderId":"order-3","amount":-1,"item":"widget"}`, 422, `"code":"invalid_input"`},
		{process, `{"orderId":"order-3","amount":1,"item":"rug","startAt":"` + tomorrow + `"}`, 202, `"hold":"scheduled"`},
		{"POST /api/orders/order-3/cancel", `{"reason":"not needed"}`, 200, `"status":"canceled"`},
		{"POST /api/orders/order-1/cancel", `{}`, 409, `"code":"not_applicable"`},
		{"POST /api/inventory/widget/adjustments", `{"change":1,"reason":"delivery","requestId":"2"}`, 200, `"available":1`},
		{"POST /api/orders/order-2/retry", `{}`, 200, `"generation":1`}, // there is stock now
		{"GET /api/orders/order-2", ``, 200, `"status":"completed"`},
		{"GET /api/orders/order-2/transitions", ``, 200, `"to":"refunding"`},
		{"GET /api/orders/order-2/calls", ``, 200, `{"calls":[]`}, // the database did it
		{"GET /api/orders?status=canceled", ``, 200, `"orderId":"order-3"`},
		{"GET /api/inventory/widget", ``, 200, `"available":0`},
		{"GET /api/inventory/widget/movements", ``, 200, `"change":1,"onHand":1`},
		{"GET /api/orders/order-4", ``, 404, `"code":"not_found"`},
	} {
		if a := b.call(t, c.request, c.body); a.status != c.status || !strings.Contains(a.body, c.answer) {
			t.Errorf("%s %s: %d %s, want %d with %s", c.request, c.body, a.status, a.body, c.status, c.answer)
		}
	}
}
