package console_test

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"pawl/client"
	"pawl/db"
	"pawl/internal/access"
	"pawl/internal/console"
	"pawl/test/assert"
)

// TestRoles: a page offers what the API would let its user do.
func TestRoles(t *testing.T) {
	t.Parallel()
	s := setup(t)
	s.get(t, "/console").want(t, 200, "<bdi>local</bdi>", ">Orders<")
	s.get(t, "/console", "Cookie", "of=another port").want(t, 200, "<bdi>local</bdi>", "!Sign out")
	s.plant(t, "attention", "retry_after: later", "one")
	s.wait(t, "a")
	s.process(t, client.ProcessBody{OrderID: "done", Amount: "12.50", Item: "i"})
	s.get(t, "/console/orders").want(t, 200, `type="checkbox" name="id" value="one"`, `<option value="cancel">`)
	tokens := map[string][]string{
		"reader": s.token(t, "reader", access.Read), "gauge": s.token(t, "gauge", access.Metrics), "shop": s.token(t, "shop", access.Submit), "clerk": s.token(t, "clerk", access.Stock), "admin": s.token(t, "admin", access.Admin),
		"approver": s.token(t, "approver", access.Read, access.Approve),
	}
	eventually(t, "the order is counted", func() bool {
		return strings.Contains(s.get(t, "/console/attention", tokens["reader"]...).body, "<bdi>one</bdi>")
	})
	for _, c := range []struct {
		name, path string
		status     int
		texts      []string
	}{
		{"reader", "/console", 200, []string{"token:reader", ">Overview<", ">Needs a person<", ">Orders<", ">Errors<", ">Webhooks<",
			">Policies<", ">Stock<", ">Books<", "!Sign out"}},
		{"reader", "/console/orders", 200, []string{"<bdi>one</bdi>", "!checkbox", "!<option"}},
		{"reader", "/console/attention", 200, []string{"<bdi>one</bdi>", "None of your roles", "!>Retry</a>", "!>Cancel</a>"}},
		{"reader", orderPath + "done", 200, []string{"12.50 USD", "!/console/order/refund"}},
		{"reader", orderPath + "one", 200, []string{`<a href="/console/runbook#retry_after">What the runbook says</a>`, "!retry.cap"}},
		{"reader", "/console/stock", 200, []string{">Show<"}},
		{"reader", "/console/order/refund?id=done&preview=yes", 403, []string{"needs the role operate", `<a href="/console/order?id=done">Order`}},
		{"reader", "/console/bulk", 403, []string{"You do not have permission to do this", "the role operate or approve or settle; token:reader has read", "!<option"}},
		{"shop", "/console", 200, []string{"token:shop", "your roles do not include", ">Orders<", "!>Stock<", "!machine", "!is open"}},
		{"shop", orderPath + "done", 200, []string{"12.50 USD", "!Deliveries", "!/console/item"}},
		{"shop", "/console/attention", 200, []string{"token:shop", "!<bdi>one</bdi>"}}, // it lists only its own
		{"shop", "/console/orders", 200, []string{"!<bdi>done</bdi>"}},
		{"shop", "/console/errors", 403, []string{"needs the role read"}},
		{"gauge", "/console", 200, []string{"token:gauge", "(metrics)", "No screen here", "--roles read", "!screens above"}},
		{"admin", "/console", 200, []string{`Only <a href="/console/webhook/new">`, "--roles read", "!No screen"}},
		{"admin", "/console/webhook/new", 200, nil},
		{"clerk", "/console", 200, []string{">Stock<", "!>Orders<"}},
		{"clerk", "/console/orders", 403, []string{"token:clerk"}},
		{"approver", "/console/orders", 200, []string{`<option value="approve"`, `!<option value="cancel">`}},
		{"approver", "/console/bulk", 200, []string{`<option value="approve"`, `<option value="reject"`, `!<option value="cancel"`}},
	} {
		s.get(t, c.path, tokens[c.name]...).want(t, c.status, c.texts...)
	}
	confirmed := func(verb, person string) url.Values {
		return url.Values{"verb": {verb}, "id": {"a"}, "confirm": {"yes"}, "reason": {"r"}, "person": {"token:" + person}}
	}
	s.post(t, "/console/bulk", confirmed("cancel", "approver"), tokens["approver"]...).want(t, 200, "Many orders")
	s.post(t, "/console/bulk", confirmed("approve", "reader"), tokens["approver"]...).want(t, 200, "Nothing was done.", "opened by somebody else")
	s.count(t, 1, `SELECT count(*) FROM orders WHERE order_id = 'a' AND status = 'pending'`)
	s.post(t, "/console/bulk", confirmed("approve", "approver"), tokens["approver"]...).want(t, 303)
}

