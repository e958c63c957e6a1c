package console_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pawl/client"
	"pawl/internal/access"
	"pawl/internal/events"
	"pawl/test/assert"
)

// TestOrderWithLines: its pages show what was ordered, and its units are refunded line by line.
func TestOrderWithLines(t *testing.T) {
	t.Parallel()
	s := setup(t)
	s.process(t, client.ProcessBody{OrderID: "basket", Amount: "12.90", Lines: []client.LineInput{
		{Item: "<tea>", Quantity: new(2), Amount: "8"}, {Item: "cup", Amount: "3"}, {Item: "by air", Amount: "4.90", Kind: client.LineInputKindShipping},
		{Item: "spring", Amount: "-3", Kind: client.LineInputKindDiscount}}})
	s.get(t, "/console/order?id=basket").want(t, 200, `<a href="/console/item?item=%3ctea%3e"><bdi>&lt;tea&gt;</bdi></a>`, " <small>shipping</small>", ">−3.00<", "All items: sold", "2 × &lt;tea&gt;, 1 × cup reserved.", "!Item<dd>")
	s.get(t, "/console/orders").want(t, 200, "<bdi>2 × &lt;tea&gt;, 1 × cup</bdi>")
	s.get(t, "/console/orders?q=item:cup").want(t, 200, "basket")
	s.get(t, "/console/item?item=cup").want(t, 200)
	const refund = "/console/order/refund?id=basket"
	s.get(t, refund).want(t, 200, `&lt;tea&gt;</label><td class="number" data-label="Amount:">8.00<td class="number" data-label="Left:">2 of 2<td>`, `max="2"`,
		`data-amount="-3.00 share"`, `data-amount="4.90"`, `by air</label> <small>shipping</small>`, "Leave it empty for the units&#39; share of what is left; 0 for none.", "!Put the units back into stock")
	assert.NoError(t, assert.Err(s.api.AdjustInventory(t.Context(), "<tea>", client.AdjustInventoryBody{Change: 5, Reason: "found"})))
	s.get(t, refund).want(t, 200, "Put the units back into stock")
	s.do(t, refund, "line4", "3").want(t, 422, "The total must be more than 0: it is −3.00 USD.")
	s.do(t, refund, "line2", "1", "line4", "-3").want(t, 422, "The total must be more than 0: it is 0.00 USD.")
	s.do(t, refund, "line3", "4.91", "line4", "x").want(t, 422, `id="wrong-line3"`, "This must be an amount up to 4.90.", `id="wrong-line4"`)
	s.do(t, refund, "line1", "1", "line3", "1,50").want(t, 200, "4.00 for 1 × &lt;tea&gt; &#43; 1.50 for by air − 1.09 for spring = 4.41 USD.", ">Refund 4.41 USD</button>")
	s.do(t, refund, "line1", "1", "amount", "2").want(t, 200, "= 2.91 USD. The amount you entered replaces this.", ">Refund 2.00 USD</button>")
	s.do(t, refund, "all", "yes", "line4", "1", "restock", "yes").want(t, 200, "12.90 USD goes back", "2 units go back to stock", "8.00 for 2 × &lt;tea&gt; &#43; 3.00 for 1 × cup &#43; 4.90 for by air − 3.00 for spring = 12.90 USD.", ">Refund 12.90 USD</button>")
	s.do(t, refund, "amount", "2").want(t, 200, "It is of the whole order, and of no line.", "<p>Order: 12.90 USD for")
	s.do(t, refund, "line1", "some").want(t, 422, `id="wrong-line1"`)
	s.do(t, refund, "line1", "3").want(t, 422, `id="wrong-line1"`, "This must be a number up to 2.", `!id="wrong-amount"`)
	s.do(t, refund, "amount", "24,50").want(t, 409, `id="wrong-amount"`, "12.90 USD can still be refunded.")
	seen := s.do(t, refund, "line1", "1", "line3", "4.90", "line4", "0", "restock", "yes").want(t, 200, "8.90 USD: done")
	s.post(t, refund, seen.fill("reason", "broken")).want(t, 303)
	s.get(t, "/console/order?id=basket").want(t, 200, ">8.90<small>, 4.00 for 1 × <bdi>&lt;tea&gt;</bdi></small><small>, 4.90 of <bdi>by air</bdi></small><small>, 1 back in stock<", "All items: sold, 1 back in stock",
		`>4.00 for 1<`, `>4.90<td class="number" data-label="= Left:">0.00<`)
	s.get(t, "/console/item?item=%3Ctea%3E").want(t, 200, `came back with a refund of <a href="/console/order?id=basket">`)
	s.get(t, refund).want(t, 200, ">1 of 2<td>", "8.90 USD was refunded before", "by air <small>shipping</small>", `data-label="Left:">0.00<td></tr>`, `!name="line3"`)
	s.do(t, refund, "line1", "1", "line4", "0").want(t, 200, "4.00 USD goes back")
	s.do(t, refund, "line1", "1", "line2", "1", "line4", "0").want(t, 409, "The total is 7.00 USD, and 4.00 USD can still be refunded.", `id="wrong-amount"`)
	share := s.do(t, refund, "line1", "1").want(t, 200, "4.00 for 1 × &lt;tea&gt; − 1.71 for spring = 2.29 USD.")
	s.post(t, refund, share.fill("reason", "broken")).want(t, 303)
	s.get(t, refund).want(t, 200, `data-amount="-1.29 share"`)
	s.get(t, "/console/order?id=basket").want(t, 200, ">8.00 for 2<", ">−1.71<", "!Of no line", "<small>, −1.71 of <bdi>spring</bdi></small>")
	s.do(t, refund, "line2", "1", "line4", "0").want(t, 409, "The total is 3.00 USD, and 1.71 USD can still be refunded.")
	s.do(t, refund, "line2", "1").want(t, 200, "3.00 for 1 × cup − 1.29 for spring = 1.71 USD.")
	all := s.do(t, refund, "all", "yes").want(t, 200, "3.00 for 1 × cup − 1.29 for spring = 1.71 USD.")
	cup := s.do(t, refund, "line2", "1").want(t, 200, "3.00 for 1 × cup − 1.29 for spring = 1.71 USD.")
	s.post(t, refund, all.fill("reason", "all")).want(t, 303)
	for _, late := range []shown{s.post(t, refund, cup.fill("reason", "cup")), s.post(t, refund, all.fill("reason", "all", "requestId", "2"))} {
		late.want(t, 412, "has changed since you looked", "What happened in the meantime", "Refund 3: 1.71 USD</strong> by <bdi>local</bdi>: <bdi>all</bdi>")
	}
	s.get(t, refund).want(t, 409, "Nothing is left: 12.90 USD was refunded, the last 1.71 on 20")
}

