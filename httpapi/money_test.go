package httpapi

import (
	"fmt"
	"strings"
	"testing"
)

// An amount has one form wherever it is shown: all fraction digits of its currency. It is text, because a client that reads JSON
// numbers as floats, as most do, would read other money than is stored.
func TestAmountsHaveOneForm(t *testing.T) {
	t.Parallel()
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
		if e := conflict.Errors[0]; or(e.Stored, "") != c.want || or(e.Sent, "") != c.other {
			t.Errorf("%+v: %+v", c, conflict.Errors)
		}
		for of, text := range map[string]string{
			"processing": a.body, "reading": b.get(t, "/api/orders/"+id).body, "listing": b.get(t, "/api/orders?limit=1").body,
			"a verb's problem": b.call(t, "POST /api/orders/"+id+"/cancel", "").body,
			"its events":       b.get(t, "/api/events?wait=10&order="+id).body,
			"the books":        `"amount":"` + b.text(t, `SELECT amount::text FROM books.orders WHERE order_id = $1`, id) + `"`,
			"what was kept":    `"amount":"` + b.text(t, `SELECT kept::text FROM books.orders WHERE order_id = $1`, id) + `"`,
		} {
			if !strings.Contains(text, `"amount":"`+c.want+`"`) {
				t.Errorf("%s, %+v: %s", of, c, text)
			}
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
			if !strings.Contains(a.body, want) {
				t.Errorf("no %s in %s", want, a.body)
			}
		}
		if got := b.text(t, `SELECT refunded || ' ' || kept FROM books.orders`); got != c.refunded+" "+c.kept {
			t.Errorf("the books say refunded and kept %s, want %s %s", got, c.refunded, c.kept)
		}
	}
	p := b.process(t, `{"orderId":"x","amount":"1.234","currency":"EUR","item":"i"}`).wantProblem(t, 422, "invalid_input")
	if d := p.Errors[0].Detail; !strings.Contains(d, "2 digits after the decimal point in EUR") {
		t.Error(d)
	}
	p = b.call(t, "POST /api/orders/o/refunds", `{"amount":"0.001","reason":"r","requestId":"digits"}`).wantProblem(t, 422, "invalid_input")
	if d := p.Errors[0].Detail; !strings.Contains(d, "2 digits after the decimal point in EUR") {
		t.Error(d)
	}
}

// text reads one text from the database.
func (b *bundle) text(t testing.TB, sql string, arguments ...any) (text string) {
	t.Helper()
	if err := b.Pool.QueryRow(t.Context(), sql, arguments...).Scan(&text); err != nil {
		t.Fatal(err)
	}
	return text
}
