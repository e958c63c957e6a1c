// Command baseline is the service as a careful engineer writes it by hand: net/http
// and a connection pool, one table of orders, and each step a transaction of its own
// that locks the order with SELECT … FOR UPDATE, looks at its state, does the step's
// effect, updates the order and commits. It is what Pawl is measured against.
//
// Per order it commits four transactions and writes what Pawl writes: the order, its
// charge, its reservation, the stock of its item (when it is reserved and when it is
// sold), and one history row per move. It does less than Pawl in this: no lease and no
// recovery by another process, no guard in the database, no lists and none of their
// indexes.
package main

import (
	"context"
	_ "embed"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"

	"github.com/jackc/pgx/v5/pgxpool"
)

//go:embed schema.sql
var schema string

func main() {
	ctx := context.Background()
	pool, err := open(ctx)
	if err != nil {
		log.Fatal(err)
	}
	s := &server{pool}
	http.HandleFunc("GET /health", func(w http.ResponseWriter, r *http.Request) {
		if err := pool.Ping(r.Context()); err != nil {
			http.Error(w, "database does not answer", http.StatusServiceUnavailable)
		}
	})
	http.HandleFunc("POST /api/orders/process", s.process)
	log.Fatal(http.ListenAndServe(net.JoinHostPort("127.0.0.1", os.Getenv("PORT")), nil))
}

// poolSize is how many connections the baseline has.
const poolSize = 32

// open connects the pool and creates the tables.
func open(ctx context.Context) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(os.Getenv("DATABASE_URL"))
	if err != nil {
		return nil, fmt.Errorf("parse database url: %w", err)
	}
	config.MaxConns = poolSize
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	if _, err := pool.Exec(ctx, schema); err != nil {
		return nil, fmt.Errorf("create tables: %w", err)
	}
	return pool, nil
}
