package engine_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"pawl/engine"
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

// TestMissingGrant has a role that may not write what a move writes. That is no order's fault, and trying again does no
// better until somebody grants it: the orders stay where they are, and neither the database nor the log is flooded.
func TestMissingGrant(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ table, statement string }{{"charges", "OrdersCharge"}, {"orders", "OrdersAdmit"}} {
		t.Run("on "+c.table, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			log := &lines{}
			e, sent := b.asRole(t, "poor").counted(t, engine.Config{Poll: time.Hour, Log: slog.New(slog.NewTextHandler(log, nil))})
			role := b.role("poor")
			tries := func() []time.Time { return sent.times(c.statement) }
			b.exec(t, `REVOKE INSERT ON `+c.table+` FROM `+role)
			answers := ask(t, e, requests("order", 200)...)
			eventually(t, "it is tried again and again", func() bool { return len(tries()) >= 4 })
			if took := tries()[3].Sub(tries()[0]); took < 2*time.Second {
				t.Errorf("tried 4 times within %v", took)
			}
			if said := log.count("outcome unknown"); said > len(tries()) { // which is read after it: there may be more by then
				t.Errorf("%d lines in the log for %d tries", said, len(tries()))
			}
			if held := value[int](t, b.Pool, `SELECT count(*) FROM books.orders AS o WHERE o.hold IS NOT NULL`); held > 0 {
				t.Errorf("%d orders are blamed", held)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			if _, err := e.Process(ctx, request("one more")); !errors.Is(err, engine.ErrUnavailable) && !errors.Is(err, engine.ErrOverloaded) && err != nil {
				t.Errorf("a caller is told %v", err)
			}
			b.exec(t, `GRANT INSERT ON `+c.table+` TO `+role)
			b.completes(t, answers, 200)
			proveBooks(t, b.Pool)
		})
	}
}
