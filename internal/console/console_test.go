package console_test

import (
	"bufio"
	"html"
	"io"
	"net/http"
	"strings"
	"testing"

	"pawl/client"
	"pawl/db"
	"pawl/internal/access"
)

// TestWhoSeesWhat: a page offers what the API would let its user do.
func TestWhoSeesWhat(t *testing.T) {
	t.Parallel()
	s := setup(t)
	s.get(t, "/").want(t, 303)
	s.get(t, "/console").want(t, 200, "<bdi>local</bdi>", ">Orders<")
	s.get(t, "/console", "Cookie", "of=another port").want(t, 200, "<bdi>local</bdi>").lacks(t, "Sign out")
	for _, person := range []struct {
		roles       []access.Role
		sees, lacks string
	}{
		{[]access.Role{access.Read}, ">Orders<", "Sign out"},
		{[]access.Role{access.Stock}, ">Stock<", ">Orders<"},
		{[]access.Role{access.Submit}, "<bdi>", ">Stock<"},
	} {
		name, value := s.token(t, string(person.roles[0]), person.roles...)
		s.get(t, "/console", name, value).want(t, 200, "token:"+string(person.roles[0]), person.sees).lacks(t, person.lacks)
	}
}

func TestPagesLoadNothingForeign(t *testing.T) {
	t.Parallel()
	s := setup(t)
	page := s.get(t, "/console").want(t, 200).lacks(t, "<style", " style=", " onclick", "http://", "https://", "<script>")
	policy := page.header.Get("Content-Security-Policy")
	if !strings.Contains(policy, "default-src 'none'") || strings.Contains(policy, "unsafe") {
		t.Errorf("policy %q", policy)
	}
	if page.header.Get("Cache-Control") != "no-store" {
		t.Errorf("headers %v", page.header)
	}
	_, rest, _ := strings.Cut(page.body, `src="/console/static/`)
	name, _, _ := strings.Cut(rest, `"`)
	script := s.get(t, "/console/static/"+name).want(t, 200, "EventSource")
	if !strings.Contains(script.header.Get("Cache-Control"), "immutable") || !strings.HasPrefix(script.header.Get("Content-Type"), "text/javascript") {
		t.Errorf("headers %v", script.header)
	}
	s.get(t, "/console/static/console.js", "If-None-Match", script.header.Get("Etag")).want(t, 304)
	s.get(t, "/console/static/none.js").want(t, 404)
}

// A page of another site can have a browser send a form here.
func TestFormsOfOtherSites(t *testing.T) {
	t.Parallel()
	s := setup(t)
	s.post(t, "/console/orders", nil, "Sec-Fetch-Site", "cross-site").want(t, 403)
	s.post(t, "/console/orders", nil, "Origin", "https://elsewhere.example").want(t, 403)
}

func TestPagesThatAreNotThere(t *testing.T) {
	t.Parallel()
	s := setup(t)
	s.get(t, "/console/nothing").want(t, 404, "There is no such page.", `href="/console"`)
}

// TestLive: a page hears of what happens, and one that shows an order of what happens to that alone. What happens before it
// listens it hears of, too.
func TestLive(t *testing.T) {
	t.Parallel()
	s := setup(t)
	s.process(t, client.ProcessBody{OrderID: "big", Amount: "600", Item: "lamp"})
	list, order := s.get(t, "/console/orders"), s.get(t, "/console/order?id=big")
	one := s.listen(t, order.live(t))
	s.process(t, client.ProcessBody{OrderID: "small", Amount: "6", Item: "lamp"})
	all := s.listen(t, list.live(t))
	all.poked(t)
	if _, err := s.api.ApproveOrder(t.Context(), "big", nil, client.VerbBody{Reason: "fine"}); err != nil {
		t.Fatal(err)
	}
	one.poked(t)
	s.listen(t, order.live(t)).poked(t)
	s.get(t, "/console/live?order=none").want(t, 404)
}

