package console_test

import (
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"pawl/client"
	"pawl/internal/access"
)

// fieldsOf are the hidden fields of the form on a page.
func (p shown) fieldsOf() url.Values {
	form := url.Values{}
	for _, field := range regexp.MustCompile(`<input type="hidden" name="(\w+)" value="([^"]*)">`).FindAllStringSubmatch(p.body, -1) {
		form.Set(field[1], field[2])
	}
	return form
}

const orderPath = "/console/order?id="

// TestOrderPage: what is known of an order is on its page, as text.
func TestOrderPage(t *testing.T) {
	t.Parallel()
	s := setup(t)
	const evil = `<img src=x onerror=alert(1)>"'&`
	s.process(t, client.ProcessBody{OrderID: "o 1", Amount: "12.50", Item: evil, CustomerID: `"><script>`, Metadata: map[string]string{"<b>": "</dl>\u202eabc"}})
	s.get(t, orderPath+"o+1").want(t, http.StatusOK, "<bdi>o 1</bdi>", `class="badge completed"`, `class="machine path"`, "confirming → completed",
		"12.50 USD: charged.", "The stock of the item is not counted.", "No webhook endpoint was told", "&#34;orderId&#34;: &#34;o 1&#34;",
		`href="/console/order/refund?id=o&#43;1"`).lacks(t, "<img", "<script>", "</dl>\u202e", "\u202e", "/console/order/cancel")
	s.sql(t, `INSERT INTO webhook_endpoints (url, event_no, created_by, secret) VALUES ('https://shop.example/', 0, 'test', 'whsec_')`)
	s.sql(t, `INSERT INTO webhook_deliveries (endpoint_no, delivery_no, event_no, seq, type, event_id, subject, state, attempts, log)
		SELECT 1, 1, 1, 1, 'order.completed', 'evt_1', 'order ' || order_no, 'exhausted', 10, '[{"status":503}]' FROM orders`)
	s.get(t, orderPath+"o+1").want(t, http.StatusOK, `/console/delivery?endpoint=whe_1&amp;delivery=1`, `class="badge exhausted"`, "503")
	s.get(t, orderPath+"none").want(t, http.StatusNotFound, "There is no order")
	name, value := s.token(t, "reader", access.Read)
	s.get(t, orderPath+"o+1", name, value).want(t, http.StatusOK, "12.50 USD").lacks(t, "/console/order/refund")
	s.get(t, "/console/order/refund?id=o+1", name, value).want(t, http.StatusForbidden)
	name, value = s.token(t, "shop", access.Submit)
	s.get(t, orderPath+"o+1", name, value).want(t, http.StatusOK, "12.50 USD").lacks(t, "Deliveries", "/console/item")
}

var rowOfHistory = regexp.MustCompile(`<th scope="row" class="number">(\d+)?(?s:.*?)(?:<div>call (-?\d+):|</tr>)`)

// TestLongHistory goes through 5,000 moves and as many calls from either end: each is on one page, and no page has more than fifty.
func TestLongHistory(t *testing.T) {
	t.Parallel()
	s := setup(t)
	s.process(t, client.ProcessBody{OrderID: "long", Amount: "1", Item: "i"})
	s.sql(t, `UPDATE orders SET calls = 600, policy = 1 WHERE order_id = 'long'`)
	s.sql(t, `INSERT INTO transitions (order_no, seq, from_status, to_status, fence, verb, at)
		SELECT order_no, n, 'charging', 'charging', 1, 'call', now() + n * interval '1 s' FROM orders, generate_series(5, 1300) AS n`)
	s.sql(t, `INSERT INTO step_calls (order_no, call, fence, generation, step, operation, started_at)
		SELECT order_no, n, 1, 0, 'charge', 'do', now() + (5 + n * 2) * interval '1 s' FROM orders, generate_series(1, 600) AS n
		UNION ALL SELECT order_no, -n, 1, 0, 'charge', 'undo', now() + (5 + n * 20) * interval '1 s' FROM orders, generate_series(1, 60) AS n`)
	for _, sort := range []string{"", "&sort=oldest"} {
		seen, pages, last := map[string]int{}, 0, ""
		for next := orderPath + "long" + sort; next != ""; pages++ {
			page := s.get(t, next).want(t, http.StatusOK)
			rows := rowOfHistory.FindAllStringSubmatch(page.body, -1)
			for _, row := range rows {
				last = row[1]
				seen["move "+row[1]]++
				seen["call "+row[2]]++
			}
			if len(rows) > 50 || pages > 60 {
				t.Fatalf("%d rows on page %d, %s", len(rows), pages, next)
			}
			next = ""
			if link := regexp.MustCompile(`<a href="([^"]*)#history" rel="next">`).FindStringSubmatch(page.body); link != nil {
				next = strings.ReplaceAll(link[1], "&amp;", "&")
			}
		}
		delete(seen, "move ")
		delete(seen, "call ")
		for what, times := range seen {
			if times != 1 {
				t.Errorf("%s: %s is shown %d times", sort, what, times)
			}
		}
		if want := map[string]string{"": "1", "&sort=oldest": "1300"}[sort]; len(seen) != 1300+600+60 || last != want {
			t.Errorf("%s: %d moves and calls, the last of them %s", sort, len(seen), last)
		}
	}
	s.get(t, orderPath+"long").want(t, http.StatusOK, "These are its last 200 moves.")
}
