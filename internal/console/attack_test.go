package console_test

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"pawl/client"
	"pawl/internal/access"
	"pawl/internal/console"
)

// forms are all that the console takes, with who may send them, filled in so that they would do something.
func forms(endpoint string) []struct {
	path string
	form url.Values
	role access.Role
} {
	decided := func(names ...string) url.Values {
		form := url.Values{"reason": {"an attack"}, "requestId": {client.NewID()}, "seq": {"1"}, "verb": {"cancel"}, "confirm": {"yes"}, "confirmed": {"yes"}, "id": {"o"}}
		for i := 0; i < len(names); i += 2 {
			form.Set(names[i], names[i+1])
		}
		return form
	}
	all := []struct {
		path string
		form url.Values
		role access.Role
	}{
		{"/console/item/adjust?item=i", decided("change", "3"), access.Stock},
		{"/console/item/set?item=new", decided("onHand", "3"), access.Stock},
		{"/console/policy/new", decided("source", "version: 1\n", "checked", "version: 1\n", "store", "yes"), access.Admin},
		{"/console/policy/activate?version=1", decided(), access.Admin},
		{"/console/webhook/new", decided("url", "https://thief.example"), access.Admin},
		{"/console/webhook/recover?id=" + endpoint, decided("since", "2026-01-01T00:00"), access.Operate},
		{"/console/books", nil, access.Operate},
	}
	for verb, role := range map[string]access.Role{
		"cancel": access.Operate, "retry": access.Operate, "pause": access.Operate, "resume": access.Operate, "approve": access.Approve,
		"reject": access.Approve, "step-result": access.Settle, "refund": access.Operate,
	} {
		form := decided("verb", verb, "step", "charge", "outcome", "done", "amount", "1", "policy", "pinned")
		all = append(all, all[0])
		all[len(all)-1].path, all[len(all)-1].form, all[len(all)-1].role = "/console/order/"+verb+"?id=o", form, role
		if verb == "refund" {
			continue
		}
		all = append(all, all[len(all)-1])
		all[len(all)-1].path = "/console/bulk"
	}
	for _, task := range []string{"change", "rotate", "enable", "disable", "test", "delete"} {
		all = append(all, all[0])
		all[len(all)-1].path, all[len(all)-1].form, all[len(all)-1].role = "/console/webhook/"+task+"?id="+endpoint, decided("url", "https://thief.example", "version", "1"), access.Admin
	}
	return all
}

// TestFormsOfOthers sends each form of the console as everybody who may not: nothing is done.
func TestFormsOfOthers(t *testing.T) {
	t.Parallel()
	s := setup(t)
	s.wait(t, "o")
	endpoint, err := s.api.CreateWebhookEndpoint(t.Context(), nil, client.WebhookEndpointBody{URL: "https://shop.example"})
	if err != nil {
		t.Fatal(err)
	}
	all, done := forms(endpoint.ID), `SELECT count(*) FROM books.access_log WHERE event NOT IN ('forbidden', 'unauthenticated')`
	for _, role := range append(slices.Clone(access.AllRoles), "") {
		var header []string // nobody
		if role != "" {
			name, value := s.token(t, string(role), role, access.Read)
			header = []string{name, value}
		} else {
			// A service may take itself for open for a second after its first token was made.
			eventually(t, "the service is closed", func() bool { return s.get(t, "/api/overview").status == http.StatusUnauthorized })
		}
		before := 0
		if err := s.Pool.QueryRow(t.Context(), done).Scan(&before); err != nil {
			t.Fatal(err)
		}
		for _, f := range all {
			if f.role == role {
				continue
			}
			answer := s.post(t, f.path, f.form, header...)
			if want := map[bool]int{true: http.StatusUnauthorized, false: http.StatusForbidden}[role == ""]; answer.status != want && (f.path != "/console/bulk" || strings.Contains(answer.body, ": what came of it")) {
				t.Errorf("%q sends %s: %d, want %d: %s", role, f.path, answer.status, want, answer.body)
			}
		}
		s.count(t, before, done)
	}
	s.count(t, 1, `SELECT count(*) FROM orders WHERE order_id = 'o' AND status = 'pending' AND seq = 1`)
}

