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

// ask is the smallest body for an order: one unit of item i for 1.
func ask(orderID string) string {
	return fmt.Sprintf(`{"orderId":%s,"amount":1,"item":"i"}`, appendString(nil, orderID))
}

func TestProcess(t *testing.T) {
	t.Parallel()
	b := setup(t)
	t.Run("answers with the shape of the contract first", func(t *testing.T) {
		t.Parallel()
		a := b.process(t, `{"orderId": "order-123", "amount": 99.99, "item": "widget"}`)
		const want = `{"orderId":"order-123","status":"completed","steps":{"charge":{"completed":true},"reserve":{"completed":true},"confirm":{"completed":true}},"amount":"99.99","currency":"USD","item":"widget","quantity":1,`
		if a.status != 200 || !strings.HasPrefix(a.body, want) {
			t.Errorf("%d %s", a.status, a.body)
		}
		if a.header.Get("Content-Type") != "application/json" || a.header.Get("ETag") != fmt.Sprintf(`"%d"`, a.decoded(t).Seq) {
			t.Error(a.header)
		}
	})
	t.Run("the stored order reads the same as the one just processed", func(t *testing.T) {
		t.Parallel()
		got := b.process(t, `{"orderId":"full","amount":"12345678901.20","item":"i","quantity":7,"currency":"EUR","metadata":{"b":"f","a":"é\"\\"}}`).wantStatus(t, 200)
		read := b.get(t, "/api/orders/full").wantStatus(t, 200)
		if fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", read) || got.Amount != "12345678901.20" || got.Metadata["a"] != `é"\` {
			t.Errorf("%+v\n%+v", got, read)
		}
	})
	t.Run("the body of an ETag has the same bytes before and after it was stored", func(t *testing.T) {
		t.Parallel()
		fresh := b.process(t, `{"orderId":"bytes","amount":1,"item":"i","metadata":{"bb":"1 , 2","c":"\u00e9\"\\/","aaa":"","é":"<&>","a":"\u2028: "}}`)
		read := b.get(t, "/api/orders/bytes")
		again := b.process(t, ask("bytes"))
		if fresh.header.Get("ETag") != read.header.Get("ETag") || fresh.body != read.body || fresh.body != again.body {
			t.Errorf("\n%s\n%s\n%s", fresh.body, read.body, again.body)
		}
		if want := `"metadata":{"a":"` + "\u2028" + `: ","c":"é\"\\/","bb":"1 , 2","é":"<&>","aaa":""}`; !strings.Contains(fresh.body, want) {
			t.Error(fresh.body)
		}
	})
	t.Run("zero is charged, as nothing", func(t *testing.T) {
		t.Parallel()
		if o := b.process(t, `{"orderId":"free","amount":0,"item":"i"}`).wantStatus(t, 200); o.Amount != "0.00" || !o.Steps["charge"].Completed {
			t.Errorf("%+v", o)
		}
	})
	t.Run("a failed order is 200 with what was undone", func(t *testing.T) {
		t.Parallel()
		b.stock(t, "rare", `{"onHand":1}`).wantStatus(t, 200)
		o := b.process(t, `{"orderId":"late","amount":5,"item":"rare","quantity":2}`).wantStatus(t, 200)
		if o.Status != "failed" || o.Failure == nil || o.Failure.Step != "reserve" || o.Failure.Code != "out_of_stock" {
			t.Fatalf("%+v", o)
		}
		if s := o.Steps["charge"]; s.Completed || !s.Undone || o.Steps["reserve"].Undone || o.FinishedAt.IsZero() {
			t.Errorf("%+v", o)
		}
	})
	t.Run("a refused request stores nothing", func(t *testing.T) {
		t.Parallel()
		b.process(t, `{"orderId":"no","amount":-1,"item":"i"}`).wantProblem(t, 422, "invalid_input")
		b.process(t, `{"orderId":"no","amount":1,"item":"i"} x`).wantProblem(t, 400, "malformed_json")
		b.process(t, `{"orderId":"no","amount":1,"item":"i","metadata":{"k":"\u0000"}}`).wantProblem(t, 422, "invalid_input")
		if n := b.count(t, `SELECT count(*) FROM orders WHERE order_id = $1`, "no"); n != 0 {
			t.Error("it was stored")
		}
	})
}

func TestProcessKnownOrder(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.process(t, `{"orderId":"o","amount":99.90,"item":"widget","metadata":{"a":"b"}}`).wantStatus(t, 200)
	t.Run("with other input is a conflict that shows both values", func(t *testing.T) {
		t.Parallel()
		a := b.process(t, `{"orderId":"o","amount":100.10,"item":"other","quantity":2,"currency":"EUR"}`)
		p := a.wantProblem(t, 409, "order_conflict")
		var got []string
		for _, e := range p.Errors {
			got = append(got, fmt.Sprint(e.Pointer, " ", *e.Stored, " ", *e.Sent))
		}
		const want = "/amount 99.90 100.10;/item widget other;/currency USD EUR;/quantity 1 2"
		if strings.Join(got, ";") != want || p.Order == nil || p.Order.OrderID != "o" || p.Order.Status != "completed" {
			t.Errorf("%q: %s", got, a.body)
		}
	})
	t.Run("with other input is a conflict for those who do not wait, too", func(t *testing.T) {
		t.Parallel()
		p := b.process(t, ask("o"), "Prefer", "respond-async").wantProblem(t, 409, "order_conflict")
		if len(p.Errors) != 2 {
			t.Errorf("%+v", p)
		}
	})
	t.Run("with fields left out, other digits and other metadata is no conflict", func(t *testing.T) {
		t.Parallel()
		for _, again := range []string{
			`{"orderId":"o","amount":99.9,"item":"widget"}`,
			`{"orderId":"o","amount":"99.900","item":"widget","metadata":{"a":"other"},"quantity":1,"currency":"USD"}`,
		} {
			if o := b.process(t, again).wantStatus(t, 200); o.Metadata["a"] != "b" || o.Amount != "99.90" {
				t.Errorf("%+v", o)
			}
		}
	})
}

func TestProcessAfterTheDefaultCurrencyChanged(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const body = `{"orderId":"o","amount":99.99,"item":"widget"}`
	before := b.process(t, body)
	before.wantStatus(t, 200)
	yen := &bundle{Database: b.Database, grace: patience}
	yen.serve(t, b.URL, engine.Config{Currency: "JPY"}, Config{Currency: "JPY", ResponseTimeout: patience})

	t.Run("the same request gets the same answer", func(t *testing.T) {
		t.Parallel()
		for _, header := range [][]string{nil, {"Prefer", "respond-async"}} {
			if a := yen.process(t, body, header...); a.status != 200 || a.body != before.body {
				t.Errorf("%d %s", a.status, a.body)
			}
		}
	})
	t.Run("another amount is a conflict, by value", func(t *testing.T) {
		t.Parallel()
		p := yen.process(t, `{"orderId":"o","amount":99.9899,"item":"widget"}`).wantProblem(t, 409, "order_conflict")
		if len(p.Errors) != 1 || *p.Errors[0].Stored != "99.99" || *p.Errors[0].Sent != "99.9899" {
			t.Errorf("%+v", p.Errors)
		}
	})
	t.Run("a new order is held to the digits of the default, and so is what has other faults", func(t *testing.T) {
		t.Parallel()
		for _, refused := range []string{
			`{"orderId":"new","amount":99.99,"item":"widget"}`, `{"orderId":"o","amount":99.99,"item":""}`,
			`{"orderId":"o","amount":99.99999,"item":"widget"}`, `{"orderId":"o","amount":99.99,"item":"widget","currency":"JPY"}`,
		} {
			yen.process(t, refused).wantProblem(t, 422, "invalid_input")
		}
		yen.process(t, body+" x").wantProblem(t, 400, "malformed_json")
		if n := b.count(t, `SELECT count(*) FROM orders`); n != 1 {
			t.Errorf("%d orders", n)
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
			w := httptest.NewRecorder()
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/api/orders/process", strings.NewReader(ask("one")))
			r.RemoteAddr, r.Host = fromHere, "localhost"
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

	t.Run("is 202 with Location and Retry-After at the limit", func(t *testing.T) {
		t.Parallel()
		started := time.Now()
		a := b.process(t, ask(id), "Prefer", "wait=3")
		if o := a.wantStatus(t, 202); o.Status != "charging" || time.Since(started) < 3*time.Second {
			t.Errorf("%+v after %s", o, time.Since(started))
		}
		h := a.header
		if h.Get("Location") != "/api/orders/"+url.PathEscape(id) || h.Get("Retry-After") != "1" || h.Get("Preference-Applied") != "wait=3" {
			t.Error(h)
		}
		b.get(t, h.Get("Location")).wantStatus(t, 200)
	})
	t.Run("is 202 at once with respond-async", func(t *testing.T) {
		t.Parallel()
		a := b.process(t, ask(id), "Prefer", "respond-async")
		if a.wantStatus(t, 202); a.header.Get("Preference-Applied") != "respond-async" {
			t.Error(a.header)
		}
	})
	t.Run("is 202 at once when the service does not wait", func(t *testing.T) {
		t.Parallel()
		impatient := &bundle{api: New(b.engine, Config{})}
		impatient.process(t, ask(id)).wantStatus(t, 202)
	})
	t.Run("is 202 at once when it waits for a person", func(t *testing.T) {
		t.Parallel()
		b.held(t, "stuck", nil)
		a := b.process(t, ask("stuck"))
		o := a.wantStatus(t, 202)
		if o.Hold != "attention" || o.HoldReason != "look at me" || a.header.Get("Retry-After") != "60" {
			t.Errorf("%+v %v", o, a.header)
		}
	})
	t.Run("says when a held order is looked at next", func(t *testing.T) {
		t.Parallel()
		due := time.Now().Add(20 * time.Second)
		b.held(t, "later", &due)
		a := b.process(t, ask("later"), "Prefer", "wait=5")
		if s := a.header.Get("Retry-After"); a.status != 202 || s < "11" || s > "21" { // the database's clock is known to some milliseconds
			t.Errorf("%d, Retry-After %s", a.status, s)
		}
	})
}

func TestProcessRespondAsync(t *testing.T) {
	t.Parallel()
	b := setup(t)
	a := b.process(t, ask("new"), "Prefer", "respond-async")
	if a.status != 202 && a.status != 200 {
		t.Fatal(a)
	}
	if n := b.count(t, `SELECT count(*) FROM orders WHERE order_id = $1`, "new"); n != 1 {
		t.Fatalf("%d orders are stored when the answer is there", n)
	}
	b.process(t, ask("new")).wantStatus(t, 200) // and it goes on without the caller
	a = b.process(t, ask("new"), "Prefer", "respond-async, wait=5")
	if a.wantStatus(t, 200); a.header.Get("Preference-Applied") != "wait=5" {
		t.Error(a.header)
	}
}

func TestProcessWhenItCannotBeDone(t *testing.T) {
	t.Parallel()
	t.Run("too many at work is 503 overloaded", func(t *testing.T) {
		t.Parallel()
		b := setupWith(t, engine.Config{MaxInFlight: 1}, Config{ResponseTimeout: patience})
		b.elsewhere(t, "other")
		b.process(t, ask("other"), "Prefer", "wait=0")
		a := b.process(t, ask("o"))
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
		a := b.process(t, ask("o"))
		if a.wantProblem(t, 503, "stopping"); a.header.Get("Retry-After") != "1" {
			t.Error(a.header)
		}
		b.get(t, "/health").wantProblem(t, 503, "stopping")
		b.get(t, "/livez").wantStatus(t, 200)
	})
	t.Run("no database is 503 unavailable", func(t *testing.T) {
		t.Parallel()
		b := withoutDatabase(t)
		a := b.process(t, ask("o"), "Prefer", "wait=1")
		if a.wantProblem(t, 503, "unavailable"); a.header.Get("Retry-After") != "1" {
			t.Error(a.header)
		}
		for _, target := range []string{"/api/orders/o", "/api/orders", "/api/orders/o/transitions", "/api/inventory", "/api/inventory/i", "/health"} {
			b.get(t, target).wantProblem(t, 503, "unavailable")
		}
		b.call(t, "POST /api/orders/o/cancel", "").wantProblem(t, 503, "unavailable")
		b.call(t, "PUT /api/inventory/i", `{"onHand":1}`, "If-None-Match", "*").wantProblem(t, 503, "unavailable")
		b.get(t, "/livez").wantStatus(t, 200)
	})
}
