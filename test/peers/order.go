package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"

	"github.com/jackc/pgx/v5/pgxpool"
)

// order is a request. Every peer takes the same JSON.
type order struct {
	ID     string      `json:"orderId" river:"unique"`
	Amount json.Number `json:"amount"`
	Item   string      `json:"item"`
}

// step is one of the three effects of an order, a single statement. It may be executed again: most peers need that.
type step struct {
	name, sql string
	args      func(order) []any
}

var steps = []step{{
	"charge", `INSERT INTO charges (order_id, amount) VALUES ($1, $2::text::numeric) ON CONFLICT DO NOTHING`,
	func(o order) []any { return []any{o.ID, o.Amount.String()} },
}, {
	"reserve", `WITH reserved AS (INSERT INTO reservations (order_id, item) VALUES ($1, $2) ON CONFLICT DO NOTHING RETURNING item)
		UPDATE inventory SET reserved = reserved + 1 WHERE item = (SELECT item FROM reserved)`,
	func(o order) []any { return []any{o.ID, o.Item} },
}, {
	"confirm", `INSERT INTO confirmations (order_id) VALUES ($1) ON CONFLICT DO NOTHING`,
	func(o order) []any { return []any{o.ID} },
}}

// effects are the tables of the steps. Pawl and the service written by hand have their own, with a history of the order.
const effects = `
CREATE TABLE charges (order_id text PRIMARY KEY, amount numeric NOT NULL);
CREATE TABLE reservations (order_id text PRIMARY KEY, item text NOT NULL);
CREATE TABLE confirmations (order_id text PRIMARY KEY);
CREATE TABLE inventory (item text PRIMARY KEY, reserved bigint NOT NULL);
INSERT INTO inventory SELECT 'item-' || lpad(n::text, 5, '0'), 0 FROM generate_series(0, 9999) AS n;
ANALYZE inventory`

const items = 10_000

// poolSize is how many connections each peer may have to the database of the effects.
const poolSize = 64

func openPool(ctx context.Context) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(os.Getenv("DATABASE_URL"))
	if err != nil {
		return nil, fmt.Errorf("parse database url: %w", err)
	}
	config.MaxConns = poolSize
	return pgxpool.NewWithConfig(ctx, config)
}

// serve answers a request when process has completed its order, or found it completed.
func serve(process func(context.Context, order) error) error {
	http.HandleFunc("GET /health", func(http.ResponseWriter, *http.Request) {})
	http.HandleFunc("POST /api/orders/process", func(w http.ResponseWriter, r *http.Request) {
		var o order
		if err := json.NewDecoder(r.Body).Decode(&o); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if err := process(r.Context(), o); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"orderId":%q,"status":"completed"}`, o.ID)
	})
	return http.ListenAndServe(address(), nil)
}

// address is where the code of a peer listens.
func address() string { return net.JoinHostPort("127.0.0.1", os.Getenv("PORT")) }
