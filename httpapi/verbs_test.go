package httpapi

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pawl/internal/orders"
	"pawl/test/assert"
)

// verb asks a verb of an order, "order/verb".
func (b *bundle) verb(t testing.TB, path, body string, header ...string) answer {
	t.Helper()
	return b.call(t, "POST /api/orders/"+path, body, header...)
}

// waitsFor stores an order that is held, without its driver.
func (b *bundle) waitsFor(t testing.TB, hold, status string, orderIDs ...string) {
	t.Helper()
	if status != "pending" && status != "charging" {
		b.exec(t, `ALTER TABLE orders DISABLE TRIGGER orders_guard_insert`)
	}
	for _, id := range orderIDs {
		b.exec(t, `WITH held AS (INSERT INTO orders (order_id, status, hold, hold_reason, fence, amount, currency, item)
			VALUES ($1, $2, $3, 'because: of this', 1, 1, 'USD', 'widget') RETURNING order_no)
			INSERT INTO transitions (order_no, seq, to_status, fence) SELECT order_no, 1, $2, 1 FROM held`, id, status, hold)
	}
}

func TestVerbs(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, c := range []struct {
		verb         orders.Verb
		status, hold string
		allowed      []string
		body         string
		code         int
		ends         string
	}{
		{orders.Cancel, "charging", "attention", []string{"cancel", "retry"}, "", 200, "canceled"},
		{orders.Retry, "charging", "attention", []string{"cancel", "retry"}, `{"policy":"pinned"}`, 200, "completed"},
		{orders.Pause, "charging", "retry", []string{"cancel", "retry", "pause"}, "{}", 202, "charging"},
		{orders.Resume, "charging", "paused", []string{"cancel", "resume"}, `{"onBehalfOf":"ann"}`, 200, "completed"},
		{orders.Approve, "pending", "approval", []string{"cancel", "pause", "approve", "reject"}, `{"onBehalfOf":"ann"}`, 200, "completed"},
		{orders.Reject, "pending", "approval", []string{"cancel", "pause", "approve", "reject"}, `{"onBehalfOf":"ann","reason":"no"}`, 200, "canceled"},
	} {
		t.Run(string(c.verb), func(t *testing.T) {
			t.Parallel()
			id := "order-" + string(c.verb)
			b.waitsFor(t, c.hold, c.status, id)
			assert.Equal(t, b.get(t, "/api/orders/"+id).decoded(t).AllowedActions, c.allowed, "allowed")
			a := b.call(t, "POST /api/orders/"+id+"/"+string(c.verb)+"?dryRun=true", c.body)
			o := a.wantStatus(t, 200)
			assert.True(t, o.Status == c.status && o.Seq == 1, "dry run", a.body)
			a = b.verb(t, id+"/"+string(c.verb), c.body)
			assert.Equal(t, a.wantStatus(t, c.code).Status, c.ends, a.body)
			b.verb(t, id+"/"+string(c.verb), c.body).wantProblem(t, 409, "not_applicable")
			b.verb(t, "nobody-s/"+string(c.verb), c.body).wantProblem(t, 404, "not_found")
		})
	}
	t.Run("a rejected order says so", func(t *testing.T) {
		t.Parallel()
		b.waitsFor(t, "approval", "pending", "large")
		o := b.verb(t, "large/reject", `{"onBehalfOf":"ann"}`).wantStatus(t, 200)
		assert.True(t, o.Failure != nil && o.Failure.Code == "rejected", o)
	})
	t.Run("a failed order starts anew", func(t *testing.T) {
		t.Parallel()
		b.stock(t, "scarce", `{"onHand":0}`)
		b.process(t, `{"orderId":"again","amount":1,"item":"scarce"}`).wantStatus(t, 200)
		b.stock(t, "scarce", `{"onHand":1}`)
		o := b.verb(t, "again/retry?dryRun=true", "").wantStatus(t, 200)
		assert.True(t, o.Status == "pending" && o.Generation == 1 && o.Failure == nil, "dry run", o)
		o = b.get(t, "/api/orders/again").decoded(t)
		assert.True(t, o.Status == "failed" && o.Generation == 0, "after the dry run", o)
		o = b.verb(t, "again/retry", "").wantStatus(t, 200)
		assert.True(t, o.Status == "completed" && o.Generation == 1 && o.Failure == nil, o)
		p := b.verb(t, "again/retry", `{"generation":0}`).wantProblem(t, 409, "other_generation")
		assert.Contains(t, p.Detail, "generation 1", p)
	})
	t.Run("a failed order starts anew with another payment method", func(t *testing.T) {
		t.Parallel()
		b.stock(t, "rare", `{"onHand":0}`).wantStatus(t, 200)
		b.process(t, `{"orderId":"declined","amount":1,"item":"rare","paymentMethod":"pm_1"}`).wantStatus(t, 200)
		b.verb(t, "declined/retry", `{"paymentMethod":"pm_2"}`).wantStatus(t, 200)
		b.verb(t, "declined/retry", `{"paymentMethod":"pm_3"}`).wantProblem(t, 409, "retried_before")
		b.stock(t, "rare", `{"onHand":1}`).wantStatus(t, 200)
		b.verb(t, "declined/retry", `{"paymentMethod":"pm_3","generation":1}`).wantStatus(t, 200)
		n := b.count(t, `SELECT count(*) FROM orders WHERE order_id = 'declined' AND payment_method = 'pm_3' AND generation = 2`)
		assert.Equal(t, n, 1, "it is not stored")
		history := b.get(t, "/api/orders/declined/transitions")
		assert.True(t, strings.Count(history.body, `"paymentMethod":"changed"`) == 2 && !strings.Contains(history.body, "pm_"),
			history.body)
		b.process(t, `{"orderId":"declined","amount":1,"item":"rare","paymentMethod":"pm_3"}`).wantStatus(t, 200)
	})
}

