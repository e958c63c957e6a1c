package httpapi

import (
	"encoding/json"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"pawl/internal/orders"
	"pawl/test/assert"
)

// bulkOf decodes what came of a bulk request.
func (b *bundle) bulkOf(t testing.TB, target, body string, header ...string) (out struct {
	Matched, Applied int
	Results          []struct {
		OrderID, Status, Code, Detail, Amount, Currency, Item string
		Applied                                               bool
		Quantity                                              int
		Charge                                                struct{ Completed bool }
	}
}) {
	t.Helper()
	a := b.call(t, "POST /api/bulk/"+target, body, header...)
	assert.Require(t, a.status == 200, a.status, a.body)
	assert.NoError(t, json.Unmarshal([]byte(a.body), &out))
	return out
}

func TestBulk(t *testing.T) {
	t.Parallel()
	b := setup(t)
	t.Run("says of each order what came of it", func(t *testing.T) {
		t.Parallel()
		b.waitsFor(t, "attention", "charging", "a", "b")
		b.process(t, ask("done")).wantStatus(t, 200)
		const body = `{"ids":["a","done","b","nobody's","..","a"],"onBehalfOf":"ann","reason":"all","requestId":"r"}`
		dry := b.bulkOf(t, "retry?dryRun=true", body)
		n := b.count(t, `SELECT count(*) FROM books.transitions WHERE verb = 'retry'`)
		assert.True(t, n == 0 && dry.Applied == 2 && !dry.Results[0].Charge.Completed && dry.Results[1].Charge.Completed, "the dry run did", n, "says", dry)
		for range 2 { // the same request again does nothing again
			out := b.bulkOf(t, "retry", body)
			var codes []string
			for _, r := range out.Results {
				codes = append(codes, fmt.Sprintf("%s %t %s", r.OrderID, r.Applied, r.Code))
				known := r.Amount != "" && r.Currency == "USD" && r.Item != "" && r.Quantity == 1
				assert.True(t, r.Applied != (r.Detail != "") && known != (r.Code == "not_found"), r)
			}
			want := []string{"a true ", "done false not_applicable", "b true ", "nobody's false not_found", ".. false not_found"}
			assert.True(t, out.Matched == 5 && out.Applied == 2 && slices.Equal(codes, want), out)
		}
		n = b.count(t, `SELECT count(*) FROM books.transitions WHERE verb = 'retry' AND on_behalf_of = 'ann' AND reason = 'all' AND request_id = 'r'`)
		assert.Equal(t, n, 2, "rows")
		for _, id := range []string{"a", "b"} { // they go on without the caller
			b.process(t, fmt.Sprintf(`{"orderId":%q,"amount":1,"item":"widget"}`, id)).wantStatus(t, 200)
		}
	})
	t.Run("takes a filter", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.waitsFor(t, "paused", "charging", "p1", "p2", "p3")
		b.waitsFor(t, "attention", "charging", "stays")
		b.exec(t, `UPDATE orders SET hold_reason = 'another' WHERE order_id = 'p2'`)
		out := b.bulkOf(t, "cancel", `{"filter":{"hold":"paused","holdReason":"because","item":"widget","status":["charging","reserving"],
			"createdFrom":"2000-01-01T00:00:00Z","limit":10}}`)
		assert.True(t, out.Matched == 2 && out.Applied == 2 && out.Results[0].OrderID == "p1" && out.Results[1].OrderID == "p3", out) // the oldest first
		out = b.bulkOf(t, "resume", `{"filter":{"hold":"paused"}}`, "Idempotency-Key", "k")
		assert.True(t, out.Matched == 1 && out.Applied == 1, out)
		assert.Equal(t, b.count(t, `SELECT count(*) FROM books.transitions WHERE request_id = 'k'`), 1, "rows")
	})
	t.Run("approves many", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		var ids []string
		for i := range 100 {
			ids = append(ids, fmt.Sprintf("large %d", i))
		}
		b.waitsFor(t, "approval", "pending", ids...)
		list, _ := json.Marshal(ids)
		out := b.bulkOf(t, "approve", fmt.Sprintf(`{"ids":%s,"onBehalfOf":"ann"}`, list))
		assert.True(t, out.Applied == 100 && out.Results[99].OrderID == "large 99", out.Applied, "of", out.Matched)
	})
}

