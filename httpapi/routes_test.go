package httpapi

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"pawl/test/assert"
)

func TestRoutes(t *testing.T) {
	t.Parallel()
	b := withoutEngine()
	r := httptest.NewRequest(http.MethodGet, "/nothing", nil)
	r.Header.Set("Accept", "text/html,*/*")
	a := httptest.NewRecorder()
	b.api.ServeHTTP(a, r)
	if page := a.Body.String(); a.Code != 404 || !strings.Contains(page, `<a class="go" href="/">`) || strings.Contains(page, "pawl token") {
		t.Errorf("%d %s", a.Code, page) // a page for a browser
	}
	for _, c := range []struct{ request, code, allow string }{
		{"GET /nothing", "unknown_route", ""},
		{"GET /api", "unknown_route", ""},
		{"GET /api/", "unknown_route", ""},
		{"GET /api/orders/", "unknown_route", ""},
		{"GET /api/orders/o/", "unknown_route", ""},
		{"GET /api/orders//", "unknown_route", ""},
		{"GET /api/orders//o", "unknown_route", ""},
		{"GET //api/orders", "unknown_route", ""},
		{"GET /api/orders/.", "unknown_route", ""},
		{"GET /api/orders/..", "unknown_route", ""},
		{"GET /api/orders/../orders/o", "unknown_route", ""},
		{"GET /api/./orders", "unknown_route", ""},
		{"GET /api/orders/a/b", "unknown_route", ""},
		{"POST /api/orders/../orders/process", "unknown_route", ""},
		{"GET /problems/nothing", "unknown_route", ""},
		{"GET /problems", "unknown_route", ""},
		{"CONNECT /nothing", "unknown_route", ""},
		{"CONNECT /api/orders", "method_not_allowed", "GET, HEAD"},
		{"OPTIONS /api/orders", "method_not_allowed", "GET, HEAD"},
		{"POST /api/orders", "method_not_allowed", "GET, HEAD"},
		{"DELETE /api/orders/o", "method_not_allowed", "GET, HEAD"},
		{"PUT /api/orders/process", "method_not_allowed", "GET, HEAD, POST"},
		{"GET /api/orders/o/cancel", "method_not_allowed", "POST"},
		{"PATCH /api/inventory/i", "method_not_allowed", "GET, HEAD, PUT"},
		{"GET /api/orders/%2F", "unknown_route", ""}, // no order and no item is called so
		{"GET /api/orders/%2f/transitions", "unknown_route", ""},
		{"POST /api/orders/%2F/cancel", "unknown_route", ""},
		{"PUT /api/inventory/i/adjustments", "method_not_allowed", "POST"},
		{"PUT /api/inventory/%2F", "unknown_route", ""},
		{"DELETE /api/orders/%2F%2F", "method_not_allowed", "GET, HEAD"},
		{"POST /health", "method_not_allowed", "GET, HEAD"},
		{"POST /", "method_not_allowed", "GET, HEAD"},
	} {
		t.Run(c.request, func(t *testing.T) {
			t.Parallel()
			method, target, _ := strings.Cut(c.request, " ")
			r := httptest.NewRequest(method, "/", nil)
			r.URL.RawPath = target
			r.URL.Path, _ = url.PathUnescape(target)
			a := send(t, b.api, r)
			status := map[string]int{"unknown_route": 404, "method_not_allowed": 405}[c.code]
			a.wantProblem(t, status, c.code)
			assert.Equal(t, a.header.Get("Allow"), c.allow, "Allow")
		})
	}
}

func TestTheRootLeadsToTheDocs(t *testing.T) {
	t.Parallel()
	a := withoutEngine().get(t, "/")
	assert.True(t, a.status == http.StatusSeeOther && a.header.Get("Location") == "/docs", a.status, a.header)
}

