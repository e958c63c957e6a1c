package engine_test

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"pawl/engine"
	"pawl/internal/orders"
)

// lines is a log that may be read while it is written.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (l *lines) count(of string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), of)
}

// TestMissingGrant has a role that may not write what a statement writes, beside a replica that may. That is no order's
// fault: the orders are handed to the other replica although their leases would last, callers are told to come again, and
// the log is not flooded.
func TestMissingGrant(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		table  string
		stored int
	}{{"charges", 200}, {"orders", 0}} {
		t.Run("on "+c.table, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			log := &lines{}
			e := b.asRole(t, "poor").replica(t, engine.Config{Lease: time.Hour, Log: slog.New(slog.NewTextHandler(log, nil))})
			role := b.role("poor")
			b.exec(t, `REVOKE INSERT ON `+c.table+` FROM `+role)
			comeAgain(t, ask(t, e, requests("order", 200)...), 200)
			if err := e.Ready(t.Context()); !errors.Is(err, engine.ErrNotMigrated) || !strings.Contains(err.Error(), "INSERT on pawl."+c.table) {
				t.Errorf("it says of itself: %v", err)
			}
			if _, err := e.Process(t.Context(), request("one more")); !errors.Is(err, engine.ErrNotMigrated) {
				t.Errorf("a new order: %v", err)
			}
			eventually(t, "the other replica completes them", func() bool {
				return value[int](t, b.Pool, `SELECT count(*) FROM orders AS o WHERE o.status <> 'completed'`) == 0
			})
			if stored := value[int](t, b.Pool, `SELECT count(*) FROM orders`); stored > c.stored || stored == 0 && c.stored > 0 {
				t.Errorf("%d orders are stored", stored)
			}
			if said := log.count("can't run on this schema"); said != 1 {
				t.Errorf("%d lines in the log:\n%s", said, log)
			}
			b.exec(t, `GRANT INSERT ON `+c.table+` TO `+role)
			eventually(t, "it takes orders again", func() bool { return e.Ready(t.Context()) == nil })
			b.completes(t, ask(t, e, requests("order", 200)...), 200)
			proveBooks(t, b.Pool)
		})
	}
}

// comeAgain waits for n answers, all of which must be to come again.
func comeAgain(t *testing.T, answers <-chan answer, n int) {
	t.Helper()
	for range n {
		if a := <-answers; !errors.Is(a.err, orders.ErrUnavailable) {
			t.Fatalf("%s: told %v, %s", a.orderID, a.err, brief(a.order))
		}
	}
}
