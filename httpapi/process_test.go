package httpapi

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/govalues/decimal"

	"pawl/engine"
	"pawl/fsm"
	"pawl/internal/orders"
	"pawl/test/assert"
	"pawl/test/dbtest"
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
		assert.True(t, a.status == 200 && strings.HasPrefix(a.body, want), a.status, a.body)
		assert.True(t, a.header.Get("Content-Type") == "application/json" && a.header.Get("ETag") == fmt.Sprintf(`"%d"`, a.decoded(t).Seq),
			a.header)
	})
	t.Run("the stored order reads the same as the one just processed", func(t *testing.T) {
		t.Parallel()
		got := b.process(t, `{"orderId":"full","amount":"12345678901.20","item":"i","quantity":7,"currency":"EUR","metadata":{"b":"f","a":"é\"\\"}}`).wantStatus(t, 200)
		read := b.get(t, "/api/orders/full").wantStatus(t, 200)
		assert.True(t, fmt.Sprintf("%+v", got) == fmt.Sprintf("%+v", read) && got.Amount == "12345678901.20" && got.Metadata["a"] == `é"\`,
			got, read)
	})
	t.Run("the body of an ETag has the same bytes before and after it was stored", func(t *testing.T) {
		t.Parallel()
		fresh := b.process(t, `{"orderId":"bytes","amount":1,"item":"i","metadata":{"bb":"1 , 2","c":"\u00e9\"\\/","aaa":"","é":"<&>","a":"\u2028: "}}`)
		read := b.get(t, "/api/orders/bytes")
		again := b.process(t, ask("bytes"))
		assert.True(t, fresh.header.Get("ETag") == read.header.Get("ETag") && fresh.body == read.body && fresh.body == again.body,
			fresh.body, read.body, again.body)
		want := `"metadata":{"a":"` + "\u2028" + `: ","c":"é\"\\/","bb":"1 , 2","é":"<&>","aaa":""}`
		assert.Contains(t, fresh.body, want)
	})
	t.Run("zero is charged, as nothing", func(t *testing.T) {
		t.Parallel()
		o := b.process(t, `{"orderId":"free","amount":0,"item":"i"}`).wantStatus(t, 200)
		assert.True(t, o.Amount == "0.00" && o.Steps["charge"].Completed, o)
	})
	t.Run("a failed order is 200 with what was undone", func(t *testing.T) {
		t.Parallel()
		b.stock(t, "rare", `{"onHand":1}`).wantStatus(t, 200)
		o := b.process(t, `{"orderId":"late","amount":5,"item":"rare","quantity":2}`).wantStatus(t, 200)
		assert.Require(t, o.Status == "failed" && o.Failure != nil && o.Failure.Step == "reserve" && o.Failure.Code == "out_of_stock",
			o)
		s := o.Steps["charge"]
		assert.True(t, !s.Completed && s.Undone && !o.Steps["reserve"].Undone && !o.FinishedAt.IsZero(), o)
	})
	t.Run("a refused request stores nothing", func(t *testing.T) {
		t.Parallel()
		b.process(t, `{"orderId":"no","amount":-1,"item":"i"}`).wantProblem(t, 422, "invalid_input")
		b.process(t, `{"orderId":"no","amount":1,"item":"i"} x`).wantProblem(t, 400, "malformed_json")
		b.process(t, `{"orderId":"no","amount":1,"item":"i","metadata":{"k":"\u0000"}}`).wantProblem(t, 422, "invalid_input")
		assert.Equal(t, b.count(t, `SELECT count(*) FROM orders WHERE order_id = $1`, "no"), 0, "it was stored")
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
		assert.True(t, strings.Join(got, ";") == want && p.Order != nil && p.Order.OrderID == "o" && p.Order.Status == "completed",
			got, a.body)
	})
	t.Run("with other input is a conflict for those who do not wait, too", func(t *testing.T) {
		t.Parallel()
		p := b.process(t, ask("o"), "Prefer", "respond-async").wantProblem(t, 409, "order_conflict")
		assert.Equal(t, len(p.Errors), 2, p)
	})
	t.Run("with fields left out, other digits and other metadata is no conflict", func(t *testing.T) {
		t.Parallel()
		for _, again := range []string{
			`{"orderId":"o","amount":99.9,"item":"widget"}`,
			`{"orderId":"o","amount":"99.900","item":"widget","metadata":{"a":"other"},"quantity":1,"currency":"USD"}`,
		} {
			o := b.process(t, again).wantStatus(t, 200)
			assert.True(t, o.Metadata["a"] == "b" && o.Amount == "99.90", o)
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
			a := yen.process(t, body, header...)
			assert.True(t, a.status == 200 && a.body == before.body, a.status, a.body)
		}
	})
	t.Run("another amount is a conflict, by value", func(t *testing.T) {
		t.Parallel()
		p := yen.process(t, `{"orderId":"o","amount":99.9899,"item":"widget"}`).wantProblem(t, 409, "order_conflict")
		assert.True(t, len(p.Errors) == 1 && *p.Errors[0].Stored == "99.99" && *p.Errors[0].Sent == "99.9899", p.Errors)
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
		assert.Equal(t, b.count(t, `SELECT count(*) FROM orders`), 1, "orders")
	})
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
		o := a.wantStatus(t, 202)
		assert.True(t, o.Status == "charging" && time.Since(started) >= 3*time.Second, o, "after", time.Since(started))
		h := a.header
		assert.True(t, h.Get("Location") == "/api/orders/"+url.PathEscape(id) && h.Get("Retry-After") == "1" &&
			h.Get("Preference-Applied") == "wait=3", h)
		b.get(t, h.Get("Location")).wantStatus(t, 200)
	})
	t.Run("is 202 at once with respond-async", func(t *testing.T) {
		t.Parallel()
		a := b.process(t, ask(id), "Prefer", "respond-async")
		a.wantStatus(t, 202)
		assert.Equal(t, a.header.Get("Preference-Applied"), "respond-async", a.header)
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
		assert.True(t, o.Hold == "attention" && o.HoldReason == "look at me" && a.header.Get("Retry-After") == "60", o, a.header)
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
	assert.Require(t, a.status == 202 || a.status == 200, a)
	n := b.count(t, `SELECT count(*) FROM orders WHERE order_id = $1`, "new")
	assert.Require(t, n == 1, n, "orders are stored when the answer is there")
	b.process(t, ask("new")).wantStatus(t, 200) // and it goes on without the caller
	a = b.process(t, ask("new"), "Prefer", "respond-async, wait=5")
	a.wantStatus(t, 200)
	assert.Equal(t, a.header.Get("Preference-Applied"), "wait=5", a.header)
}

func TestProcessWhenItCannotBeDone(t *testing.T) {
	t.Parallel()
	t.Run("too many at work is 503 overloaded", func(t *testing.T) {
		t.Parallel()
		b := setupWith(t, engine.Config{Lease: lease, MaxInFlight: 1}, Config{ResponseTimeout: patience})
		b.elsewhere(t, "other")
		b.process(t, ask("other"), "Prefer", "wait=0")
		a := b.process(t, ask("o"))
		a.wantProblem(t, 503, "overloaded")
		assert.Equal(t, a.header.Get("Retry-After"), "1", a.header)
		assert.Equal(t, b.count(t, `SELECT count(*) FROM orders`), 1, "orders")
	})
	t.Run("shutting down is 503 stopping", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		assert.NoError(t, b.engine.Stop(t.Context()))
		a := b.process(t, ask("o"))
		a.wantProblem(t, 503, "stopping")
		assert.Equal(t, a.header.Get("Retry-After"), "1", a.header)
		b.get(t, "/health").wantProblem(t, 503, "stopping")
		b.get(t, "/livez").wantStatus(t, 200)
	})
	t.Run("no database is 503 unavailable", func(t *testing.T) {
		t.Parallel()
		b := withoutDatabase(t)
		a := b.process(t, ask("o"), "Prefer", "wait=1")
		a.wantProblem(t, 503, "unavailable")
		assert.Equal(t, a.header.Get("Retry-After"), "1", a.header)
		for _, target := range []string{"/api/orders/o", "/api/orders", "/api/orders/o/transitions", "/api/inventory", "/api/inventory/i", "/health"} {
			b.get(t, target).wantProblem(t, 503, "unavailable")
		}
		b.call(t, "POST /api/orders/o/cancel", "").wantProblem(t, 503, "unavailable")
		b.call(t, "PUT /api/inventory/i", `{"onHand":1}`, "If-None-Match", "*").wantProblem(t, 503, "unavailable")
		b.get(t, "/livez").wantStatus(t, 200)
	})
}

func TestDecodeTerms(t *testing.T) {
	t.Parallel()
	at := time.Now().Add(time.Hour).UTC().Truncate(time.Microsecond)
	text := func(at time.Time) string { return at.Format(`"2006-01-02T15:04:05.999999Z07:00"`) }
	t.Run("are read", func(t *testing.T) {
		t.Parallel()
		in, _, err := decodeInput([]byte(`{"orderId":"o","amount":1,"item":"i","customerId":"é","paymentMethod":"pm_1","concurrencyKey":"k","reservationTtl":31536000,
			"startAt":`+text(at)+`,"completeBy":`+text(at.Add(time.Hour).In(time.FixedZone("", 5*3600)))+`}`), dollars, time.Now)
		want := engine.Terms{CustomerID: "é", PaymentMethod: "pm_1", ConcurrencyKey: "k", ReservationTTL: 365 * 24 * time.Hour,
			StartAt: at, CompleteBy: at.Add(time.Hour)}
		assert.True(t, err == nil && in.Terms == want, in.Terms, err)
	})
	t.Run("a start that is over is one", func(t *testing.T) {
		t.Parallel()
		in, _, err := decodeInput([]byte(body("startAt", `"2020-02-29T00:00:00-12:00"`)), dollars, time.Now)
		assert.True(t, err == nil && in.StartAt.Year() == 2020, in.StartAt, err)
	})
	for _, c := range []struct{ name, value, fault string }{
		{"customerId", `""`, "empty"}, {"customerId", `1`, "wrong_type"}, {"customerId", `"` + strings.Repeat("é", 256) + `"`, "too_long"},
		{"customerId", `"a\u0000"`, "control_character"}, {"paymentMethod", `"erased_` + strings.Repeat("0", 32) + `"`, "reserved"},
		{"customerId", `"erased_` + strings.Repeat("f", 32) + `"`, "reserved"}, {"paymentMethod", `"` + strings.Repeat("x", 256) + `"`, "too_long"},
		{"paymentMethod", `{}`, "wrong_type"}, {"concurrencyKey", `""`, "empty"}, {"concurrencyKey", `null`, "wrong_type"},
		{"reservationTtl", `0`, "out_of_range"}, {"reservationTtl", `31536001`, "out_of_range"}, {"reservationTtl", `1.5`, "not_integer"},
		{"reservationTtl", `"60"`, "wrong_type"},
		{"startAt", `"tomorrow"`, "not_time"}, {"startAt", `"2026-01-02T03:04:05"`, "not_time"}, {"startAt", `"2026-01-02"`, "not_time"},
		{"startAt", `1767323045`, "wrong_type"}, {"startAt", `"2026-13-02T03:04:05Z"`, "not_time"}, {"startAt", `"2026-01-02T03:04:05,5Z"`, "not_time"},
		{"startAt", `"2026-01-02t03:04:05+24:00"`, "not_time"}, {"startAt", `"0001-01-01T00:00:00Z"`, "not_time"},
		{"startAt", text(time.Now().Add(366 * 24 * time.Hour)), "out_of_range"},
		{"completeBy", `"2026-01-02"`, "not_time"}, {"completeBy", `"2020-01-02T03:04:05Z"`, "in_the_past"},
		{"completeBy", text(at) + `,"startAt":` + text(at), "out_of_range"},
	} {
		t.Run(fmt.Sprintf("%s %.20s is refused", c.name, c.value), func(t *testing.T) {
			t.Parallel()
			_, _, err := decodeInput([]byte(body(c.name, c.value)), dollars, time.Now)
			status, faults := faultsOf(t, err)
			want := "/" + c.name + " " + c.fault
			assert.True(t, status == 422 && len(faults) == 1 && faults[0] == want, status, faults, want)
		})
	}
}

// A caller may ask again after the deadline how his order ended.
func TestDeadlineThatIsOver(t *testing.T) {
	t.Parallel()
	b := setup(t)
	late := `{"orderId":"o","amount":"1.00","item":"i","completeBy":"2020-01-01T00:00:00Z"}`
	p := b.process(t, late).wantProblem(t, 422, "invalid_input")
	assert.True(t, len(p.Errors) == 1 && p.Errors[0].Code == "in_the_past", p.Errors)
	b.process(t, strings.Replace(late, "2020", strconv.Itoa(time.Now().Year()+1), 1)).wantStatus(t, 200)
	b.exec(t, `UPDATE orders SET complete_by = '2020-01-01T00:00:00Z'`)
	o := b.process(t, late).wantStatus(t, 200)
	assert.Equal(t, o.Status, "completed", o)
	b.process(t, strings.Replace(late, "1.00", "2", 1)).wantProblem(t, 409, "order_conflict")
	b.process(t, strings.Replace(late, `"i"`, `""`, 1)).wantProblem(t, 422, "invalid_input")
}

func TestTermsAreShownButThePaymentMethod(t *testing.T) {
	t.Parallel()
	b := setup(t)
	start, deadline := time.Now().Add(time.Hour).UTC().Truncate(time.Microsecond), time.Now().Add(2*time.Hour).UTC().Truncate(time.Microsecond)
	in := fmt.Sprintf(`{"orderId":"o","amount":1,"item":"i","customerId":"me","paymentMethod":"pm_s3cret","startAt":%q,"completeBy":%q}`,
		start.Format(time.RFC3339Nano), deadline.Format(time.RFC3339Nano))
	a := b.process(t, in)
	o := a.wantStatus(t, 202)
	assert.True(t, o.Hold == "scheduled" && a.header.Get("Retry-After") == "3600", o, "again after", a.header.Get("Retry-After"))
	for _, shown := range []string{`"customerId":"me"`, `"startAt":"` + start.Format(time.RFC3339Nano), `"completeBy":"` +
		deadline.Format(time.RFC3339Nano),
		`"resumesAt":"` + start.Format(time.RFC3339Nano)} {
		assert.Contains(t, a.body, shown)
	}
	other := b.process(t, strings.NewReplacer("pm_s3cret", "pm_0ther", `"me"`, `"you"`).Replace(in))
	p := other.wantProblem(t, 409, "order_conflict")
	assert.True(t, len(p.Errors) == 2 && p.Errors[0].Pointer == "/customerId" && *p.Errors[0].Stored == "me" &&
		p.Errors[1].Pointer == "/paymentMethod", p.Errors)
	for _, text := range []string{a.body, other.body, b.get(t, "/api/orders/o").body, b.get(t, "/api/orders").body,
		b.get(t, "/api/orders/o/transitions").body} {
		assert.True(t, !strings.Contains(text, "s3cret") && !strings.Contains(text, "0ther"), "the payment method is shown", text)
	}
}

// An amount has one form wherever it is shown: all fraction digits of its currency. It is text, because a client that reads JSON
// numbers as floats, as most do, would read other money than is stored.
func TestAmountsHaveOneForm(t *testing.T) {
	t.Parallel()
	dbtest.SkipIfShort(t)
	b := setup(t)
	b.number(t)
	for i, c := range []struct{ sent, currency, want, other string }{
		{`16777217.25`, "USD", "16777217.25", "7.00"}, {`"16777217.25"`, "USD", "16777217.25", "7.00"},
		{`999999999999999.99`, "EUR", "999999999999999.99", "7.00"}, {`"999999999999999"`, "CLF", "999999999999999.0000", "7.0000"},
		{`5`, "EUR", "5.00", "7.00"}, {`"5.0"`, "EUR", "5.00", "7.00"}, {`5.000`, "EUR", "5.00", "7.00"}, {`99.9`, "USD", "99.90", "7.00"},
		{`1e2`, "USD", "100.00", "7.00"}, {`"0"`, "USD", "0.00", "7.00"}, {`0.0`, "KWD", "0.000", "7.000"},
		{`5.00`, "JPY", "5", "7"}, {`0.00`, "JPY", "0", "7"}, {`12.5`, "KWD", "12.500", "7.000"},
	} {
		id := fmt.Sprint("o", i)
		a := b.process(t, fmt.Sprintf(`{"orderId":%q,"amount":%s,"currency":%q,"item":"i"}`, id, c.sent, c.currency))
		conflict := b.process(t, fmt.Sprintf(`{"orderId":%q,"amount":7,"currency":%q,"item":"i"}`, id, c.currency)).wantProblem(t, 409, "order_conflict")
		e := conflict.Errors[0]
		assert.True(t, or(e.Stored, "") == c.want && or(e.Sent, "") == c.other, c, conflict.Errors)
		for of, text := range map[string]string{
			"processing": a.body, "reading": b.get(t, "/api/orders/"+id).body, "listing": b.get(t, "/api/orders?limit=1").body,
			"a verb's problem": b.call(t, "POST /api/orders/"+id+"/cancel", "").body,
			"its events":       b.get(t, "/api/events?wait=10&order="+id).body,
			"the books":        `"amount":"` + b.text(t, `SELECT amount::text FROM books.orders WHERE order_id = $1`, id) + `"`,
			"what was kept":    `"amount":"` + b.text(t, `SELECT kept::text FROM books.orders WHERE order_id = $1`, id) + `"`,
		} {
			assert.Contains(t, text, `"amount":"`+c.want+`"`, of, c)
		}
	}
}

func TestRefundsHaveTheFormOfTheirOrder(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.process(t, `{"orderId":"o","amount":"20","currency":"EUR","item":"i"}`)
	for i, c := range []struct{ body, amount, refunded, kept string }{
		{`"amount":"2.5",`, "2.50", "2.50", "17.50"}, {`"amount":1,`, "1.00", "3.50", "16.50"}, {``, "16.50", "20.00", "0.00"},
	} {
		a := b.call(t, "POST /api/orders/o/refunds", fmt.Sprintf(`{%s"reason":"r","requestId":"%d"}`, c.body, i))
		for _, want := range []string{`"amount":"20.00"`, `"amount":"` + c.amount + `"`, `"refunded":"` + c.refunded + `"`} {
			assert.Contains(t, a.body, want)
		}
		assert.Equal(t, b.text(t, `SELECT refunded || ' ' || kept FROM books.orders`), c.refunded+" "+c.kept,
			"the books say refunded and kept", c.refunded, c.kept)
	}
	p := b.process(t, `{"orderId":"x","amount":"1.234","currency":"EUR","item":"i"}`).wantProblem(t, 422, "invalid_input")
	assert.Contains(t, p.Errors[0].Detail, "2 digits after the decimal point in EUR")
	p = b.call(t, "POST /api/orders/o/refunds", `{"amount":"0.001","reason":"r","requestId":"digits"}`).wantProblem(t, 422, "invalid_input")
	assert.Contains(t, p.Errors[0].Detail, "2 digits after the decimal point in EUR")
}

// text reads one text from the database.
func (b *bundle) text(t testing.TB, sql string, arguments ...any) (text string) {
	t.Helper()
	assert.NoError(t, b.Pool.QueryRow(t.Context(), sql, arguments...).Scan(&text))
	return text
}

// The clock is the database's; that of the machine may be years off.
func TestTimesGoByTheClockOfTheDatabase(t *testing.T) {
	t.Parallel()
	at := time.Date(2031, 5, 6, 7, 8, 9, 0, time.UTC)
	clock := func() time.Time { return at }
	deadline := func(at time.Time) []byte { return []byte(body("completeBy", at.Format(`"`+time.RFC3339+`"`))) }
	if _, _, err := decodeInput(deadline(at.Add(time.Hour)), dollars, clock); err != nil {
		t.Error(err)
	}
	_, _, err := decodeInput(deadline(at.Add(-time.Hour)), dollars, clock)
	_, faults := faultsOf(t, err)
	assert.True(t, len(faults) == 1 && faults[0] == "/completeBy in_the_past", faults)
}

func TestRetryAfterFitsTheHold(t *testing.T) {
	t.Parallel()
	at := time.Date(2031, 5, 6, 7, 8, 9, 0, time.UTC)
	in := func(d time.Duration) *time.Time { return new(at.Add(d)) }
	for _, c := range []struct {
		hold string
		due  *time.Time
		want string
	}{
		{"retry", in(20 * time.Second), "21"},
		{"retry", in(-time.Second), "1"},
		{"scheduled", in(10 * time.Minute), "601"},
		{"scheduled", in(24 * time.Hour), "3600"},
		{"callback", in(time.Hour), "5"},
		{"callback", in(time.Second), "2"},
		{"queued", nil, "5"},
		{"approval", in(24 * time.Hour), "60"},
		{"paused", nil, "60"},
		{"attention", nil, "60"},
	} {
		assert.Equal(t, retryAfter(&orders.Order{Hold: &c.hold, DueAt: c.due}, func() time.Time { return at }), c.want,
			c.hold, "until", c.due, "Retry-After")
	}
}

const benchBody = `{"orderId": "0f8fad5bd9cb469fa16570867728950e", "amount": 12345678901.23, "item": "widget-4711", "quantity": 2, "currency": "EUR"}`

func finishedOrder() orders.Order {
	at := time.Date(2026, 1, 2, 3, 4, 5, 678901000, time.UTC)
	return orders.Order{
		OrderNo: 1, CreatedAt: at, FinishedAt: &at, Fence: 1, Quantity: 2, Seq: 4, Status: fsm.Completed,
		OrderID: "0f8fad5bd9cb469fa16570867728950e", Currency: "EUR", Item: "widget-4711", Amount: decimal.MustParse("12345678901.23"),
		ChargedAt:  &at,
		ReservedAt: &at,
	}
}

// The hot route without the engine: middleware, routing, metrics, reading,
// checking and writing one order.
func BenchmarkProcessWithoutEngine(b *testing.B) {
	s, ok := New(nil, Config{}).(*server)
	assert.Require(b, ok, "not a server")
	o := finishedOrder()
	rules["POST /api/orders/bench"] = rules["processOrder"]
	s.handle("POST /api/orders/bench", s.answered(s.sameOrigin(func(w http.ResponseWriter, r *http.Request) error {
		q := s.submissionOf(w, r)
		body := newBuffer()
		defer body.free()
		if err := body.read(w, r); err != nil {
			return err
		}
		if _, _, err := q.input(r.Context(), body.Bytes(), r.Header); err != nil {
			return err
		}
		s.writeOrder(w, &o, q.want, nil)
		return nil
	})))
	reader := bytes.NewReader([]byte(benchBody))
	r := httptest.NewRequest(http.MethodPost, "/api/orders/bench", reader)
	r.Header.Set("Content-Type", "application/json")
	b.ReportAllocs()
	for b.Loop() {
		reader.Reset([]byte(benchBody))
		r.Body = io.NopCloser(reader)
		w := discard{http.Header{}}
		s.ServeHTTP(w, r)
	}
}

// An order from its request to its answer, with 64 callers, without a connection.
func BenchmarkProcess(b *testing.B) {
	s := setup(b)
	var orders atomic.Int64
	b.ReportAllocs()
	b.SetParallelism(64 / runtime.GOMAXPROCS(0))
	b.RunParallel(func(work *testing.PB) {
		for work.Next() {
			body := fmt.Sprintf(`{"orderId": "%032x", "amount": 99.99, "item": "widget-4711"}`, orders.Add(1))
			r := httptest.NewRequestWithContext(b.Context(), http.MethodPost, "/api/orders/process", strings.NewReader(body))
			r.RemoteAddr, r.Host = fromHere, "localhost"
			r.Header.Set("Content-Type", "application/json")
			s.api.ServeHTTP(discard{http.Header{}}, r)
		}
	})
}

type discard struct{ header http.Header }

func (d discard) Header() http.Header         { return d.header }
func (d discard) Write(b []byte) (int, error) { return len(b), nil }
func (d discard) WriteHeader(status int) {
	if status != http.StatusOK {
		panic(status)
	}
}

func BenchmarkDecodeInput(b *testing.B) {
	data := []byte(benchBody)
	b.ReportAllocs()
	for b.Loop() {
		_, _, err := decodeInput(data, dollars, time.Now)
		assert.NoError(b, err)
	}
}

func BenchmarkAppendOrder(b *testing.B) {
	o := finishedOrder()
	var out []byte
	b.ReportAllocs()
	for b.Loop() {
		wire := orderOf(&o)
		out = wire.append(out[:0])
	}
}
