package ledger_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"pawl/db"
	"pawl/engine/ledger"
	"pawl/fsm"
	"pawl/internal/pg"
	"pawl/test/assert"
)

// Somebody may begin to track an item while reservations of it are on their way. What was reserved before counts, and is
// waited for when it has not committed yet.
func TestTrackingBegins(t *testing.T) {
	t.Parallel()
	for name, seen := range map[string]bool{"of an item seen before": true, "of an item nobody has seen": false} {
		t.Run("while a reservation is under way "+name, func(t *testing.T) {
			t.Parallel()
			l := open(t)
			if seen {
				l.all(l.set(l.orders(fsm.Confirming, "widget", 1)...))
			}
			nos := l.orders(fsm.Reserving, "widget", 3)
			reserving := l.begin()
			l.within(reserving).all(l.set(nos...))

			var rows []db.InventoryMoveRow
			set := make(chan error, 1)
			two := l.toStock("widget", 2)
			go func() { // 2 on hand, 3 reserved: must wait, and then refuse
				var err error
				rows, err = l.query.InventoryMove(t.Context(), two)
				set <- err
			}()
			assert.Require(t, l.untilBlocked(set), "did not wait for the reservation")
			l.must(reserving.Commit(t.Context()))
			err := <-set
			assert.True(t, err == nil && len(rows) == 0, "set to", rows, err)
			l.has("widget", "3 of 0 untracked")
			l.stock("widget", 3)
			l.has("widget", "3 of 3 tracked")
			l.decides("refused", l.orders(fsm.Reserving, "widget", 1)...)
			l.all(l.set(nos...))
			l.has("widget", "0 of 0 tracked")
		})
	}
	t.Run("under way while a reservation comes", func(t *testing.T) {
		t.Parallel()
		l := open(t)
		for _, item := range []string{"seen", "unseen"} {
			nos := l.orders(fsm.Reserving, item, 3, 1)
			if item == "seen" {
				l.all(l.set(l.orders(fsm.Reserving, item, 1)...))
			}
			l.reserveDuring(item, nos)
		}
	})
}

// reserveDuring sends orders for 3 and 1 while a stock of 2 is being set. The reservation waits at most half a second
// for the row; on a slow machine that is not always enough, and it is sent again.
func (l *books) reserveDuring(item string, nos []int64) {
	l.t.Helper()
	for try := range 20 {
		setting := l.begin()
		_, err := l.query.WithTx(setting).InventoryMove(l.t.Context(), l.toStock(item, 2))
		l.must(err)
		verdict := make(chan error, 1)
		var moved []ledger.Moved
		go func() {
			var err error
			moved, err = ledger.Moves[fsm.Reserving](l.t.Context(), l.query, ledger.Batch{OrderNos: nos, Expected: fsm.Reserving, Fence: 1, Seq: 2})
			verdict <- err
		}()
		l.untilBlocked(verdict)
		if try == 0 { // the first time it waits in vain
			err := <-verdict
			assert.Require(l.t, pg.FaultOf(err) == pg.Busy, "waited for a locked row, and got", moved, err)
			l.must(setting.Rollback(l.t.Context()))
			continue
		}
		l.must(setting.Commit(l.t.Context()))
		err = <-verdict
		if pg.FaultOf(err) == pg.Busy {
			l.exec(fmt.Sprintf(`SET LOCAL session_replication_role = replica; DELETE FROM inventory WHERE item = '%s' AND reserved = 0`, item))
			l.exec(`UPDATE inventory SET on_hand = 0, tracked = false WHERE item = $1`, item)
			continue
		}
		l.must(err)
		for len(moved) < len(nos) { // who is left undecided comes again
			more := l.move(ledger.Batch{OrderNos: nos, Expected: fsm.Reserving, Fence: 1, Seq: 2})
			assert.Require(l.t, len(more) != 0, "nobody is decided")
			moved = append(moved, more...)
		}
		for _, m := range moved {
			assert.Equal(l.t, m.ToStatus, map[int64]fsm.State{nos[0]: fsm.Refunding, nos[1]: fsm.Confirming}[m.OrderNo], m)
		}
		l.has(item, map[string]string{"seen": "2 of 2 tracked", "unseen": "1 of 2 tracked"}[item])
		return
	}
	l.t.Fatal("too slow, twenty times")
}

// untilBlocked returns true when a statement on this database waits for a lock, and false when there is a verdict
// already, which it leaves in the channel.
func (l *books) untilBlocked(verdict <-chan error) (blocked bool) {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.t.Context(), time.Minute)
	defer cancel()
	for !blocked && len(verdict) == 0 {
		l.must(l.pool.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_stat_activity
			WHERE datname = current_database() AND cardinality(pg_blocking_pids(pid)) > 0)`).Scan(&blocked))
	}
	return blocked
}

func TestLockedStock(t *testing.T) {
	t.Parallel()
	for _, state := range []fsm.State{fsm.Reserving, fsm.Confirming, fsm.Releasing} {
		t.Run(fmt.Sprintf("is waited for half a second when %s, and nothing is written", state), func(t *testing.T) {
			t.Parallel()
			l := open(t)
			l.stock("widget", 10)
			outcome := ""
			if state.Undoing() {
				outcome = "canceled"
			}
			set := l.set(l.plant(state, outcome))
			before := l.snapshot()
			tx := l.begin()
			_, err := tx.Exec(t.Context(), `SELECT FROM inventory WHERE item = 'widget' FOR UPDATE`)
			l.must(err)
			began := time.Now()
			_, err = ledger.Moves[state](t.Context(), l.query, set)
			waited := time.Since(began)
			assert.True(t, pg.FaultOf(err) == pg.Busy && waited >= 500*time.Millisecond, "after", waited, err)
			l.must(tx.Rollback(t.Context()))
			assert.Equal(t, l.snapshot(), before, "something was written")
			l.all(set)
			assert.Equal(t, l.lockTimeout(), "0", "the connection keeps lock_timeout")
		})
	}
}

// lockTimeout looks at every connection of the pool: the limit of a statement must end with it.
func (l *books) lockTimeout() (limit string) {
	l.t.Helper()
	for _, conn := range l.pool.AcquireAllIdle(l.t.Context()) {
		var one string
		l.must(conn.QueryRow(l.t.Context(), `SHOW lock_timeout`, pgx.QueryExecModeSimpleProtocol).Scan(&one))
		conn.Release()
		limit = max(limit, one)
	}
	return limit
}
