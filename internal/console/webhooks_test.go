package console_test

import (
	"fmt"
	"html"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"pawl/client"
	"pawl/internal/access"
)

var secretShown = regexp.MustCompile(`whsec_[A-Za-z0-9+/=]+`)

func TestWebhooks(t *testing.T) {
	t.Parallel()
	s := setup(t)
	taken := 0
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		taken++
		fmt.Fprint(w, "<b>thanks</b>")
	}))
	defer receiver.Close()
	s.get(t, "/console/webhooks").want(t, 200, "Events are sent to no address yet", "/console/webhook/new")

	// The secret is shown once: to the form that made it, however often that is sent.
	page := s.get(t, "/console/webhook/new").want(t, 200)
	s.post(t, "/console/webhook/new", page.fill("url", "ftp://x", "description", "the shop", "types", "order.*")).want(t, 422, "url must be", `value="the shop"`, ">order.*<")
	form := page.fill("url", receiver.URL, "description", "the <shop>", "types", "order.*")
	first, again := s.post(t, "/console/webhook/new", form).want(t, 200, "whsec_"), s.post(t, "/console/webhook/new", form).want(t, 200, "whsec_")
	if secretShown.FindString(html.UnescapeString(first.body)) != secretShown.FindString(html.UnescapeString(again.body)) || first.header.Get("Cache-Control") != "no-store" {
		t.Error("the same form made another secret")
	}
	s.get(t, "/console/webhooks").want(t, 200, "whe_1", "the &lt;shop&gt;").lacks(t, "whsec_", "whe_2", "<shop>")
	at := "?id=whe_1"
	s.get(t, "/console/webhook"+at).want(t, 200, "There are no deliveries yet", ">enabled<", ">Disable<", ">Delete<").lacks(t, "whsec_", ">Enable<")

	// A change is shown before it is made, and is not made of what has changed meanwhile.
	seen := s.do(t, "/console/webhook/change"+at, "url", receiver.URL+"/new", "description", "the shop", "types", "").want(t, 200, "/new", "What will change", ">all<")
	var stored string
	if s.scan(t, `SELECT url FROM webhook_endpoints`, &stored); stored != receiver.URL {
		t.Error("it was changed before anybody confirmed it")
	}
	s.post(t, "/console/webhook/change"+at, seen.fill()).want(t, 303)
	if s.scan(t, `SELECT url FROM webhook_endpoints`, &stored); stored != receiver.URL+"/new" {
		t.Error("stored is", stored)
	}
	s.do(t, "/console/webhook/change"+at, "url", receiver.URL+"/new", "description", "the shop", "types", "").want(t, 422, "Nothing would change.")
	s.post(t, "/console/webhook/change"+at, seen.fill("url", receiver.URL+"/newer", "requestId", "other")).want(t, 412, "The resource has changed", receiver.URL+"/newer")
	s.do(t, "/console/webhook/rotate"+at, "overlap", "not at all: others know it", "reason", "seen in a log").want(t, 200, "whsec_", "not shown again")
	var previous bool
	if s.scan(t, `SELECT previous_secret_until > now() FROM webhook_endpoints WHERE previous_secret_until IS NOT NULL UNION ALL SELECT false LIMIT 1`, &previous); previous {
		t.Error("the secret before is still good")
	}
	s.do(t, "/console/webhook/test"+at).want(t, 200, "was taken", "200 OK", "&lt;b&gt;thanks&lt;/b&gt;")
	if taken != 1 {
		t.Errorf("the receiver has taken %d", taken)
	}
	s.do(t, "/console/webhook/disable"+at, "reason", "it moves").want(t, 303)
	s.get(t, "/console/webhook"+at).want(t, 200, ">Enable<", "it moves").lacks(t, ">Disable<")
	s.do(t, "/console/webhook/enable"+at, "from", "only what happens from now on").want(t, 303)
	s.get(t, "/console/webhook"+at).want(t, 200, ">Disable<")

	s.do(t, "/console/webhook/delete"+at).want(t, 303)
	s.get(t, "/console/webhook"+at).want(t, 404)
	s.get(t, "/console/webhook/nothing").want(t, 404)
}

