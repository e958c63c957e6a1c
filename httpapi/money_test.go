package httpapi

import (
	"fmt"
	"strings"
	"testing"
)

// A client that reads JSON numbers as floats, as most do, would read other money than is stored.
func TestMoneyInAnswersIsText(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for i, sent := range []string{`16777217.25`, `"16777217.25"`, `999999999999999.99`, `"999999999999999.99"`, `99.90`, `"0"`, `1e2`} {
		want := strings.Trim(strings.Replace(sent, "1e2", "100", 1), `"`)
		id := fmt.Sprint("o", i)
		a := b.process(t, fmt.Sprintf(`{"orderId":%q,"amount":%s,"item":"i"}`, id, sent))
		conflict := b.process(t, fmt.Sprintf(`{"orderId":%q,"amount":7,"item":"i"}`, id)).wantProblem(t, 409, "order_conflict")
		if e := conflict.Errors[0]; or(e.Stored, "") != want || or(e.Sent, "") != "7" {
			t.Errorf("%s: %+v", sent, conflict.Errors)
		}
		for of, text := range map[string]string{
			"processing": a.body, "reading": b.get(t, "/api/orders/"+id).body, "listing": b.get(t, "/api/orders?limit=1").body,
			"a verb's problem": b.call(t, "POST /api/orders/"+id+"/cancel", "").body,
			"the database":     `"amount":"` + b.text(t, `SELECT amount::text FROM books.orders WHERE order_id = $1`, id) + `"`,
		} {
			if !strings.Contains(text, `"amount":"`+want+`"`) {
				t.Errorf("%s, sent as %s: %s", of, sent, text)
			}
		}
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
