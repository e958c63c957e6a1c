package engine_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"pawl/engine"
	"pawl/internal/orders"
	"pawl/test/dbtest"
)

const waitForStandby = `SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'`

// cutOff starts an engine with an order that waits for its time on a server that then waits for a standby in vain.
func cutOff(t *testing.T) (*engine.Engine, *dbtest.Server, *pgxpool.Pool) {
	t.Helper()
	server := dbtest.Restartable(t)
	watcher, err := pgxpool.New(t.Context(), server.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(watcher.Close)
	e := startEngine(t, server.URL, engine.Config{Lease: time.Minute})
	waits := request("waits")
	waits.StartAt = time.Now().Add(time.Hour)
	if _, err := e.Admit(t.Context(), waits); err != nil {
		t.Fatal(err)
	}
	server.Set(t, "synchronous_standby_names", "*")
	return e, server, watcher
}

// TestCallersLeaveNoWaitingProcesses has callers come and go while commits wait for a standby. What each leaves behind in the
// server goes on waiting, and without an end to it the server has no place for anybody.
func TestCallersLeaveNoWaitingProcesses(t *testing.T) {
	t.Parallel()
	e, _, watcher := cutOff(t)
	const poolSize = 8
	for range 10 {
		var callers sync.WaitGroup
		for range 2 * poolSize {
			callers.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
				defer cancel()
				if _, err := e.Do(ctx, engine.Request{Verb: orders.Pause, OrderID: "waits", Actor: "ann"}); !errors.Is(err, orders.ErrUnavailable) {
					t.Error(err)
				}
			})
		}
		callers.Wait()
	}
	if n := value[int](t, watcher, waitForStandby); n > poolSize {
		t.Errorf("%d server processes wait for a pool of %d connections", n, poolSize)
	}
}
