package httpapi

import (
	"fmt"
	"testing"
)

func TestRequestsOfOtherSites(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.held(t, "held", nil)
	b.stock(t, "widget", `{"onHand":5}`).wantStatus(t, 200)
	writes := []struct{ request, body string }{
		{"POST /api/orders/process", ask("o")},
		{"POST /api/orders/held/cancel", ""},
		{"PUT /api/inventory/widget", `{"onHand":7}`},
		{"POST /api/inventory/widget/adjustments", `{"change":2,"reason":"found","requestId":"1"}`},
	}
	for _, header := range [][]string{
		{"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Site", "same-site"},
		{"Origin", "https://elsewhere.example"}, {"Origin", "null"}, {"Origin", "http://localhost:8080"},
	} {
		t.Run(fmt.Sprintf("are refused: %s", header), func(t *testing.T) {
			t.Parallel()
			for _, write := range writes {
				b.call(t, write.request, write.body, header...).wantProblem(t, 403, "cross_origin")
			}
			b.get(t, "/api/orders/held", header...).wantStatus(t, 200) // reading does nothing
			if n := b.count(t, `SELECT (SELECT count(*) FROM orders WHERE order_id = 'o' OR stop_requested IS NOT NULL)
				+ (SELECT count(*) FROM inventory WHERE on_hand = 7)`); n != 0 {
				t.Error("something was written")
			}
		})
	}
	for i, header := range [][]string{
		nil, {"Sec-Fetch-Site", "same-origin"}, {"Sec-Fetch-Site", "none"}, {"Origin", "http://localhost"},
	} {
		t.Run(fmt.Sprintf("our own are answered: %s", header), func(t *testing.T) {
			t.Parallel()
			id := fmt.Sprintf("ours-%d", i)
			b.process(t, ask(id), header...).wantStatus(t, 200)
			b.call(t, "POST /api/orders/"+id+"/cancel", "", header...).wantProblem(t, 409, "not_applicable")
			b.stock(t, id, `{"onHand":8}`, header...).wantStatus(t, 200)
		})
	}
}