// TestStock: a change is shown before it is made, made once, and not made of what has changed meanwhile.
func TestStock(t *testing.T) {
	t.Parallel()
	s := setup(t)
	s.get(t, "/console/stock").want(t, 200, "There are no items here")
	const item = `?item=%2e%2e%2f%3Cb%3E`
	s.get(t, "/console/item"+item).want(t, 200, "This item was never reserved or stocked", "!A provider keeps", ">All its orders<", "<bdi>../&lt;b&gt;</bdi>", ">Set after a count<")
	set, adjust := "/console/item/set"+item, "/console/item/adjust"+item

	seen := s.do(t, set, "onHand", "12").want(t, 200, "What will change", "not tracked", "<bdi>12</bdi>")
	for range 2 { // a double click
		s.post(t, set, seen.fill("reason", "the first\u202e count")).want(t, 303)
	}
	s.get(t, "/console/item"+item).want(t, 200, "<strong>12</strong> on hand", "&#43;12", `the first\u202e count`)
	seen = s.do(t, adjust, "change", "-2").want(t, 200, "<bdi>10</bdi>")
	s.post(t, adjust, seen.fill()).want(t, 422, "reason", "What will change")
	s.post(t, adjust, seen.fill("reason", "broken")).want(t, 303)
	s.count(t, 10, `SELECT on_hand FROM inventory`)
	s.count(t, 2, `SELECT count(*) FROM stock_movements`)
	s.do(t, adjust, "change", "many").want(t, 422, "whole number", `value="many"`)
	s.do(t, adjust, "change", "-11").want(t, 422, "would leave −1 on hand, but orders under way hold 0", `value="-11"`)
	s.post(t, adjust, seen.fill("requestId", "other", "change", "-11", "reason", "broken")).want(t, 409, "The units on hand cannot be fewer than those reserved")
	s.get(t, "/console/item"+item).want(t, 200, "Last set <time", "12 on hand, <bdi>the first", "Last changed <time", "-2, 10 on hand, <bdi>broken</bdi>",
		`href="/console/orders?q=status%3Aopen&#43;item%3A%22..%2F%3Cb%3E%22"`, "<strong>0</strong> sold")
	asked, counted := s.get(t, set), s.do(t, set, "onHand", "9").want(t, 200)
	assert.NoError(t, assert.Err(s.api.AdjustInventory(t.Context(), "../<b>", client.AdjustInventoryBody{Change: 5, Reason: "found"})))
	look := s.get(t, "/console/item/set?"+asked.fill("onHand", "9").Encode()).want(t, 200)
	for _, form := range []url.Values{counted.fill(), look.fill()} { // since either page
		again := s.post(t, set, form).want(t, 412, "The resource has changed", "on the shelf", `value="9"`)
		s.get(t, "/console/item/set?"+again.fill("onHand", "15").Encode()).want(t, 422, "Nothing would change.")
	}

	// A long history is read from its end.
	s.sql(t, `INSERT INTO stock_movements (item, version, kind, change, on_hand, sold, actor, request_id, reason)
		SELECT 'lamp', n, 'adjustment', 1, n, 0, 'ann', 'id-' || n, 'request-' || n FROM generate_series(1, 120) AS n`)
	s.sql(t, `INSERT INTO inventory (item, on_hand, tracked, version)
		SELECT 'item ' || n, n, true, 1 FROM generate_series(1, 60) AS n UNION ALL SELECT 'lamp', 120, true, 120`)
	s.get(t, "/console/item?item=lamp").want(t, 200, "request-120", "before=71", "!request-70<", "!>Newest<")
	s.get(t, "/console/item?item=lamp&before=71").want(t, 200, "request-70<", "before=21", ">Newest<", "!request-71<")
	s.get(t, "/console/item?item=lamp&before=21").want(t, 200, "request-1<", `!rel="next"`)
	s.get(t, "/console/stock").want(t, 200, "Next page", "item=..%2f%3cb%3e", "!>lamp<", `<span class="badge approval">few left</span> 3<`, "!sold out")
	s.usePolicy(t, "reserve: {executor: simulator, url: 'http://127.0.0.1:1'}")
	s.get(t, "/console/stock").want(t, 200, "A provider keeps the stock: <a")
	s.get(t, "/console/item?item=kettle").want(t, 200, "A provider keeps the stock: <a", ">All its orders<", "!never reserved", "!Set after")
}