func TestBodies(t *testing.T) {
	t.Parallel()
	b := withoutEngine()
	const target = "/api/orders/process"
	for _, c := range []struct {
		name, contentType, encoding string
		status                      int
	}{
		{"plain text", "text/plain", "", 415},
		{"a form", "application/x-www-form-urlencoded", "", 415},
		{"another charset", "application/json; charset=iso-8859-1", "", 415},
		{"a media type that is none", "application/json; charset", "", 415},
		{"JSON sequences", "application/json-seq", "", 415},
		{"an image that ends in +json", "image/x+json", "", 415},
		{"compressed", "application/json", "gzip", 415},
		{"JSON", "application/json", "", 422},
		{"JSON with charset", "application/json; charset=UTF-8", "", 422},
		{"a kind of JSON", "application/vnd.orders+json", "", 422},
		{"capital letters", "Application/JSON", "identity", 422},
		{"nothing said", "", "", 422},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := httptest.NewRequest(http.MethodPost, target, strings.NewReader("{}"))
			r.Header.Set("Content-Type", c.contentType)
			if c.encoding != "" {
				r.Header.Set("Content-Encoding", c.encoding)
			}
			a := send(t, b.api, r)
			assert.Equal(t, a.status, c.status, a.body)
		})
	}
	t.Run("64 KiB is read, a byte more is 413", func(t *testing.T) {
		t.Parallel()
		fill := func(n int) string { return "{" + strings.Repeat(" ", n-2) + "}" }
		b.call(t, "POST "+target, fill(maxBody)).wantProblem(t, 422, "invalid_input")
		a := b.call(t, "POST "+target, fill(maxBody+1))
		a.wantProblem(t, 413, "body_too_large")
		assert.Equal(t, a.header.Get("Connection"), "close", a.header)
		r := httptest.NewRequest(http.MethodPost, target, strings.NewReader(fill(maxBody+1)))
		r.ContentLength = -1
		send(t, b.api, r).wantProblem(t, 413, "body_too_large")
	})
	t.Run("a body that ends early is 400", func(t *testing.T) {
		t.Parallel()
		r := httptest.NewRequest(http.MethodPost, target, &broken{})
		send(t, b.api, r).wantProblem(t, 400, "malformed_json")
	})
	t.Run("no body is 400", func(t *testing.T) {
		t.Parallel()
		b.call(t, "POST "+target, "").wantProblem(t, 400, "malformed_json")
	})
}

type broken struct{}

func (*broken) Read(b []byte) (int, error) { return copy(b, `{"a":`), fmt.Errorf("cut off") }

func TestPages(t *testing.T) {
	t.Parallel()
	b := withoutEngine()
	remote := regexp.MustCompile(`(?i)(src|href|url|import)\s*[=(]?\s*["']?(https?:)?//`)
	pages := []string{"/docs", "/docs/problems", "/docs/types"}
	for _, tag := range []string{"orders", "customers", "providers", "inventory", "events", "policies", "webhooks", "service"} {
		pages = append(pages, "/docs/"+tag)
	}
	docs := map[string]string{}
	for _, k := range kinds {
		pages = append(pages, "/problems/"+string(k.Code))
	}
	for _, target := range pages {
		a := b.get(t, target)
		docs[target] = a.body
		if a.status != 200 || remote.MatchString(a.body) || strings.Contains(strings.Replace(a.body, "<script>"+docsScript+"</script>", "", 1), "<script") || strings.Contains(a.body, "ZgotmplZ") {
			t.Errorf("%s: %d\n%s", target, a.status, a.body)
		}
		assert.Contains(t, a.header.Get("Content-Security-Policy"), "default-src 'none'", target, "policy")
	}
	for _, text := range []string{"/api/orders/process", "/problems/order_conflict", `href="/docs/types#type-Order"`, "<td>The ETag that you have.", `<code>paymentMethod</code>`,
		`<h1>Orders and their history</h1>`} {
		assert.Contains(t, docs["/docs/orders"], text, "/docs/orders does not mention")
	}
	assert.Contains(t, docs["/docs/types"], "a time (RFC 3339)")
	missing := b.browse(t, "GET /docs/nope", "Accept", "text/html")
	assert.True(t, missing.status == 404 && strings.Contains(missing.body, "<title>"), missing.status, missing.body)
	for page, body := range docs {
		for _, match := range regexp.MustCompile(`href="((?:/docs|/problems)[^"#]*)(?:#([^"]*))?"`).FindAllStringSubmatch(body, -1) {
			there, known := docs[match[1]]
			assert.True(t, known && (match[2] == "" || strings.Contains(there, `id="`+match[2]+`"`)), page, "links to", match[0])
		}
	}
}