func TestVerbBodies(t *testing.T) {
	t.Parallel()
	b := withoutEngine()
	for _, c := range []struct{ verb, body, faults string }{
		{"reject", `{"onBehalfOf":""}`, "/onBehalfOf empty"},
		{"retry", `{"policy":"latest"}`, "/policy unknown_word"},
		{"retry", `{"policy":1}`, "/policy wrong_type"},
		{"resume", `{"reason":"` + strings.Repeat("x", 1001) + `"}`, "/reason too_long"},
		{"pause", `{"requestId":null}`, "/requestId wrong_type"},
		{"step-result", "", "/step required, /outcome required, /reason required"},
		{"step-result", `{"step":"pay","outcome":"perhaps","onBehalfOf":"a","reason":"r","code":""}`,
			"/step unknown_word, /outcome unknown_word, /code empty"},
		{"step-result", `{"step":"charge","generation":-1,"outcome":"done","onBehalfOf":"a","reason":"r"}`, "/generation out_of_range"},
		{"step-result", `{"step":"charge","generation":0,"outcome":"refused","onBehalfOf":"a","reason":"r"}`, "/outcome not_done"},
		{"retry", `{"generation":-1,"paymentMethod":""}`, "/generation out_of_range, /paymentMethod empty"},
		{"cancel", `{"onBehalfOf":"ann\u200b"}`, "/onBehalfOf invisible_character"},
		{"cancel", `[]`, " wrong_type"},
		{"cancel", `{"requestId":"ticket-1 "}`, "/requestId outer_blank"},
	} {
		p := b.call(t, "POST /api/orders/o/"+c.verb, c.body).wantProblem(t, 422, "invalid_input")
		var faults []string
		for _, f := range p.Errors {
			faults = append(faults, f.Pointer+" "+f.Code)
		}
		assert.Equal(t, strings.Join(faults, ", "), c.faults, c.verb, c.body)
	}
	p := b.call(t, "POST /api/orders/o/pause", "", "Idempotency-Key", strings.Repeat("x", 256)).wantProblem(t, 400, "invalid_idempotency_key")
	assert.Equal(t, p.Errors[0].Header, "Idempotency-Key", p.Errors)
}

