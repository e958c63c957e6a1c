package httpapi

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"pawl/internal/access"
	"pawl/test/assert"
)

// oddIDs are order ids that a router, a proxy or a decoder could take for something else.
var oddIDs = []string{
	"process", "bulk", "transitions", "cancel", "a/b", "a%2Fb", "a%b", "//", "a b", "a?b=c", "a#b", "a;b", "a+b",
	"A", "ａ", "a\u0301", "\u00c5", "\u212b", "ß", "ss", "ı", "i", "I", "İ", "שלום", "👩‍👩‍👧", "👩",
	"%", "_", "a_b", "a\\\\b", "''", "$1", "{}", "NULL", "null", "1", "01", "1.0", strings.Repeat("界", 255), strings.Repeat("👩", 255),
	"…", "...", "日本", "é", "e\u0301", "😀", "a\\b", "\"", "'", "<b>", "{orderId}", "..%2f..", "~", strings.Repeat("é", 255),
}

func TestAnyOrderIDWorks(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, id := range oddIDs {
		t.Run(id, func(t *testing.T) {
			t.Parallel()
			b.process(t, ask(id)).wantStatus(t, 200)
			path := "/api/orders/" + url.PathEscape(id)
			assert.Equal(t, b.get(t, path).wantStatus(t, 200).OrderID, id, "asked for")
			assert.True(t, len(b.get(t, path+"/transitions").wantStatus(t, 200).Transitions) != 0, "no history")
			b.call(t, "POST "+path+"/cancel", "").wantProblem(t, 409, "not_applicable")
		})
	}
	for _, id := range []string{"nobody", "%00", "a%0Ab", "%FF", "%ED%A0%80", "%2E%2E", "%2e", "%20o", "o%E2%80%8B", strings.Repeat("x", 256)} {
		t.Run("one that is not there is 404: "+id, func(t *testing.T) {
			t.Parallel()
			b.get(t, "/api/orders/"+id).wantProblem(t, 404, "not_found")
			b.get(t, "/api/orders/"+id+"/transitions").wantProblem(t, 404, "not_found")
			b.call(t, "POST /api/orders/"+id+"/cancel", "").wantProblem(t, 404, "not_found")
		})
	}
}

func TestGetOrderIfNoneMatch(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.process(t, ask("o")).wantStatus(t, 200)
	tag := b.get(t, "/api/orders/o").header.Get("ETag")
	for _, header := range []string{tag, "W/" + tag, `"0", ` + tag, "*"} {
		a := b.get(t, "/api/orders/o", "If-None-Match", header)
		assert.True(t, a.status == 304 && a.body == "" && a.header.Get("ETag") == tag, header, a)
	}
	for _, header := range []string{`"0"`, strings.Trim(tag, `"`), ""} {
		b.get(t, "/api/orders/o", "If-None-Match", header).wantStatus(t, 200)
	}
}

func TestGetOrderWaits(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.held(t, "o", nil)
	tag := b.get(t, "/api/orders/o").header.Get("ETag")
	t.Run("and nothing changes", func(t *testing.T) {
		t.Parallel()
		a := b.get(t, "/api/orders/o?wait=1s", "If-None-Match", tag)
		assert.True(t, a.status == 304 && a.header.Get("ETag") == tag, a)
		o := b.get(t, "/api/orders/o?wait=1").wantStatus(t, 200)
		assert.Equal(t, o.Hold, "attention", o)
	})
	t.Run("until it changes, and until it ends", func(t *testing.T) {
		t.Parallel()
		b.held(t, "p", nil)
		seen := b.get(t, "/api/orders/p").header.Get("ETag")
		changed, ended := make(chan answer, 1), make(chan answer, 1)
		go func() { changed <- b.get(t, "/api/orders/p?wait=60s", "If-None-Match", seen) }()
		go func() { ended <- b.get(t, "/api/orders/p?wait=60") }()
		b.verb(t, "p/cancel", "").wantStatus(t, 200)
		a := <-changed
		assert.True(t, a.status == 200 && a.header.Get("ETag") != seen, a)
		o := (<-ended).wantStatus(t, 200)
		assert.Equal(t, o.Status, "canceled", o)
	})
}

