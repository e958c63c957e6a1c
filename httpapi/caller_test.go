package httpapi

import (
	"bufio"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"pawl/internal/access"
	"pawl/test/assert"
)

// TestHosts asks a service on this machine under many names, and one that listens elsewhere, too.
func TestHosts(t *testing.T) {
	t.Parallel()
	const elsewhere = "203.0.113.9:40000"
	b := &bundle{api: New(nil, Config{AllowedHosts: []string{"pawl.shop.example:8443"}})}
	address := listen(t, b.api, patience)
	for _, c := range []struct {
		host, header        string
		here, local, others bool // answered while listening on this machine only; elsewhere, to this machine, and to others
	}{
		{"localhost", "", true, true, true}, {"localhost:3000", "Origin: http://localhost:3000", true, true, true},
		{"LOCALHOST.", "", true, true, true}, {"127.0.0.1:3000", "", true, true, true}, {"[::1]:3000", "", true, true, true},
		{"pawl.shop.example", "Origin: https://pawl.shop.example", true, true, true}, {"Pawl.Shop.Example:8443", "", true, true, true},
		{"evil.example:3000", "", false, false, true},
		{"evil.example:3000", "Sec-Fetch-Mode: cors", false, false, true}, // fetch of Node.js
		{"evil.example:3000", "Origin: http://evil.example:3000", false, false, false},
		{"evil.example:3000", "Sec-Fetch-Site: same-origin", false, false, false},
		{"evil.example:3000", "X-Forwarded-For: 127.0.0.1", false, true, true}, // it has no rights of this machine then
		{"localhost.evil.example", "Sec-Fetch-Site: none", false, false, false},
		{"192.0.2.7:3000", "Origin: http://192.0.2.7:3000", false, true, true},
		{"[2001:db8::1]:3000", "Origin: http://[2001:db8::1]:3000", false, true, true},
		{"0x7f.1", "Origin: http://0x7f.1", false, false, false}, {"", "", true, true, true},
	} {
		t.Run(fmt.Sprintf("%q %s", c.host, c.header), func(t *testing.T) {
			t.Parallel()
			conn := dial(t, address)
			version, host := "1.1", "Host: "+c.host+"\r\n"
			if c.host == "" {
				version, host = "1.0", ""
			}
			header := c.header
			if header != "" {
				header += "\r\n"
			}
			write(t, conn, "GET /livez HTTP/"+version+"\r\n"+host+header+"\r\n")
			allows(t, "on this machine only", readAnswer(t, bufio.NewReader(conn)), c.here)
			for from, want := range map[string]bool{fromHere: c.local, elsewhere: c.others} {
				r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/livez", nil)
				r.RemoteAddr, r.Host = from, c.host
				if name, value, given := strings.Cut(c.header, ": "); given {
					r.Header.Set(name, value)
				}
				w := httptest.NewRecorder()
				b.api.ServeHTTP(w, r)
				allows(t, "from "+from, answer{w.Code, w.Header(), w.Body.String()}, want)
			}
		})
	}
}

func allows(t *testing.T, what string, a answer, want bool) {
	t.Helper()
	if want && a.status != 200 {
		t.Errorf("%s: %d %s", what, a.status, a.body)
	}
	if !want {
		t.Log(what)
		a.wantProblem(t, 421, "misdirected_request")
	}
}

// TestRebinding is a web page whose name resolves to this machine: its browser takes the service for a part of the page.
func TestRebinding(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.process(t, ask("secret")).wantStatus(t, 200)
	address := listen(t, b.api, patience)
	const page = "Origin: http://evil.example:3000\r\nSec-Fetch-Site: same-origin\r\n"
	for _, text := range []string{
		strings.Replace(request("theirs", page), "Host: localhost", "Host: evil.example:3000", 1),
		"GET /api/orders HTTP/1.1\r\nHost: evil.example:3000\r\n\r\n", // browsers send no mark with it
	} {
		conn := dial(t, address)
		write(t, conn, text)
		if a := readAnswer(t, bufio.NewReader(conn)); strings.Contains(a.body, "secret") {
			t.Error(a.body)
		} else {
			a.wantProblem(t, 421, "misdirected_request")
		}
	}
	assert.Equal(t, b.count(t, `SELECT count(*) FROM orders WHERE order_id = 'theirs'`), 0, "the order was processed")
}