// TestWhatIsNotThere: an answer says which thing is not there, where a request names several.
func TestWhatIsNotThere(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exec(t, `INSERT INTO webhook_endpoints (url, secret, event_no, created_by) VALUES ('https://shop.example/', 'whsec_', 0, 'test')`)
	for target, want := range map[string]string{
		"/api/orders/nobody":                                     `There is no order "nobody".`,
		"/api/orders/nobody?wait=1":                              `There is no order "nobody".`,
		"/api/orders/nobody/transitions":                         `There is no order "nobody".`,
		"/api/orders/nobody/deliveries":                          `There is no order "nobody".`,
		"/api/orders/nobody/calls":                               `There is no order "nobody".`,
		"/api/orders/%00":                                        `There is no such order.`,
		"/api/policies/7":                                        `There is no such policy.`,
		"/api/inventory/nothing":                                 `There is no item "nothing".`,
		"/api/inventory/nothing/movements":                       `There is no item "nothing".`,
		"/api/webhook-endpoints/whe_9":                           `There is no webhook endpoint "whe_9".`,
		"/api/webhook-endpoints/9":                               `There is no such webhook endpoint.`,
		"/api/webhook-endpoints/whe_9/deliveries/1":              `There is no webhook endpoint "whe_9".`,
		"/api/webhook-endpoints/whe_1/deliveries/7":              `There is no delivery at whe_1 with the number "7".`,
		"/api/webhook-endpoints/whe_9/deliveries?orderId=nobody": `There is no webhook endpoint "whe_9".`,
		"/api/webhook-endpoints/whe_1/deliveries?orderId=nobody": `There is no order "nobody".`,
	} {
		assert.Equal(t, b.get(t, target).wantProblem(t, 404, "not_found").Detail, want, target)
	}
	assert.Equal(t, b.verb(t, "nobody/cancel", `{}`).wantProblem(t, 404, "not_found").Detail, `There is no order "nobody".`)
	callback := b.call(t, "POST /api/callbacks/forged", `{"outcome":"done"}`)
	assert.Equal(t, callback.wantProblem(t, 404, "not_found").Detail, "There is no such callback.")
}

func TestRequestsOfOtherSites(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.held(t, "held", nil)
	b.stock(t, "widget", `{"onHand":5}`).wantStatus(t, 200)
	writes := []struct{ request, body string }{
		{"POST /api/orders/process", ask("o")},
		{"POST /api/orders/held/cancel", ""},
		{"PUT /api/inventory/widget", `{"onHand":7}`},
		{"POST /api/inventory/widget/adjustments", `{"change":2,"reason":"found","requestId":"1"}`},
	}
	for _, header := range [][]string{
		{"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Site", "same-site"},
		{"Origin", "https://elsewhere.example"}, {"Origin", "null"}, {"Origin", "http://localhost:8080"},
	} {
		t.Run(fmt.Sprintf("are refused: %s", header), func(t *testing.T) {
			t.Parallel()
			for _, write := range writes {
				b.call(t, write.request, write.body, header...).wantProblem(t, 403, "cross_origin")
			}
			b.get(t, "/api/orders/held", header...).wantStatus(t, 200) // reading does nothing
			assert.Equal(t, b.count(t, `SELECT (SELECT count(*) FROM orders WHERE order_id = 'o' OR stop_requested IS NOT NULL)
				+ (SELECT count(*) FROM inventory WHERE on_hand = 7)`), 0, "something was written")
		})
	}
	for i, header := range [][]string{
		nil, {"Sec-Fetch-Site", "same-origin"}, {"Sec-Fetch-Site", "none"}, {"Origin", "http://localhost"},
	} {
		t.Run(fmt.Sprintf("our own are answered: %s", header), func(t *testing.T) {
			t.Parallel()
			id := fmt.Sprintf("ours-%d", i)
			b.process(t, ask(id), header...).wantStatus(t, 200)
			b.call(t, "POST /api/orders/"+id+"/cancel", "", header...).wantProblem(t, 409, "not_applicable")
			b.stock(t, id, `{"onHand":8}`, header...).wantStatus(t, 200)
		})
	}
}
