package console_test

import (
	"fmt"
	"html"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"pawl/client"
	"pawl/internal/access"
	"pawl/migrations"
	"pawl/test/assert"
)

// TestEmptyScreens say what will be there, and how to get it there.
func TestEmptyScreens(t *testing.T) {
	t.Parallel()
	s := setup(t)
	s.get(t, "/").want(t, 303)
	for path, text := range map[string]string{
		"/console/attention": "No order needs a person.", "/console/orders": "api/orders/process", "/console/errors": "No order has failed",
		"/console": "There are no orders yet.", "/console/runbook": `id="retries_exhausted"`,
	} {
		s.get(t, path).want(t, 200, text)
	}
	s.get(t, "/console").want(t, 200, "The service is open.", "curl "+strings.TrimPrefix(s.url, "http://"),
		"!No call to a provider", "Nothing needs you.")
	s.get(t, "/console/nothing").want(t, 404, "There is no such page.", `href="/console"`)
	s.get(t, orderPath+"none").want(t, 404, "There is no order", "!data-live")
	s.get(t, "/console/webhook?id=none").want(t, 404, "!data-live")
}

func TestOverview(t *testing.T) {
	t.Parallel()
	s := setup(t)
	s.process(t, client.ProcessBody{OrderID: "done", Amount: "5", Item: "lamp"})
	s.process(t, client.ProcessBody{OrderID: `<b>"big`, Amount: "600", Item: "lamp"})
	eventually(t, "the orders are shown", func() bool { // what is shown may be a second old
		return strings.Contains(s.get(t, "/console").body, "1 order is completed")
	})
	s.get(t, "/console").want(t, 200, "1 order is pending", `href="/console/orders?q=status%3Apending"`,
		"<strong>To approve</strong>", "<strong>1</strong> order (600.00 USD)", `href="/console/attention?hold=approval"`,
		`href="/console/order?id=%3Cb%3E%22big"`, `<bdi>&lt;b&gt;&#34;big</bdi>`, "!There are no orders yet.", `!<b>"big`)
}

func TestErrors(t *testing.T) {
	t.Parallel()
	s := setup(t)
	none := client.SetInventoryBody{OnHand: 0, Reason: "sold"}
	assert.NoError(t, assert.Err(s.api.SetInventory(t.Context(), "gone", none, client.SetInventoryParams{IfNoneMatch: "*"})))
	for _, id := range []string{"first", `<i>second`} {
		assert.Equal(t, s.process(t, client.ProcessBody{OrderID: id, Amount: "5", Item: "gone"}).Status, client.StatusFailed)
	}
	s.plant(t, "attention", "error", "again")
	s.sql(t, `UPDATE orders SET hold = 'retry', due_at = now() + interval '1 hour' WHERE order_id = 'again'`)
	eventually(t, "both are shown", func() bool { return strings.Contains(s.get(t, "/console/errors").body, "List the 2 orders") })
	retry := "/console/bulk?" + url.Values{"verb": {"retry"}, "q": {`status:failed code:"out_of_stock"`}}.Encode()
	escaped := strings.NewReplacer("&", "&amp;", "+", "&#43;").Replace
	const short = "Too little in stock: gone has 0 left, so it would fail again. "
	s.get(t, "/console/errors").want(t, 200, "fails at charge: <bdi>", "no answer in time to try 7</bdi>", "out_of_stock", `<bdi>&lt;i&gt;second</bdi>`, strings.TrimSpace(short), "!again from the start", `href="`+escaped(ordersOf(`status:failed step:reserve code:"out_of_stock"`))+`"`)
	s.get(t, retry).want(t, 200, "<td>"+strings.TrimSpace(short), "None of these orders can be retried<", "!is charged", "!Reason", "!policy")
	s.get(t, "/console/order/retry?id=first").want(t, 200, "<li>"+short+"If it is charged first, that goes back.", "!5.00 USD is charged", "!another card", `class="quiet">Start`)
	s.get(t, orderPath+"first").want(t, 200, strings.TrimSpace(short))
	assert.NoError(t, assert.Err(s.api.AdjustInventory(t.Context(), "gone", client.AdjustInventoryBody{Change: 1, Reason: "found", RequestID: "r"})))
	s.get(t, "/console/errors").want(t, 200, `href="`+escaped(retry)+`"`, "Try 1 of them again from the start", "gone has 1 left, and the orders before it take them")
	s.get(t, retry).want(t, 200, "Retry 1 order?", "Left out: 1 order<", "starts with the charge", `aria-label="first"`)                                   // the oldest
	s.post(t, "/console/bulk", url.Values{"verb": {"retry"}, "id": {"<i>second", "first"}}).want(t, 200, "Retry 1 order?", `aria-label="&lt;i&gt;second"`) // in the order given
	s.get(t, "/console/order/retry?id=first").want(t, 200, "5.00 USD is charged", "!"+short)
	s.get(t, ordersOf("status:failed sort:oldest")).want(t, 200, `data-label="Since:"><time datetime=`, "oldest first, <a href=\"/console/orders?q=status%3afailed\">newest first</a>",
		`aria-label="Remove status:failed"`, `href="/console/orders?q=sort%3aoldest"`)
	s.get(t, "/console/errors", s.token(t, "reader", access.Read)...).want(t, 200, "out_of_stock", "!again from the start")
	s.sql(t, `SET session_replication_role = replica; UPDATE orders SET failure_step = 'charge', failure_code = 'card_declined'; RESET session_replication_role`)
	s.get(t, "/console/bulk?verb=retry&q=status:failed", s.token(t, "operator", access.Read, access.Operate)...).want(t, 200, "Retry 1 order?", "<strong>5.00 USD</strong> is charged only if the card is accepted this time; last time the card was declined.")
}