func TestCallers(t *testing.T) {
	t.Parallel()
	proxies := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("2001:db8:aaaa::/48"), netip.MustParsePrefix("127.0.0.2/32")}
	for _, c := range []struct {
		peer   string
		header http.Header
		want   caller
	}{
		{"127.0.0.1:1", nil, caller{address: addr("127.0.0.1"), local: true, secure: true}},
		{"[::1]:1", nil, caller{address: addr("::1"), local: true, secure: true}},
		{"[::ffff:127.0.0.1]:1", nil, caller{address: addr("127.0.0.1"), local: true, secure: true}},
		{"203.0.113.9:1", nil, caller{address: addr("203.0.113.9")}},
		{"[fe80::1%eth0]:1", nil, caller{address: addr("fe80::1")}},
		// somebody in front of us who is not named: nothing is believed, and nothing is local
		{"127.0.0.1:1", http.Header{"X-Forwarded-For": {"127.0.0.1"}}, caller{address: addr("127.0.0.1"), forwarded: true, secure: true}},
		{"127.0.0.1:1", http.Header{"Forwarded": {"for=127.0.0.1"}}, caller{address: addr("127.0.0.1"), forwarded: true, secure: true}},
		{"127.0.0.1:1", http.Header{"X-Forwarded-Proto": {"https"}}, caller{address: addr("127.0.0.1"), forwarded: true, secure: true}},
		{"203.0.113.9:1", http.Header{"X-Forwarded-For": {"127.0.0.1"}}, caller{address: addr("203.0.113.9"), forwarded: true}},
		// proxies that are named
		{"127.0.0.2:1", nil, caller{address: addr("127.0.0.2"), forwarded: true, secure: true}},
		{"10.0.0.1:1", http.Header{"X-Forwarded-For": {"203.0.113.9"}}, caller{address: addr("203.0.113.9"), forwarded: true, secure: true}},
		{"10.0.0.1:1", http.Header{"X-Forwarded-For": {"127.0.0.1, 203.0.113.9, 10.1.2.3"}},
			caller{address: addr("203.0.113.9"), forwarded: true, secure: true}},
		{"10.0.0.1:1", http.Header{"X-Forwarded-For": {"198.51.100.1", "203.0.113.9:4711"}},
			caller{address: addr("203.0.113.9"), forwarded: true, secure: true}},
		{"10.0.0.1:1", http.Header{"X-Forwarded-For": {"203.0.113.9, nonsense"}}, caller{address: addr("10.0.0.1"), forwarded: true, secure: true}},
		{"10.0.0.1:1", http.Header{"Forwarded": {`for=127.0.0.1, For="[2001:db8::7]:4711";proto=https`}},
			caller{address: addr("2001:db8::7"), forwarded: true, secure: true}},
		{"10.0.0.1:1", http.Header{"Forwarded": {"for=unknown"}}, caller{address: addr("10.0.0.1"), forwarded: true, secure: true}},
		{"10.0.0.1:1", http.Header{"X-Forwarded-For": {"203.0.113.9"}, "Forwarded": {"for=198.51.100.1"}},
			caller{address: addr("203.0.113.9"), forwarded: true, secure: true}},
		{"[2001:db8:aaaa::5]:1", http.Header{"X-Forwarded-For": {"10.0.0.7, 10.0.0.8"}}, caller{address: addr("10.0.0.7"), forwarded: true, secure: true}},
	} {
		r := &http.Request{RemoteAddr: c.peer, Header: c.header}
		if got := callerFrom(r, proxies); got != c.want {
			t.Errorf("%s %v: %+v, want %+v", c.peer, c.header, got, c.want)
		}
	}
	if access.Network(addr("2001:db8::1")) != access.Network(addr("2001:db8::2")) ||
		access.Network(addr("2001:db8::1")) == access.Network(addr("2001:db8:0:1::1")) ||
		access.Network(addr("192.0.2.1")) == access.Network(addr("192.0.2.2")) {
		t.Error("one caller has a network of IPv6, and an address of IPv4")
	}
}

func addr(text string) netip.Addr { return netip.MustParseAddr(text) }

// TestCredentialsInTheOpen sends a token over plain HTTP.
func TestCredentialsInTheOpen(t *testing.T) {
	t.Parallel()
	api := New(nil, Config{Proxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}})
	for _, c := range []struct {
		from, path string
		code       string
	}{
		{"203.0.113.9:1", "/api/orders", "tls_required"}, {"203.0.113.9:1", "/api/orders/o", "tls_required"},
		{"203.0.113.9:1", "/api/inventory", "tls_required"},
		{"127.0.0.1:1", "/api/orders", "unauthenticated"}, {"10.0.0.1:1", "/api/orders", "unauthenticated"}, // looked at, and not good
	} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, c.path, nil)
		r.RemoteAddr, r.Host = c.from, "localhost"
		r.Header.Set("Authorization", "Bearer pawl_x")
		w := httptest.NewRecorder()
		api.ServeHTTP(w, r)
		a := answer{w.Code, w.Header(), w.Body.String()}
		checkAnswer(t, r.Pattern, a)
		assert.Equal(t, a.decoded(t).Code, c.code, c.path, "from", c.from, a.body)
	}
}

// TestOperationsHaveAnAddress is about a service with a second one.
func TestOperationsHaveAnAddress(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exec(t, `ALTER TABLE charges RENAME TO hidden`)
	metrics := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Write([]byte("metrics")) //nolint:errcheck // a recorder
	})
	api, forOperations := NewWithOperations(b.engine, Config{Metrics: metrics})
	for _, c := range []struct {
		path                string
		callers, operations int
	}{
		{"/metrics", 404, 200}, {"/livez", 200, 200}, {"/health", 503, 503}, {"/api/inventory", 200, 404}, {"/docs", 200, 200},
		{"/problems/internal", 200, 200}, {"/nothing", 404, 404},
	} {
		for handler, want := range map[http.Handler]int{api: c.callers, forOperations: c.operations} {
			if a := (&bundle{api: handler}).get(t, c.path); a.status != want {
				t.Errorf("%s: %d %s, want %d", c.path, a.status, a.body, want)
			}
		}
	}
	eventually(t, "health says why, to those who run the service", func() bool {
		return strings.Contains((&bundle{api: forOperations}).get(t, "/health").body, "not migrated")
	})
	if a := (&bundle{api: api}).get(t, "/health"); strings.Contains(a.body, "migrated") {
		t.Errorf("others are told %s", a.body)
	}
	(&bundle{api: api}).call(t, "POST /metrics", "").wantProblem(t, 404, "unknown_route")
	(&bundle{api: forOperations}).call(t, "POST /metrics", "").wantProblem(t, 405, "method_not_allowed")
}