func TestWebhooks(t *testing.T) {
	t.Parallel()
	s := setup(t)
	var taken atomic.Int32
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		taken.Add(1)
		fmt.Fprint(w, "<b>thanks</b>")
	}))
	defer receiver.Close()
	s.get(t, "/console/webhooks").want(t, 200, "There are no endpoints yet", "/console/webhook/new")

	// The secret is shown once: to the form that made it, however often that is sent.
	page := s.get(t, "/console/webhook/new").want(t, 200, `value="all" checked`)
	for _, name := range events.Types() {
		assert.True(t, !events.Driving(name) || strings.Contains(page.body, name), "the form does not say that it leaves out", name)
	}
	s.post(t, "/console/webhook/new", page.fill("url", "https://x", "which", "some")).want(t, 422, "Choose one type of events or more")
	s.post(t, "/console/webhook/new", page.fill("url", "ftp://x", "description", "the shop", "types", "order.*")).
		want(t, 422, `id="wrong-url"`, `value="the shop"`, `value="order.*" checked`, `!value="stock.*" checked`)
	form := page.fill("url", receiver.URL, "description", "the <shop>", "types", "order.* stock.set")
	secret := regexp.MustCompile(`whsec_[A-Za-z0-9&#;+/=]+`)
	first := s.post(t, "/console/webhook/new", form).want(t, 200, "whsec_", ">Send a test event<")
	again := s.post(t, "/console/webhook/new", first.fieldsOf()).want(t, 200, "whsec_", receiver.URL+" gets events. Types: order.*, stock.set.", "The test event was accepted")
	assert.Equal(t, secret.FindString(first.body), secret.FindString(again.body), "of the same form")
	assert.Equal(t, first.header.Get("Cache-Control"), "no-store")
	s.get(t, "/console/webhooks").want(t, 200, "whe_1", "the &lt;shop&gt;", "!whsec_", "!whe_2", "!<shop>")
	const at = "?id=whe_1"
	s.get(t, "/console/webhook"+at).want(t, 200, "There are no deliveries yet", ">enabled<", ">Disable<", ">Delete<", "!whsec_", "!>Enable<", "!>Resend what", "<bdi>order.*</bdi></code>, <code><bdi>stock.set<")

	// A change is shown before it is made, and is not made of what has changed meanwhile.
	change := "/console/webhook/change" + at
	is := func(url string) {
		t.Helper()
		s.count(t, 1, `SELECT count(*) FROM webhook_endpoints WHERE url = '`+url+`'`)
	}
	changed := []string{"url", receiver.URL + "/new", "description", "the shop", "which", "all", "types", "order.failed"}
	s.get(t, change+"&preview=yes&url=https://x&types=&types=order.failed&types=order.canceled").want(t, 200, ">order.failed, order.canceled<")
	seen := s.do(t, change, changed...).want(t, 200, "/new", "What will change", ">all changes of orders and of stock<")
	s.post(t, change, seen.fill("edit", "yes")).want(t, 200, `value="all" checked`, `value="order.failed" checked`)
	is(receiver.URL)
	s.post(t, change, seen.fill()).want(t, 303)
	is(receiver.URL + "/new")
	s.do(t, change, changed...).want(t, 422, "Nothing would change.")
	s.post(t, change, seen.fill("url", receiver.URL+"/newer", "requestId", "other")).
		want(t, 412, "The resource has changed", receiver.URL+"/newer")
	rotated := s.do(t, "/console/webhook/rotate"+at, "overlap", "0", "reason", "seen in a log").
		want(t, 200, "whsec_", "not shown again")
	s.post(t, "/console/webhook/rotate"+at, rotated.fieldsOf()).want(t, 200, secret.FindString(rotated.body), "The test event was accepted")
	s.count(t, 0, `SELECT count(*) FROM webhook_endpoints WHERE previous_secret_until > now()`)
	unsaid := s.get(t, "/console/webhook/rotate"+at).fill("reason", "as every year")
	unsaid.Del("overlap")
	s.post(t, "/console/webhook/rotate"+at, unsaid).want(t, 200, "whsec_")
	s.count(t, 1, `SELECT count(*) FROM webhook_endpoints WHERE previous_secret_until > now() + interval '23 hours'`)
	s.do(t, "/console/webhook/test"+at).want(t, 200, "was accepted", "The answer was 200", "&lt;b&gt;thanks&lt;/b&gt;", ">Send it again<")
	assert.Equal(t, taken.Load(), 3, "the receiver has taken")
	s.do(t, "/console/webhook/disable"+at, "reason", "it moves").want(t, 303)
	s.get(t, "/console/webhook"+at).want(t, 200, ">Enable<", "it moves", "!>Disable<")
	s.do(t, "/console/webhook/enable"+at, "from", "now").want(t, 303)
	s.get(t, "/console/webhook"+at).want(t, 200, ">Disable<")
	s.do(t, "/console/webhook/delete"+at).want(t, 303)
	s.get(t, "/console/webhook"+at).want(t, 404)
	s.get(t, "/console/webhook/nothing").want(t, 404)
}