func TestVerbRequestIDs(t *testing.T) {
	t.Parallel()
	b := setup(t)
	t.Run("Idempotency-Key stands for requestId", func(t *testing.T) {
		t.Parallel()
		b.waitsFor(t, "approval", "pending", "key")
		for range 2 {
			b.verb(t, "key/approve", `{"onBehalfOf":"ann"}`, "Idempotency-Key", "k").wantStatus(t, 200)
		}
		b.verb(t, "key/approve", `{"onBehalfOf":"ann","requestId":"k"}`, "Idempotency-Key", `"k"`).wantStatus(t, 200)
		b.verb(t, "key/approve", `{"onBehalfOf":"ann","requestId":"k"}`, "Idempotency-Key", "another").wantProblem(t, 400, "invalid_idempotency_key")
		b.verb(t, "key/approve", `{"onBehalfOf":"ann"}`, "Idempotency-Key", "another").wantProblem(t, 409, "not_applicable")
	})
	t.Run("of another verb is 422", func(t *testing.T) {
		t.Parallel()
		b.waitsFor(t, "retry", "charging", "reused")
		b.verb(t, "reused/pause", `{"requestId":"k"}`).wantStatus(t, 202)
		b.verb(t, "reused/resume", `{"requestId":"k"}`).wantProblem(t, 422, "idempotency_key_reused")
	})
	t.Run("two at once are one", func(t *testing.T) {
		t.Parallel()
		b.waitsFor(t, "approval", "pending", "once")
		var callers sync.WaitGroup
		for range 20 {
			callers.Go(func() {
				o := b.verb(t, "once/approve", `{"onBehalfOf":"ann","requestId":"k"}`).wantStatus(t, 200)
				assert.Equal(t, o.Status, "completed", o)
			})
		}
		callers.Wait()
		assert.Equal(t, b.count(t, `SELECT count(*) FROM books.transitions WHERE order_id = 'once' AND verb = 'approve'`), 1,
			"approved", "times")
	})
	t.Run("a cancellation that joins another is known by its own", func(t *testing.T) {
		t.Parallel()
		b.elsewhere(t, "joined")
		for _, id := range []string{"first", "second", "second", ""} {
			o := b.cancel(t, "joined", fmt.Sprintf(`{"onBehalfOf":"ann","requestId":%q}`, id+"!"), "Prefer", "respond-async").wantStatus(t, 202)
			assert.Equal(t, o.StopRequested, "cancel", o)
		}
		b.cancel(t, "joined", "", "Prefer", "respond-async").wantStatus(t, 202)
		assert.Equal(t, b.count(t, `SELECT count(*) FROM books.transitions WHERE order_id = 'joined' AND verb = 'cancel'`), 3, "rows")
	})
}

