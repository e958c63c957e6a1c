package httpapi

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"pawl/engine"
)

func TestProcess(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const seed = `{"orderId": "order-123", "amount": 99.99, "item": "widget"}`
	t.Run("answers with the shape of the contract first", func(t *testing.T) {
		a := b.process(t, seed)
		const want = `{"orderId":"order-123","status":"completed","steps":{"charge":{"completed":true},"reserve":{"completed":true},"confirm":{"completed":true}},"amount":99.99,"currency":"USD","item":"widget","quantity":1,`
		if a.status != 200 || !strings.HasPrefix(a.body, want) {
			t.Errorf("%d %s", a.status, a.body)
		}
		if a.header.Get("Content-Type") != "application/json" || a.header.Get("ETag") != fmt.Sprintf("%q", fmt.Sprint(a.decoded(t).Seq)) {
			t.Error(a.header)
		}
	})
	t.Run("answers the same again, and does nothing twice", func(t *testing.T) {
		first, second := b.process(t, seed), b.process(t, seed)
		if second.status != 200 || first.body != second.body {
			t.Errorf("%s\n%s", first.body, second.body)
		}
		if n := b.count(t, `SELECT count(*) FROM charges`); n != 1 {
			t.Errorf("%d charges", n)
		}
	})
	t.Run("the stored order reads the same as the one just processed", func(t *testing.T) {
		processed := b.process(t, `{"orderId":"o2","amount":"12345678901.20","item":"i","quantity":7,"currency":"EUR","metadata":{"b":"\u0001f","a":"é\"\\"}}`)
		processed.wantProblem(t, 422, "invalid_input")
		processed = b.process(t, `{"orderId":"o2","amount":"12345678901.20","item":"i","quantity":7,"currency":"EUR","metadata":{"b":"f","a":"é\"\\"}}`)
		got, read := processed.decoded(t), b.get(t, "/api/orders/o2").decoded(t)
		if fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", read) || got.Amount != "12345678901.20" || got.Metadata["a"] != `é"\` {
			t.Errorf("%+v\n%+v", got, read)
		}
	})
	t.Run("a known order with other input is a conflict that shows both values", func(t *testing.T) {
		a := b.process(t, `{"orderId":"order-123","amount":100.10,"item":"other","quantity":2,"currency":"EUR"}`)
		p := a.wantProblem(t, 409, "order_conflict")
		var got []string
		for _, e := range p.Errors {
			got = append(got, fmt.Sprint(e.Pointer, *e.Stored, *e.Sent))
		}
		want := "[/amount99.99100.10 /itemwidgetother /currencyUSDEUR /quantity12]"
		if fmt.Sprint(got) != want || p.Order == nil || p.Order.OrderID != "order-123" || p.Order.Status != "completed" {
			t.Errorf("%v: %s", got, a.body)
		}
	})
	t.Run("fields left out, other digits and other metadata are no conflict", func(t *testing.T) {
		for _, again := range []string{
			`{"orderId":"o2","amount":12345678901.2,"item":"i"}`,
			`{"orderId":"o2","amount":"12345678901.200","item":"i","metadata":{"a":"other"}}`,
		} {
			if o := b.process(t, again).wantStatus(t, 200); o.Metadata["b"] != "f" || o.Amount != "12345678901.20" {
				t.Errorf("%+v", o)
			}
		}
	})
	t.Run("zero is charged, as nothing", func(t *testing.T) {
		if o := b.process(t, `{"orderId":"free","amount":0,"item":"i"}`).wantStatus(t, 200); o.Amount != "0" || !o.Steps["charge"].Completed {
			t.Errorf("%+v", o)
		}
	})
	t.Run("a failed order is 200 with what was undone", func(t *testing.T) {
		call(t, b.api, http.MethodPut, "/api/inventory/rare", `{"onHand":1}`).wantStatus(t, 200)
		o := b.process(t, `{"orderId":"late","amount":5,"item":"rare","quantity":2}`).wantStatus(t, 200)
		if o.Status != "failed" || o.Failure == nil || o.Failure.Step != "reserve" || o.Failure.Code != "out_of_stock" {
			t.Fatalf("%+v", o)
		}
		if s := o.Steps["charge"]; s.Completed || !s.Undone || o.Steps["reserve"].Undone || o.FinishedAt.IsZero() {
			t.Errorf("%+v", o)
		}
	})
	t.Run("a refused request stores nothing", func(t *testing.T) {
		before := b.count(t, `SELECT count(*) FROM orders`)
		for _, refused := range []string{`{"orderId":"no","amount":-1,"item":"i"}`, `{"orderId":"no","amount":1,"item":"i"} x`, `{"orderId":"no","amount":0.001,"item":"i"}`} {
			if a := b.process(t, refused); a.status != 400 && a.status != 422 {
				t.Error(a)
			}
		}
		if after := b.count(t, `SELECT count(*) FROM orders`); after != before {
			t.Errorf("%d orders, %d before", after, before)
		}
	})
}

func TestProcessFiftyAtOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	answers := make([]answer, 50)
	var wg sync.WaitGroup
	for i := range answers {
		wg.Go(func() {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/api/orders/process", strings.NewReader(`{"orderId":"one","amount":1,"item":"i"}`))
			w := httptest.NewRecorder()
			b.api.ServeHTTP(w, r)
			answers[i] = answer{w.Code, w.Header(), w.Body.String()}
		})
	}
	wg.Wait()
	for _, a := range answers {
		if a.status != 200 || a.body != answers[0].body {
			t.Fatalf("%d %s", a.status, a.body)
		}
	}
	if n := b.count(t, `SELECT count(*) FROM charges`); n != 1 {
		t.Errorf("%d charges", n)
	}
}

func TestProcessThatIsNotFinal(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const id = "a/b …"
	b.elsewhere(t, id)
	at := func(body string) string { return strings.Replace(body, "ID", id, 1) }
	request := at(`{"orderId":"ID","amount":1,"item":"i"}`)

	t.Run("is 202 with Location and Retry-After at the limit", func(t *testing.T) {
		started := time.Now()
		a := b.process(t, request, "Prefer", "wait=1")
		o := a.wantStatus(t, 202)
		if o.Status != "charging" || time.Since(started) < time.Second {
			t.Errorf("%+v after %s", o, time.Since(started))
		}
		h := a.header
		if h.Get("Location") != "/api/orders/"+url.PathEscape(id) || h.Get("Retry-After") != "1" || h.Get("Preference-Applied") != "wait=1" {
			t.Error(h)
		}
		b.get(t, h.Get("Location")).wantStatus(t, 200)
	})
	t.Run("is 202 at once with respond-async", func(t *testing.T) {
		a := b.process(t, request, "Prefer", "respond-async")
		if a.wantStatus(t, 202); a.header.Get("Preference-Applied") != "respond-async" {
			t.Error(a.header)
		}
	})
	t.Run("is 202 at once when the service does not wait", func(t *testing.T) {
		b := &bundle{api: New(b.engine, Config{})}
		b.process(t, request).wantStatus(t, 202)
	})
	t.Run("is 202 at once when it is held, with the time of the next look", func(t *testing.T) {
		b.held(t, "stuck", nil)
		a := b.process(t, `{"orderId":"stuck","amount":1,"item":"i"}`)
		o := a.wantStatus(t, 202)
		if o.Hold != "attention" || o.HoldReason != "look at me" || a.header.Get("Retry-After") != "60" {
			t.Errorf("%+v %v", o, a.header)
		}
		due := time.Now().Add(20 * time.Second)
		b.held(t, "later", &due)
		a = b.process(t, `{"orderId":"later","amount":1,"item":"i"}`, "Prefer", "wait=1")
		if s := a.header.Get("Retry-After"); a.status != 202 || s != "20" && s != "19" {
			t.Errorf("%d, Retry-After %s", a.status, s)
		}
	})
}

func TestProcessRespondAsync(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const request = `{"orderId":"new","amount":1,"item":"i"}`
	a := b.process(t, request, "Prefer", "respond-async")
	if a.status != 202 && a.status != 200 {
		t.Fatal(a)
	}
	if n := b.count(t, `SELECT count(*) FROM orders WHERE order_id = 'new'`); n != 1 {
		t.Fatalf("%d orders are stored when the answer is there", n)
	}
	b.process(t, request).wantStatus(t, 200) // and it goes on without the caller
	a = b.process(t, request, "Prefer", "respond-async, wait=5")
	if a.wantStatus(t, 200); a.header.Get("Preference-Applied") != "wait=5" {
		t.Error(a.header)
	}
}

func TestProcessWhenItCannotBeDone(t *testing.T) {
	t.Parallel()
	const request = `{"orderId":"o","amount":1,"item":"i"}`
	t.Run("too many at work is 503 overloaded", func(t *testing.T) {
		t.Parallel()
		b := setupWith(t, engine.Config{MaxInFlight: 1}, Config{Wait: patience})
		b.elsewhere(t, "other")
		b.process(t, `{"orderId":"other","amount":1,"item":"i"}`, "Prefer", "wait=0")
		a := b.process(t, request)
		if a.wantProblem(t, 503, "overloaded"); a.header.Get("Retry-After") != "1" {
			t.Error(a.header)
		}
		if n := b.count(t, `SELECT count(*) FROM orders`); n != 1 {
			t.Errorf("%d orders", n)
		}
	})
	t.Run("shutting down is 503 stopping", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		if err := b.engine.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		a := b.process(t, request)
		if a.wantProblem(t, 503, "stopping"); a.header.Get("Retry-After") != "1" {
			t.Error(a.header)
		}
		b.get(t, "/health").wantProblem(t, 503, "stopping")
		b.get(t, "/livez").wantStatus(t, 200)
	})
	t.Run("no database is 503 unavailable", func(t *testing.T) {
		t.Parallel()
		b := withoutDatabase(t)
		a := b.process(t, request, "Prefer", "wait=1")
		if a.wantProblem(t, 503, "unavailable"); a.header.Get("Retry-After") != "1" {
			t.Error(a.header)
		}
		for _, target := range []string{"/api/orders/o", "/api/orders", "/api/orders/o/transitions", "/api/inventory", "/api/inventory/i", "/health"} {
			b.get(t, target).wantProblem(t, 503, "unavailable")
		}
		b.get(t, "/livez").wantStatus(t, 200)
	})
}
