package engine_test

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"pawl/engine"
	"pawl/fsm"
	"pawl/internal/orders"
	"pawl/test/dbtest"
)

// fickle is an endpoint that answers as it is told, order by order. It keeps the contract: a key has its effect once, an
// undone key never again, and under one key of an undo comes one body.
type fickle struct {
	mu     sync.Mutex
	orders map[string]*fickleOrder
}

type fickleOrder struct {
	answers map[string]string // by call, as "charge/undo"
	hangs   string            // the call that is not answered before release
	arrived chan struct{}     // closed when it has come
	release chan struct{}
	keys    map[string]string // of dos: live, dead
	undos   map[string]string // bodies, by key
	faults  []string
}

func (f *fickle) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var text json.RawMessage
	var body struct{ OrderID, UndoKey string }
	if json.NewDecoder(r.Body).Decode(&text) != nil || json.Unmarshal(text, &body) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	f.mu.Lock()
	o, call := f.orders[body.OrderID], strings.TrimPrefix(r.URL.Path, "/")
	if o.hangs == call {
		o.hangs = ""
		close(o.arrived)
		f.mu.Unlock()
		<-o.release
		f.mu.Lock()
	}
	defer f.mu.Unlock()
	if said := o.does(call, r.Header.Get("Idempotency-Key"), body.UndoKey, string(text)); said != http.StatusOK {
		w.WriteHeader(said)
	}
}

// does what was called for, if it is to, and says so, if it is to. "lost": it is done, and not said.
func (o *fickleOrder) does(call, key, undoKey, text string) (status int) {
	said := o.answers[call]
	if strings.HasSuffix(call, "/undo") {
		if known, again := o.undos[key]; again && known != text {
			o.faults = append(o.faults, fmt.Sprintf("another body under the same key: %s, then %s", known, text))
		}
		o.undos[key] = text
		if said == "done" || said == "lost" {
			o.keys[undoKey] = "dead"
		}
	} else if o.keys[key] == "dead" {
		said = "refused"
	} else if said == "done" || said == "lost" {
		o.keys[key] = "live"
	}
	switch said {
	case "refused":
		return http.StatusPaymentRequired
	case "not done":
		return http.StatusTooManyRequests
	case "error", "lost":
		return http.StatusInternalServerError
	}
	return http.StatusOK
}

// TestAnySequenceOfAnswers has an order meet any answers to any calls, any verbs, and replicas that lose it in the middle
// of a call. Whatever comes, the books never say more than was called for, and no undo that was begun is forgotten.
func TestAnySequenceOfAnswers(t *testing.T) {
	t.Parallel()
	f := &fickle{orders: map[string]*fickleOrder{}}
	server := httptest.NewServer(f)
	t.Cleanup(server.Close)
	s := openShop(t, 2, quick)
	how := "{executor: http, url: %[1]s/%[2]s/do, undoUrl: %[1]s/%[2]s/undo, timeout: 30s, retry: {initial: 30m, cap: 30m, maxRetries: 2, budget: 1ms}}"
	s.use(t, fmt.Sprintf("charge: "+how, server.URL, "charge")+"\nreserve: "+fmt.Sprintf(how, server.URL, "reserve"))
	runs := 0
	dbtest.Check(t, func(rt *rapid.T) {
		runs++
		x := &exchange{shop: s, t: t, fickle: f, id: fmt.Sprintf("order %d", runs)}
		x.begin(rt)
		for range rapid.IntRange(1, 5).Draw(rt, "steps") {
			x.step(rt)
			x.check(rt)
		}
		x.end(rt)
	})
}

// exchange is one order, and what is asked of it.
type exchange struct {
	*shop
	t      *testing.T
	fickle *fickle
	id     string
	order  *fickleOrder
	told   bool // by a person, who may have been wrong
}

var theCalls = []string{"charge/do", "charge/undo", "reserve/do", "reserve/undo"}

func (x *exchange) says(change func(*fickleOrder)) {
	x.fickle.mu.Lock()
	defer x.fickle.mu.Unlock()
	change(x.order)
}

// begin admits the order. Mostly it fails, which is what generations are made of.
func (x *exchange) begin(rt *rapid.T) {
	x.order = &fickleOrder{answers: map[string]string{}, keys: map[string]string{}, undos: map[string]string{}}
	x.fickle.mu.Lock()
	x.fickle.orders[x.id] = x.order
	x.fickle.mu.Unlock()
	x.draw(rt)
	if refused := rapid.SampledFrom([]string{"charge/do", "charge/do", "reserve/do", ""}).Draw(rt, "refused"); refused != "" {
		x.says(func(o *fickleOrder) {
			o.answers = map[string]string{"charge/do": "done", "charge/undo": "done", "reserve/undo": "done"}
			o.answers[refused] = "refused"
		})
	}
	x.admit(x.t, request(x.id))
	x.rests()
}

func (x *exchange) draw(rt *rapid.T) {
	x.says(func(o *fickleOrder) {
		for _, call := range theCalls {
			o.answers[call] = rapid.SampledFrom([]string{"done", "refused", "not done", "error", "lost"}).Draw(rt, call)
		}
	})
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
	arrived, release := make(chan struct{}), make(chan struct{})
	x.says(func(o *fickleOrder) { o.hangs, o.arrived, o.release = hangs, arrived, release })
	x.ask(rt, first)
	x.restsOr(arrived)
	for _, then := range rapid.SliceOfN(rapid.SampledFrom([]string{"take over", "cancel", "pause"}), 1, 2).Draw(rt, "meanwhile") {
		x.ask(rt, then)
	}
	x.says(func(o *fickleOrder) { o.hangs = "" })
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
func (x *exchange) restsOr(arrived <-chan struct{}) {
	x.t.Helper()
	eventually(x.t, x.id+" rests, or hangs", func() bool {
		select {
		case <-arrived:
			return true
		default:
			return value[bool](x.t, x.Pool, atRest, x.id)
		}
	})
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
	x.says(func(o *fickleOrder) { faults = append(faults, o.faults...) })
	if len(faults) > 0 {
		history := column[string](x.t, x.Pool, `SELECT format('%s %s/%s of generation %s: %s', call, step, operation, generation, outcome)
			FROM books.step_calls WHERE order_id = $1 ORDER BY started_at`, x.id)
		rt.Fatalf("%s: %s\n%s", x.id, strings.Join(faults, "\n"), strings.Join(history, "\n"))
	}
}

// end has everything go well from now on: the order ends, and what stands is what its end says.
func (x *exchange) end(rt *rapid.T) {
	x.says(func(o *fickleOrder) {
		for _, call := range theCalls {
			o.answers[call] = "done"
		}
	})
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
	x.says(func(o *fickleOrder) {
		var live []string
		for key, state := range o.keys {
			if state == "live" {
				live = append(live, key)
			}
		}
		if slices.Sort(live); len(live) != want {
			rt.Fatalf("%s: stands %q, want %d", x.id, live, want)
		}
	})
}
