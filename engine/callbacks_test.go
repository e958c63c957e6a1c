package engine_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"pawl/engine"
	"pawl/internal/orders"
	"pawl/internal/provider"
	"pawl/internal/simulator"
	"pawl/test/assert"
)

// TestCallbacksRacingTheir202 has a thousand orders answered by callbacks that come before, with and right after the
// answer they belong to. One that is lost would wait an hour.
func TestCallbacksRacingTheir202(t *testing.T) {
	t.Parallel()
	s := openShop(t, 2, engine.Config{RecoveryInterval: often})
	s.use(t, `charge: {executor: simulator, url: SIM, callbackTimeout: 1h}`)
	s.faults(t,
		simulator.Rule{Fault: simulator.CallbackBefore, Fraction: 0.3},
		simulator.Rule{Fault: simulator.CallbackTwice, Fraction: 0.3},
		simulator.Rule{Fault: simulator.AnswerTwice, Fraction: 0.2},
		simulator.Rule{Fault: simulator.CallbackLate, Fraction: 0.5, Delay: time.Millisecond},
		simulator.Rule{Fault: simulator.Async})
	orders := times(300, 1000)
	var callers sync.WaitGroup
	turn := make(chan struct{}, 100)
	for i := range orders {
		callers.Go(func() {
			turn <- struct{}{}
			defer func() { <-turn }()
			id := fmt.Sprintf("o%04d", i)
			// Without a limit: whoever has one is told at once that the answer may take an hour.
			if order, err := s.anyone().Process(t.Context(), request(id)); err != nil || order.Status != "completed" {
				t.Errorf("%s: %v, %s", id, err, brief(order))
			}
		})
	}
	callers.Wait()
	if effects := s.sim.Summary().Steps["charge"]; effects.Effects != orders || effects.Live != orders {
		t.Errorf("%+v", effects)
	}
	slowest := value[float64](t, s.Pool, `SELECT extract(epoch FROM max(finished_at - created_at))::float8 FROM orders`)
	if slowest > 600 {
		t.Errorf("one waited %.1f s", slowest)
	}
}

// desk is a provider that does as it is told, and remembers where it was asked to call back.
type desk struct {
	*shop
	mu     sync.Mutex
	answer func(path string) (status int, body string)
	tokens map[string]string // of the last call by path
	keys   map[string]string // likewise
	calls  []string
}

// openDesk opens a shop whose charge, reserve and confirm are done by a desk that answers 202.
func openDesk(t *testing.T, tuning string) *desk {
	t.Helper()
	d := &desk{tokens: map[string]string{}, keys: map[string]string{}, answer: func(string) (int, string) { return 202, `{"reference":"r"}` }}
	server := httptest.NewServer(http.HandlerFunc(d.serve))
	t.Cleanup(server.Close)
	d.shop = openShop(t, 1, quick)
	policy := ""
	for _, of := range []string{"charge", "reserve", "confirm"} {
		undo := fmt.Sprintf(", undoUrl: %q", server.URL+"/"+of+"/undo")
		if of == "confirm" {
			undo = ""
		}
		policy += fmt.Sprintf("%s: {executor: http, url: %q, timeout: 60s%s%s}\n", of, server.URL+"/"+of, undo, tuning)
	}
	d.use(t, policy)
	return d
}

func (d *desk) serve(w http.ResponseWriter, r *http.Request) {
	var call struct{ CallbackURL string }
	if err := json.NewDecoder(r.Body).Decode(&call); err != nil {
		panic(err)
	}
	d.mu.Lock()
	of := strings.TrimPrefix(r.URL.Path, "/")
	d.calls = append(d.calls, of)
	status, body := http.StatusOK, `{}`
	if !strings.HasSuffix(of, "/undo") {
		d.keys[of] = r.Header.Get("Idempotency-Key")
		d.tokens[of] = call.CallbackURL[strings.LastIndex(call.CallbackURL, "/")+1:]
		status, body = d.answer(of)
	}
	d.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(body))
}

// says changes what the desk answers.
func (d *desk) says(status int, body string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.answer = func(string) (int, string) { return status, body }
}

func (d *desk) made(call string) (n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, made := range d.calls {
		if made == call {
			n++
		}
	}
	return n
}

// token waits for the call of a step, and returns where it is to be answered.
func (d *desk) token(t *testing.T, of string) (token string) {
	t.Helper()
	eventually(t, of+" is called for", func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		token = d.tokens[of]
		return token != ""
	})
	return token
}

func (d *desk) tell(t *testing.T, token, outcome, reference string) engine.Receipt {
	t.Helper()
	receipt, err := d.engine.Answer(t.Context(), token, engine.CallbackResult{Outcome: outcome, CallbackText: provider.CallbackText{Reference: reference}})
	assert.NoError(t, err, "tell", outcome)
	return receipt
}