// TestMarksOfProxies: what comes through a proxy has not the rights of this machine, whatever the header is that says so.
func TestMarksOfProxies(t *testing.T) {
	t.Parallel()
	s := setup(t)
	s.get(t, "/console").want(t, http.StatusOK, "<bdi>local</bdi>")
	for _, mark := range []string{"X-Forwarded-For", "X-Forwarded-Ssl", "X-Forwarded-Server", "X-Forwarded-Anything", "Forwarded", "Via", "X-Real-Ip"} {
		s.get(t, "/console", mark, "x").lacks(t, "<bdi>local</bdi>")
		s.get(t, "/console/orders", mark, "x").want(t, http.StatusUnauthorized)
	}
}

// TestLinksThatDecide: of what a link says, only what its page shows goes into the form.
func TestLinksThatDecide(t *testing.T) {
	t.Parallel()
	s := setup(t)
	s.wait(t, "o")
	page := s.get(t, "/console/order/cancel?id=o&onBehalfOf=the+boss&seq=99&reason=none&requestId=mine&generation=3&x=y").want(t, http.StatusOK, "What will change")
	page.lacks(t, "the boss", `"99"`, `"mine"`, `"none"`)
	for name := range page.fieldsOf() {
		if name != "seq" && name != "requestId" {
			t.Errorf("the form has %s", name)
		}
	}
	s.order(t, "paid", "completed", "")
	s.order(t, "held", "charging", "attention")
	s.sql(t, `UPDATE orders SET policy = 1, calls = 1, in_doubt_since = now(), hold_reason = 'outcome_unknown: asked' WHERE order_id = 'held'`)
	s.sql(t, `INSERT INTO step_calls (order_no, call, fence, generation, step, operation) SELECT order_no, 1, 0, 0, 'charge', 'do' FROM orders WHERE order_id = 'held'`)
	for path, first := range map[string]url.Values{
		"refund?id=paid&amount=1": {"amount": {""}, "restock": {""}},
		"retry?id=held":           {"policy": {"active"}},
		"step-result?id=held&outcome=done&reference=theirs": {"outcome": {"done"}, "reference": {""}},
	} {
		verb, _, _ := strings.Cut(path, "?")
		page := s.post(t, "/console/order/"+path+"&requestId=mine&seq=1&reason=theirs&onBehalfOf=boss", first).want(t, http.StatusOK, "What will change")
		if form := page.fieldsOf(); form.Get("requestId") == "mine" || form.Get("reason") != "" || form.Get("reference") != "" || form.Get("amount") != "" {
			t.Errorf("%s: the form has %v", verb, form)
		}
		s.count(t, 0, `SELECT count(*) FROM books.transitions WHERE verb = '`+verb+`'`)
	}
	s.count(t, 0, `SELECT count(*) FROM refunds`)
	bulk := "/console/bulk?verb=cancel&id=held&requestId=mine&confirm=yes&reason=theirs"
	s.get(t, bulk).want(t, http.StatusUnprocessableEntity)
	s.post(t, bulk, nil).want(t, http.StatusOK, "Many orders")
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
	page := s.post(t, "/console/bulk", url.Values{"verb": {"cancel"}, "ids": {ids.String()}}).want(t, http.StatusOK, "more than 1,000 orders")
	if len(page.body) > 100_000 {
		t.Errorf("the page has %d bytes", len(page.body))
	}
	s.post(t, "/console/bulk", url.Values{"verb": {"cancel"}, "ids": {strings.Repeat(ids.String(), 3)}}).want(t, http.StatusRequestEntityTooLarge)
}

// TestAnswersThatAreCutOff: a page reads with goroutines, and what goes wrong in one must not end the process.
func TestAnswersThatAreCutOff(t *testing.T) {
	t.Parallel()
	api := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusOK)
		panic(http.ErrAbortHandler)
	})
	c, err := console.InMemory(api)(&http.Request{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.GetCaller(t.Context()); err == nil || !strings.Contains(err.Error(), "cut off") {
		t.Error(err)
	}
}

// TestLiveEnds: pages that listen do not keep the service from ending.
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
		for page.lines.Scan() { // up to its end
		}
		if err := page.lines.Err(); err != nil {
			t.Error(err)
		}
	}
}
