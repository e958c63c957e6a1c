package engine_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	"pawl/engine"
	"pawl/fsm"
	"pawl/internal/orders"
	"pawl/test/dbtest"
)

// TestAnySequenceOfAnswers has an order meet any answers to any calls, any verbs, and replicas that lose it in the middle
// of a call. Whatever comes, the books never say more than was called for, and no undo that was begun is forgotten.
func TestAnySequenceOfAnswers(t *testing.T) {
	t.Parallel()
	dbtest.SkipIfShort(t)
	s := openShop(t, 2, quick)
	s.use(t, atEndpoint(", retry: {initial: 30m, cap: 30m, maxRetries: 2, budget: 1ms}", "charge", "reserve"))
	runs := 0
	dbtest.Check(t, func(rt *rapid.T) {
		runs++
		x := &exchange{shop: s, t: t, id: fmt.Sprintf("order %d", runs)}
		x.begin(rt)
		for range rapid.IntRange(1, 5).Draw(rt, "steps") {
			x.step(rt)
			x.check(rt)
		}
		x.end(rt)
	})
	for _, e := range s.engines {
		eventually(t, "every permit is free", func() bool {
			return !slices.ContainsFunc(e.CallPools(), func(p orders.ProviderStep) bool { return p.InFlight != 0 || p.Queued != 0 })
		})
	}
}

// exchange is one order, and what is asked of it.
type exchange struct {
	*shop
	t    *testing.T
	id   string
	told bool // by a person, who may have been wrong
}

var theCalls = []string{"charge/do", "charge/undo", "reserve/do", "reserve/undo"}

// begin admits the order. Mostly it fails, which is what generations are made of.
func (x *exchange) begin(rt *rapid.T) {
	x.provider.reset()
	x.provider.mu.Lock()
	clear(x.provider.live)
	x.provider.mu.Unlock()
	x.draw(rt)
	if refused := rapid.SampledFrom([]string{"charge/do", "charge/do", "reserve/do", ""}).Draw(rt, "refused"); refused != "" {
		x.provider.says("charge/do: done", "reserve/do: done", "charge/undo: done", "reserve/undo: done", refused+": refused")
	}
	x.admit(x.t, request(x.id))
	x.rests()
}

func (x *exchange) draw(rt *rapid.T) {
	for _, call := range theCalls {
		x.provider.says(call + ": " + rapid.SampledFrom([]string{"done", "refused", "not done", "error", "lost"}).Draw(rt, call))
	}
}

// step has something happen to the order, and sometimes something else in the middle of a call that comes of it.
func (x *exchange) step(rt *rapid.T) {
	x.draw(rt)
	asks := []string{"due", "retry", "retry", "cancel", "pause", "resume", "step-result"}
	hangs := rapid.SampledFrom(append([]string{"", "", "", ""}, theCalls...)).Draw(rt, "hangs")
	first := rapid.SampledFrom(asks).Draw(rt, "first")
	if hangs == "" {
		x.ask(rt, first)
		x.rests()
		return
	}
	var arrived atomic.Bool
	release := make(chan struct{})
	x.provider.meanwhile(func(c received) { // the first such call hangs, and those that follow do not
		if c.call == hangs && !arrived.Swap(true) {
			<-release
		}
	})
	x.ask(rt, first)
	x.restsOr(&arrived)
	for _, then := range rapid.SliceOfN(rapid.SampledFrom([]string{"take over", "cancel", "pause"}), 1, 2).Draw(rt, "meanwhile") {
		x.ask(rt, then)
	}
	x.provider.meanwhile(nil)
	close(release)
	x.rests()
}

func (x *exchange) ask(rt *rapid.T, what string) {
	q := engine.Request{OrderID: x.id, Verb: orders.Verb(what), Actor: "t", RequestID: rand.Text(), Async: true}
	switch what {
	case "due":
		x.exec(x.t, `UPDATE orders SET due_at = now() WHERE order_id = $1 AND hold IN ('retry', 'callback')`, x.id)
		return
	case "take over":
		x.exec(x.t, `UPDATE orders SET due_at = now() WHERE order_id = $1 AND ended_as IS NULL AND hold IS NULL`, x.id)
		return
	case "step-result":
		q.Settle = &engine.Settled{Step: fsm.Step(rapid.SampledFrom([]string{"charge", "reserve"}).Draw(rt, "step")),
			Outcome: rapid.SampledFrom([]string{"done", "refused", "not_done"}).Draw(rt, "outcome")}
	}
	x.told = x.told || q.Settle != nil
	var refusal *orders.NotApplicable
	if _, err := x.anyone().Do(context.WithoutCancel(x.t.Context()), q); err != nil && !errors.As(err, &refusal) {
		rt.Fatalf("%s: %v", what, err)
	}
}

