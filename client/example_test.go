package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"

	"pawl/client"
)

// The client repeats a call until there is an answer. The order ID is the idempotency key, so nothing is done twice.
func Example() {
	answers := []struct {
		status int
		body   string
	}{{503, ""}, {200, `{"orderId":"order-1","status":"completed","amount":"99.99"}`}, {409, `{"code":"order_conflict"}`}}
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Printf("%s %s %s\n", r.Method, r.URL, body)
		w.WriteHeader(answers[0].status)
		fmt.Fprint(w, answers[0].body)
		answers = answers[1:]
	}))
	defer service.Close()
	shop, _ := client.New(service.URL, client.Options{})
	order := client.ProcessBody{OrderID: "order-1", Amount: "99.99", Item: "widget"}
	done, err := shop.ProcessAndWait(context.Background(), order)
	fmt.Println(done.Status, err)
	order.Amount = "50"
	_, err = shop.ProcessAndWait(context.Background(), order)
	problem, refused := errors.AsType[*client.Problem](err)
	fmt.Println(refused, problem.Code)
	// Output:
	// POST /api/orders/process {"amount":"99.99","item":"widget","orderId":"order-1"}
	// POST /api/orders/process {"amount":"99.99","item":"widget","orderId":"order-1"}
	// completed <nil>
	// POST /api/orders/process {"amount":"50","item":"widget","orderId":"order-1"}
	// true order_conflict
}