func TestAttention(t *testing.T) {
	t.Parallel()
	s := setup(t)
	const unknown = "/console/attention?hold=attention&reason=outcome_unknown"
	s.plant(t, "attention", "outcome_unknown: the provider may have <b>forgotten</b> the key", "u <i>&")
	s.plant(t, "attention", "outcome_unknown: the provider may have <b>forgotten</b> the key", "v")
	s.wait(t, "big")
	page := s.get(t, unknown).want(t, 200, "<bdi>u &lt;i&gt;&amp;</bdi>", "raise <code>keyRetention</code>",
		"!<b>forgotten", "!<i>&", "!>Retry</a>", "!<bdi>big</bdi>")
	settle, cancel := strings.Index(page.body, ">Record the step&#39;s result<"), strings.Index(page.body, ">Cancel<")
	assert.True(t, settle >= 0 && settle < cancel, "what to try first does not come first")
	assert.Equal(t, page.link(t, "Cancel all 2"), "/console/bulk?q=hold%3Aattention+sort%3Aoldest+reason%3A%22outcome_unknown%22+status%3Acharging&verb=cancel")
	assert.Equal(t, page.link(t, "Cancel"), "/console/order/cancel?id=u+%3Ci%3E%26")
	page = s.get(t, "/console/attention?hold=approval").want(t, 200, "<bdi>big</bdi>", "600", "amount over ", "If nobody decides, it is canceled <time", "UTC</time>).", ">Approve<", ">Reject<")
	assert.True(t, strings.Index(page.body, ">Approve<") < strings.Index(page.body, ">Reject<"), "reject comes first")
	for i := range 12 {
		s.plant(t, "attention", fmt.Sprintf("retries_exhausted: no success in %dm0s, last timeout", 10+i), fmt.Sprintf("r%02d", i))
	}
	s.plant(t, "attention", "23505: charges_pkey", "sql")
	// Used up retries come first, though other orders are older. Counts may be a second old.
	eventually(t, "all reasons are shown", func() bool { return strings.Contains(s.get(t, "/console/attention").body, "(23505)") })
	s.get(t, "/console/attention").want(t, 200, "<strong>12</strong> Retries are used up", "The outcome is unknown", "(23505)",
		"Waits for approval", "<bdi>r00</bdi>", ">Retry all 12<", `class="button primary" href="/console/order/retry?id=r00"`)
	s.get(t, "/console/attention?hold=attention&reason=retries_exhausted").want(t, 200, "No success in 10 min: the provider did not answer in time.", "<strong>The customer may have been charged, and", "<p><strong>The customer may have been charged 5 USD, but not twice", "no answer in time to try 7",
		"no answer in time to try 6", "!no answer in time to try 5", "ch_7", ">All 7 calls<", ">in doubt<", "Don't: tell the customer", `href="/console/runbook#retries_exhausted"`)
	s.sql(t, `SET session_replication_role = replica; UPDATE orders SET status = 'confirming' WHERE order_id = 'r00'; RESET session_replication_role`)
	eventually(t, "it is told apart", func() bool {
		return strings.Contains(s.get(t, "/console/attention").body, "<strong>11</strong> Retries are used up: charge")
	})
	s.get(t, "/console/attention").want(t, 200, ">Retry all 11<", "!<bdi>r00</bdi>")
	s.get(t, "/console/attention?hold=attention&reason=retries_exhausted&status=confirming").want(t, 200, "<bdi>r00</bdi>", "look before you decide", "!<bdi>r01</bdi>")
	s.sql(t, `SET session_replication_role = replica; UPDATE orders SET status = 'refunding' WHERE order_id = 'r01'; RESET session_replication_role`)
	eventually(t, "its undo is told apart", func() bool {
		return strings.Contains(s.get(t, "/console/attention").body, "<strong>1</strong> Retries are used up: undo of the charge")
	})
	s.get(t, "/console/attention?hold=attention&reason=retries_exhausted&status=refunding").want(t, 200, "<bdi>r01</bdi>", "Cancel can&#39;t help", "!<bdi>r02</bdi>", "!/console/order/cancel")
	s.get(t, orderPath+"r00").want(t, 200, "because it is being confirmed. It can be refunded once it is completed.", "!/console/order/cancel")
	assert.NoError(t, assert.Err(s.api.ApproveOrder(t.Context(), "big", client.VerbBody{})))
	s.get(t, "/console/attention?hold=approval").want(t, 200, "No order waits for this any more")
	s.get(t, "/console/attention?hold=attention&reason=nothing+like+it").want(t, 200, "No order waits for this any more")

	// Beside many orders that wait for one reason, a new one is seen.
	s.sql(t, `INSERT INTO orders (order_id, status, hold, hold_reason, fence, amount, currency, item, created_at)
		SELECT 'many-' || n, 'charging', 'attention', 'retry_after: later', 1, 5, 'USD', 'widget', now() - interval '1 day'
		FROM generate_series(1, 300) AS n`)
	s.plant(t, "attention", "policy_unusable: no secret", "new")
	eventually(t, "the new order is counted", func() bool {
		return strings.Contains(s.get(t, "/console/attention").body, "<strong>1</strong> The policy can&#39;t be used")
	})
	s.get(t, "/console/attention").want(t, 200, "<strong>300</strong> The provider asks to wait", "!<bdi>many-1</bdi>")
	s.get(t, "/console/attention?hold=attention&reason=policy_unusable").want(t, 200, "<bdi>new</bdi>", "!<bdi>many-1</bdi>")
}