// exhausted gives an endpoint sixty deliveries whose attempts are used up.
func (s *service) exhausted(t *testing.T) {
	t.Helper()
	assert.NoError(t, assert.Err(s.api.CreateWebhookEndpoint(t.Context(), client.WebhookEndpointBody{URL: "http://127.0.0.1:9"})))
	s.sql(t, `INSERT INTO webhook_deliveries (endpoint_no, delivery_no, type, event_id, subject, state, body, attempts, attempted_at, log)
		SELECT 1, n, 'inventory.adjusted', 'evt_' || n, 'item lamp', 'exhausted', '{}', 10, now(),
			jsonb_build_array(jsonb_build_object('at', now(), 'status', 503, 'latencyMs', 7, 'answer', '<script>alert(1)</script>'))
		FROM generate_series(1, 60) AS n`)
}

func TestDeliveries(t *testing.T) {
	t.Parallel()
	s := setup(t)
	s.exhausted(t)
	list := s.get(t, "/console/webhook?id=whe_1&state=exhausted").
		want(t, 200, "used up their attempts", ">Resend what was given up</a>", "delivery=60\"", `rel="next"`, "item=lamp", "!delivery=10\"")
	s.get(t, list.link(t, "Older")).want(t, 200, "delivery=10\"", ">Newest<", "selected>exhausted", "!delivery=60\"", `!rel="next"`)
	s.get(t, "/console/webhook?id=whe_1&orderId=none").want(t, 404)
	s.get(t, "/console/webhook?id=whe_1&orderId=o&item=lamp").want(t, 200, `role="alert"`, `value="lamp"`)
	s.get(t, "/console/webhook?id=whe_1&state=skipped").want(t, 200, "No deliveries match")
	s.sql(t, `UPDATE webhook_endpoints SET failures = 3, failing_since = now()`)
	s.sql(t, `UPDATE webhook_deliveries SET state = 'pending' WHERE delivery_no = 7`)
	s.get(t, "/console/webhook?id=whe_1").want(t, 200, "Deliveries that fail", "selected>failing", "delivery=7\"", `<td><span class="badge failing">`, "!delivery=60\"")
	s.sql(t, `UPDATE webhook_endpoints SET failures = 0, failing_since = NULL`)
	s.sql(t, `UPDATE webhook_deliveries SET state = 'exhausted' WHERE delivery_no = 7`)

	// An order shows its newest, and the one that they wait for.
	s.order(t, "o", "completed", "")
	s.sql(t, `INSERT INTO webhook_deliveries (endpoint_no, delivery_no, type, event_id, subject, body, attempts, log)
		SELECT 1, 60 + n, 'order.charging', 'evt_o' || n, 'order ' || order_no, '{}', (n = 1)::integer, '[{"error":"no such host"}]' FROM orders, generate_series(1, 52) AS n WHERE order_id = 'o'`)
	s.get(t, orderPath+"o").want(t, 200, "Its newest deliveries, and the first that others wait for", "<bdi>http://127.0.0.1:9</bdi>: 20 × pending, 1 × failing; the last failure: no such host<", `<a href="/console/webhook?id=whe_1&amp;state=&amp;orderId=o">`)
	s.sql(t, `DELETE FROM webhook_deliveries WHERE delivery_no > 60`)

	const one = "?endpoint=whe_1&delivery=60"
	s.get(t, "/console/delivery"+one).want(t, 200, "&lt;script&gt;alert(1)", "503", ">Resend<", ">Skip<", "!<script>alert")
	s.do(t, "/console/delivery/resend"+one, "reason", "it is back").want(t, 303)
	s.get(t, "/console/delivery"+one).want(t, 200, "resent", "it is back", "pending")
	s.do(t, "/console/delivery/skip"+one).want(t, 422, "reason")
	s.do(t, "/console/delivery/skip"+one, "reason", "entered by hand").want(t, 303)
	s.get(t, "/console/delivery"+one).want(t, 200, "skipped", "entered by hand", "!>Skip<")
	s.post(t, "/console/delivery/skip"+one, url.Values{"reason": {"twice"}, "requestId": {"2"}, "person": {"local"}}).
		want(t, 409, "already been delivered or skipped")
	s.get(t, "/console/webhook/recover?id=whe_1").want(t, 200, "Exhausted now: 59.")
	s.do(t, "/console/webhook/recover?id=whe_1", "since", "yesterday").want(t, 422, "must be like")
	since := time.Now().UTC().Add(-time.Hour).Format("2006-01-02T15:04")
	s.do(t, "/console/webhook/recover?id=whe_1", "since", since).want(t, 200, "59 deliveries are sent again")
	s.get(t, "/console/delivery?endpoint=whe_1&delivery=99").want(t, 404)
	s.get(t, "/console/delivery?endpoint=whe_1&delivery=x").want(t, 404)
}

