package simulator_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"

	"pawl/internal/simulator"
)

// The item asks for a fault: the first answer is lost. The same key finds what was done; the books know that it
// was done once.
func Example() {
	sim := simulator.New()
	defer func() { _ = sim.Close() }()
	for range 2 {
		r := httptest.NewRequest(http.MethodPost, "/charge", strings.NewReader(`{"orderId":"order-1","step":"charge","operation":"do",
			"generation":0,"amount":"99.99","currency":"USD","item":"error-after1","quantity":1}`))
		r.Header.Set("Idempotency-Key", "key-1")
		w := httptest.NewRecorder()
		sim.ServeHTTP(w, r)
		fmt.Print(w.Code, " ", w.Body)
	}
	entry := sim.Books("order-1")[0]
	fmt.Println(entry.Step, entry.State, entry.Reference, "requests:", entry.Requests, "effects:", entry.Effects)
	// Output:
	// 500 {"code":"error","detail":"by the fault plan"}
	// 200 {"reference":"ch_1","data":{"amount":"99.99","currency":"USD"}}
	// charge live ch_1 requests: 2 effects: 1
}