// forms are all forms that the console takes, by their paths, with the role that may send them. They would do something.
func forms(endpoint string) map[string]access.Role {
	all := map[string]access.Role{
		"/console/item/adjust?item=i": access.Stock, "/console/item/set?item=new": access.Stock,
		"/console/policy/new": access.Admin, "/console/policy/activate?version=1": access.Admin, "/console/webhook/new": access.Admin,
		"/console/webhook/recover?id=" + endpoint: access.Operate, "/console/books": access.Operate,
	}
	for verb, role := range map[string]access.Role{
		"cancel": access.Operate, "retry": access.Operate, "pause": access.Operate, "resume": access.Operate, "approve": access.Approve,
		"reject": access.Approve, "step-result": access.Settle, "refund": access.Operate,
	} {
		all["/console/order/"+verb+"?id=o"] = role
		all["/console/bulk?as="+verb] = role
	}
	for _, task := range []string{"change", "rotate", "enable", "disable", "test", "delete"} {
		all["/console/webhook/"+task+"?id="+endpoint] = access.Admin
	}
	return all
}

// TestFormsOfOthers sends each form of the console as everybody who may not: nothing is done.
func TestFormsOfOthers(t *testing.T) {
	t.Parallel()
	s := setup(t)
	s.wait(t, "o")
	endpoint, err := s.api.CreateWebhookEndpoint(t.Context(), client.WebhookEndpointBody{URL: "https://shop.example"})
	assert.NoError(t, err)
	const done = `SELECT count(*) FROM books.access_log WHERE event NOT IN ('forbidden', 'unauthenticated')`
	for _, role := range append(slices.Clone(access.AllRoles), "") {
		var header []string // anonymous
		if role != "" {
			header = s.token(t, string(role), role, access.Read)
		} else {
			// A service may take itself for open for a second after its first token was made.
			eventually(t, "the service is closed", func() bool { return s.get(t, "/api/overview").status == http.StatusUnauthorized })
		}
		before := 0
		s.scan(t, done, &before)
		for path, allowed := range forms(endpoint.ID) {
			if allowed == role {
				continue
			}
			path, verb, bulk := strings.Cut(path, "?as=")
			form := url.Values{
				"reason": {"an attack"}, "requestId": {client.NewID()}, "seq": {"1"}, "verb": {verb}, "confirm": {"yes"}, "person": {"token:" + string(role)}, "id": {"o"},
				"change": {"3"}, "onHand": {"3"}, "source": {"version: 1\n"}, "checked": {"version: 1\n"}, "store": {"yes"},
				"url": {"https://thief.example"}, "since": {"2026-01-01T00:00"}, "version": {"1"},
				"step": {"charge"}, "outcome": {"done"}, "amount": {"1"}, "policy": {"pinned"},
			}
			want := map[bool]int{true: http.StatusUnauthorized, false: http.StatusForbidden}[role == ""]
			answer := s.post(t, path, form, header...)
			assert.True(t, answer.status == want || bulk && !strings.Contains(answer.body, ": results"), role, path, answer.status, want, answer.body)
		}
		s.count(t, before, done)
	}
	s.count(t, 1, `SELECT count(*) FROM orders WHERE order_id = 'o' AND status = 'pending' AND seq = 1`)
}

