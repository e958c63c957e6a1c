package engine_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"pawl/engine"
	"pawl/fsm"
	"pawl/internal/orders"
	"pawl/test/dbtest"
)

// TestAnswersWaitForTheStandby has commits wait for a standby that is cut off. Whoever is told 200 then is lied to in
// a failover, also about rows that the primary shows after a crash.
func TestAnswersWaitForTheStandby(t *testing.T) {
	t.Parallel()
	server := dbtest.Restartable(t)
	watcher, err := pgxpool.New(t.Context(), server.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(watcher.Close)
	b := &bundle{Database: &dbtest.Database{URL: server.URL, Pool: watcher}}
	e := startEngine(t, server.URL, engine.Config{Lease: time.Second})
	b.engine = e
	b.process(t, request("before"))
	waits := request("waits")
	waits.StartAt = time.Now().Add(time.Hour)
	if _, err := e.Admit(t.Context(), waits); err != nil {
		t.Fatal(err)
	}
	server.Set(t, "synchronous_standby_names", "*")

	unanswered := func(what string, do func(context.Context) error) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second/2)
		defer cancel()
		if err := do(ctx); !errors.Is(err, orders.ErrUnavailable) {
			t.Errorf("%s: %v", what, err)
		}
	}
	process := func(id string) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := e.Process(ctx, request(id))
			return err
		}
	}
	verb := func(id string, v orders.Verb) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := e.Do(ctx, engine.Request{Verb: v, OrderID: id, Actor: "ann"})
			return err
		}
	}
	eventually(t, "its commit waits", func() bool {
		unanswered("a new order", process("cut off"))
		return value[int](t, watcher, `SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'`) > 0
	})
	unanswered("a known order", process("before"))
	unanswered("a cancellation", verb("waits", orders.Cancel))
	unanswered("stock", func(ctx context.Context) error {
		_, err := setStock(ctx, e, "widget", 5)
		return err
	})

	server.Kill(t)
	server.Start(t)
	watcher.Reset()
	// What was committed without a standby is visible now.
	eventually(t, "the order is there after the crash", func() bool {
		return value[int](t, watcher, `SELECT count(*) FROM orders WHERE order_id = 'cut off'`) == 1
	})
	unanswered("the same order after the crash", process("cut off"))
	unanswered("the same cancellation after the crash", verb("waits", orders.Cancel))

	server.Set(t, "synchronous_standby_names", "")
	if o := b.process(t, request("cut off")); o.Status != fsm.Completed {
		t.Errorf("it went on to %s", o.Status)
	}
	proveBooks(t, watcher)
}