// TestLiveIsNoListener: events are not numbered in a hurry because a page is open.
func TestLiveIsNoListener(t *testing.T) {
	t.Parallel()
	s := setup(t)
	page := s.listen(t, s.get(t, "/console").live(t))
	for range 3 {
		page.lines.Scan()
	}
	var hurried bool
	if err := s.Pool.QueryRow(t.Context(), `SELECT wanted_until IS NOT NULL FROM event_relay`).Scan(&hurried); err != nil {
		t.Fatal(err)
	}
	if hurried {
		t.Error("the relay is told that somebody listens")
	}
}

// TestWhatIsLive: only a page that hears of all events asks where these are.
func TestWhatIsLive(t *testing.T) {
	t.Parallel()
	s := setup(t)
	s.wait(t, "o")
	for path, asks := range map[string]int64{
		"/console": 1, "/console/attention": 1, "/console/orders": 1, "/console/errors": 1, "/console/webhooks": 1, "/console/stock": 1, "/console/item?item=lamp": 1,
		"/console/order?id=o": 0, "/console/books": 0, // these hear of something else
		"/console/order/cancel?id=o": 0, "/console/bulk?verb=approve&id=o": 0, "/console/item/set?item=lamp": 0, "/console/webhook/new": 0,
		"/console/policies": 0, "/console/policy?version=1": 0, "/console/policy/new": 0, "/console/policy/activate?version=1": 0, "/console/runbook": 0,
	} {
		before := s.latest.Load()
		page := s.get(t, path).want(t, 200)
		if asked := s.latest.Load() - before; asked != asks {
			t.Errorf("%s asks %d times for the latest event, want %d", path, asked, asks)
		}
		if all := strings.Contains(page.body, ` data-live="/console/live?after=`); all != (asks == 1) {
			t.Errorf("%s is live with all that happens: %t", path, all)
		}
	}
	s.get(t, "/console/order?id=none").want(t, 404).lacks(t, "data-live")
	s.get(t, "/console/webhook?id=none").want(t, 404).lacks(t, "data-live")
}

// TestLiveUntilTheSessionEnds: a page that waits for news hears nothing any more once its person has signed out.
func TestLiveUntilTheSessionEnds(t *testing.T) {
	t.Parallel()
	s := setup(t)
	s.token(t, "maria", access.Read)
	link, _, err := access.MakeLink(t.Context(), db.New(s.Pool), "maria", "test")
	if err != nil {
		t.Fatal(err)
	}
	cookie, _, _ := strings.Cut(s.post(t, "/login/"+link, nil).want(t, 200).header.Get("Set-Cookie"), ";")
	page := s.listen(t, "/console/live", "Cookie", cookie)
	page.lines.Scan() // it listens
	s.post(t, "/logout", nil, "Cookie", cookie).want(t, 200)
	for page.lines.Scan() { // until the answer ends
	}
}

// live is where a page listens.
func (page shown) live(t *testing.T) string {
	t.Helper()
	_, rest, found := strings.Cut(page.body, ` data-live="`)
	path, _, _ := strings.Cut(rest, `"`)
	if !found {
		t.Fatal("the page is not live")
	}
	return html.UnescapeString(path)
}

// listener hears what a page hears.
type listener struct{ lines *bufio.Scanner }

func (s *service) listen(t *testing.T, path string, header ...string) listener {
	t.Helper()
	r := s.request(t, http.MethodGet, path, nil)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	answer, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { answer.Body.Close() })
	l := listener{bufio.NewScanner(answer.Body)}
	if answer.StatusCode != http.StatusOK || !l.lines.Scan() {
		text, _ := io.ReadAll(answer.Body)
		t.Fatalf("%s: %s %s", path, answer.Status, text)
	}
	return l
}

func (l listener) poked(t *testing.T) {
	t.Helper()
	for l.lines.Scan() {
		if l.lines.Text() == "event: poke" {
			return
		}
	}
	t.Fatal("no poke came:", l.lines.Err())
}