// TestFormsOfTwoPersons: a form that one person has opened is not done under the name of another who signed in since.
func TestFormsOfTwoPersons(t *testing.T) {
	t.Parallel()
	s := setup(t)
	s.order(t, "o", "completed", "")
	maria, eve := s.token(t, "maria", access.Operate, access.Read), s.token(t, "eve", access.Operate, access.Read)
	eventually(t, "the service is closed", func() bool { return s.get(t, "/console/orders").status == 401 })
	const refund = "/console/order/refund?id=o"
	form := s.get(t, refund+"&preview=yes&all=yes", maria...).want(t, 200, "9.00 USD goes back").fill("reason", "a dent")
	again := s.post(t, refund, form, eve...).want(t, 409, "Nothing was done.", "opened by somebody else", "9.00 USD goes back", ">a dent</textarea>")
	resent := s.post(t, refund, form).want(t, 401, "Look at it again").fieldsOf() // signed out, and in again
	s.post(t, refund, resent, maria...).want(t, 200, "9.00 USD goes back", ">a dent</textarea>")
	s.post(t, refund, resent, eve...).want(t, 200, "9.00 USD goes back", "!a dent")
	cookie, _, _ := strings.Cut(s.post(t, refund, form).header.Get("Set-Cookie"), ";")
	s.get(t, refund, append(maria, "Cookie", cookie)...).want(t, 200, `name="reason" value="a dent"`)
	s.get(t, refund, append(eve, "Cookie", cookie)...).want(t, 200, "All that is left", "!a dent")
	s.get(t, refund+"&all=yes", append(maria, "Cookie", cookie)...).want(t, 200, "!a dent") // another page
	s.order(t, "w", "charging", "attention")
	s.get(t, orderPath+"w", s.token(t, "reader", access.Read)...).want(t, 200, "Your roles do not allow: ", "!/console/order/cancel")
	s.count(t, 0, `SELECT count(*) FROM charge_operations`)
	s.post(t, refund, again.fill("reason", "a dent"), eve...).want(t, 303)
	s.count(t, 1, `SELECT count(*) FROM charge_operations`)

	s.post(t, "/console/books", s.get(t, "/console/books", maria...).fill(), eve...).want(t, 409, "opened by somebody else")
	s.count(t, 0, `SELECT count(*) FROM verifications`)
	ada, leo := s.token(t, "ada", access.Admin, access.Read), s.token(t, "leo", access.Admin, access.Read)
	const write, source = "/console/policy/new", "completeWithin: 48h\n"
	checked := s.post(t, write, s.get(t, write, ada...).fill("source", source), ada...).fill("source", source, "checked", source, "store", "yes")
	s.post(t, write, checked, leo...).want(t, 200, "Policy (YAML)")
	s.post(t, write, checked, ada...).want(t, 303)
}

// TestFormsOfOtherSites: a page of another site can have a browser send a form here.
func TestFormsOfOtherSites(t *testing.T) {
	t.Parallel()
	s := setup(t)
	s.wait(t, "o")
	for _, path := range []string{"/console/orders", "/console/order/cancel?id=o"} {
		s.post(t, path, nil, "Sec-Fetch-Site", "cross-site").want(t, 403)
		s.post(t, path, nil, "Origin", "https://elsewhere.example").want(t, 403)
	}
}

// TestMarksOfProxies: a request through a proxy does not have the rights of this machine, whichever header shows it.
func TestMarksOfProxies(t *testing.T) {
	t.Parallel()
	s := setup(t)
	for _, mark := range []string{
		"X-Forwarded-For", "X-Forwarded-Ssl", "X-Forwarded-Server", "X-Forwarded-Anything", "Forwarded", "Via", "X-Real-Ip",
	} {
		page := s.get(t, "/console", mark, "x")
		assert.True(t, !strings.Contains(page.body, "<bdi>local</bdi>"), mark, page.body)
		s.get(t, "/console/orders", mark, "x").want(t, http.StatusUnauthorized)
	}
}

// TestLinksThatDecide: what a link says does not go into the form, unless its page shows it.
func TestLinksThatDecide(t *testing.T) {
	t.Parallel()
	s := setup(t)
	s.wait(t, "o")
	const theirs = "&onBehalfOf=the+boss&requestId=mine&x=y&amount=1&reference=theirs&policy=active&outcome=done"
	s.order(t, "paid", "completed", "")
	s.doubt(t, "held")
	s.order(t, "wait", "charging", "retry")
	unknown := s.get(t, "/console/order/retry?id=held").want(t, 409, "can settle it", "See if it works under the policy for new orders")
	s.post(t, "/console/order/retry?id=held", unknown.fill()).want(t, 200, "<details open><summary>Advanced: policy")
	for path, shows := range map[string]string{
		"cancel?id=o": "The order ends canceled", "refund?id=paid": "1.00 USD goes back", "retry?id=wait": `value="active">The one for new orders`,
		"step-result?id=held": "The provider&#39;s reference, if done: theirs",
	} {
		link := "/console/order/" + path + theirs
		s.get(t, link).want(t, 200, "!the boss", `!"mine"`)
		form := s.get(t, link+"&preview=yes").want(t, 200, ">Afterwards<", shows, "!the boss", `!"mine"`).fieldsOf()
		assert.True(t, !form.Has("onBehalfOf") && !form.Has("x"), path, "the form has", form)
		verb, _, _ := strings.Cut(path, "?")
		s.count(t, 0, `SELECT count(*) FROM books.transitions WHERE verb = '`+verb+`'`)
	}
	s.get(t, "/console/order/cancel?id=o&seq=99&reason=theirs").want(t, 200, `!"99"`, "!theirs")
	s.get(t, "/console/order/refund?id=paid&seq=99&preview=yes&all=yes").want(t, 412)
	s.count(t, 0, `SELECT count(*) FROM charge_operations`)
	bulk := "/console/bulk?verb=cancel&id=held&requestId=mine&confirm=yes&reason=theirs"
	s.get(t, bulk).want(t, http.StatusUnprocessableEntity)
	s.post(t, bulk, nil).want(t, 200, "Many orders")
	s.count(t, 0, `SELECT count(*) FROM orders WHERE stop_requested IS NOT NULL`)
}

