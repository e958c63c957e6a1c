package endpoint_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"

	"pawl/fsm"
	"pawl/internal/policy"
	"pawl/internal/provider"
	"pawl/internal/provider/endpoint"
)

// A step is a POST to an endpoint of the shop. The answer says what happened.
func ExampleNew() {
	shop := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Println(r.Method, r.URL, r.Header.Get("Idempotency-Key")[:5]+"…")
		if r.URL.Path == "/undo" {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		fmt.Fprint(w, `{"reference": "ch_1"}`)
	}))
	defer shop.Close()
	charge := endpoint.New(&policy.Step{Executor: policy.HTTP, URL: shop.URL + "/do", UndoURL: shop.URL + "/undo"},
		fsm.Charge, policy.Bounds{AllowPrivate: true}, provider.NewTransport(0, true))
	ctx, call := context.Background(), &provider.Call{OrderID: "order-123", Step: fsm.Charge}
	fmt.Printf("%#v\n", charge.Do(ctx, call))
	fmt.Printf("%#v\n", charge.Undo(ctx, call)) // undone or not: it is sent again, with the same key
	// Output:
	// POST /do pawl-…
	// provider.Done{Reference:"ch_1", Data:json.RawMessage(nil)}
	// POST /undo pawl-…
	// provider.Unknown{Code:"http_500", Detail:"HTTP 500 Internal Server Error", After:0, Reference:"", Status:500}
}