// deliveries gives an endpoint deliveries that were given up, whose receiver answers as it likes.
func (s *service) deliveries(t *testing.T, answer string) {
	t.Helper()
	if _, err := s.api.CreateWebhookEndpoint(t.Context(), nil, client.WebhookEndpointBody{URL: "http://127.0.0.1:9"}); err != nil {
		t.Fatal(err)
	}
	s.sql(t, `INSERT INTO webhook_deliveries (endpoint_no, delivery_no, type, event_id, subject, state, body, attempts, attempted_at, log)
		SELECT 1, n, 'inventory.adjusted', 'evt_' || n, 'item lamp', 'exhausted', '{}', 10, now(), jsonb_build_array(jsonb_build_object('at', now(), 'status', 503, 'latencyMs', 7, 'answer', $1::text))
		FROM generate_series(1, 60) AS n`, answer)
}

func TestDeliveries(t *testing.T) {
	t.Parallel()
	s := setup(t)
	s.deliveries(t, "<script>alert(1)</script>")
	list := s.get(t, "/console/webhook?id=whe_1&state=exhausted").want(t, 200, "were given up", "delivery=60\"", `rel="next"`, "item=lamp").lacks(t, "delivery=10\"")
	_, next, _ := strings.Cut(list.body, `<a rel="next" href="`)
	next, _, _ = strings.Cut(next, `"`)
	s.get(t, html.UnescapeString(next)).want(t, 200, "delivery=10\"", ">Newest<", "selected>exhausted").lacks(t, "delivery=60\"", `rel="next"`)
	s.get(t, "/console/webhook?id=whe_1&orderId=none").want(t, 404)
	s.get(t, "/console/webhook?id=whe_1&orderId=o&item=lamp").want(t, 200, `role="alert"`, `value="lamp"`)
	s.get(t, "/console/webhook?id=whe_1&state=skipped").want(t, 200, "no deliveries like this")

	one := "?endpoint=whe_1&delivery=60"
	s.get(t, "/console/delivery"+one).want(t, 200, "&lt;script&gt;alert(1)", "503", ">Send it again<", ">Skip it<").lacks(t, "<script>alert")
	s.do(t, "/console/delivery/resend"+one, "reason", "it is back").want(t, 303)
	s.get(t, "/console/delivery"+one).want(t, 200, "resent", "it is back", "pending")
	s.do(t, "/console/delivery/skip"+one).want(t, 422, "reason")
	s.do(t, "/console/delivery/skip"+one, "reason", "entered by hand").want(t, 303)
	s.get(t, "/console/delivery"+one).want(t, 200, "skipped", "entered by hand").lacks(t, ">Skip it<")
	s.post(t, "/console/delivery/skip"+one, url.Values{"reason": {"twice"}, "requestId": {"2"}}).want(t, 409, "already been delivered or skipped")
	s.do(t, "/console/webhook/recover?id=whe_1", "since", "yesterday").want(t, 422, "must be like")
	s.do(t, "/console/webhook/recover?id=whe_1").want(t, 422) // a browser sends the time that is in the field
	since := time.Now().UTC().Add(-time.Hour).Format("2006-01-02T15:04")
	s.do(t, "/console/webhook/recover?id=whe_1", "since", since).want(t, 200, "59 deliveries are sent again")
	s.get(t, "/console/delivery?endpoint=whe_1&delivery=99").want(t, 404)
	s.get(t, "/console/delivery?endpoint=whe_1&delivery=x").want(t, 404)

	// Who may only read is offered nothing, and gets nothing by asking.
	name, value := s.token(t, "reader", access.Read)
	for _, page := range []string{"/console/webhooks", "/console/webhook?id=whe_1", "/console/delivery" + one, "/console/stock", "/console/item?item=lamp", "/console/books"} {
		s.get(t, page, name, value).want(t, 200).lacks(t, `class="button" href="/console/webhook`, `class="button" href="/console/delivery`, `class="button" href="/console/item`, `method="post"`)
	}
	for _, task := range []string{"/console/webhook/new", "/console/webhook/delete?id=whe_1", "/console/delivery/resend" + one, "/console/item/set?item=lamp"} {
		s.get(t, task, name, value).want(t, 403)
		s.post(t, task, url.Values{"url": {"https://shop.example"}, "reason": {"r"}, "onHand": {"1"}, "confirmed": {"yes"}}, name, value).want(t, 403)
	}
	s.post(t, "/console/books", nil, name, value).want(t, 403)
}