func TestListTransitions(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.process(t, ask("o")).wantStatus(t, 200)
	rows := b.get(t, "/api/orders/o/transitions").wantStatus(t, 200).Transitions
	var states []string
	for i, row := range rows {
		assert.True(t, int(row.Seq) == i+1 && row.Actor == "system" && row.From != nil && !row.At.IsZero() && row.Fence == 1, row)
		states = append(states, string(row.To))
	}
	assert.Equal(t, strings.Join(states, " "), "charging reserving confirming completed")
	page := b.get(t, "/api/orders/o/transitions?after=1&limit=2").wantStatus(t, 200).Transitions
	assert.True(t, len(page) == 2 && page[0].Seq == 2 && page[1].Seq == 3, page)
	for _, query := range []string{"limit=0", "limit=201", "limit=x", "after=-1", "after=99999999999", "from=1"} {
		b.get(t, "/api/orders/o/transitions?"+query).wantProblem(t, 422, "invalid_parameter")
	}
}

// sevenOrders stores o0 to o6, the even ones for item-0, the odd ones for item-1.
func sevenOrders(t *testing.T) *bundle {
	t.Helper()
	b := setup(t)
	for i := range 7 {
		b.process(t, fmt.Sprintf(`{"orderId":"o%d","amount":%d,"item":"item-%d"}`, i, i, i%2)).wantStatus(t, 200)
	}
	return b
}

// list asks for a page and returns its ids, in one text, and its cursor.
func (b *bundle) list(t testing.TB, query string) (ids, next string) {
	t.Helper()
	page := b.get(t, "/api/orders?"+query).wantStatus(t, 200)
	for _, o := range page.Orders {
		ids += " " + o.OrderID
	}
	return strings.TrimSpace(ids), page.NextCursor
}

func TestListOrders(t *testing.T) {
	t.Parallel()
	b := sevenOrders(t)
	b.held(t, "stuck", nil)
	at := url.QueryEscape(b.get(t, "/api/orders/o3").decoded(t).CreatedAt.Format(time.RFC3339Nano))
	for query, want := range map[string]string{
		"":                                      "stuck o6 o5 o4 o3 o2 o1 o0",
		"status=charging":                       "stuck",
		"status=completed&item=item-1":          "o5 o3 o1",
		"status=failed,charging":                "stuck",
		"status=completed,charging":             "stuck o6 o5 o4 o3 o2 o1 o0",
		"status=charging,completed&item=item-1": "o5 o3 o1",
		"customerId=nobody":                     "",
		"status=failed":                         "",
		"item=nothing":                          "",
		"item=item-1&createdFrom=" + at:         "o5 o3",
		"item=item-1&createdTo=" + at:           "o1",
		"createdFrom=" + at + "&status=completed&limit=2": "o6 o5",
		"sort=oldest":                     "o0 o1 o2 o3 o4 o5 o6 stuck",
		"sort=oldest&limit=3&item=item-1": "o1 o3 o5",
		"amountFrom=4&sort=oldest":        "o4 o5 o6",
		"amountFrom=2.5&amountTo=4.0":     "o4 o3",
		"amountTo=0":                      "o0",
		"failureCode=out_of_stock":        "",
		"failureStep=reserve":             "",
	} {
		t.Run("?"+query, func(t *testing.T) {
			t.Parallel()
			got, next := b.list(t, query)
			assert.True(t, got == want && (next != "") == strings.Contains(query, "limit=2"), got, "with cursor", next, want)
		})
	}
	for query, name := range map[string]string{
		"limit=0": "limit", "limit=201": "limit", "limit=s3cret": "limit", "status=s3cret": "status", "createdFrom=s3cret": "createdFrom",
		"createdTo=2026-01-01": "createdTo", "item=s3cret%00": "item", "item=%FF": "item", "stauts=failed": "stauts",
		"status=failed,": "status", "status=failed,s3cret": "status", "status=failed&status=canceled": "status", "customerId=%FF": "customerId",
		"customerId=s3cret%20": "customerId", "holdReason=s3cret": "hold", "holdReason=%00&hold=retry": "holdReason",
		"sort=s3cret": "sort", "failureStep=s3cret": "failureStep", "failureCode=%00": "failureCode",
		"amountFrom=-1": "amountFrom", "amountFrom=s3cret": "amountFrom",
		"amountTo=1e3": "amountTo", "amountTo=1.00001": "amountTo", "amountTo=1234567890123456": "amountTo", "amountFrom=0x1": "amountFrom",
	} {
		t.Run("?"+query+" is refused, and not echoed", func(t *testing.T) {
			t.Parallel()
			a := b.get(t, "/api/orders?"+query)
			p := a.wantProblem(t, 422, "invalid_parameter")
			assert.True(t, len(p.Errors) == 1 && p.Errors[0].Parameter == name && !strings.Contains(a.body, "s3cret"), query, a.body)
		})
	}
}