func TestVerbsAnswer(t *testing.T) {
	t.Parallel()
	b := setup(t)
	t.Run("respond-async does not wait", func(t *testing.T) {
		t.Parallel()
		b.elsewhere(t, "async")
		began := time.Now()
		a := b.cancel(t, "async", "", "Prefer", "respond-async")
		assert.True(t, a.wantStatus(t, 202).StopRequested == "cancel" && a.header.Get("Preference-Applied") == "respond-async", a)
		took := time.Since(began)
		assert.True(t, took <= patience/2, "took", took)
	})
	t.Run("a pause of what another replica drives is taken back", func(t *testing.T) {
		t.Parallel()
		b.elsewhere(t, "theirs")
		o := b.verb(t, "theirs/pause", "", "Prefer", "respond-async").wantStatus(t, 202)
		assert.True(t, o.StopRequested == "pause" && slices.Equal(o.AllowedActions, []string{"cancel", "resume"}), o)
		o = b.verb(t, "theirs/resume", "", "Prefer", "respond-async").wantStatus(t, 202)
		assert.Equal(t, o.StopRequested, "", o)
	})
	t.Run("a stale If-Match is 412", func(t *testing.T) {
		t.Parallel()
		b.waitsFor(t, "paused", "charging", "stale")
		b.verb(t, "stale/resume", "", "If-Match", `"7"`).wantProblem(t, 412, "precondition_failed")
		b.verb(t, "stale/resume", "", "If-Match", `"1"`).wantStatus(t, 200)
	})
	t.Run("a confirmation in doubt is not canceled", func(t *testing.T) {
		t.Parallel()
		b.waitsFor(t, "attention", "confirming", "doubted")
		b.exec(t, `UPDATE orders SET in_doubt_since = now(), calls = 1, retries = 1 WHERE order_id = 'doubted'`)
		p := b.cancel(t, "doubted", "").wantProblem(t, 409, "confirm_in_doubt")
		assert.True(t, slices.Equal(p.AllowedActions, []string{"retry", "step-result"}) && p.Order != nil, p)
	})
	t.Run("a redrive waits for the end of the undoing", func(t *testing.T) {
		t.Parallel()
		b.stock(t, "none", `{"onHand":0}`)
		b.process(t, `{"orderId":"undoing","amount":1,"item":"none"}`).wantStatus(t, 200)
		b.exec(t, `INSERT INTO late_undos (order_no, generation, step, reason, due_at)
			SELECT order_no, 0, 'charge', 'a test', now() + interval '1 hour' FROM orders WHERE order_id = 'undoing'`)
		p := b.verb(t, "undoing/retry", "").wantProblem(t, 409, "still_undoing")
		assert.True(t, len(p.AllowedActions) == 0, p)
		byHand := `{"step":"charge","generation":0,"outcome":"done","onBehalfOf":"ann","reason":"refunded in the dashboard","requestId":"ticket"}`
		b.verb(t, "undoing/step-result", strings.Replace(byHand, `"generation":0`, `"generation":1`, 1)).wantProblem(t, 409, "no_late_undo")
		for range 2 {
			o := b.verb(t, "undoing/step-result", byHand).wantStatus(t, 200)
			assert.Equal(t, o.Status, "failed", o)
		}
		b.stock(t, "none", `{"onHand":1}`)
		o := b.verb(t, "undoing/retry", "").wantStatus(t, 200)
		assert.True(t, o.Status == "completed" && o.Generation == 1, o)
	})
}

func TestVerbsSayWhoAndWhat(t *testing.T) {
	t.Parallel()
	b := setup(t)
	t.Run("a step-result for another step says so", func(t *testing.T) {
		t.Parallel()
		b.waitsFor(t, "attention", "charging", "elsewhere")
		b.exec(t, `UPDATE orders SET in_doubt_since = now(), calls = 1, retries = 1 WHERE order_id = 'elsewhere'`)
		const body = `{"step":"reserve","outcome":"done","onBehalfOf":"ann","reason":"seen"}`
		p := b.verb(t, "elsewhere/step-result", body).wantProblem(t, 409, "other_step")
		assert.True(t, slices.Contains(p.AllowedActions, "step-result") && strings.Contains(p.Detail, "charge"), p)
	})
	t.Run("who was not identified is not the service", func(t *testing.T) {
		t.Parallel()
		b.waitsFor(t, "paused", "charging", "nameless")
		b.verb(t, "nameless/resume", "").wantStatus(t, 200)
		for _, row := range b.get(t, "/api/orders/nameless/transitions").wantStatus(t, 200).Transitions {
			assert.Equal(t, map[bool]string{true: "local", false: "system"}[row.Verb == "resume"], row.Actor, row)
		}
		assert.True(t, b.count(t, `SELECT count(*) FROM transitions WHERE actor = 'local'`) != 0, "it is not stored")
	})
}

