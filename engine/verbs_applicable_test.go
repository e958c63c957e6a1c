package engine_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"pawl/engine"
	"pawl/fsm"
	"pawl/internal/orders"
	"pawl/test/dbtest"
)

// combination is one way an order's row can be.
type combination struct {
	status         fsm.State
	hold, stop     string
	doubted, tried bool
}

// combinations are those that the database takes.
func combinations() (all []combination) {
	for _, status := range fsm.States() {
		for _, stop := range []string{"", "cancel", "pause", "deadline"} {
			if status.Final() {
				all = append(all, combination{status: status, stop: stop})
				continue
			}
			for _, hold := range []string{"", "retry", "callback", "scheduled", "queued", "approval", "paused", "attention"} {
				all = append(all, combination{status, hold, stop, false, false}, combination{status, hold, stop, false, true},
					combination{status, hold, stop, true, true})
			}
		}
	}
	return all
}

// combined stores every combination once for every verb.
const combined = `WITH stored AS (
	INSERT INTO orders (order_id, status, hold, stop_requested, in_doubt_since, calls, retries, fence, seq, owner, due_at, ended_as, finished_at,
		outcome, failure_step, failure_code, currency, item, amount)
	SELECT order_id, status, nullif(hold, ''), nullif(stop, ''), CASE WHEN doubted THEN now() END, CASE WHEN tried THEN 1 END,
		CASE WHEN tried THEN 1 END, 1, 1, CASE WHEN ended IS NULL AND hold = '' THEN gen_random_uuid() END,
		CASE WHEN ended IS NULL AND hold = '' THEN now() + interval '1 hour' END, ended, CASE WHEN ended IS NOT NULL THEN now() END,
		nullif(ended, 'completed'), CASE WHEN ended = 'failed' THEN 'charge' END, CASE WHEN ended = 'failed' THEN 'declined' END, 'USD', 'widget', 1
	FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::boolean[], $6::boolean[]) AS x(order_id, status, hold, stop, doubted, tried),
	LATERAL (SELECT CASE WHEN status IN ('completed', 'failed', 'canceled') THEN status END) AS e(ended)
	RETURNING order_no, status)
	INSERT INTO transitions (order_no, seq, to_status, fence) SELECT order_no, 1, status, 1 FROM stored`

func (b *bundle) combine(t testing.TB) (orderIDs []string) {
	t.Helper()
	var statuses, holds, stops []string
	var doubts, calls []bool
	for _, c := range combinations() {
		for _, verb := range orders.Verbs {
			orderIDs = append(orderIDs, fmt.Sprintf("%s, held %q, stop %q, in doubt %t, tried %t: %s", c.status, c.hold, c.stop, c.doubted, c.tried, verb))
			statuses, holds, stops = append(statuses, string(c.status)), append(holds, c.hold), append(stops, c.stop)
			doubts, calls = append(doubts, c.doubted), append(calls, c.tried)
		}
	}
	b.exec(t, "ALTER TABLE orders DISABLE TRIGGER orders_guard_insert")
	b.exec(t, combined, orderIDs, statuses, holds, stops, doubts, calls)
	return orderIDs
}

// byVersion is a request for a verb that lacks nothing.
func of(verb orders.Verb, orderID string, at fsm.State) engine.Request {
	q := engine.Request{Verb: verb, OrderID: orderID, Actor: "ann", Reason: "a test", Async: true}
	if verb == orders.StepResult {
		q.Settle = &engine.Settled{Step: stepIn(at), Outcome: engine.SettledDone}
	}
	if verb == orders.Refund {
		q.Refund = &engine.Refund{}
	}
	return q
}

func stepIn(s fsm.State) fsm.Step {
	switch s {
	case fsm.Reserving, fsm.Releasing:
		return fsm.Reserve
	case fsm.Confirming:
		return fsm.Confirm
	default:
		return fsm.Charge
	}
}

// verdict is what came of a verb.
type verdict struct {
	before, answer, after orders.Order
	err                   error
	said                  string // by the history, last: who asked for what, and why
}

// The engine is not started: what is written stays as it was written.
func TestVerbsApplyWhereTheyAreListed(t *testing.T) {
	t.Parallel()
	database := dbtest.New(t)
	b := &bundle{Database: database, engine: engine.New(openPool(t, database.URL), engine.Config{})}
	listed := map[orders.Verb]bool{}
	for id, v := range b.verdicts(t, b.combine(t)) {
		verb := orders.Verb(id[strings.LastIndex(id, " ")+1:])
		listed[verb] = v.appliesWhereListed(t, verb) || listed[verb]
	}
	for _, verb := range orders.Verbs {
		if !listed[verb] {
			t.Errorf("%s applies to nothing", verb)
		}
	}
}

