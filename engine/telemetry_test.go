package engine_test

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"pawl/engine"
	"pawl/fsm"
	"pawl/internal/orders"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

// What has ended is counted by its status and timed by what did its steps, as often as the database says.
func TestOrdersThatEndAreCounted(t *testing.T) {
	t.Parallel()
	registry, cfg := prometheus.NewRegistry(), quick
	cfg.Registerer = registry
	s := openShop(t, 1, cfg)
	for i := range 3 {
		s.process(t, request(fmt.Sprintf("ledger%d", i)))
	}
	s.setStock(t, "gone", 0)
	s.process(t, withItem("gone", requests("refused", 1))[0])
	s.use(t, `charge: {executor: simulator, url: SIM}`)
	s.process(t, request("mixed"))
	s.use(t, `
charge: {executor: simulator, url: SIM}
reserve: {executor: simulator, url: SIM}
confirm: {executor: simulator, url: SIM}`)
	s.process(t, request("remote"))
	counted(t, registry, map[string]map[string]float64{
		"pawl_orders_finished_total":      {"completed": 5, "failed": 1, "canceled": 0},
		"pawl_order_duration_seconds":     {"ledger completed": 3, "ledger failed": 1, "mixed completed": 1, "simulator completed": 1},
		"pawl_step_call_duration_seconds": {"do charge": 2, "do reserve": 1, "do confirm": 1},
		"pawl_batch_orders":               {"fenced_answer": 0},
	})
	s.counts(t, 5, `SELECT count(*) FROM orders WHERE ended_as = 'completed'`)
	got := metric(t, registry, "pawl_batch_orders", "admit")
	assert.True(t, got >= 6, got, "batches were admitted")
}

// counted checks metrics by their names and labels.
func counted(t *testing.T, registry *prometheus.Registry, want map[string]map[string]float64) {
	t.Helper()
	for name, counts := range want {
		for labels, n := range counts {
			assert.Equal(t, metric(t, registry, name, labels), n, name, labels)
		}
	}
}

// Whatever an order is held for, it is counted, and shown with how long it has waited.
func TestOrdersOnHoldAreCounted(t *testing.T) {
	t.Parallel()
	registry, cfg := prometheus.NewRegistry(), quick
	cfg.Registerer = registry
	s := openShop(t, 1, cfg)
	s.use(t, `
charge: {executor: simulator, url: SIM, retry: {initial: 30m, cap: 30m}}
approval: [{items: [dear]}]`)
	s.faults(t, "error:500,order=ill", "callback-never,order=slow")
	s.admit(t, withItem("dear", requests("approval", 1))[0])
	s.admit(t, request("slow"))
	s.until(t, "slow", "callback")
	s.admit(t, request("ill"))
	s.until(t, "ill", "retry")
	s.do(t, engine.Request{OrderID: "ill", Verb: orders.Pause, Actor: "test"})
	s.exec(t, `SET session_replication_role = replica;
		UPDATE orders SET created_at = created_at - interval '2 hours' WHERE order_id = 'slow';
		UPDATE transitions SET at = at - interval '2 hours' WHERE order_no = (SELECT order_no FROM orders WHERE order_id = 'slow');
		SET session_replication_role = origin`)
	for hold, n := range map[string]float64{"approval": 1, "callback": 1, "paused": 1, "attention": 0, "queued": 0} {
		// The row is on hold before the engine hears of it.
		eventually(t, "it is counted as held for "+hold, func() bool { return metric(t, registry, "pawl_orders_held_total", hold) == n })
	}
	waiting, err := s.engine.Orders.Waiting(t.Context(), s.engine.Backlog())
	assert.NoError(t, err)
	for hold, n := range map[string]int64{"approval": 1, "callback": 1, "paused": 1, "retry": 0} {
		if held := waiting.Held[hold]; held.Orders != n || (held.Longest > 0) != (n > 0) || (held.Longest > 2*time.Hour) != (hold == "callback") {
			t.Errorf("%s: %+v", hold, held)
		}
	}
	assert.Equal(t, waiting.Unfinished.Round(time.Hour), 2*time.Hour, "the oldest order is", waiting.Unfinished, "old")
}

// A look-up and a refund are calls like any other: counted and timed by what came of them.
func TestLookUpsAndRefundsAreCounted(t *testing.T) {
	t.Parallel()
	registry, cfg := prometheus.NewRegistry(), quick
	cfg.Registerer = registry
	s := openShop(t, 1, cfg)
	s.faults(t, "error1:500")
	s.sold(t, `charge: {executor: simulator, url: SIM, retry: {initial: 10ms}}`)
	s.faults(t, "decline1@charge/refund")
	s.refundsAre(t, s.asks(t, "first", "1"), "1 failed 1")
	s.faults(t)
	s.refundsAre(t, s.asks(t, "second", "1"), "1 failed 1, 2 done 1")
	counted(t, registry, map[string]map[string]float64{
		"pawl_step_calls_total":           {"do unknown charge": 1, "lookup retry charge": 1, "do done charge": 1, "refund refused charge": 1, "refund done charge": 1},
		"pawl_step_call_duration_seconds": {"do charge": 2, "lookup charge": 1, "refund charge": 2},
	})
	waiting, err := s.engine.Orders.Waiting(t.Context(), s.engine.Backlog())
	assert.True(t, err == nil && waiting.ChargeOperations == 0, waiting.ChargeOperations, "refunds are open", err)
}