func ordersOf(search string) string { return "/console/orders?" + url.Values{"q": {search}}.Encode() }

func TestOrders(t *testing.T) {
	t.Parallel()
	s := setup(t)
	for i := range 4 {
		s.process(t, client.ProcessBody{OrderID: fmt.Sprintf("o%d", i), Amount: fmt.Sprintf("%d.50", i), Item: "widget", CustomerID: "ann smith"})
	}
	s.process(t, client.ProcessBody{OrderID: "big", Amount: "600", Item: "lamp"})
	const tricky = `../o "><img src=x>`
	s.plant(t, "attention", `retry_after: <script>alert(1)</script>" onclick="x`+"\u202e", tricky)
	for search, want := range map[string]string{
		"":                                     tricky + `|big|o3|o2|o1|o0`,
		"status:completed amount:>1.5":         "o3|o2",
		"amount:1.5..2.50 sort:oldest":         "o1|o2",
		`customer:"ann smith" sort:oldest`:     "o0|o1|o2|o3",
		"hold:approval":                        "big",
		"reason:retry_after":                   tricky,
		"status:open item:lamp":                "big",
		"to:2001-01-01":                        "",
		"status:failed from:today":             "",
		"code:out_of_stock":                    "",
		"item:lamp amount:>=600 nonsense:x":    "",
		`"ann smith" amount:>1 sort:oldest`:    "o3|o2|o1",
		"mit amount:>2":                        "o3|o2",
		"status:nothing item:lamp":             "",
		"ann smith":                            "o3|o2|o1|o0",
		"o":                                    "o0|o1|o2|o3",
		"item:" + strings.Repeat("x", 300):     "",
		"customer:nobody sort:oldest item:lag": "",
	} {
		page := s.get(t, ordersOf(search)).want(t, 200, `name="q"`, "!<script>alert", "!<img", `!" onclick`, "!\u202e")
		assert.Equal(t, strings.Join(page.found(), "|"), want, search)
	}
	for search, note := range map[string]string{
		"item:" + strings.Repeat("x", 300): "item must be an item name",
		"hold:attent status:open":          "hold:attent is not understood: use retry, callback", "amount:x": "is not understood: use a number",
		"shop:17": "&#34;shop:&#34; is not a condition", `"` + strings.Repeat("x", 254) + `"`: "No orders found.</strong> Looked inside all orders.",
		"n SMI": ">Found inside the customer<", "50": ">No orders found.</strong> A part of an id is found from 3 characters on",
		"?x":                    "A part of an id is found from 3",
		"email:ann@example.com": "&#34;email:&#34; is not a condition", "ch_1": "orders have the payment intent (pi_…)",
	} {
		s.get(t, ordersOf(search)).want(t, 200, note)
	}
	s.get(t, ordersOf("hold:approval")).want(t, 200, ">waits for approval<", "canceled <time", "</time> unless approved<")
	s.get(t, ordersOf("reason:retry_after")).want(t, 200, ">The provider asks to wait<")
	s.process(t, client.ProcessBody{OrderID: "SO-1", Amount: "1", Item: "i"})
	for typed, id := range map[string]string{"so-1": "SO-1", "3,50": "o3", "3,50\u00a0$": "o3", "600": "big"} { // all orders were looked at
		assert.Equal(t, s.get(t, ordersOf(typed)).header.Get("Location"), orderPath+id, typed)
	}
	s.get(t, ordersOf("o3 status:failed")).want(t, 200, "Orders are found without <a", "Remove status:failed", "!>Found by id<")
	for search, meant := range map[string]string{ // other readings of words, and wrong conditions
		"lamp": "item:lamp", "completed": "status:completed", "lamp 600": "item:lamp amount:600", "approvall": "hold:approval", "\"ann smith\" widget USD": `customer:"ann smith" item:widget currency:USD`,
		"status:faild,canceled item:lamp": "status:failed,canceled item:lamp", `stats:faild customer:"ann smith"`: `status:failed customer:"ann smith"`,
		`custmer:"ann smith"`: `customer:"ann smith"`, "creatd:7d": "created:7d", "x amount>200": "x amount:>200", "HOLD:atention": "hold:attention",
	} {
		page := s.get(t, ordersOf(search)).want(t, 200, map[bool]string{true: "Did you mean", false: "!Did you mean"}[strings.ContainsAny(search, ":>")], "No orders found")
		assert.Equal(t, page.link(t, "<bdi>"+html.EscapeString(meant)+"</bdi>"), ordersOf(meant), search)
	}
	for _, search := range []string{"shop:17", "status:xyz", "amount:x", "status:failed"} {
		s.get(t, ordersOf(search)).want(t, 200, "!Did you mean")
	}
	without := s.get(t, ordersOf("item:lamp status:failed")).want(t, 200, "Orders are found without", "<bdi>status:failed</bdi></a>.")
	assert.Equal(t, without.link(t, "<bdi>status:failed</bdi>"), ordersOf("item:lamp"))
	s.get(t, ordersOf("nothing")).want(t, 200, "No key of metadata is searchable here", "!this item")
	assert.NoError(t, migrations.AddSearchKey(t.Context(), s.AdminURL, "email"))
	assert.NoError(t, migrations.AddSearchKey(t.Context(), s.AdminURL, "name"))
	s.process(t, client.ProcessBody{OrderID: "order-123", Amount: "1", Item: "i"})
	s.process(t, client.ProcessBody{OrderID: "order-77", Amount: "1", Item: "i", Metadata: map[string]string{"email": "INV-2026-0123", "name": "Mr 0123 B"}})
	for typed, place := range map[string]string{"#123": "", "order #123": "", "#0123": "Found as a word of the metadata email and the metadata name", "#2026-01": "Found inside the metadata email"} {
		if page := s.get(t, ordersOf(typed)); place == "" {
			assert.Equal(t, page.header.Get("Location"), orderPath+"order-123", typed) // the others may be anybody's
		} else {
			page.want(t, 200, ">"+place+"<", "order-77")
		}
	}
	s.get(t, ordersOf("metadata.Email:x")).want(t, 200, "the value under <bdi>email</bdi>, <bdi>name</bdi> in their metadata", "Did you mean", "<bdi>&#34;x&#34;</bdi>")
	s.get(t, ordersOf("ann smith")).want(t, 200, ">Found by customer<", "4 orders", `<a href="/console/orders?q=customer%3A%22ann&#43;smith%22"><bdi>ann smith</bdi></a>`)
	s.get(t, ordersOf("SO-1, o-999")).want(t, 200, "Not found: o-999.", "<bdi>SO-1</bdi>")
	for typed, id := range map[string]string{tricky: tricky, `"../o ""><img src=x>"`: tricky, "o1": "o1", "bi": "big"} { // as it is, in quotes, and the only match
		assert.Equal(t, s.get(t, ordersOf(typed)).want(t, 303).header.Get("Location"), "/console/order?"+(url.Values{"id": {id}}).Encode(), typed)
	}
}