func (b *bundle) cancel(t testing.TB, id, body string, header ...string) answer {
	t.Helper()
	return b.call(t, "POST /api/orders/"+id+"/cancel", body, header...)
}

func TestCancel(t *testing.T) {
	t.Parallel()
	b := setup(t)
	t.Run("undoes a held order, and says who asked", func(t *testing.T) {
		t.Parallel()
		b.held(t, "stuck", nil)
		assert.Equal(t, b.get(t, "/api/orders/stuck").decoded(t).AllowedActions, []string{"cancel", "retry"})
		o := b.cancel(t, "stuck", `{"onBehalfOf":"eve","reason":"changed her mind","more":[]}`).wantStatus(t, 200)
		assert.True(t, o.Status == "canceled" && o.StopRequested == "cancel" && len(o.AllowedActions) == 0, o)
		found := false
		newest := b.get(t, "/api/orders/stuck/transitions?sort=newest&before=3&limit=1").wantStatus(t,
			200).Transitions
		assert.True(t, len(newest) == 1 && newest[0].Seq == 2, newest)
		for _, row := range b.get(t, "/api/orders/stuck/transitions").wantStatus(t, 200).Transitions {
			found = found || row.Verb == "cancel" && row.Actor == "local" && row.OnBehalfOf == "eve" && row.Reason == "changed her mind" && *row.From == row.To
		}
		assert.True(t, found, "the history does not say who asked")
		n := b.count(t, `SELECT count(*) FROM books.access_log WHERE event = 'cancel' AND subject = 'stuck' AND actor = 'local' AND on_behalf_of = 'eve'`)
		assert.Equal(t, n, 1, "rows in the access log")
	})
	t.Run("answers the same request again with what it did", func(t *testing.T) {
		t.Parallel()
		b.held(t, "twice", nil)
		for range 2 {
			o := b.cancel(t, "twice", `{"requestId":"r1"}`).wantStatus(t, 200)
			assert.Equal(t, o.Status, "canceled", o)
		}
		b.cancel(t, "twice", `{"requestId":"r2"}`).wantProblem(t, 409, "not_applicable")
	})
	t.Run("of an order that is final is 409 with what applies", func(t *testing.T) {
		t.Parallel()
		b.process(t, ask("done")).wantStatus(t, 200)
		for _, header := range []string{"", "*"} {
			a := b.cancel(t, "done", "", "If-Match", header)
			p := a.wantProblem(t, 409, "not_applicable")
			assert.True(t, p.Order != nil && p.Order.Status == "completed" && p.Detail != "", a.body)
		}
		b.call(t, "POST /api/orders/done/cancel?dryRun=true", "").wantProblem(t, 409, "not_applicable")
	})
	t.Run("as a dry run says how the order would be, and does nothing", func(t *testing.T) {
		t.Parallel()
		b.held(t, "dry", nil)
		before := b.get(t, "/api/orders/dry").body
		a := b.call(t, "POST /api/orders/dry/cancel?dryRun=true", "")
		is, would := b.get(t, "/api/orders/dry").decoded(t), a.wantStatus(t, 200)
		assert.True(t, would.Hold == "" && would.StopRequested == "cancel" && would.Seq == is.Seq && would.Status == is.Status &&
			strings.Contains(a.body, `"dryRun":true`) && a.header.Get("ETag") == entityTag(int32(is.Seq)) &&
			b.get(t, "/api/orders/dry").body == before, a.header, a.body)
		b.call(t, "POST /api/orders/dry/cancel?dryRun=perhaps", "").wantProblem(t, 422, "invalid_parameter")
	})
}

