package httpapi

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// refunds is what the answer of an order says of its refunds.
func (a answer) refunds(t testing.TB) string {
	t.Helper()
	var o struct {
		Status, Refunded string
		AllowedActions   []string
		Refunds          []struct {
			Refund                           int
			State, Amount, Reason, RequestID string
			Restock                          int
		}
	}
	if err := json.Unmarshal([]byte(a.body), &o); err != nil {
		t.Fatalf("%s: %v", a.body, err)
	}
	text := []string{o.Status, o.Refunded, fmt.Sprint(o.AllowedActions)}
	for _, r := range o.Refunds {
		text = append(text, fmt.Sprintf("%d %s %s %s %s %d", r.Refund, r.State, r.Amount, r.Reason, r.RequestID, r.Restock))
	}
	return strings.Join(text, "; ")
}

func TestRefundsOverHTTP(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.stock(t, "widget", `{"onHand":5}`).wantStatus(t, 200)
	b.process(t, `{"orderId":"o","amount":"99.90","item":"widget","quantity":3}`).wantStatus(t, 200)
	if got := b.get(t, "/api/orders/o").refunds(t); got != "completed; ; [refund]" {
		t.Error(got)
	}
	for body, want := range map[string]string{
		`{}`: "/reason", `{"reason":""}`: "/reason", `{"reason":"r"}`: "/requestId", `{"reason":"r","requestId":"x","amount":"0"}`: "/amount",
		`{"reason":"r","requestId":"x","amount":-1}`: "/amount", `{"reason":"r","requestId":"x","amount":"1.001"}`: "/amount", `{"reason":"r","requestId":"x","amount":{}}`: "/amount",
		`{"reason":"r","requestId":"x","amount":"1 "}`: "/amount", `{"reason":"r","requestId":"x","restock":0}`: "/restock",
	} {
		if p := b.verb(t, "o/refunds", body).wantProblem(t, 422, "invalid_input"); p.Errors[0].Pointer != want {
			t.Errorf("%s: %+v", body, p.Errors)
		}
	}
	b.verb(t, "nobody/refunds", `{"reason":"r","requestId":"x","amount":1}`).wantProblem(t, 404, "not_found")
	b.verb(t, "o/refunds", `{"reason":"r","requestId":"x","amount":99.91}`).wantProblem(t, 409, "refund_too_large")
	b.verb(t, "o/refunds", `{"reason":"r","requestId":"x","restock":4}`).wantProblem(t, 409, "restock_too_large")
	before := b.get(t, "/api/orders/o")
	for body, want := range map[string]string{
		`{"reason":"r","requestId":"x"}`:                          "completed; 99.90; []; 1 done 99.90 r x 0",
		`{"reason":"r","requestId":"x","amount":"9","restock":2}`: "completed; 9.00; [refund]; 1 done 9.00 r x 2",
	} {
		if a := b.verb(t, "o/refunds?dryRun=true", body); a.status != 200 || a.refunds(t) != want || b.get(t, "/api/orders/o").body != before.body {
			t.Errorf("%d %s", a.status, a.body)
		}
	}
	b.verb(t, "o/refunds", `{"reason":"r","requestId":"x"}`, "If-Match", `"1"`).wantProblem(t, 412, "precondition_failed")
	const first = "completed; 12.50; [refund]; 1 done 12.50 one is broken first 2"
	for range 2 { // it comes again
		a := b.verb(t, "o/refunds", `{"amount":12.5,"reason":"one is broken","requestId":"first","restock":2}`, "If-Match", before.header.Get("ETag"))
		if got := a.refunds(t); a.status != 200 || got != first {
			t.Errorf("%d %s", a.status, got)
		}
	}
	if item := b.get(t, "/api/inventory/widget").decoded(t); item.OnHand != 4 {
		t.Errorf("%+v", item)
	}
	b.verb(t, "o/refunds", `{"reason":"r","requestId":"first","amount":12}`).wantProblem(t, 422, "idempotency_key_reused")
	b.verb(t, "o/refunds", `{"reason":"all of it","amuont":1}`, "Idempotency-Key", "second").wantProblem(t, 422, "invalid_input")
	a := b.verb(t, "o/refunds", `{"reason":"all of it"}`, "Idempotency-Key", "second")
	if got, want := a.refunds(t), "completed; 99.90; []; 1 done 12.50 one is broken first 2; 2 done 87.40 all of it second 0"; got != want || a.status != 200 {
		t.Errorf("%d %s, want %s", a.status, got, want)
	}
	if a.header.Get("ETag") == before.header.Get("ETag") || b.get(t, "/api/orders/o", "If-None-Match", before.header.Get("ETag")).status != 200 {
		t.Error("the ETag has not changed")
	}
	b.verb(t, "o/refunds", `{"reason":"r","requestId":"x"}`).wantProblem(t, 409, "refund_too_large")
	b.verb(t, "o/step-result", `{"step":"charge","refund":1,"outcome":"done","onBehalfOf":"ann","reason":"r"}`).wantProblem(t, 409, "no_refund")
	b.verb(t, "o/step-result", `{"step":"reserve","refund":1,"outcome":"done","onBehalfOf":"ann","reason":"r"}`).wantProblem(t, 422, "invalid_input")
}