// TestPolicyScreens: a text is written, checked, stored, compared and activated, each by a step of its own.
func TestPolicyScreens(t *testing.T) {
	t.Parallel()
	s := setup(t)
	const path, activate = "/console/policy/new", "/console/policy/activate?version="
	s.get(t, "/console/policies").want(t, 200, `href="/console/policy?version=1"`, "active", "ledger", "by <bdi>test</bdi>")
	s.get(t, "/console/policy?version=1").want(t, 200, "approval: [{amountOver: 500", "!Activate…")
	s.get(t, path+"?from=1").want(t, 200, "<textarea", "approval: [{amountOver: 500")
	s.post(t, path, url.Values{"source": {"charge:\r\n  executor: <b>paypal\r\n"}}).
		want(t, 422, "Line 2, column 13: charge.executor", "executor: &lt;b&gt;paypal", "!<b>paypal", `!name="store"`)

	source := "approval: [{amountOver: 700, currency: USD, timeout: 24h}] # <b>\r\n" +
		"confirm: {executor: http, url: 'http://127.0.0.1:1/', secret: 'env:HOME'}\r\n"
	diff := []string{"<ins>&#43;approval: [{amountOver: 700", "env:HOME may not be named"}
	s.post(t, path, url.Values{"source": {source}}).want(t, 200, append(diff, "No mistakes", "<del>-approval: [{amountOver: 500",
		`name="store"`, `name="checked"`, "!<b>")...)
	// A text that was changed after it was checked is checked, and not stored.
	s.post(t, path, url.Values{"source": {"reservationTtl: 1m\n"}, "checked": {source}, "store": {"yes"}, "person": {"local"}}).want(t, 200, "No mistakes")
	s.count(t, 1, `SELECT count(*) FROM policies`)
	stored := s.post(t, path, url.Values{"source": {source}, "checked": {source}, "store": {"yes"}, "person": {"local"}}).want(t, 303)
	assert.Equal(t, stored.header.Get("Location"), "/console/policy?version=2", "leads to")
	s.get(t, "/console/policy?version=2").want(t, 200, "Activate…", "Compared with policy 1", "never", "!<b>")
	s.get(t, "/console/policy?version=2&against=2").want(t, 200, "They are the same.")
	s.count(t, 1, `SELECT count(*) FROM policy_activations`)
	long := "# too long" + strings.Repeat(" ", 1<<20)
	page := s.post(t, path, url.Values{"source": {long}})
	assert.True(t, page.status >= 400 && strings.Contains(page.body, long), page.status, "and the text is gone")

	// Two people who have seen the same version activate it.
	form := s.get(t, activate+"2").want(t, 200, append(diff, "Activate policy 2?")...).fill("reason", "agreed <i>")
	s.post(t, activate+"2", form).want(t, 303)
	s.post(t, activate+"2", form).want(t, 303) // the button was pressed twice
	s.post(t, activate+"1", form).want(t, 412, "Activate policy 1?", "The resource has changed", `name="etag"`)
	s.count(t, 1, `SELECT count(*) FROM policy_activations WHERE version = 2 AND actor = 'local' AND reason = 'agreed <i>'`)
	s.count(t, 2, `SELECT count(*) FROM policy_activations`)
	s.get(t, "/console/policies").want(t, 200, "agreed &lt;i&gt;")
	s.get(t, activate+"2").want(t, 200, "already the active version", "!<button>", "!class=\"stacked\"")

	// A text must not look other than it reads.
	turned := "# \u202e }h1 :niWetelpmoc{ \u202c\ncompleteWithin: 2h\n"
	s.post(t, path, url.Values{"source": {turned}, "checked": {turned}, "store": {"yes"}, "person": {"local"}}).want(t, 303)
	s.get(t, "/console/policy?version=3").want(t, 200, `# \u202e`, "!\u202e")
	for _, path := range []string{"/console/policy", "/console/policy?version=x", "/console/policy?version=9", activate + "9"} {
		s.get(t, path).want(t, 404)
	}
}