// TestAMillionIDs: a form with more ids than can be asked for costs no more than one with as many.
func TestAMillionIDs(t *testing.T) {
	t.Parallel()
	s := setup(t)
	var ids strings.Builder
	for i := range 300_000 {
		fmt.Fprintf(&ids, "%d\n", i)
	}
	page := s.post(t, "/console/bulk", url.Values{"verb": {"cancel"}, "ids": {ids.String()}}).want(t, 200, "At most 1,000 orders")
	assert.True(t, len(page.body) <= 100_000, "the page has bytes:", len(page.body))
	long := url.Values{"verb": {"cancel"}, "ids": {strings.Repeat(ids.String(), 3)}}
	s.post(t, "/console/bulk", long).want(t, http.StatusRequestEntityTooLarge)
}

// TestAnswersThatAreCutOff: a page reads with goroutines, and a panic in one of them must not end the process.
func TestAnswersThatAreCutOff(t *testing.T) {
	t.Parallel()
	api := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusOK)
		panic(http.ErrAbortHandler)
	})
	c, err := console.InMemory(api)(&http.Request{})
	assert.NoError(t, err)
	_, err = c.GetCaller(t.Context())
	assert.True(t, err != nil && strings.Contains(err.Error(), "cut off"), err)
}

func TestPagesLoadNothingForeign(t *testing.T) {
	t.Parallel()
	s := setup(t)
	page := s.get(t, "/console").want(t, 200, "!<style", "! style=", "! onclick", "!http://", "!https://", "!<script>")
	policy, cache := page.header.Get("Content-Security-Policy"), page.header.Get("Cache-Control")
	assert.True(t, strings.Contains(policy, "default-src 'none'") && !strings.Contains(policy, "unsafe") && cache == "no-store", page.header)
	_, rest, _ := strings.Cut(page.body, `src="/console/static/`)
	name, _, _ := strings.Cut(rest, `"`)
	script := s.get(t, "/console/static/"+name).want(t, 200, "EventSource")
	kind := script.header.Get("Content-Type")
	cache = script.header.Get("Cache-Control")
	assert.True(t, strings.Contains(cache, "immutable") && strings.HasPrefix(kind, "text/javascript"), script.header)
	s.get(t, "/console/static/console.js", "If-None-Match", script.header.Get("Etag")).want(t, 304)
	s.get(t, "/console/static/none.js").want(t, 404)
}

// TestLive: a page hears of what happens, and that of an order only of what happens to it. It also hears of what happened before it
// listened. Events are not numbered in a hurry because a page is open.
func TestLive(t *testing.T) {
	t.Parallel()
	s := setup(t)
	s.wait(t, "big")
	list, order := s.get(t, "/console/orders"), s.get(t, "/console/order?id=big")
	one := s.listen(t, order.live(t))
	s.process(t, client.ProcessBody{OrderID: "small", Amount: "6", Item: "lamp"})
	s.listen(t, list.live(t)).poked(t)
	s.count(t, 0, `SELECT count(*) FROM event_relay WHERE wanted_until IS NOT NULL`)
	assert.NoError(t, assert.Err(s.api.ApproveOrder(t.Context(), "big", client.VerbBody{Reason: "fine"})))
	one.poked(t)
	s.listen(t, order.live(t)).poked(t)
	s.get(t, "/console/live?order=none").want(t, 404)
}

// TestWhatIsLive: only a page that hears of all events asks for the latest one.
func TestWhatIsLive(t *testing.T) {
	t.Parallel()
	s := setup(t)
	s.wait(t, "o")
	for path, asks := range map[string]int64{
		"/console": 1, "/console/attention": 1, "/console/orders": 1, "/console/errors": 1, "/console/webhooks": 1, "/console/stock": 1,
		"/console/item?item=lamp": 1,
		"/console/order?id=o":     0, "/console/books": 0, // these hear of something else
		"/console/order/cancel?id=o": 0, "/console/bulk?verb=approve&id=o": 0, "/console/item/set?item=lamp": 0, "/console/webhook/new": 0,
		"/console/policies": 0, "/console/policy?version=1": 0, "/console/policy/new": 0, "/console/policy/activate?version=1": 0,
		"/console/runbook": 0,
	} {
		before := s.latest.Load()
		page := s.get(t, path).want(t, 200)
		all := strings.Contains(page.body, ` data-live="/console/live?after=`)
		asked := s.latest.Load() - before
		assert.True(t, asked == asks && all == (asks == 1), path, "asks for the latest event", asked, "times, want", asks, "live:", all)
	}
}