func TestListOrdersOfACustomer(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for i, customer := range []string{"ann", "bob", "ann", "anna", "ann", "Ann"} {
		b.process(t, fmt.Sprintf(`{"orderId":"o%d","amount":1,"item":"item-%d","customerId":%q}`, i, i%3, customer)).wantStatus(t, 200)
	}
	b.process(t, ask("of nobody")).wantStatus(t, 200)
	b.stock(t, "none", `{"onHand":0}`).wantStatus(t, 200)
	b.process(t, `{"orderId":"failed","amount":1,"item":"none","customerId":"ann"}`).wantStatus(t, 200)
	for query, want := range map[string]string{
		"customerId=ann": "failed o4 o2 o0", "customerId=anna": "o3", "customerId=an": "", "customerId=ann&item=item-2": "o2",
		"customerId=ann&status=failed": "failed", "customerId=ann&status=canceled,completed": "o4 o2 o0", "customerId=ann&hold=retry": "",
	} {
		got, _ := b.list(t, query)
		assert.Equal(t, got, want, query)
	}
	first, next := b.list(t, "customerId=ann&limit=3")
	second, _ := b.list(t, "customerId=ann&limit=3&cursor="+next)
	assert.Equal(t, first+second, "failed o4 o2o0", first, "then", second)
	b.get(t, "/api/orders?customerId=bob&cursor="+next).wantProblem(t, 422, "invalid_parameter")
	out := b.bulkOf(t, "retry?dryRun=true", `{"filter":{"customerId":"ann","status":["failed","canceled"]}}`)
	assert.True(t, out.Matched == 1 && out.Results[0].OrderID == "failed", out)
}

func TestListOrdersPageByPage(t *testing.T) {
	t.Parallel()
	b := sevenOrders(t)
	first, next := b.list(t, "limit=3")
	b.process(t, ask("meanwhile")).wantStatus(t, 200)
	second, next := b.list(t, "limit=3&cursor="+next)
	third, next := b.list(t, "limit=200&cursor="+next)
	assert.Equal(t, []string{first, second, third, next}, []string{"o6 o5 o4", "o3 o2 o1", "o0", ""})
	first, next = b.list(t, "limit=5&sort=oldest")
	second, last := b.list(t, "limit=5&sort=oldest&cursor="+next)
	assert.Equal(t, []string{first, second, last}, []string{"o0 o1 o2 o3 o4", "o5 o6 meanwhile", ""})
	b.get(t, "/api/orders?limit=5&cursor="+next).wantProblem(t, 422, "invalid_parameter")
}

func TestACursorOfAnotherListIsRefused(t *testing.T) {
	t.Parallel()
	b := sevenOrders(t)
	_, next := b.list(t, "limit=1&item=item-1")
	for _, query := range []string{
		"cursor=" + next, "item=item-0&cursor=" + next, "item=item-1&status=completed&cursor=" + next,
		"item=item-1&cursor=" + next[:len(next)-1], "item=item-1&cursor=A" + next[1:], "item=item-1&cursor=" + next + "A",
		"cursor=x", "cursor=%00", "cursor=" + sealCursor([]string{"inventory"}, "i"),
	} {
		p := b.get(t, "/api/orders?"+query).wantProblem(t, 422, "invalid_parameter")
		assert.True(t, len(p.Errors) == 1 && p.Errors[0].Parameter == "cursor", query, p)
	}
	for _, position := range []string{"a\x00", "0", "-1", "1.5"} {
		query := "cursor=" + sealCursor((&listOrdersRequest{}).binding(), position)
		b.get(t, "/api/orders?"+query).wantProblem(t, 422, "invalid_parameter")
	}
	got, _ := b.list(t, "limit=1&item=item-1&cursor="+next)
	assert.Equal(t, got, "o3")
}