// An order that nobody takes up is seen, with how long it has been due and how old it is, until somebody does. One that
// is taken up at the first look was never overdue.
func TestOrdersThatNobodyTakesUp(t *testing.T) {
	t.Parallel()
	b := &bundle{Database: dbtest.New(t)}
	b.exec(t, `INSERT INTO orders (order_id, status, fence, owner, created_at, due_at, amount, currency, item, policy)
		VALUES ('newer', 'charging', 1, gen_random_uuid(), now() - interval '2 hours', now() - interval '1 hour', 1, 'USD', 'i', 4711),
		  ('taken', 'charging', 1, gen_random_uuid(), now() - interval '4 hours', now() - interval '3 hours', 1, 'USD', 'i', NULL)`)
	b.engine = startEngine(t, b.URL, quick)
	var waiting orders.Waiting
	eventually(t, "it is seen", func() (seen bool) {
		var err error
		waiting, err = b.engine.Orders.Waiting(t.Context(), b.engine.Backlog())
		assert.NoError(t, err)
		return waiting.Overdue > 0
	})
	assert.True(t, waiting.Overdue.Round(time.Minute) == time.Hour && waiting.Unfinished.Round(time.Minute) == 2*time.Hour, waiting)
	b.exec(t, `UPDATE orders SET due_at = now() + interval '1 hour' WHERE order_id = 'newer'`)
	eventually(t, "it is seen no more", func() bool { return b.engine.Backlog().Overdue == 0 })
}

// A call that is refused or fails is a line in the log at info, one that is done or waited for at debug.
func TestCallsAreLogged(t *testing.T) {
	t.Parallel()
	for level, want := range map[slog.Level][]string{
		slog.LevelInfo: {
			`level=INFO msg="provider called" order_id=poor step=charge operation=do call=1 fence=1 request_id=of-poor outcome=refused code=card_declined`,
			`level=INFO msg="provider called" order_id=ill step=charge operation=do call=1 fence=1 request_id=of-ill outcome=unknown code=error`,
			`level=INFO msg="provider called" order_id=ill step=charge operation=lookup call=2 fence=2 request_id=of-retry outcome=retry code=unseen`,
		},
		slog.LevelDebug: {
			`level=DEBUG msg="provider called" order_id=rich step=charge operation=do call=1 fence=1 request_id=of-rich outcome=done`,
			`level=INFO msg="provider called" order_id=poor step=charge`,
		},
	} {
		t.Run(level.String(), func(t *testing.T) {
			t.Parallel()
			log, cfg := &dbtest.Log{}, quick
			cfg.Log = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: level}))
			s := openShop(t, 1, cfg)
			s.use(t, `charge: {executor: simulator, url: SIM, retry: {initial: 30m, cap: 30m}}`)
			s.faults(t, "error1:500,order=ill", "decline,order=poor")
			for _, id := range []string{"rich", "poor", "ill"} {
				in := request(id)
				in.HTTPRequestID = "of-" + id
				s.admit(t, in)
			}
			s.until(t, "ill", "retry")
			s.until(t, "poor", "failed")
			s.until(t, "rich", "completed")
			eventually(t, "their runs are over", func() bool { return s.engine.InFlight() == 0 }) // a run knows the request that began it
			s.do(t, engine.Request{OrderID: "ill", Verb: orders.Retry, Actor: "test", HTTPRequestID: "of-retry"})
			s.until(t, "ill", "completed")
			text := log.String()
			for _, line := range want {
				assert.Equal(t, strings.Count(text, line), 1, "no line, or more than one, begins with", line, text)
			}
			retried := strings.Contains(text, "operation=do call=3 fence=2 request_id=of-retry outcome=done")
			assert.Equal(t, retried, level == slog.LevelDebug, "the request was sent again", "in", text)
		})
	}
}

// troubled is a shop with orders that have ended in every way, and with orders that wait.
func troubled(t *testing.T) *shop {
	t.Helper()
	s := openShop(t, 1, quick)
	for i := range 3 {
		s.process(t, request(fmt.Sprintf("done%d", i)))
	}
	s.setStock(t, "gone", 0)
	for _, in := range withItem("gone", requests("refused", 2)) {
		s.process(t, in)
	}
	s.do(t, engine.Request{OrderID: "refused 000", Verb: orders.Retry, Actor: "test"})
	s.until(t, "refused 000", "failed")
	s.use(t, `
charge: {executor: simulator, url: SIM, retry: {initial: 1ms, cap: 2ms, maxRetries: 1, budget: 0s}, breaker: {failures: 2, open: 1h}}
approval: [{items: [dear]}]`)
	s.faults(t, "error:500,order=ill", "decline,order=declined")
	s.admit(t, withItem("dear", requests("approval", 1))[0])
	s.process(t, request("declined"))
	s.admit(t, request("ill"))
	s.until(t, "ill", "attention")
	return s
}