func TestCallbacks(t *testing.T) {
	t.Parallel()
	t.Run("take an order through all its steps", func(t *testing.T) {
		t.Parallel()
		d := openDesk(t, "")
		d.admit(t, request("o"))
		for _, of := range []string{"charge", "reserve", "confirm"} {
			token := d.token(t, of)
			d.until(t, "o", "callback")
			if of == "charge" && *d.get(t, "o").Hold != "callback" {
				t.Error("not held")
			}
			if r := d.tell(t, token, "done", "ref-"+of); !r.Accepted {
				t.Errorf("%+v", r)
			}
		}
		order := d.until(t, "o", "completed")
		if *order.ChargeReference != "ref-charge" || *order.ReserveReference != "ref-reserve" {
			t.Errorf("%s, %s", *order.ChargeReference, *order.ReserveReference)
		}
	})
	t.Run("that refuse undo what was done", func(t *testing.T) {
		t.Parallel()
		d := openDesk(t, "")
		d.admit(t, request("o"))
		d.tell(t, d.token(t, "charge"), "done", "r")
		d.tell(t, d.token(t, "reserve"), "refused", "")
		order := d.until(t, "o", "failed")
		if *order.FailureStep != "reserve" || order.RefundedAt == nil || d.made("charge/undo") != 1 || d.made("reserve/undo") != 0 {
			t.Errorf("%s", brief(order))
		}
	})
	t.Run("that say not done let the step be tried again", func(t *testing.T) {
		t.Parallel()
		d := openDesk(t, ", retry: {initial: 1ms, cap: 1ms}")
		d.admit(t, request("o"))
		token := d.token(t, "charge")
		d.until(t, "o", "callback")
		d.tell(t, token, "not_done", "")
		eventually(t, "it is called for again", func() bool { return d.made("charge") == 2 })
		assert.Equal(t, d.token(t, "charge"), token, "with another token: the body would differ")
		if o := d.until(t, "o", "callback"); o.InDoubtSince == nil {
			t.Error("nothing is in doubt any more")
		}
	})
}

func TestCallbacksOutOfTurn(t *testing.T) {
	t.Parallel()
	t.Run("that come before their answer are used when it comes", func(t *testing.T) {
		t.Parallel()
		d := openDesk(t, "")
		d.mu.Lock()
		d.answer = func(of string) (int, string) {
			if r, err := d.engine.Answer(t.Context(), d.tokens[of], engine.CallbackResult{Outcome: "done"}); err != nil || !r.Accepted {
				t.Errorf("%+v, %v", r, err)
			}
			return 202, `{}`
		}
		d.mu.Unlock()
		isNow(t, d.process(t, request("o")), "completed")
		assert.Equal(t, d.made("charge"), 1, "called again")
	})
	t.Run("that come twice count once, and another one does not count", func(t *testing.T) {
		t.Parallel()
		d := openDesk(t, "")
		d.admit(t, request("o"))
		token := d.token(t, "charge")
		for range 2 {
			if r := d.tell(t, token, "done", "r"); !r.Accepted {
				t.Errorf("%+v", r)
			}
		}
		for _, other := range [][2]string{{"refused", ""}, {"done", "another"}} {
			if r := d.tell(t, token, other[0], other[1]); r.Accepted || r.Reason == "" {
				t.Errorf("%q: %+v", other, r)
			}
		}
		d.token(t, "reserve")
		if o := d.get(t, "o"); *o.ChargeReference != "r" {
			t.Errorf("%s", brief(o))
		}
	})
}

func TestCallbacksWithAWrongToken(t *testing.T) {
	t.Parallel()
	d := openDesk(t, "")
	d.admit(t, request("o"))
	token := d.token(t, "charge")
	d.until(t, "o", "callback")
	refused := func(t *testing.T, token string) {
		t.Helper()
		before := value[int64](t, d.Pool, `SELECT count(*) FROM step_answers`)
		if _, err := d.engine.Answer(t.Context(), token, engine.CallbackResult{Outcome: "done"}); !errors.Is(err, orders.ErrNotFound) {
			t.Errorf("%q: %v", token, err)
		}
		assert.Equal(t, value[int64](t, d.Pool, `SELECT count(*) FROM step_answers`), before, "something was stored")
	}
	for name, forged := range map[string]string{
		"nothing":             "",
		"no token":            "../../etc/passwd",
		"too short":           token[:20],
		"too long":            token + "a",
		"another code":        token[:len(token)-4] + "aaaa",
		"another step":        token[:33] + flip(token[33:34]) + token[34:],
		"another order":       "aaaaaaaaaaaab" + token[13:],
		"in capital letters":  strings.ToUpper(token),
		"with a wrong ending": token[:len(token)-1] + "1",
	} {
		if refused(t, forged); t.Failed() {
			t.Fatalf("a forged token was taken: %s", name)
		}
	}
	t.Run("an order that took its number", func(t *testing.T) {
		t.Parallel()
		d.exec(t, `ALTER TABLE orders DISABLE TRIGGER USER`) // as after a restore
		d.exec(t, `UPDATE orders SET order_id = 'another' WHERE order_id = 'o'`)
		refused(t, token)
		d.exec(t, `UPDATE orders SET order_id = 'o' WHERE order_id = 'another'`)
		d.exec(t, `ALTER TABLE orders ENABLE TRIGGER USER`)
	})
	t.Run("a step that was not called for", func(t *testing.T) { //nolint:paralleltest // the last one
		d.exec(t, `UPDATE step_calls SET generation = 7`)
		refused(t, token)
		d.exec(t, `UPDATE step_calls SET generation = 0`)
	})
}