// Whoever has lost the answer to a request with a filter asks again, and is told what it did, though the filter finds nothing any more.
func TestBulkAfterALostAnswer(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.waitsFor(t, "paused", "charging", "p1", "p2", "p3", "p4")
	const body = `{"filter":{"hold":"paused","limit":3},"requestId":"r"}`
	b.bulkOf(t, "cancel", `{"ids":["p2"],"requestId":"r"}`) // the connection was lost when it had come so far
	for range 2 {
		out := b.bulkOf(t, "cancel", body)
		var done []string
		for _, r := range out.Results {
			done = append(done, fmt.Sprintf("%s %t", r.OrderID, r.Applied))
		}
		slices.Sort(done)
		assert.True(t, out.Matched == 3 && out.Applied == 3 && slices.Equal(done, []string{"p2 true", "p3 true", "p4 true"}), out)
	}
	assert.Equal(t, b.count(t, `SELECT count(*) FROM books.transitions WHERE verb = 'cancel' AND request_id = 'r'`), 3, "rows")
	out := b.bulkOf(t, "cancel", `{"filter":{"hold":"attention"},"requestId":"other"}`)
	assert.Equal(t, out.Matched, 0, out)
}

// Whoever knows a verb for one order expects it for many.
func TestEveryVerbIsThereInBulk(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, c := range []struct {
		verb         orders.Verb
		status, hold string
		becomes      string // status and hold
	}{
		{orders.Cancel, "charging", "attention", "canceled "},
		{orders.Retry, "charging", "attention", "completed "},
		{orders.Pause, "charging", "retry", "charging paused"},
		{orders.Resume, "charging", "paused", "completed "},
		{orders.Approve, "pending", "approval", "completed "},
		{orders.Reject, "pending", "approval", "canceled "},
	} {
		t.Run(string(c.verb), func(t *testing.T) {
			t.Parallel()
			one, two := string(c.verb)+"-1", string(c.verb)+"-2"
			b.waitsFor(t, c.hold, c.status, one, two)
			b.asksTwice(t, c.verb, fmt.Sprintf(`{"ids":[%q,%q],"onBehalfOf":"ann","requestId":"r"}`, one, two))
			for _, id := range []string{one, two} {
				b.becomes(t, id, c.becomes)
			}
		})
	}
	t.Run(string(orders.StepResult), func(t *testing.T) {
		t.Parallel()
		b, _ := withProvider(t)
		for _, id := range []string{"one", "two"} {
			o := b.process(t, ask(id), "Prefer", "wait=10").wantStatus(t, 202)
			assert.Equal(t, o.Hold, "callback", o)
		}
		b.asksTwice(t, orders.StepResult, `{"ids":["one","two"],"onBehalfOf":"ann","reason":"the provider lost its data","requestId":"r","step":"charge","outcome":"refused","code":"lost"}`)
		for _, id := range []string{"one", "two"} {
			o := b.becomes(t, id, "failed ")
			assert.True(t, o.Failure != nil && o.Failure.Code == "lost", o)
		}
	})
}

// asksTwice tries a verb on two orders, and then asks it twice: the second time nothing is done.
func (b *bundle) asksTwice(t *testing.T, verb orders.Verb, body string) {
	t.Helper()
	for _, target := range []string{"?dryRun=true", "", ""} {
		out := b.bulkOf(t, string(verb)+target, body)
		assert.True(t, out.Matched == 2 && out.Applied == 2, target, out)
	}
	n := b.count(t, `SELECT count(*) FROM books.transitions WHERE verb = $1 AND on_behalf_of = 'ann' AND request_id = 'r'`, verb)
	assert.Equal(t, n, 2, "rows of history")
}

// becomes waits until an order has a status and a hold.
func (b *bundle) becomes(t *testing.T, id, want string) (o shape) {
	t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); runtime.Gosched() {
		if o = b.get(t, "/api/orders/"+id).decoded(t); o.Status+" "+o.Hold == want {
			return o
		}
	}
	t.Errorf("%+v is not %s", o, want)
	return o
}