// TestNoPolicyYet: the screen says what a policy is for, and how to get one. The example has no mistakes.
func TestNoPolicyYet(t *testing.T) {
	t.Parallel()
	s := setupWith(t, "")
	s.get(t, "/console/policies").want(t, 200, "There is no policy", "pawl serve --policy", `href="/console/policy/new"`)
	s.get(t, "/console/policies/manual").want(t, 200, "reservationTtl")
	_, example, _ := strings.Cut(s.get(t, "/console/policy/new").want(t, 200).body, `spellcheck="false">`)
	example, _, _ = strings.Cut(example, "</textarea>")
	s.post(t, "/console/policy/new", url.Values{"source": {example}}).want(t, 200, "No mistakes", "Charge: http, reserve: ledger")
	s.post(t, "/console/policy/new", url.Values{"source": {"completeWithin: 48h"}}).want(t, 200, "&#43;completeWithin: 48h", "!the active one", "Charge: ledger (asks no provider for the money), reserve: ledger")
}

// TestComparing: the books are compared with a provider from the page, which says what differs, or why it is not known.
func TestComparing(t *testing.T) {
	t.Parallel()
	s := setup(t)
	answer := `{"key":"pawl-` + strings.Repeat("a", 52) + `","orderId":"lost-1","step":"charge","amount":"12","currency":"USD","state":"live","effects":1}`
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, answer) }))
	t.Cleanup(provider.Close)
	s.provider = provider.URL
	charge := "charge=" + provider.URL
	compare := func(at string) shown {
		t.Helper()
		s.post(t, "/console/books", url.Values{"person": {"local"}, "compare": {at}}).want(t, 303)
		eventually(t, "the verification ends", func() bool {
			state, err := s.api.GetVerification(t.Context())
			return err != nil || state.State != client.VerificationStateRunning
		})
		return s.get(t, "/console/books")
	}
	s.post(t, "/console/books", url.Values{"person": {"local"}, "compare": {"charge=http://elsewhere.example"}}).want(t, 422, "must be addresses of known providers")
	both := charge + ",reserve=" + provider.URL
	compare(both).want(t, 200, "right in themselves, and differ", "They differ", "lost-1", ": 12 USD <span", `<div>12 USD</div>`, "Under Pawl&#39;s keys, but never sent", "What to do:", "!provider_known",
		`value="`+both+`" checked> <bdi>`+provider.URL)
	s.process(t, client.ProcessBody{OrderID: "lost-1", Amount: "12", Item: "lamp"})
	const differs = "<strong>The provider's books differ.</strong> At the provider under a key of Pawl's, but Pawl has no record of it: "
	s.get(t, "/console/order?id=lost-1").want(t, 200, differs, "; the order has changed since.")
	s.get(t, "/console/books").want(t, 200, "<strong>The order has changed since.")
	s.get(t, "/console/order/refund?id=lost-1").want(t, 200, differs)
	s.get(t, "/console").want(t, 200, "The provider&#39;s books differ", provider.URL, "The books need you.", "!Compared with a provider's")
	answer = ""
	compare(charge).want(t, 200, "The books are right", "They agree", "!They differ", "!lost-1", "!differences in the first total")
	s.get(t, "/console").want(t, 200, "!books differ", "they agree")
	s.get(t, "/console/order?id=lost-1").want(t, 200, "!books differ")
	answer = `{"key":"theirs","orderId":"lost-1","step":"charge","amount":"12.00","currency":"USD","state":"live","effects":1,"reference":"ch_9","at":"2026-11-27T10:00:00+01:00"}`
	const again = "Orders of Pawl&#39;s that somebody else charged or refunded at the provider: 12.00 USD"
	compare(charge).want(t, 200, "right in themselves, and differ", "They differ", again, `href="/console/order?id=lost-1"`, "charged at the provider, by somebody else than Pawl: 12.00 USD, key &#34;theirs&#34;, reference &#34;ch_9&#34;, 2026-11-27 09:00:00 UTC", "1 found", "!charged no order twice", "first total")
	s.get(t, "/console").want(t, 200, "books differ", again, "!Nothing needs you")
	s.get(t, "/console/order?id=lost-1").want(t, 200, "differ.</strong> <bdi>Charged at the provider, by somebody else than Pawl: 12.00 USD")
	theirs := answer
	answer = "{}"
	compare(charge).want(t, 200, "They differed", "!They differ<")
	s.get(t, "/console").want(t, 200, "books differ", "could not compare the books with a provider")
	answer = strings.ReplaceAll(theirs, "lost-1", "sold")
	const others = "a provider has 1 charge for no order of Pawl&#39;s"
	compare(charge).want(t, 200, `class="warn">The books are right; `+others+": 12.00 USD", "They agree</span>, except that "+others, "no order of Pawl&#39;s: 12.00 USD <span", "Not by Pawl, for no order of Pawl&#39;s", `class="number bad" data-label="Difference:">12.00`,
		"nothing wrong; "+others, "charged no order twice", `The differences of <a href="/console/books?number=3">report 3</a> are gone`)
	s.get(t, "/console/books?number=4").want(t, 200, "The books were right; not compared with a provider's")
	s.get(t, "/console").want(t, 200, "they agree, except that "+others)
	answer = "{}"
	compare(both).want(t, 200, "The books are right", "comparisons fail</strong>: <bdi>the provider&#39;s books could not be read: ", "there is no key", "report 5</a> of ", "no difference", "last compared with a provider's", "they agreed, except that "+others,
		"could not compare, else nothing wrong")
	s.get(t, "/console").want(t, 200, "could not compare the books with a provider", "Last compared", "they agreed, except")
	s.get(t, "/console/books?number=1").want(t, 200, "They differed", "!status:completed", "!What to do:", "!>Report 1<", ">Report 5<")
	s.get(t, "/console/books?number=5").want(t, 200, "They agreed, except that a provider has 1 charge")
	s.order(t, "late", "canceled", "")
	s.sql(t, `INSERT INTO step_calls (order_no, call, fence, generation, step, operation, finished_at, outcome)
		SELECT order_no, 1, 0, 0, 'charge', 'do', now(), 'unknown' FROM orders WHERE order_id = 'late'`)
	answer = `{"key":"pawl-` + strings.Repeat("b", 52) + `","orderId":"late","step":"charge","amount":"9.00","currency":"USD","state":"live","effects":1}`
	compare(charge).want(t, 200, "They differ")
	s.get(t, "/console/order?id=late").want(t, 200, "The provider still has 9.00 USD: give it back there, then compare again.", "!The customer pays nothing")
	s.get(t, "/console").want(t, 200, "books differ", "!No order needs you", "!Nothing needs you")
}

