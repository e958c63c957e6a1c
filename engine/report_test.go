package engine_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"pawl/fsm"
	"pawl/internal/orders"
	"pawl/internal/pg"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

// What one replica knows of its provider, another one shows; and a replica with nothing to tell leaves a trace, too.
func TestReports(t *testing.T) {
	t.Parallel()
	s := openShop(t, 2, quick)
	assert.NoError(t, assert.Err(dbtest.Open(t, s.URL, pg.Options{MaxConns: 1, Serves: true}).Exec(t.Context(), "SELECT 1")))
	eventually(t, "idle replicas have reports", s.answers(t, 2, `SELECT count(*) FROM replica_reports WHERE orders_per_second = 0`))
	version := s.use(t, `
charge: {executor: simulator, url: SIM, retry: {initial: 30m, cap: 30m}, breaker: {failures: 1, open: 1h}}`)
	s.faults(t, "error:500")
	shows, calls := s.engines[0], s.engines[1]
	_, err := insist(func() (orders.Order, error) { return deref(calls.Admit(t.Context(), request("waits"))) })
	assert.NoError(t, err)
	s.until(t, "waits", "retry")
	var v orders.Overview
	eventually(t, "the other replica shows the breaker", func() bool {
		v, err = shows.Orders.Overview(t.Context(), shows.Backlog())
		return err == nil && len(v.Steps) == 1 && v.Steps[0].Breaker == "open" && len(v.Groups) == 1
	})
	step, group := v.Steps[0], v.Groups[0]
	if step.Policy != version || step.Step != fsm.Charge || step.FailingSince == nil ||
		!strings.HasPrefix(step.Host, "127.0.0.1:") || step.Failure != "HTTP 500 error" || poolOf(shows, version, fsm.Charge).Step != "" {
		t.Errorf("%+v", step)
	}
	assert.True(t, group.Status == fsm.Charging && group.Hold == "retry" && group.Orders == 1 && group.Amount == "99.99" && group.Currency == "USD" && !group.TriedSince.IsZero() && step.Budget == 15*time.Minute, group)
	found, err := shows.Orders.ErrorGroups(t.Context())
	assert.True(t, err == nil && len(found.Groups) == 1 && found.Groups[0].Hold == "retry" && found.Groups[0].Step == fsm.Charge && found.Groups[0].Code == "error", found, err)
	s.exec(t, `INSERT INTO replica_reports (owner, name, at, orders_per_second, steps) VALUES (gen_random_uuid(), 'killed:7', now() - interval '3 seconds', 0, '[]'),
		(gen_random_uuid(), 'just now:7', now() + interval '1 hour', 0, '[]'), (gen_random_uuid(), 'long ago:7', now() - interval '1 hour', 0, '[]'), (gen_random_uuid(), '', now() - interval '30 minutes', 0, '[]')`)
	s.exec(t, `UPDATE replica_reports SET since = now() - interval '1 hour'`) // none has started in its place
	s.exec(t, `INSERT INTO orders (order_id, status, fence, owner, due_at, amount, currency, item)
		SELECT 'left behind', 'charging', 1, owner, now() + interval '1 hour', 1, 'USD', 'i' FROM replica_reports WHERE name = 'killed:7';
		INSERT INTO transitions (order_no, seq, from_status, to_status, fence) SELECT order_no, 1, 'pending', 'charging', 1 FROM orders WHERE order_id = 'left behind'`)
	s.exec(t, `UPDATE replica_reports SET outages = jsonb_build_array(jsonb_build_object('step', 'confirm', 'since', at - interval '2 minutes', 'until', at - interval '1 minute'))
		WHERE name = ''`)
	reported := value[time.Time](t, s.Pool, `SELECT at FROM replica_reports WHERE name = 'killed:7'`)
	eventually(t, "a replica that was killed is lost, and another one is as old as its process", func() bool {
		v, err = shows.Orders.Overview(t.Context(), shows.Backlog())
		killed := func(l orders.LostReplica) bool {
			return l.Name == "killed:7" && l.At.Equal(reported) && l.Orders == 1 && time.Until(l.Until) > 50*time.Minute
		}
		return err == nil && slices.ContainsFunc(v.Lost, killed) && len(v.Replicas) == 2 && v.Replicas[1].Name == "just now:7" && v.Replicas[1].Connections == 0 && time.Since(*v.Replicas[0].Since) > 50*time.Minute && v.Held["retry"].Orders == 1
	})
	s.exec(t, `UPDATE orders SET due_at = now() WHERE order_id = 'left behind'`)
	eventually(t, "its order is shown once another replica has taken it over", func() bool {
		v, err = shows.Orders.Overview(t.Context(), shows.Backlog())
		return err == nil && len(v.Lost) == 1 && v.Lost[0].Orders == 0 && v.Lost[0].TakenOver.Completed == 1 && len(v.Ended) == 1
	})
	s.use(t, `
reserve: {executor: simulator, url: SIM, retry: {initial: 10ms, cap: 10ms, maxRetries: 999}, breaker: {failures: 1, open: 10ms}}`)
	_, err = insist(func() (orders.Order, error) { return deref(calls.Admit(t.Context(), request("waited"))) })
	assert.NoError(t, err)
	eventually(t, "it is tried again", func() bool {
		v, err = shows.Orders.Overview(t.Context(), shows.Backlog())
		return err == nil && len(v.Groups) == 2 && len(v.Ended) == 1 // what a replica saw that has ended since
	})
	s.faults(t)
	eventually(t, "what became of the orders that waited is shown", func() bool {
		v, err = shows.Orders.Overview(t.Context(), shows.Backlog())
		return err == nil && len(v.Ended) == 2 && v.Ended[0].Completed == 1
	})
	ended := v.Ended[0] // the charge still fails
	assert.True(t, ended.Step == fsm.Reserve && ended.Waited == 1 && ended.Held+ended.Failed+ended.Canceled == 0 && ended.Failure == "HTTP 500 error" && ended.Host != "" && ended.Until.After(ended.Since), ended)
	s.faults(t, "error-after:500")
	asked := value[time.Time](t, s.Pool, `SELECT now()`)
	_, err = insist(func() (orders.Order, error) { return deref(calls.Admit(t.Context(), request("found"))) })
	assert.NoError(t, err)
	eventually(t, "a call that a look-up finds done has not failed", func() bool {
		v, err = shows.Orders.Overview(t.Context(), shows.Backlog())
		step := slices.IndexFunc(v.Steps, func(s orders.ProviderStep) bool { return s.Step == fsm.Reserve })
		return err == nil && step >= 0 && v.Steps[step].FailedAt == nil && v.Steps[step].WorkedAt.After(asked)
	})
	stop(t, calls)
	s.counts(t, 0, `SELECT count(*) FROM replica_reports WHERE steps::text LIKE '%charge%'`)
	s.counts(t, 3, `SELECT count(*) FROM replica_reports WHERE name <> ''`) // the killed ones, and the other one
	s.counts(t, 2, `SELECT count(*) FROM replica_reports WHERE name = ''`)
}