// TestForeignOrders: for who may only submit, an order of somebody else is not there, whatever is asked of it. A conflict
// shows it to those who may read it.
func TestForeignOrders(t *testing.T) {
	t.Parallel()
	b, tokens := withTokens(t, map[string]access.Roles{
		"shop": {access.Submit}, "other": {access.Submit}, "reader": {access.Submit, access.Read}, "desk": {access.Operate}})
	b.elsewhere(t, "old") // from the time when the service was open
	as := func(name, request, body string) answer {
		return b.call(t, request, body, "Authorization", tokens[name])
	}
	const process = "POST /api/orders/process"
	as("shop", process, `{"orderId":"mine","amount":"7.77","item":"widget"}`).wantStatus(t, http.StatusOK)
	for _, path := range []string{"", "?wait=60", "/transitions", "/calls"} {
		as("shop", "GET /api/orders/mine"+strings.Replace(path, "60", "1", 1), "").wantStatus(t, http.StatusOK)
		as("reader", "GET /api/orders/mine"+path, "").wantStatus(t, http.StatusOK)
		foreign, absent := as("other", "GET /api/orders/mine"+path, ""), as("other", "GET /api/orders/none"+path, "")
		foreign.wantProblem(t, http.StatusNotFound, "not_found")
		assert.Equal(t, strings.ReplaceAll(foreign.body, "mine", "none"), absent.body, path)
		as("desk", "GET /api/orders/mine"+path, "").wantProblem(t, http.StatusForbidden, "forbidden")
	}
	for query, want := range map[string]string{"": "mine", "item=widget": "mine", "status=failed": "", "customerId=c": "", "sort=oldest&limit=1": "mine"} {
		for name, want := range map[string]string{"shop": want, "other": ""} {
			page := as(name, "GET /api/orders?"+query, "").wantStatus(t, http.StatusOK)
			ids := each(page.Orders, func(o *shape) string { return o.OrderID })
			assert.Equal(t, strings.Join(ids, " "), want, name, "lists", ids, "with", query)
		}
	}
	assert.Equal(t, len(as("reader", "GET /api/orders", "").wantStatus(t, http.StatusOK).Orders), 2)
	as("shop", "GET /api/orders?term=mine", "").wantProblem(t, http.StatusForbidden, "forbidden")
	as("shop", "GET /api/events", "").wantProblem(t, http.StatusForbidden, "forbidden")
	b.number(t)
	if page := as("shop", "GET /api/events?wait=60&order=mine&status=completed", ""); page.status != 200 || !strings.Contains(page.body, `"orderId":"mine"`) {
		t.Errorf("events of an own order: %d %s", page.status, page.body)
	}
	as("other", "GET /api/events?order=mine", "").wantProblem(t, http.StatusNotFound, "not_found")
	as("other", "GET /api/events?order=none", "").wantProblem(t, http.StatusNotFound, "not_found")
	as("other", "GET /api/orders/old", "").wantStatus(t, http.StatusOK)
	same := as("other", process, `{"orderId":"mine","amount":"7.77","item":"widget"}`)
	different := as("other", process, `{"orderId":"mine","amount":"8.88","item":"widget"}`)
	if same.wantProblem(t, http.StatusConflict, "order_conflict"); same.body != different.body || strings.Contains(same.body, "7.77") {
		t.Errorf("a conflict tells what is stored:\n%s\n%s", same.body, different.body)
	}
	for _, name := range []string{"shop", "reader"} {
		p := as(name, process, `{"orderId":"mine","amount":"8.88","item":"widget"}`).wantProblem(t, http.StatusConflict, "order_conflict")
		assert.True(t, p.Order != nil && p.Order.Amount == "7.77", name, "is not shown what is stored", p)
	}
	as("reader", process, `{"orderId":"mine","amount":"7.77","item":"widget"}`).wantStatus(t, http.StatusOK)
	assert.Equal(t, b.count(t, `SELECT count(*) FROM orders WHERE order_id = 'mine' AND submitted_by = 'token:shop'`), 1,
		"it has another submitter now")
}