func TestBulkBodies(t *testing.T) {
	t.Parallel()
	b := withoutEngine()
	for _, c := range []struct{ target, body, faults string }{
		{"retry", `{}`, "/ids required"},
		{"retry", `{"ids":["a"],"filter":{"item":"i"}}`, "/ids required"},
		{"retry", `{"ids":[]}`, "/ids out_of_range"},
		{"retry", `{"ids":[` + strings.Repeat(`"a",`, 1000) + `"a"]}`, "/ids out_of_range"},
		{"retry", `{"ids":["a",7,""]}`, "/ids/1 wrong_type, /ids/2 empty"},
		{"retry", `{"ids":"a"}`, "/ids wrong_type"},
		{"retry", `{"filter":{}}`, "/filter empty"},
		{"retry", `{"filter":{"limit":5}}`, "/filter empty"},
		{"retry", `{"filter":{"statsu":"failed","hold":"paused"}}`, "/filter/statsu unknown_field"},
		{"retry", `{"filter":{"status":["failed","lost"],"hold":"nothing","limit":1001}}`,
			"/filter/status/1 unknown_word, /filter/hold unknown_word, /filter/limit out_of_range"},
		{"retry", `{"filter":{"status":"failed"}}`, "/filter/status wrong_type"},
		{"retry", `{"filter":{"status":[]}}`, "/filter/status out_of_range"},
		{"retry", `{"filter":{"holdReason":"x"}}`, "/filter/hold required"},
		{"retry", `{"filter":{"sort":"oldest","limit":5}}`, "/filter empty"},
		{"retry", `{"filter":{"amountFrom":"1e3"}}`, "/filter/amountFrom not_decimal"},
		{"retry", `{"filter":{"amountTo":""}}`, "/filter/amountTo empty"},
		{"retry", `{"filter":{"amountTo":"-1","amountFrom":"1e3"}}`, "/filter/amountFrom not_decimal, /filter/amountTo not_decimal"},
		{"retry", `{"filter":[]}`, "/filter wrong_type"},
		{"retry", `{"ids":["a"],"policy":"new"}`, "/policy unknown_word"},
		{"step-result", `{"ids":["a"]}`, "/step required, /outcome required, /reason required"},
		{"step-result", `{"ids":["a"],"step":"pay","outcome":"lost","onBehalfOf":"ann","reason":"seen"}`, "/step unknown_word, /outcome unknown_word"},
	} {
		p := b.call(t, "POST /api/bulk/"+c.target, c.body).wantProblem(t, 422, "invalid_input")
		var faults []string
		for _, f := range p.Errors {
			faults = append(faults, f.Pointer+" "+f.Code)
		}
		assert.Equal(t, strings.Join(faults, ", "), c.faults, c.body)
	}
	b.call(t, "POST /api/bulk/process", `{"ids":["a"]}`).wantProblem(t, 404, "unknown_route")
	b.call(t, "POST /api/bulk/cancel?dryRun=no", `{"ids":["a"]}`).wantProblem(t, 422, "invalid_parameter")
	b.call(t, "POST /api/bulk/cancel", "").wantProblem(t, 422, "invalid_input")
	b.call(t, "POST /api/bulk/cancel", `{"ids":["a"`).wantProblem(t, 400, "malformed_json")
}

func TestListHeldOrders(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.waitsFor(t, "paused", "charging", "p1", "p2")
	b.waitsFor(t, "paused", "reserving", "p3")
	b.waitsFor(t, "attention", "charging", "q")
	b.process(t, ask("done")).wantStatus(t, 200)
	for query, want := range map[string]string{
		"hold=paused": "p3 p2 p1", "hold=attention": "q", "hold=retry": "", "hold=paused&status=charging": "p2 p1",
		"hold=paused&item=widget": "p3 p2 p1", "hold=paused&item=other": "",
		"hold=paused&status=reserving,charging": "p3 p2 p1", "hold=paused&holdReason=because": "p3 p2 p1",
		"hold=paused&holdReason=becaus": "", "hold=attention&holdReason=because%3A+of+this": "q",
		"hold=paused&holdReason=why": "", "hold=paused&customerId=ann": "", "hold=paused&createdTo=2000-01-01T00:00:00Z": "",
	} {
		var ids []string
		for cursor := ""; ; {
			page := b.get(t, "/api/orders?limit=2&"+query+cursor).wantStatus(t, 200)
			for _, o := range page.Orders {
				ids = append(ids, o.OrderID)
			}
			if page.NextCursor == "" {
				break
			}
			cursor = "&cursor=" + page.NextCursor
		}
		assert.Equal(t, strings.Join(ids, " "), want, query)
	}
	b.get(t, "/api/orders?hold=forever").wantProblem(t, 422, "invalid_parameter")
}

