package httpapi

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"
)

func TestRoutes(t *testing.T) {
	t.Parallel()
	b := withoutEngine()
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
			if a.header.Get("Allow") != c.allow {
				t.Errorf("Allow: %s", a.header.Get("Allow"))
			}
		})
	}
}

func TestTheRootLeadsToTheDocs(t *testing.T) {
	t.Parallel()
	a := withoutEngine().get(t, "/")
	if a.status != http.StatusSeeOther || a.header.Get("Location") != "/docs" {
		t.Errorf("%d %v", a.status, a.header)
	}
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
			if a := send(t, b.api, r); a.status != c.status {
				t.Errorf("%d %s", a.status, a.body)
			}
		})
	}
	t.Run("64 KiB is read, a byte more is 413", func(t *testing.T) {
		t.Parallel()
		fill := func(n int) string { return "{" + strings.Repeat(" ", n-2) + "}" }
		b.call(t, "POST "+target, fill(maxBody)).wantProblem(t, 422, "invalid_input")
		a := b.call(t, "POST "+target, fill(maxBody+1))
		if a.wantProblem(t, 413, "body_too_large"); a.header.Get("Connection") != "close" {
			t.Error(a.header)
		}
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
	pages := []string{"/docs"}
	for _, k := range kinds {
		pages = append(pages, "/problems/"+string(k.Code))
	}
	for _, target := range pages {
		a := b.get(t, target)
		if a.status != 200 || remote.MatchString(a.body) || strings.Contains(a.body, "<script") || strings.Contains(a.body, "ZgotmplZ") {
			t.Errorf("%s: %d\n%s", target, a.status, a.body)
		}
		if policy := a.header.Get("Content-Security-Policy"); !strings.Contains(policy, "default-src 'none'") {
			t.Errorf("%s: policy %q", target, policy)
		}
	}
	docs := b.get(t, "/docs").body
	for _, text := range []string{"/api/orders/process", "/problems/order_conflict", `href="#type-Order"`, "If-None-Match", "nextCursor", "a time (RFC 3339)", "<h2>Orders and their history</h2>"} {
		if !strings.Contains(docs, text) {
			t.Errorf("/docs does not mention %s", text)
		}
	}
	for _, match := range regexp.MustCompile(`href="#([^"]*)"`).FindAllStringSubmatch(docs, -1) {
		if !strings.Contains(docs, `id="`+match[1]+`"`) {
			t.Errorf("/docs links to #%s, which is not there", match[1])
		}
	}
}