func TestCancelUnderConditions(t *testing.T) {
	t.Parallel()
	b := setup(t)
	t.Run("of another version is 412", func(t *testing.T) {
		t.Parallel()
		b.held(t, "versioned", nil)
		for _, header := range []string{`"7"`, `W/"1"`, `1`, `"1`, `"x"`, `"01"`, `"99999999999999"`} {
			b.cancel(t, "versioned", "", "If-Match", header).wantProblem(t, 412, "precondition_failed")
		}
		p := b.cancel(t, "versioned", "", "If-Match", `"1", "2"`).wantProblem(t, 422, "invalid_parameter")
		assert.Equal(t, p.Errors[0].Header, "If-Match", p.Errors)
		tag := b.get(t, "/api/orders/versioned").header.Get("ETag")
		o := b.cancel(t, "versioned", "{}", "If-Match", tag).wantStatus(t, 200)
		assert.Equal(t, o.Status, "canceled", o)
	})
	t.Run("of an order that another replica drives is 202 at the limit", func(t *testing.T) {
		t.Parallel()
		b.elsewhere(t, "theirs")
		a := b.cancel(t, "theirs", "", "Prefer", "wait=3")
		assert.True(t, a.wantStatus(t, 202).StopRequested == "cancel" && a.header.Get("Location") == "/api/orders/theirs", a)
	})
	t.Run("with a body that is not valid does nothing", func(t *testing.T) {
		t.Parallel()
		b.held(t, "safe", nil)
		b.cancel(t, "safe", `{"onBehalfOf":""}`).wantProblem(t, 422, "invalid_input")
		b.cancel(t, "safe", `{"reason":7,"requestId":"a\u0000"}`).wantProblem(t, 422, "invalid_input")
		b.cancel(t, "safe", `{"onBehalfOf":"a","onBehalfOf":"b"}`).wantProblem(t, 400, "malformed_json")
		b.cancel(t, "safe", `x`).wantProblem(t, 400, "malformed_json")
		o := b.get(t, "/api/orders/safe").decoded(t)
		assert.Equal(t, o.StopRequested, "", o)
	})
}

// refunds is what the answer of an order says of its refunds.
func (a answer) refunds(t testing.TB) string {
	t.Helper()
	var o struct {
		Status, Refunded string
		AllowedActions   []string
		Refunds          []struct {
			Refund                           int
			State, Amount, Reason, RequestID string
			Restock                          int
		}
	}
	assert.NoError(t, json.Unmarshal([]byte(a.body), &o), a.body)
	text := []string{o.Status, o.Refunded, fmt.Sprint(o.AllowedActions)}
	for _, r := range o.Refunds {
		text = append(text, fmt.Sprintf("%d %s %s %s %s %d", r.Refund, r.State, r.Amount, r.Reason, r.RequestID, r.Restock))
	}
	return strings.Join(text, "; ")
}