// TestOrdersPageByPage: the URL of a page is all that makes it, and orders that come meanwhile move nothing.
func TestOrdersPageByPage(t *testing.T) {
	t.Parallel()
	s := setup(t)
	for i := range 120 {
		s.plant(t, "paused", "", fmt.Sprintf("a-pot-%03d", i))
	}
	named := s.get(t, ordersOf("a-pot hold:paused")).want(t, 200, "Orders 1 to 50 of 120", "Preview for all 120 that match")
	assert.Equal(t, s.get(t, named.link(t, "Next page")).want(t, 200, "Orders 51 to 100 of 120").found()[0], "a-pot-050")
	inside := s.get(t, ordersOf("pot hold:paused")).want(t, 200, "Orders 1 to 50, and more<")
	inside = s.get(t, s.get(t, inside.link(t, "Next page")).want(t, 200, "Orders 51 to 100, and more<").link(t, "Next page"))
	assert.Equal(t, inside.want(t, 200, "Orders 101 to 120<", "!Next page").found()[0], "a-pot-019")
	first := s.get(t, ordersOf("hold:paused")).want(t, 200, "Orders 1 to 50 of 120</strong> (", `value="hold:paused"`)
	s.plant(t, "paused", "", "meanwhile")
	second := s.get(t, first.link(t, "Next page")).want(t, 200, "Orders 51 to 100 of 121", `value="hold:paused"`)
	third := s.get(t, second.link(t, "Next page")).want(t, 200, "Orders 101 to 120", "!Next page")
	all := append(append(first.found(), second.found()...), third.found()...)
	assert.True(t, len(all) == 120 && all[0] == "a-pot-119" && all[119] == "a-pot-000", all)
	many := s.get(t, "/console/bulk?verb=resume&q=hold:paused").want(t, 200, "Resume 121 orders?", "And 21 others.", ">Show all 121<").fieldsOf()
	s.post(t, "/console/bulk", many).want(t, 200, "Resume 121 orders?", "And 21 others.")
	many.Set("every", "yes")
	s.post(t, "/console/bulk", many).want(t, 200, "Resume 121 orders?", "!others")
	assert.Equal(t, s.get(t, third.link(t, "First page")).found()[0], "meanwhile")
	s.get(t, ordersOf("hold:attention")+strings.TrimPrefix(first.link(t, "Next page"), ordersOf("hold:paused"))).want(t, 200)
	s.get(t, ordersOf("hold:attention")+"&cursor=x").want(t, 200, "cursor must be the nextCursor")
}

