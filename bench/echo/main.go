// Command echo answers every order at once and stores nothing: what is measured
// against it is the load generator and net/http, the ceiling of all other figures.
package main

import (
	"io"
	"log"
	"net"
	"net/http"
	"os"
)

const answer = `{"orderId":"","status":"completed","steps":{"charge":{"completed":true},"reserve":{"completed":true},"confirm":{"completed":true}}}`

func main() {
	http.HandleFunc("GET /health", func(http.ResponseWriter, *http.Request) {})
	http.HandleFunc("POST /api/orders/process", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, answer)
	})
	log.Fatal(http.ListenAndServe(net.JoinHostPort("127.0.0.1", os.Getenv("PORT")), nil))
}