// What is shown of the service is what is in the database, and what is shown of the replica is what the history says.
func TestOverview(t *testing.T) {
	t.Parallel()
	dbtest.SkipIfShort(t)
	s := troubled(t)
	v, err := s.engine.Orders.Overview(t.Context(), s.engine.Backlog())
	assert.NoError(t, err)
	for _, count := range v.Statuses {
		n := value[int64](t, s.Pool, `SELECT count(*) FROM orders WHERE status = $1`, string(count.Status))
		assert.True(t, count.Orders == n && !count.More, count, n)
	}
	oldest := value[string](t, s.Pool, `SELECT order_id FROM orders WHERE ended_as IS NULL ORDER BY order_no LIMIT 1`)
	assert.True(t, len(v.Statuses) == len(fsm.States()) && v.Oldest != nil && v.Oldest.OrderID == oldest &&
		text(v.Oldest.Hold) == "approval" && v.Held["attention"].Orders == 1, v, "want the oldest to be", oldest)
	for _, hold := range fsm.Holds() {
		n := value[int64](t, s.Pool, `SELECT count(*) FROM orders WHERE hold = $1`, hold)
		assert.True(t, v.Held[hold].Orders == n && (n <= 0 || v.Held[hold].Longest > 0), hold, v.Held[hold], "want", n)
	}
}

func TestErrorGroups(t *testing.T) {
	t.Parallel()
	dbtest.SkipIfShort(t)
	s := troubled(t)
	s.use(t, `
charge: {executor: simulator, url: SIM, retry: {initial: 1ms, cap: 2ms, maxRetries: 1, budget: 0s}, breaker: {failures: 100}}
approval: [{items: [dear]}]`)
	s.faults(t)
	s.do(t, engine.Request{OrderID: "ill", Verb: orders.Retry, Actor: "test", ActivePolicy: true})
	s.until(t, "ill", "completed")
	s.faults(t, "error:500")
	s.admit(t, withItem("dear", requests("oldest", 1))[0]) // and the last that needs a person
	s.until(t, "oldest 000", "approval")
	for _, id := range []string{"first", "last"} {
		s.admit(t, request(id))
		s.until(t, id, "attention")
	}
	s.do(t, engine.Request{OrderID: "oldest 000", Verb: orders.Approve, Actor: "test"})
	s.until(t, "oldest 000", "attention")
	s.do(t, engine.Request{OrderID: "first", Verb: orders.Retry, Actor: "test"}) // and is the last that needs a person again
	s.until(t, "first", "attention")
	began := func(id string) time.Time {
		o := s.get(t, id)
		return value[time.Time](t, s.Pool, `SELECT at FROM transitions WHERE order_no = $1 AND seq = $2`, o.OrderNo, o.Seq)
	}
	found, err := s.engine.Orders.ErrorGroups(t.Context())
	assert.Require(t, err == nil && !found.More, found, err)
	for _, g := range found.Groups {
		o := s.get(t, g.Example)
		since, err := s.engine.Orders.StatusSince(t.Context(), []orders.Order{s.get(t, "first")})
		assert.True(t, err == nil && !g.First.After(g.Last) && o.Status == g.Status && (g.Code != "retries_exhausted" || g.Example == "first" &&
			g.First.Equal(began("last")) && g.Last.Equal(began("first")) && g.Last.Equal(since[s.get(t, "first").OrderNo])), g, since, "the example is", brief(o))
	}
	got := fmt.Sprint(len(found.Groups))
	for _, g := range found.Groups {
		got += fmt.Sprintf(", %s %s %s %d", g.Status, g.Step, g.Code, g.Orders)
	}
	assert.Equal(t, "3, charging charge retries_exhausted 3, failed charge card_declined 1, failed reserve out_of_stock 2", got)
}

// The log says why an order is held, in words.
func TestTheLogSaysWhyAnOrderIsHeld(t *testing.T) {
	t.Parallel()
	database := dbtest.New(t)
	newGhost(database.Pool).admit(t, time.Minute, "one")
	assert.NoError(t, assert.Err(database.Pool.Exec(t.Context(), `UPDATE orders SET take_overs = 3, due_at = now()`)))
	log := &dbtest.Log{}
	startEngine(t, database.URL, engine.Config{RecoveryInterval: often, Log: slog.New(slog.NewTextHandler(log, nil))})
	eventually(t, "it is held", func() bool { return strings.Contains(log.String(), "order held") })
	assert.Contains(t, log.String(), `reason="taken over three times without a move"`)
}