func TestRefundByLineOverHTTP(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.stock(t, "cup", `{"onHand":5}`).wantStatus(t, 200)
	b.process(t, `{"orderId":"o","amount":"16.99","lines":[{"item":"cup","quantity":3,"amount":10},{"item":"tea","amount":2},{"item":"by air","kind":"shipping","amount":4.99}]}`).wantStatus(t, 200)
	b.process(t, `{"orderId":"free","amount":"16.99","lines":[{"item":"cup"},{"item":"tea"}]}`).wantStatus(t, 200)
	b.process(t, `{"orderId":"one","amount":"16.99","item":"cup"}`).wantStatus(t, 200)
	for body, want := range map[string]string{
		`{"reason":"r","requestId":"x","lines":[]}`:                                      "/lines",
		`{"reason":"r","requestId":"x","lines":[{"quantity":1}]}`:                        "/lines/0/line",
		`{"reason":"r","requestId":"x","lines":[{"line":1}]}`:                            "/lines/0/quantity",
		`{"reason":"r","requestId":"x","lines":[{"line":0,"quantity":1}]}`:               "/lines/0/line",
		`{"reason":"r","requestId":"x","lines":[{"line":4,"quantity":1}]}`:               "/lines/0/line",
		`{"reason":"r","requestId":"x","lines":[{"line":3,"quantity":1,"amount":1}]}`:    "/lines/0/amount",
		`{"reason":"r","requestId":"x","lines":[{"line":1,"amount":1}]}`:                 "/lines/0/amount",
		`{"reason":"r","requestId":"x","lines":[{"line":3,"amount":"1.001"}]}`:           "/lines/0/amount",
		`{"reason":"r","requestId":"x","lines":[{"line":3,"amount":0}]}`:                 "/lines/0/amount",
		`{"reason":"r","requestId":"x","lines":[{"line":1,"quantity":1}],"restock":1}`:   "/restock",
		`{"reason":"r","requestId":"x","lines":[{"line":1,"quantity":1,"restok":true}]}`: "/lines/0/restok",
	} {
		p := b.verb(t, "o/refunds", body).wantProblem(t, 422, "invalid_input")
		assert.Equal(t, p.Errors[0].Pointer, want, body, p.Errors)
	}
	p := b.verb(t, "free/refunds", `{"reason":"r","requestId":"x","lines":[{"line":1,"quantity":1}]}`).wantProblem(t, 422, "invalid_input")
	assert.Equal(t, p.Errors[0].Pointer, "/amount", p.Errors)
	b.verb(t, "one/refunds", `{"reason":"r","requestId":"x","lines":[{"line":1,"quantity":1}]}`).wantProblem(t, 422, "invalid_input")
	b.verb(t, "o/refunds", `{"reason":"r","requestId":"x","lines":[{"line":1,"quantity":4}]}`).wantProblem(t, 409, "refund_too_large")
	b.verb(t, "o/refunds", `{"reason":"r","requestId":"x","lines":[{"line":3,"amount":5}]}`).wantProblem(t, 409, "refund_too_large")
	assert.Contains(t, b.verb(t, "o/refunds?dryRun=true", `{"reason":"r","requestId":"x","lines":[{"line":3,"amount":"4.9"}]}`).body,
		`"lines":[{"line":3,"item":"by air","quantity":0,"amount":"4.90","kind":"shipping"}]`)
	b.verb(t, "o/refunds", `{"reason":"r","requestId":"x","lines":[{"line":3,"quantity":1,"restock":true}]}`).wantProblem(t, 409, "restock_too_large")
	b.verb(t, "o/refunds", `{"reason":"r","requestId":"x","amount":1,"restock":1}`).wantProblem(t, 409, "restock_too_large")
	body := `{"reason":"r","requestId":"x","lines":[{"line":1,"quantity":2,"restock":true},{"line":3,"quantity":1}]}`
	const lines = `"amount":"11.66","restock":2,"lines":[{"line":1,"item":"cup","quantity":2,"amount":"6.67","restock":true},{"line":3,"item":"by air","quantity":1,"amount":"4.99","kind":"shipping"}]`
	assert.Contains(t, b.verb(t, "o/refunds?dryRun=true", body).body, lines)
	assert.Contains(t, b.verb(t, "o/refunds", body).body, lines)
	assert.Contains(t, b.get(t, "/api/orders/o").body, lines)
	b.verb(t, "o/refunds", `{"reason":"r","requestId":"x","lines":[{"line":1,"quantity":2},{"line":3,"quantity":1}]}`).wantProblem(t, 422, "idempotency_key_reused")
	item := b.get(t, "/api/inventory/cup").decoded(t)
	assert.Equal(t, item.OnHand, 2, item)
	b.verb(t, "free/refunds", `{"reason":"r","requestId":"x","amount":"9","lines":[{"line":1,"quantity":1,"restock":true}]}`).wantStatus(t, 200)
}