// verdicts asks for the verb that each order is there for. What is stored is read once for all: there are thousands.
func (b *bundle) verdicts(t *testing.T, ids []string) map[string]*verdict {
	t.Helper()
	all, g := make([]verdict, len(ids)), newGhost(b.Pool)
	for n, order := range g.stored(t, ids...) {
		all[n].before = order
	}
	var people sync.WaitGroup
	for i, verb := range orders.Verbs { // one person for each, at the same time
		people.Go(func() {
			for n := i; n < len(ids); n += len(orders.Verbs) {
				all[n].answer, all[n].err = b.asksTwice(t, of(verb, ids[n], all[n].before.Status))
			}
		})
	}
	people.Wait()
	said, of := b.said(t), map[string]*verdict{}
	for n, order := range g.stored(t, ids...) {
		all[n].after, all[n].said, of[ids[n]] = order, said[ids[n]], &all[n]
	}
	return of
}

// appliesWhereListed checks that a verb is done where the order lists it, and refused elsewhere, and reports which.
func (v *verdict) appliesWhereListed(t *testing.T, verb orders.Verb) (applies bool) {
	t.Helper()
	id, seq := v.before.OrderID, v.after.Seq
	if v.err == nil && v.answer.Seq != seq {
		t.Errorf("%s: answered with seq %d, and %d is stored", id, v.answer.Seq, seq)
	}
	applies = slices.Contains(orders.AllowedActions(&v.before), string(verb))
	if verb == orders.Cancel && !applies && v.err == nil && text(v.before.StopRequested) == "cancel" && seq == v.before.Seq {
		return false // it waits with the one under way
	}
	if applies != (v.err == nil) || applies != (seq == v.before.Seq+1) {
		t.Errorf("%s: listed %t, answered %v, seq %d to %d", id, applies, v.err, v.before.Seq, seq)
	}
	if applies && v.said != string(verb)+" ann a test" {
		t.Errorf("%s: the history says %q", id, v.said)
	}
	return applies
}

// heard checks that the history says who asked for what, last.
func (b *bundle) heard(t testing.TB, orderID string, verb orders.Verb) {
	t.Helper()
	if said := b.said(t)[orderID]; said != string(verb)+" ann a test" {
		t.Errorf("%s: the history says %q", orderID, said)
	}
}

// asksTwice asks for a verb, first as a dry run. Both must be refused, or neither.
func (b *bundle) asksTwice(t *testing.T, q engine.Request) (orders.Order, error) {
	t.Helper()
	q.DryRun = true
	_, dry := b.engine.Do(t.Context(), q)
	q.DryRun = false
	after, err := b.engine.Do(t.Context(), q)
	var refusal *orders.NotApplicable
	if err != nil && !errors.As(err, &refusal) || (dry == nil) != (err == nil) {
		t.Errorf("%s: %v, as a dry run %v", q.OrderID, err, dry)
	}
	return after, err
}

// said is what the history says last of each order: who asked for what, and why.
func (b *bundle) said(t testing.TB) map[string]string {
	t.Helper()
	of := map[string]string{}
	for _, line := range column[[]string](t, b.Pool, `SELECT DISTINCT ON (order_id) ARRAY[order_id, concat_ws(' ', verb, actor, reason)]
		FROM books.transitions ORDER BY order_id, seq DESC`) {
		of[line[0]] = line[1]
	}
	return of
}

func (b *bundle) do(t testing.TB, q engine.Request) orders.Order {
	t.Helper()
	order, err := b.engine.Do(t.Context(), q)
	if err != nil {
		t.Fatalf("%s %q: %v", q.Verb, q.OrderID, err)
	}
	return order
}

// refused checks that a verb is refused for a reason, and that nothing is written.
func (b *bundle) refused(t testing.TB, q engine.Request, code string) {
	t.Helper()
	for _, dry := range []bool{true, false} {
		q.DryRun = dry
		b.writesNothing(t, func() {
			_, err := b.engine.Do(context.WithoutCancel(t.Context()), q)
			var refusal *orders.NotApplicable
			if !errors.As(err, &refusal) || refusal.Code != code || refusal.Error() == "" {
				t.Errorf("%s %q: %v, want %s", q.Verb, q.OrderID, err, code)
			}
		})
	}
}
