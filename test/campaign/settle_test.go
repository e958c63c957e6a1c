package campaign

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// waiting is an order that has not ended.
type waiting struct{ ID, Status, Hold, Reason string }

// settle does what operators do after a bad day, by the runbook: people decide what waits for people, and callers ask for
// what they were not answered. It returns what does not end all the same.
func (f *field) settle(ctx context.Context, limit time.Duration) (stuck []string) {
	f.provider.calm.Store(true)
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		for stuck = f.endAll(ctx); len(stuck) > 0 && ctx.Err() == nil; stuck = f.endAll(ctx) {
			pause(ctx, 200*time.Millisecond)
		}
		n := f.callers.finish(ctx) // this may store orders that were not there before
		if len(stuck) > 0 || ctx.Err() != nil {
			return append(stuck, fmt.Sprintf("%d orders have had no final answer after %s", n, limit))
		}
		if stuck = f.standing(); n == 0 && len(stuck) == 0 {
			return nil
		}
	}
}

// endAll lets people decide what waits for them, and returns what has not ended.
func (f *field) endAll(ctx context.Context) []string {
	for _, o := range f.unfinished() {
		f.decide(ctx, &o)
	}
	f.settleRefunds(ctx)
	return f.standing()
}

// standing lists what has not ended.
func (f *field) standing() (list []string) {
	for _, o := range f.unfinished() {
		list = append(list, fmt.Sprintf("order %s has not ended: %s, %s %s", o.ID, o.Status, o.Hold, o.Reason))
	}
	if n := f.server.ask(context.WithoutCancel(f.t.Context()), "SELECT count(*) FROM books.late_undos WHERE finished_at IS NULL"); n > 0 {
		list = append(list, fmt.Sprintf("%d late effects are not undone", n))
	}
	if n := f.server.ask(context.WithoutCancel(f.t.Context()), "SELECT count(*) FROM books.refunds WHERE state NOT IN ('done', 'failed')"); n > 0 {
		list = append(list, fmt.Sprintf("%d refunds are open", n))
	}
	return list
}

// decide lets a person do what gets an order on.
func (f *field) decide(ctx context.Context, o *waiting) {
	verb := map[string]string{"paused": "resume", "approval": "approve", "attention": "retry"}[o.Hold]
	if verb == "" {
		return
	}
	a, ok := f.people.read(ctx, o.ID)
	if !ok || a.order.Hold != o.Hold {
		return
	}
	if o.Hold == "attention" && (!slices.Contains(a.order.AllowedActions, verb) || f.people.dice.chance(50)) {
		verb = "step-result"
	}
	f.people.act(ctx, o.ID, &a, verb)
}

// unfinished reads which orders have not ended.
func (f *field) unfinished() []waiting {
	return rows[waiting](f, `SELECT order_id, status, coalesce(hold, ''), coalesce(hold_reason, '') FROM books.orders
		WHERE status NOT IN ('completed', 'failed', 'canceled')`)
}

// rows reads the database, past everything that stands between it and the replicas.
func rows[T any](f *field, query string) []T {
	ctx := context.WithoutCancel(f.t.Context())
	conn, err := f.server.session(ctx)
	if err != nil {
		f.t.Fatal(err)
	}
	defer conn.Close(ctx)
	found, err := conn.Query(ctx, query)
	if err != nil {
		f.t.Fatal(err)
	}
	list, err := pgx.CollectRows(found, pgx.RowToStructByPos[T])
	if err != nil {
		f.t.Fatal(err)
	}
	return list
}