func TestBooks(t *testing.T) {
	t.Parallel()
	s := setup(t)
	s.process(t, client.ProcessBody{OrderID: "../1 <b>", Amount: "6", Item: "lamp"})
	prove := func() shown {
		t.Helper()
		s.post(t, "/console/books", url.Values{"person": {"local"}}).want(t, 303)
		eventually(t, "the verification ends", func() bool {
			state, err := s.api.GetVerification(t.Context())
			return err != nil || state.State == client.VerificationStateDone
		})
		return s.get(t, "/console/books")
	}
	before := s.get(t, "/console/books").want(t, 200, "were never verified", "Verify the books now")
	today := time.Now().UTC().Format(time.DateOnly)
	prove().want(t, 200, "The books are right", "16 checks hold", "charged no order twice:</strong> each of the 1 completed", "status:completed", ">6.00<", "!The books are wrong",
		strings.ReplaceAll(ordersOf("from:"+today+" to:"+today+" currency:USD sort:oldest charged:yes"), "+", "&#43;"), "/console/books.csv?number=1")
	list, moved := ordersOf("currency:USD charged:yes"), "/console/movements?currency=USD&period="+today
	s.get(t, list).want(t, 200, "!The books of")
	s.process(t, client.ProcessBody{OrderID: "later", Amount: "1", Item: "lamp"})
	s.get(t, list).want(t, 200, "</time> had Charged or authorized 6.00 (now 1.00 more), Kept 6.00 (now 1.00 more).", "Verify again")
	assert.NoError(t, assert.Err(s.api.RefundOrder(t.Context(), "later", client.RefundBody{Reason: "sent back"}))) // so both keep the same
	s.get(t, list).want(t, 200, "</time> had Charged or authorized 6.00 (now 1.00 more), Refunded or undone 0.00 (now 1.00 more).")
	s.get(t, moved).want(t, 200, "3 movements, 6.00 USD", "</time> had Captured 6.00 (now 1.00 more), Refunded 0.00 (now 1.00 more). 2 of the movements are newer.", "!say the same")
	s.get(t, moved+"&figure=lost").want(t, 200, "Nothing moved.", "The books say the same.")
	s.get(t, "/console/books.csv?number=1").want(t, 200, "day,currency,", today+",USD,1,1,6.00,0.00,")
	s.get(t, "/console/orders.csv?q=currency:usd+item:lamp").want(t, 200, "orderId,status,", "../1 <b>,completed,,,,6.00,USD,")
	s.get(t, "/console/orders.csv?q=refunded:yes").want(t, 200, "orderId,status,", "later,completed,", ",done,1.00,", "!../1")
	s.get(t, "/console/orders.csv?q=amount:x").want(t, 422, "can&#39;t be downloaded")
	s.listen(t, before.live(t)).poked(t) // though it listens late

	s.sql(t, `SET session_replication_role = replica; UPDATE charges SET amount = 7; UPDATE inventory SET sold = 3;
		RESET session_replication_role`)
	prove().want(t, 200, "The books are wrong", `/console/order?id=..%2f1%20%3cb%3e`, "<bdi>../1 &lt;b&gt;</bdi>", "/console/item?item=lamp",
		"charged another amount", "!charged no order twice", "!The books are right", "!<b>", `href="/console/books?number=1"`)
	s.get(t, "/console/books?number=1").want(t, 200, "The books were right", "This report is not the newest", "report=1", "!status:completed", "!/console/orders?q=")
	s.get(t, "/console/books?number=9").want(t, 404)
}