// TestLiveUntilTheSessionEnds: a page that listens hears nothing any more once its person has signed out.
func TestLiveUntilTheSessionEnds(t *testing.T) {
	t.Parallel()
	s := setup(t)
	s.token(t, "maria", access.Read)
	link, _, err := access.MakeLink(t.Context(), db.New(s.Pool), "maria", "test")
	assert.NoError(t, err)
	cookie, _, _ := strings.Cut(s.post(t, "/login/"+link, nil).want(t, 200).header.Get("Set-Cookie"), ";")
	page := s.listen(t, "/console/live", "Cookie", cookie)
	s.post(t, "/logout", nil, "Cookie", cookie).want(t, 200)
	for page.lines.Scan() { // until the answer ends
	}
}

// TestAfterTheSession: a person without a session loses nothing: neither the page that was asked for, nor what was typed.
func TestAfterTheSession(t *testing.T) {
	t.Parallel()
	s := setup(t)
	s.token(t, "maria", access.Read)
	eventually(t, "the service is closed", func() bool { return s.get(t, "/console/orders").status == 401 })
	s.get(t, "/console").want(t, 401, "<h1>Sign in to Pawl</h1>", "You are not signed in.", "!No credentials", "pawl token link NAME --url http://", "!another site", "!Overview")
	s.get(t, "/console/orders", "Sec-Fetch-Site", "cross-site").want(t, 401, "You came from a page of another site.")
	asked, _, _ := strings.Cut(s.get(t, "/console/orders?q=item:lamp").want(t, 401, "Open this page again", "about <strong>the orders of the search item:lamp<").header.Get("Set-Cookie"), ";")
	s.post(t, "/console/order/refund?id=o", url.Values{"amount": {"2.50"}, "reason": {`"><b>dent`}}).want(t, 401,
		`action="/console/order/refund?id=o"`, `name="amount" value="2.50"`, `value="&#34;&gt;&lt;b&gt;dent"`, "Look at it again")
	var typed []string // in two tabs
	for _, form := range []string{"/console/order/cancel?id=o", "/console/order/refund?id=o&all=yes"} {
		answer := s.post(t, form, url.Values{"reason": {"a dent"}, "requestId": {"r"}}, "Cookie", strings.Join(typed, "; ")).want(t, 401, "leads back to this form", "about <strong>order o<")
		cookie, _, _ := strings.Cut(answer.header.Get("Set-Cookie"), ";")
		typed = append(typed, cookie)
	}
	for cookie, leads := range map[string][]string{
		strings.Join(typed, "; "): {`"/console/order/cancel?id=o">Go on: cancel, order o<`, `"/console/order/refund?id=o&amp;all=yes">Go on: refund, order o<`},
		asked:                     {`"/console/orders?q=item:lamp">Go on<`}, "__Host-pawl-return=page=%2F%2Fevil.example%2Fconsole": {`"/">Open the console<`}, "__Host-pawl-return=page=%2Fconsole%2F..%2F%2Fevil": {`"/">Open the console<`},
	} {
		link, _, err := access.MakeLink(t.Context(), db.New(s.Pool), "maria", "test")
		assert.NoError(t, err)
		s.post(t, "/login/"+link, nil, "Cookie", cookie).want(t, 200, leads...)
	}
	s.post(t, "/console/order/cancel?id=o", url.Values{"reason": {strings.Repeat("é", 3000)}}).want(t, 401, "!leads back to this form", "What you typed is kept here") // no cookie has room for it
}

// TestLiveEnds: pages that listen do not keep the service from stopping.
func TestLiveEnds(t *testing.T) {
	t.Parallel()
	s := setup(t)
	s.wait(t, "o")
	var pages []listener
	for _, path := range []string{"/console/live", "/console/live?order=o", "/console/live?books=yes"} {
		pages = append(pages, s.listen(t, path))
	}
	s.tail.Stop(t.Context())
	for _, page := range pages {
		for page.lines.Scan() { // until the answer ends
		}
		assert.Succeeds(t, page.lines.Err())
	}
}