func flip(letter string) string {
	if letter == "a" {
		return "b"
	}
	return "a"
}

// What is reported when the books say it is absent or undone is undone at its provider.
func TestLateCallbacks(t *testing.T) {
	t.Parallel()
	t.Run("about a canceled order are undone, once", func(t *testing.T) {
		t.Parallel()
		d := openDesk(t, "")
		in := request("o")
		in.CompleteBy = time.Now().Add(time.Hour)
		d.admit(t, in)
		token := d.token(t, "charge")
		d.overdue(t, "o")
		order := d.until(t, "o", "canceled")
		undone := d.made("charge/undo")
		if r := d.tell(t, token, "done", "late"); !r.Accepted {
			t.Errorf("%+v", r)
		}
		d.lateUndone(t, "o", "charge")
		if n := d.made("charge/undo"); n != undone+1 {
			t.Errorf("undone %d times", n-undone)
		}
		if after := d.get(t, "o"); after.Status != "canceled" || after.Seq != order.Seq {
			t.Errorf("%s", brief(after))
		}
		calls, err := d.engine.Orders.Calls(t.Context(), "o", orders.Span{After: -1000, Before: 1000, Limit: 10})
		if err != nil || len(calls) == 0 || calls[0].Call >= 0 || calls[0].Operation != "undo" || *calls[0].Outcome != "done" {
			t.Errorf("%+v, %v", calls, err)
		}
	})
	t.Run("about a step that was refused are undone while the order is", func(t *testing.T) {
		t.Parallel()
		d := openDesk(t, ", retry: {initial: 1ms, cap: 1ms}")
		d.admit(t, request("o"))
		d.tell(t, d.token(t, "charge"), "done", "r")
		token := d.token(t, "reserve")
		d.until(t, "o", "callback")
		d.tell(t, token, "refused", "")
		d.until(t, "o", "failed")
		if r := d.tell(t, token, "done", "after all"); r.Accepted {
			t.Errorf("%+v", r)
		}
		d.lateUndone(t, "o", "reserve")
		assert.Equal(t, d.made("reserve/undo"), 1, "undone times")
	})
	t.Run("about a completed order change nothing", func(t *testing.T) {
		t.Parallel()
		d := openDesk(t, "")
		d.says(200, `{"reference":"r"}`)
		order := d.process(t, request("o"))
		for _, of := range []string{"charge", "reserve", "confirm"} {
			d.tell(t, d.token(t, of), "done", "r")
		}
		if n := value[int64](t, d.Pool, `SELECT count(*) FROM late_undos`); n != 0 || d.get(t, "o").Seq != order.Seq {
			t.Errorf("%d late undos, %+v", n, brief(d.get(t, "o")))
		}
	})
}

// TestCallbackWhoseStatementIsLost has a callback that may take the place of the one before it lost on its way to the
// database: whoever sent it must come again, and not be told that the one before it counts.
func TestCallbackWhoseStatementIsLost(t *testing.T) {
	t.Parallel()
	d := openDesk(t, ", retry: {initial: 1ms, cap: 1ms}")
	p := newProxy(t, d.URL)
	behind := startEngine(t, p.URL, byCallers)
	d.admit(t, request("o"))
	token := d.token(t, "charge")
	d.until(t, "o", "callback")
	d.tell(t, token, "not_done", "")
	eventually(t, "it is called for again", func() bool { return d.made("charge") == 2 })
	d.until(t, "o", "callback")
	p.On(func(statement string) fate {
		if statement == "AnswerStore" {
			return loseRequest
		}
		return passes
	})
	done := engine.CallbackResult{Outcome: "done", CallbackText: provider.CallbackText{Reference: "r"}}
	if receipt, err := behind.Answer(t.Context(), token, done); !errors.Is(err, orders.ErrUnavailable) {
		t.Errorf("%+v, %v", receipt, err)
	}
	p.On(nil)
	if receipt, err := behind.Answer(t.Context(), token, done); err != nil || !receipt.Accepted {
		t.Errorf("%+v, %v", receipt, err)
	}
	eventually(t, "it is charged", func() bool { return d.get(t, "o").ChargedAt != nil })
}

func (d *desk) lateUndone(t *testing.T, orderID, of string) {
	t.Helper()
	eventually(t, "it is undone at the provider", d.answers(t, 1,
		`SELECT count(*) FROM books.late_undos WHERE order_id = $1 AND step = $2 AND finished_at IS NOT NULL`, orderID, of))
}