// TestPagesOfLargeOrders lists orders that are as large as they can be: a page ends before it has all it was asked for.
func TestPagesOfLargeOrders(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const number, page = 34, 17 // a page ends with the order that is over a megabyte
	b.exec(t, `WITH o AS (
		INSERT INTO pawl.orders (order_id, status, fence, hold, hold_reason, amount, currency, item, customer_id, metadata)
		SELECT 'large-' || n, 'charging', 1, 'attention', 'look at me', 1, 'USD', 'i', 'c', jsonb_build_object('a', repeat('x', 64000))
		FROM generate_series(1, $1::int) AS n RETURNING order_no)
		INSERT INTO pawl.transitions (order_no, seq, from_status, to_status, fence) SELECT o.order_no, 1, 'pending', 'charging', 1 FROM o`, number)
	for _, filter := range []string{"", "&item=i", "&customerId=c", "&hold=attention", "&status=charging"} {
		t.Run(filter, func(t *testing.T) {
			t.Parallel()
			var ids []string
			cursor := ""
			for range number/page + 1 {
				a := b.get(t, "/api/orders?limit=200"+filter+cursor)
				listed := a.decoded(t)
				assert.True(t, len(listed.Orders) == page && len(a.body) <= 5<<18,
					"a page has", len(listed.Orders), "orders", len(a.body), "bytes")
				for _, o := range listed.Orders {
					ids = append(ids, o.OrderID)
				}
				if cursor = "&cursor=" + listed.NextCursor; listed.NextCursor == "" {
					break
				}
			}
			slices.Sort(ids)
			n := len(slices.Compact(ids))
			assert.True(t, n == number && len(ids) == number, len(ids), "orders", n, "of them different")
		})
	}
	t.Run("many of them in bulk", func(t *testing.T) {
		t.Parallel()
		for _, limit := range []int{page - 1, page + 1, 2 * number} {
			a := b.call(t, "POST /api/bulk/cancel?dryRun=true", fmt.Sprintf(`{"filter":{"item":"i","limit":%d}}`, limit))
			want := fmt.Sprintf(`"matched":%d,"applied":%d,`, min(limit, number), min(limit, number))
			assert.Contains(t, a.body, want)
		}
	})
}

// TestOrdersAsCSV: each page is a table, whose next page is in a header, and no cell is a formula.
func TestOrdersAsCSV(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, order := range []string{`"orderId":"=1+1","amount":"5"`, `"orderId":"b","amount":"2.50","currency":"EUR"`, `"orderId":"c","amount":"7"`} {
		b.process(t, `{`+order+`,"item":"lamp, \"red\""}`).wantStatus(t, 200)
	}
	first := b.get(t, "/api/orders?format=csv&limit=2")
	lines := strings.Split(first.body, "\r\n")
	assert.True(t, len(lines) == 4 && strings.HasPrefix(lines[0], "orderId,status,") &&
		strings.HasPrefix(lines[1], "c,completed,,,,7.00,USD,") && strings.Contains(lines[2], `,"lamp, ""red""",1,`), lines)
	next, found := strings.CutSuffix(strings.TrimPrefix(first.header.Get("Link"), "<"), `>; rel="next"`)
	second := b.get(t, next)
	assert.True(t, found && strings.Contains(second.body, "\n'=1+1,completed") && second.header.Get("Link") == "", next, second.body)
	assert.Equal(t, strings.Count(b.call(t, "GET /api/orders?currency=EUR", "", "Accept", "text/csv").body, "\n"), 2)
	b.get(t, "/api/orders?format=csv&status=lost").wantProblem(t, 422, "invalid_parameter")
	b.get(t, "/api/orders?format=xml").wantProblem(t, 422, "invalid_parameter")
	b.call(t, "POST /api/orders/b/refunds", `{"amount":"1","reason":"broken","requestId":"r"}`).wantStatus(t, 200)
	assert.Equal(t, b.get(t, "/api/orders?refunded=true&currency=EUR").wantStatus(t, 200).Orders[0].OrderID, "b")
	assert.Contains(t, b.get(t, "/api/orders?format=csv&refunded=true").body, ",0.00,done,1.00,,,,,,,,,") // its last refund, without a code, capture or void
	assert.Equal(t, len(b.get(t, "/api/orders?refunded=true&currency=USD").wantStatus(t, 200).Orders), 0)
}