// TestBulkRequest: what a request did can be read later, by order and in all, as it is then.
func TestBulkRequest(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.waitsFor(t, "attention", "charging", "a", "b", "c")
	b.process(t, ask("sold")).wantStatus(t, 200)
	const request = `"requestId":"r/1","reason":"all","onBehalfOf":"ann"}`
	read := func(query string) (out requestPage) {
		t.Helper()
		a := b.get(t, "/api/requests/r%2F1"+query)
		assert.Equal(t, a.status, 200, a.body)
		assert.NoError(t, json.Unmarshal([]byte(a.body), &out))
		return out
	}
	b.get(t, "/api/requests/r%2F1").wantProblem(t, 404, "not_found")
	b.bulkOf(t, "pause", `{"filter":{"hold":"retry"},`+request)
	b.bulkOf(t, "pause?dryRun=true", `{"ids":["a","sold"],`+request)
	b.get(t, "/api/requests/r%2F1").wantProblem(t, 404, "not_found") // nothing was done
	out := b.bulkOf(t, "cancel", `{"ids":["a","b","sold","none"],`+request)
	assert.Equal(t, out.Applied, 2, out)
	become := func(totals ...requestTotal) { // of one read, because the orders go on between two
		t.Helper()
		eventually(t, fmt.Sprint("the totals are ", totals), func() bool { return slices.Equal(read("").Totals, totals) })
	}
	become(requestTotal{"done", "USD", 2, "2"})
	all := read("")
	for i, id := range []string{"a", "b"} {
		if r := all.Results[i]; r.OrderID != id || r.State != "done" || r.Verb != "cancel" || r.OnBehalfOf != "ann" || r.Reason != "all" || r.Amount != "1" {
			t.Errorf("%+v", r)
		}
	}
	b.waitsFor(t, "attention", "charging", "d")
	b.bulkOf(t, "retry", `{"ids":["c"],`+request)
	b.exec(t, `INSERT INTO transitions (order_no, seq, from_status, to_status, fence, verb, actor, request_id)
		SELECT order_no, seq + 1, status, status, fence, 'retry', 'local', 'r/1' FROM orders WHERE order_id = 'd'`)
	b.exec(t, `UPDATE orders SET seq = seq + 1, hold_reason = 'retries_exhausted: 3 calls' WHERE order_id = 'd'`)
	become(requestTotal{"done", "USD", 3, "3"}, requestTotal{"held", "USD", 1, "1"})
	r := read("").Results[3]
	assert.True(t, r.OrderID == "d" && r.State == "held" && r.Code == "retries_exhausted" && r.Detail == "3 calls", r)
	first := read("?limit=3")
	second := read("?limit=3&cursor=" + first.NextCursor)
	assert.True(t, len(first.Results) == 3 && len(second.Results) == 1 && second.NextCursor == "" && second.Results[0].OrderID == "d",
		first, "then", second)
	b.get(t, "/api/requests/other?cursor="+first.NextCursor).wantProblem(t, 422, "invalid_parameter")
	held := read("?state=held")
	assert.True(t, len(held.Results) == 1 && held.Results[0].OrderID == "d" && held.NextCursor == "", held)

	// What was refused is told, too, until it is done, and also if nothing else was done.
	refused := func(target string) (all []string) {
		t.Helper()
		var out requestPage
		assert.NoError(t, json.Unmarshal([]byte(b.get(t, target).body), &out))
		for _, r := range out.Refused {
			all = append(all, r.OrderID+" "+r.Verb+" "+string(r.Code)+" "+r.Reason)
		}
		for _, total := range out.NotApplied {
			all = append(all, fmt.Sprint(total.Orders, " for ", total.Amount, " ", total.Currency))
		}
		return all
	}
	assert.Equal(t, strings.Join(refused("/api/requests/r%2F1"), ", "), "none cancel not_found all, sold cancel not_applicable all, 1 for 1.00 USD")
	const only = `"requestId":"r2"}`
	b.waitsFor(t, "retry", "charging", "e")
	b.bulkOf(t, "resume", `{"ids":["e","none"],`+only)
	assert.Equal(t, strings.Join(refused("/api/requests/r2"), ", "), "e resume not_applicable , none resume not_found , 1 for 1 USD")
	b.bulkOf(t, "pause", `{"ids":["e"],`+only)
	assert.Equal(t, strings.Join(refused("/api/requests/r2"), ", "), "none resume not_found ")
	b.exec(t, `UPDATE bulk_refusals SET at = now() - interval '31 days'`)
	b.bulkOf(t, "resume", `{"ids":["none"],"requestId":"r3"}`)
	assert.Equal(t, b.count(t, `SELECT count(*) FROM bulk_refusals`), 1, "requests with refusals of the last month")
	b.get(t, "/api/requests/%00").wantProblem(t, 404, "not_found")
}