// TestReadersChangeNothing: the pages of things offer a reader nothing, and their forms are refused.
func TestReadersChangeNothing(t *testing.T) {
	t.Parallel()
	s := setup(t)
	s.exhausted(t)
	reader := s.token(t, "reader", access.Read)
	for _, page := range []string{
		"/console/webhooks", "/console/webhook?id=whe_1", "/console/delivery?endpoint=whe_1&delivery=60", "/console/stock",
		"/console/item?item=lamp", "/console/books", "/console/policies", "/console/policy?version=1",
	} {
		s.get(t, page, reader...).want(t, 200, `!class="button" href="/console/webhook`, `!class="button" href="/console/delivery`,
			`!class="button" href="/console/item`, `!method="post"`, "!Write a new version", "!Activate…")
	}
	for _, task := range []string{
		"/console/webhook/new", "/console/webhook/delete?id=whe_1", "/console/delivery/resend?endpoint=whe_1&delivery=60",
		"/console/item/set?item=lamp", "/console/policy/new", "/console/policy/activate?version=1", "/console/books",
	} {
		if task != "/console/books" {
			s.get(t, task, reader...).want(t, 403)
		}
		form := url.Values{"url": {"https://shop.example"}, "reason": {"r"}, "onHand": {"1"}, "requestId": {"r"}, "source": {"{}"}}
		s.post(t, task, form, reader...).want(t, 403)
	}
}