func TestRefundsOverHTTP(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.stock(t, "widget", `{"onHand":5}`).wantStatus(t, 200)
	b.process(t, `{"orderId":"o","amount":"99.90","item":"widget","quantity":3}`).wantStatus(t, 200)
	assert.Equal(t, b.get(t, "/api/orders/o").refunds(t), "completed; ; [refund]")
	for body, want := range map[string]string{
		`{}`: "/reason", `{"reason":""}`: "/reason", `{"reason":"r"}`: "/requestId", `{"reason":"r","requestId":"x","amount":"0"}`: "/amount",
		`{"reason":"r","requestId":"x","amount":-1}`: "/amount", `{"reason":"r","requestId":"x","amount":"1.001"}`: "/amount",
		`{"reason":"r","requestId":"x","amount":{}}`:   "/amount",
		`{"reason":"r","requestId":"x","amount":"1 "}`: "/amount", `{"reason":"r","requestId":"x","restock":0}`: "/restock",
	} {
		p := b.verb(t, "o/refunds", body).wantProblem(t, 422, "invalid_input")
		assert.Equal(t, p.Errors[0].Pointer, want, body, p.Errors)
	}
	b.verb(t, "nobody/refunds", `{"reason":"r","requestId":"x","amount":1}`).wantProblem(t, 404, "not_found")
	b.verb(t, "o/refunds", `{"reason":"r","requestId":"x","amount":99.91}`).wantProblem(t, 409, "refund_too_large")
	b.verb(t, "o/refunds", `{"reason":"r","requestId":"x","restock":4}`).wantProblem(t, 409, "restock_too_large")
	before := b.get(t, "/api/orders/o")
	for body, want := range map[string]string{
		`{"reason":"r","requestId":"x"}`:                          "completed; 99.90; []; 1 done 99.90 r x 0",
		`{"reason":"r","requestId":"x","amount":"9","restock":2}`: "completed; 9.00; [refund]; 1 done 9.00 r x 2",
	} {
		a := b.verb(t, "o/refunds?dryRun=true", body)
		assert.True(t, a.status == 200 && a.refunds(t) == want && b.get(t, "/api/orders/o").body == before.body, a.status, a.body)
	}
	b.verb(t, "o/refunds", `{"reason":"r","requestId":"x"}`, "If-Match", `"1"`).wantProblem(t, 412, "precondition_failed")
	const first = "completed; 12.50; [refund]; 1 done 12.50 one is broken first 2"
	for range 2 { // it comes again
		a := b.verb(t, "o/refunds", `{"amount":12.5,"reason":"one is broken","requestId":"first","restock":2}`, "If-Match", before.header.Get("ETag"))
		got := a.refunds(t)
		assert.True(t, a.status == 200 && got == first, a.status, got)
	}
	item := b.get(t, "/api/inventory/widget").decoded(t)
	assert.Equal(t, item.OnHand, 4, item)
	b.verb(t, "o/refunds", `{"reason":"r","requestId":"first","amount":12}`).wantProblem(t, 422, "idempotency_key_reused")
	b.verb(t, "o/refunds", `{"reason":"all of it","amuont":1}`, "Idempotency-Key", "second").wantProblem(t, 422, "invalid_input")
	a := b.verb(t, "o/refunds", `{"reason":"all of it"}`, "Idempotency-Key", "second")
	got, want := a.refunds(t), "completed; 99.90; []; 1 done 12.50 one is broken first 2; 2 done 87.40 all of it second 0"
	assert.True(t, got == want && a.status == 200, a.status, got, "want", want)
	assert.True(t, a.header.Get("ETag") != before.header.Get("ETag") &&
		b.get(t, "/api/orders/o", "If-None-Match", before.header.Get("ETag")).status == 200, "the ETag has not changed")
	b.verb(t, "o/refunds", `{"reason":"r","requestId":"x"}`).wantProblem(t, 409, "refund_too_large")
	b.verb(t, "o/step-result", `{"step":"charge","refund":1,"outcome":"done","onBehalfOf":"ann","reason":"r"}`).wantProblem(t, 409, "no_charge_operation")
	b.verb(t, "o/step-result", `{"step":"reserve","refund":1,"outcome":"done","onBehalfOf":"ann","reason":"r"}`).wantProblem(t, 422, "invalid_input")
}