// A retry is drawn from nothing up to half an hour, so that one may well come while something else is asked for.
const atRest = `SELECT (o.hold IS NOT NULL AND coalesce(o.due_at > now(), true) OR o.ended_as IS NOT NULL)
	AND NOT EXISTS (SELECT FROM step_calls AS a WHERE a.order_no = o.order_no AND a.finished_at IS NULL AND a.call > 0)
	FROM orders AS o WHERE o.order_id = $1`

func (x *exchange) rests() {
	x.t.Helper()
	eventually(x.t, x.id+" rests", func() bool { return value[bool](x.t, x.Pool, atRest, x.id) })
}

// restsOr waits for rest, or for the call that hangs.
func (x *exchange) restsOr(arrived *atomic.Bool) {
	x.t.Helper()
	eventually(x.t, x.id+" rests, or hangs", func() bool { return arrived.Load() || value[bool](x.t, x.Pool, atRest, x.id) })
}

// never lists what must not be, at any time.
const never = `WITH o AS (SELECT * FROM orders WHERE order_id = $1), a AS (SELECT a.* FROM step_calls AS a JOIN o USING (order_no))
	SELECT format('the charge of generation %s is in doubt, and was never called for', c.generation) FROM charges AS c JOIN o USING (order_no)
	WHERE c.in_doubt AND NOT EXISTS (SELECT FROM a WHERE a.step = 'charge' AND a.operation = 'do' AND a.generation = c.generation)
	UNION ALL SELECT format('the reservation of generation %s is in doubt, and was never called for', r.generation) FROM reservations AS r JOIN o USING (order_no)
	WHERE r.in_doubt AND NOT EXISTS (SELECT FROM a WHERE a.step = 'reserve' AND a.operation = 'do' AND a.generation = r.generation)
	UNION ALL SELECT format('%s in doubt, and was never called for', o.status) FROM o
	WHERE o.in_doubt_since IS NOT NULL AND o.status IN ('charging', 'reserving') AND NOT EXISTS (SELECT FROM a
	  WHERE a.step = CASE o.status WHEN 'charging' THEN 'charge' ELSE 'reserve' END AND a.operation = 'do' AND a.generation = o.generation)
	UNION ALL SELECT format('done by word alone: %s of generation %s', w.step, w.generation) FROM step_answers AS w JOIN o USING (order_no)
	WHERE w.operation = 'do' AND NOT EXISTS (SELECT FROM a WHERE a.step = w.step AND a.operation = 'do' AND a.generation = w.generation)
	UNION ALL SELECT format('the undo of %s of generation %s was begun, and forgotten', u.step, u.generation) FROM a AS u JOIN o USING (order_no)
	WHERE u.operation = 'undo' AND u.generation < o.generation AND o.status NOT IN ('pending', 'charging', 'reserving')
	  AND NOT EXISTS (SELECT FROM a WHERE a.step = u.step AND a.operation = 'undo' AND a.generation = u.generation AND a.outcome = 'done')
	  AND NOT EXISTS (SELECT FROM step_answers AS w WHERE w.order_no = o.order_no AND w.step = u.step AND w.operation = 'undo' AND w.generation = u.generation AND w.outcome = 'done')
	  AND NOT EXISTS (SELECT FROM late_undos AS l WHERE l.order_no = o.order_no AND l.step = u.step AND l.generation = u.generation)`

func (x *exchange) check(rt *rapid.T) {
	faults := column[string](x.t, x.Pool, never, x.id)
	if len(faults) > 0 {
		history := column[string](x.t, x.Pool, `SELECT format('%s %s/%s of generation %s: %s', call, step, operation, generation, outcome)
			FROM books.step_calls WHERE order_id = $1 ORDER BY started_at`, x.id)
		rt.Fatalf("%s: %s\n%s", x.id, strings.Join(faults, "\n"), strings.Join(history, "\n"))
	}
}

// end has everything go well from now on: the order ends, and what stands is what its end says.
func (x *exchange) end(rt *rapid.T) {
	x.provider.says("charge/do: done", "charge/undo: done", "reserve/do: done", "reserve/undo: done")
	for value[bool](x.t, x.Pool, `SELECT ended_as IS NULL FROM orders WHERE order_id = $1`, x.id) {
		for _, what := range []string{"resume", "due", "retry"} {
			x.ask(rt, what)
			x.rests()
		}
	}
	eventually(x.t, x.id+" has nothing left to undo", func() bool {
		x.exec(x.t, `UPDATE late_undos SET due_at = now() WHERE finished_at IS NULL AND code IS NOT NULL`)
		return value[bool](x.t, x.Pool, `SELECT NOT EXISTS (SELECT FROM books.late_undos WHERE order_id = $1 AND finished_at IS NULL)`, x.id)
	})
	x.check(rt)
	if x.told {
		return
	}
	want := 0
	if x.get(x.t, x.id).Status == fsm.Completed {
		want = 2
	}
	if stands := x.provider.stands(); len(stands) != want {
		rt.Fatalf("%s: stands %q, want %d", x.id, stands, want)
	}
}
