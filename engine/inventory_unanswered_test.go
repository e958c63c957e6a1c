package engine_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"pawl/engine"
	"pawl/internal/orders"
)

// TestStockThatNobodyWaitsForIsNotSet has a replica without a free connection. Whoever set the stock there has long been told
// that it is not known whether it was, and has set another one elsewhere since.
func TestStockThatNobodyWaitsForIsNotSet(t *testing.T) {
	t.Parallel()
	b := setup(t)
	pool := openPool(t, b.URL)
	busy := startOn(t, pool, engine.Config{})
	var holders []pgx.Tx
	for range pool.Stat().MaxConns() {
		tx, err := pool.BeginTx(t.Context(), pgx.TxOptions{})
		if err != nil {
			t.Fatal(err)
		}
		holders = append(holders, tx)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second/2)
	defer cancel()
	if _, err := busy.ChangeStock(ctx, setTo("widget", 1, 0)); !errors.Is(err, orders.ErrUnavailable) {
		t.Fatal(err)
	}
	b.setStock(t, "widget", 1000)
	for _, tx := range holders {
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for n := range 20 { // whatever was to be sent is sent before these are answered
		if _, err := setStock(t.Context(), busy, fmt.Sprint("other ", n), 1); err != nil {
			t.Fatal(err)
		}
	}
	if is := value[int64](t, b.Pool, `SELECT on_hand FROM inventory WHERE item = 'widget'`); is != 1000 {
		t.Errorf("1000 were set last, and answered; there are %d", is)
	}
}