// TestOrderPage: what is known of an order is on its page, as text.
func TestOrderPage(t *testing.T) {
	t.Parallel()
	s := setup(t)
	s.process(t, client.ProcessBody{OrderID: "o 1", Amount: "12.50", Item: `<img src=x onerror=alert(1)>"'&`, CustomerID: `"><script>`,
		Metadata: map[string]string{"<b>": "</dl>\u202eabc"}})
	s.get(t, orderPath+"o+1").want(t, 200, "<bdi>o 1</bdi>", `class="badge completed"`, `class="machine path"`, "→ <span class=\"badge completed\">",
		"<strong>12.50</strong> USD charged", "<strong>12.50</strong> left to refund", "Charged 12.50 = <strong>kept 12.50 USD</strong>", "The stock of the item is not tracked.", "&#34;orderId&#34;: &#34;o 1&#34;",
		`href="/console/order/refund?id=o&#43;1"`, "!<img", "!<script>", "!</dl>\u202e", "!\u202e", "!/console/order/cancel")
	s.sql(t, `INSERT INTO webhook_endpoints (url, event_no, created_by, secret) VALUES ('https://shop.example/', 0, 'test', 'whsec_')`)
	s.sql(t, `INSERT INTO webhook_deliveries (endpoint_no, delivery_no, event_no, seq, type, event_id, subject, state, attempts, log)
		SELECT 1, 1, 1, 1, 'order.completed', 'evt_1', 'order ' || order_no, 'exhausted', 10, '[{"status":503}]' FROM orders`)
	s.get(t, orderPath+"o+1").want(t, 200, `/console/delivery?endpoint=whe_1&amp;delivery=1`, `class="badge exhausted"`, "503")
}