// TestBulkRefunds: each order gets its amount back, or all that is left, once.
func TestBulkRefunds(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.stock(t, "widget", `{"onHand":10}`).wantStatus(t, 200)
	for _, order := range []string{`"orderId":"a","amount":10`, `"orderId":"b","amount":20`, `"orderId":"c","amount":30,"currency":"EUR"`, `"orderId":"d","amount":5,"customerId":"ann"`, `"orderId":"e","amount":6,"customerId":"ann"`} {
		b.process(t, `{`+order+`,"item":"widget"}`).wantStatus(t, 200)
	}
	b.waitsFor(t, "attention", "charging", "open")
	const list = `{"refunds":[{"orderId":"a","amount":"2.50","restock":1},{"orderId":"b"},{"orderId":"c","amount":31},{"orderId":"open"},{"orderId":"none","amount":1}],
		"reason":"recall","requestId":"r"}`
	for _, target := range []string{"refund?dryRun=true", "refund"} {
		a := b.call(t, "POST /api/bulk/"+target, list)
		var out struct{ Totals []currencyTotal }
		assert.NoError(t, json.Unmarshal([]byte(a.body), &out))
		assert.True(t, len(out.Totals) == 1 && out.Totals[0].Orders == 2 && out.Totals[0].Amount == "22.50" && out.Totals[0].Currency == "USD",
			a.body)
		var codes []string
		for _, r := range b.bulkOf(t, target, list).Results { // again
			codes = append(codes, strings.TrimSuffix(r.OrderID+" "+r.Code, " "))
		}
		assert.Equal(t, strings.Join(codes, ", "), "a, b, c refund_too_large, open not_applicable, none not_found")
	}
	assert.Equal(t, b.count(t, `SELECT count(*) FROM books.refunds WHERE reason = 'recall'`), 2, "refunds")
	assert.Equal(t, b.count(t, `SELECT on_hand FROM books.inventory WHERE item = 'widget'`), 6, "on hand: five sold, one put back")
	// By filter: what has nothing left is passed over, and the same request does nothing more.
	for range 2 {
		out := b.bulkOf(t, "refund", `{"filter":{"customerId":"ann","limit":1},"reason":"recall","requestId":"f1"}`)
		assert.True(t, out.Applied == 1 && out.Results[0].OrderID == "e", out)
	}
	out := b.bulkOf(t, "refund", `{"filter":{"customerId":"ann","limit":1},"reason":"recall","requestId":"f2"}`)
	assert.True(t, out.Applied == 1 && out.Results[0].OrderID == "d", out)
	out = b.bulkOf(t, "refund", `{"filter":{"customerId":"ann"},"reason":"recall","requestId":"f3"}`)
	assert.Equal(t, out.Matched, 0, out)
	page := b.get(t, "/api/requests/f1")
	assert.Contains(t, page.body, `"totals":[{"state":"done","currency":"USD","orders":1,"amount":"6.00"}]`)
	for body, pointer := range map[string]string{
		`{"refunds":[{"orderId":"a"}],"requestId":"x"}`:                                                              "/reason",
		`{"refunds":[{"orderId":"a"}],"reason":"r"}`:                                                                 "/requestId",
		`{"refunds":[{"orderId":"b"},{"orderId":"a","amount":"1.001"}],"reason":"r","requestId":"x"}`:                "/refunds/1/amount",
		`{"refunds":[{"orderId":"a","amount":""}],"reason":"r","requestId":"x"}`:                                     "/refunds/0/amount",
		`{"refunds":[{"orderId":"a","amount":0}],"reason":"r","requestId":"x"}`:                                      "/refunds/0/amount",
		`{"refunds":[{"orderId":"a","amont":1}],"reason":"r","requestId":"x"}`:                                       "/refunds/0/amont",
		`{"refunds":[{"orderId":"a","amount":1},{"orderId":"a","amount":1}],"reason":"r","requestId":"x"}`:           "/refunds/1/orderId",
		`{"refunds":[{"orderId":"a"}],"ids":["a"],"reason":"r","requestId":"x"}`:                                     "/refunds",
		`{"ids":["a"],"reason":"r","requestId":"x","amount":1}`:                                                      "/amount",
		`{"refunds":[` + strings.Repeat(`{"orderId":"a"},`, 1000) + `{"orderId":"a"}],"reason":"r","requestId":"x"}`: "/refunds",
	} {
		p := b.call(t, "POST /api/bulk/refund", body).wantProblem(t, 422, "invalid_input")
		assert.True(t, len(p.Errors) == 1 && p.Errors[0].Pointer == pointer, body, p.Errors)
	}
	b.call(t, "POST /api/bulk/cancel", `{"refunds":[{"orderId":"a"}]}`).wantProblem(t, 422, "invalid_input")
	assert.Equal(t, b.count(t, `SELECT count(*) FROM books.refunds WHERE reason = 'r'`), 0, "refunds of faulty requests")
}