var rowOfHistory = regexp.MustCompile(`<th scope="row" class="number">(\d+)?(?s:.*?)(?:(call -?\d+):|</tr>)`)

// TestLongHistory goes through 1,300 moves and 660 calls from either end: each is on one page, and no page has more than 150.
func TestLongHistory(t *testing.T) {
	t.Parallel()
	s := setup(t)
	s.process(t, client.ProcessBody{OrderID: "long", Amount: "1", Item: "i"})
	s.sql(t, `SET session_replication_role = replica; UPDATE orders SET seq = 1300, calls = 600, policy = 1; RESET session_replication_role`)
	s.sql(t, `INSERT INTO transitions (order_no, seq, from_status, to_status, fence, verb, at)
		SELECT order_no, n, 'charging', 'charging', 1, 'call', now() + n * interval '1 s' FROM orders, generate_series(5, 1300) AS n`)
	s.sql(t, `INSERT INTO step_calls (order_no, call, fence, generation, step, operation, started_at)
		SELECT order_no, n, 1, 0, 'charge', 'do', now() + (5 + n * 2) * interval '1 s' FROM orders, generate_series(1, 600) AS n
		UNION ALL SELECT order_no, -n, 1, 0, 'charge', 'undo', now() + (5 + n * 20) * interval '1 s' FROM orders, generate_series(1, 60) AS n`)
	next := regexp.MustCompile(`<a href="([^"]*)#history" rel="next">`)
	for sort, end := range map[string]string{"": "1", "&sort=oldest": "1300"} {
		seen, pages, last := map[string]int{}, 0, ""
		for path := orderPath + "long&every=yes" + sort; path != ""; pages++ {
			page := s.get(t, path).want(t, 200)
			rows := rowOfHistory.FindAllStringSubmatch(page.body, -1)
			for _, row := range rows {
				last = row[1]
				seen[row[1]]++
				seen[row[2]]++
			}
			assert.Require(t, len(rows) <= 150 && pages <= 20, len(rows), "rows on page", pages, path)
			path = ""
			if link := next.FindStringSubmatch(page.body); link != nil {
				path = html.UnescapeString(link[1])
			}
		}
		delete(seen, "")
		for what, times := range seen {
			assert.Equal(t, times, 1, sort, what, "is shown times")
		}
		assert.True(t, len(seen) == 1300+600+60 && last == end, sort, len(seen), "moves and calls, the last of them", last)
	}
	s.get(t, orderPath+"long").want(t, 200, "Its earlier states are not shown", "It is under way", "no answer", "More of it is on another page.", "These are the first two and the last two.", "every=yes&amp;id=long#history", "Next page")
	rows := len(rowOfHistory.FindAllString(s.get(t, orderPath+"long").body, -1))
	assert.True(t, rows <= 60, rows, "rows of a long history")
}
