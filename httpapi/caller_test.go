package httpapi

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/coreos/go-oidc/v3/oidc/oidctest"
	"github.com/prometheus/client_golang/prometheus"

	"pawl/db"
	"pawl/engine"
	"pawl/internal/access"
	"pawl/test/assert"
	"pawl/test/dbtest"
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
	assert.True(t, !want || a.status == 200, what, a.status, a.body)
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
		got := callerFrom(r, proxies)
		assert.True(t, got == c.want, c.peer, c.header, got, c.want)
	}
	assert.True(t, access.Network(addr("2001:db8::1")) == access.Network(addr("2001:db8::2")) &&
		access.Network(addr("2001:db8::1")) != access.Network(addr("2001:db8:0:1::1")) &&
		access.Network(addr("192.0.2.1")) != access.Network(addr("192.0.2.2")), "one caller has a network of IPv6, and an address of IPv4")
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
			a := (&bundle{api: handler}).get(t, c.path)
			assert.Equal(t, a.status, want, c.path, a.body)
		}
	}
	eventually(t, "health says why, to those who run the service", func() bool {
		return strings.Contains((&bundle{api: forOperations}).get(t, "/health").body, "not migrated")
	})
	a := (&bundle{api: api}).get(t, "/health")
	assert.True(t, !strings.Contains(a.body, "migrated"), "others are told", a.body)
	(&bundle{api: api}).call(t, "POST /metrics", "").wantProblem(t, 404, "unknown_route")
	(&bundle{api: forOperations}).call(t, "POST /metrics", "").wantProblem(t, 405, "method_not_allowed")
}

// guardedBy is the API with a control of its own over its database.
func guardedBy(t *testing.T, cfg access.Config, policies ...string) *bundle {
	t.Helper()
	b := &bundle{Database: dbtest.New(t), grace: patience}
	for _, policy := range policies {
		b.activate(t, policy)
	}
	pool := open(t, b.URL)
	control, err := access.New(t.Context(), db.New(pool), cfg)
	assert.NoError(t, err)
	b.serveOn(t, pool, engine.Config{}, Config{ResponseTimeout: patience, Access: control})
	t.Cleanup(control.Stop) // before the pool is closed
	return b
}

// getFrom reads from an address, by https.
func (b *bundle) getFrom(t testing.TB, address, target string, header ...string) answer {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, target, nil)
	r.RemoteAddr, r.TLS = address, &tls.ConnectionState{}
	return send(t, b.api, r, header...)
}

// counters reads a counter with one label, by its values.
func counters(t testing.TB, registry *prometheus.Registry, name string) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	assert.NoError(t, err)
	values := map[string]float64{}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			if family.GetName() == name {
				values[metric.GetLabel()[0].GetValue()] = metric.GetCounter().GetValue()
			}
		}
	}
	return values
}

func TestAddressesThatFailTooOften(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	b := guardedBy(t, access.Config{Registerer: registry})
	guess := func(address string, n int) answer {
		return b.getFrom(t, address, "/api/orders", "Authorization", fmt.Sprint("Bearer pawl_guess-", n))
	}
	refused := 0
	for n := range 60 {
		a := guess("198.51.100.7:1234", n)
		if a.status == http.StatusUnauthorized {
			continue
		}
		a.wantProblem(t, 429, "too_many_requests")
		refused++
		policy := a.header.Get("RateLimit-Policy")
		assert.Require(t, policy == `"failed-attempts";q=20;w=60`, "RateLimit-Policy", policy)
		left := a.header.Get("RateLimit")
		assert.Require(t, strings.HasPrefix(left, `"failed-attempts";r=0;t=`), "RateLimit", left)
		pause := a.header.Get("Retry-After")
		assert.Require(t, pause >= "1" && pause <= "3", "Retry-After", pause)
	}
	if refused == 0 { // one more attempt every 3 s, so all of them in three minutes
		t.Error("an address may fail as often as it likes")
	}
	counted := counters(t, registry, "pawl_requests_limited_total")["failed-attempts"]
	assert.True(t, counted == float64(refused), counted, "were counted of", refused)
	guess("203.0.113.9:1234", 1).wantProblem(t, 401, "unauthenticated")
	b.getFrom(t, "198.51.100.7:1234", "/livez").wantStatus(t, 200) // which needs none
}

// limited is the API for a token with limits, and that token.
func limited(t testing.TB, limits access.Limits) (*bundle, string) {
	t.Helper()
	b := setup(t)
	issued, err := access.Create(t.Context(), db.New(b.Pool), access.Template{
		Name: "shop", Roles: access.AllRoles, Limits: limits, Lifetime: time.Hour, Actor: "test",
	})
	assert.NoError(t, err)
	b.guard(t)
	return b, "Bearer " + issued.Token
}

func TestTokensWithLimits(t *testing.T) {
	t.Parallel()
	t.Run("of requests", func(t *testing.T) {
		t.Parallel()
		b, shop := limited(t, access.Limits{Rate: 2, InFlight: 9, Bytes: 1 << 30})
		var refused answer
		eventually(t, "a request is too many", func() bool {
			a := b.get(t, "/api/orders", "Authorization", shop)
			const policy = `"requests";q=2;w=1, "in-flight";q=9;qu="concurrent-requests", "bytes";q=1073741824;qu="content-bytes";w=1`
			got := a.header.Get("RateLimit-Policy")
			assert.Require(t, got == policy, "RateLimit-Policy", got, policy)
			refused = a
			return a.status == http.StatusTooManyRequests
		})
		p := refused.wantProblem(t, 429, "too_many_requests")
		left := refused.header.Get("RateLimit")
		assert.True(t, refused.header.Get("Retry-After") == "1" && strings.HasPrefix(left, `"requests";r=0;t=1, "in-flight";r=`) &&
			strings.Contains(p.Detail, "requests"), refused.header, refused.body)
	})
	t.Run("of requests that say who the caller is", func(t *testing.T) {
		t.Parallel()
		b, shop := limited(t, access.Limits{Rate: 2})
		eventually(t, "a request is too many", func() bool {
			return b.get(t, "/api/me", "Authorization", shop).status == http.StatusTooManyRequests
		})
		b.get(t, "/api/me").wantStatus(t, 200)
	})
	t.Run("of requests at one time", func(t *testing.T) {
		t.Parallel()
		b, shop := limited(t, access.Limits{InFlight: 1})
		b.elsewhere(t, "slow") // whoever waits for it waits long
		ctx, leave := context.WithCancel(t.Context())
		var callers sync.WaitGroup
		callers.Go(func() {
			w := httptest.NewRecorder()
			for w.Code = http.StatusTooManyRequests; w.Code == http.StatusTooManyRequests; { // one of those below may be there first
				waiting := httptest.NewRequestWithContext(ctx, http.MethodGet, "/api/orders/slow?wait=60", nil)
				waiting.RemoteAddr, waiting.Host = fromHere, "localhost"
				waiting.Header.Set("Authorization", shop)
				w = httptest.NewRecorder()
				b.api.ServeHTTP(w, waiting)
			}
		})
		eventually(t, "another request is too many", func() bool {
			return b.get(t, "/api/orders", "Authorization", shop).status == http.StatusTooManyRequests
		})
		leave()
		callers.Wait()
		b.get(t, "/api/orders", "Authorization", shop).wantStatus(t, 200)
	})
	t.Run("of bytes, in and out", func(t *testing.T) {
		t.Parallel()
		b, shop := limited(t, access.Limits{Bytes: 10}) // an answer is what this token may have in a minute
		b.call(t, "POST /api/orders/process", ask("o"), "Authorization", shop).wantStatus(t, 200)
		a := b.get(t, "/api/orders", "Authorization", shop)
		a.wantProblem(t, 429, "too_many_requests")
		seconds, err := strconv.Atoi(a.header.Get("Retry-After"))
		assert.True(t, err == nil && seconds >= 10, "Retry-After", a.header.Get("Retry-After"))
	})
}

// account is what an OpenID Connect issuer says of a caller.
type account struct{ subject, email, group string }

// withIssuer is the API for the accounts of an issuer at a path, and what they send.
func withIssuer(t *testing.T, path string, policies ...string) (b *bundle, issuerURL string, bearer func(audience string, of account) string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	assert.NoError(t, err)
	provider := &oidctest.Server{PublicKeys: []oidctest.PublicKey{{PublicKey: key.Public(), KeyID: "k", Algorithm: oidc.ES256}}}
	server := httptest.NewServer(http.StripPrefix(path, provider))
	t.Cleanup(server.Close)
	issuerURL = server.URL + path
	provider.SetIssuer(issuerURL)
	b = guardedBy(t, access.Config{Issuer: access.Issuer{
		URL: issuerURL, Audience: "pawl", RoleClaim: "realm_access.roles", Roles: map[string]access.Roles{
			"support": {access.Read, access.Operate}, "shop": {access.Submit, access.Approve}, "warehouse": {access.Stock},
		},
		Limits: access.Limits{Rate: 1000, InFlight: 20},
	}}, policies...)
	return b, issuerURL, func(audience string, of account) string {
		return "Bearer " + oidctest.SignIDToken(key, "k", oidc.ES256, fmt.Sprintf(`{"iss":%q,"aud":%q,"sub":%q,"exp":%d,
			"email":%q,"email_verified":true,"realm_access":{"roles":[%q]}}`, issuerURL, audience, of.subject, time.Now().Add(time.Hour).Unix(), of.email, of.group))
	}
}

// TestOIDCCallers have tokens of an issuer over HTTP.
func TestOIDCCallers(t *testing.T) {
	t.Parallel()
	b, issuer, bearer := withIssuer(t, "")
	maria := account{"u-17", "maria@example.com", "support"}
	b.held(t, "held", nil)
	read := b.get(t, "/api/orders", "Authorization", bearer("pawl", maria))
	read.wantStatus(t, 200)
	assert.Equal(t, read.header.Get("RateLimit-Policy"), `"requests";q=1000;w=1, "in-flight";q=20;qu="concurrent-requests"`,
		"RateLimit-Policy")
	b.get(t, "/api/orders", "Authorization", bearer("shop", maria)).wantProblem(t, 401, "unauthenticated")
	lacking := b.get(t, "/api/orders", "Authorization", bearer("pawl", account{"u-17", "maria@example.com", "read"})).wantProblem(t, 403, "forbidden")
	assert.Contains(t, lacking.Detail, "oidc:"+issuer+"#u-17")
	b.get(t, "/api/orders").wantProblem(t, 401, "unauthenticated") // an issuer ends openness, on this machine, too
	b.call(t, "POST /api/orders/held/approve", "", "Authorization", bearer("pawl", maria)).wantProblem(t, 403, "forbidden")
	me := b.get(t, "/api/me", "Authorization", bearer("pawl", maria))
	assert.Contains(t, me.body, `"name":"oidc:`+issuer+`#u-17","email":"maria@example.com"`)
}

// TestOIDCAddressIsNobody: who has, had or claims an address of somebody else, or the name of a token, does nothing in that one's
// name; and who changes an address stays who it was.
func TestOIDCAddressIsNobody(t *testing.T) {
	t.Parallel()
	b, issuer, bearer := withIssuer(t, "", "approval:\n  - {approver: another}\n")
	as := func(of account) []string { return []string{"Authorization", bearer("pawl", of)} }
	maria := account{"m-1", "maria@shop.example", "shop"}
	order := func(id string) string { return fmt.Sprintf(`{"orderId":%q,"amount":1,"item":"i"}`, id) }
	b.process(t, order("marias"), append(as(maria), "Idempotency-Key", "k", "Prefer", "wait=0")...).wantStatus(t, 202)

	for _, moved := range []account{maria, {"m-1", "eve@shop.example", "shop"}, {"m-1", "", "shop"}} {
		b.get(t, "/api/orders/marias", as(moved)...).wantStatus(t, 200)
		b.call(t, "POST /api/orders/marias/approve", "", as(moved)...).wantProblem(t, 403, "own_order")
	}
	for _, eve := range []account{
		{"e-2", "maria@shop.example", "shop"}, {"maria@shop.example", "", "shop"}, {"oidc:" + issuer + "#m-1", "", "shop"}, {issuer + "#m-1", "", "shop"},
		{"#m-1", "", "shop"}, {"M-1", "", "shop"}, {"local", "", "shop"}, {"token:shop-web", "", "shop"},
	} {
		b.get(t, "/api/orders/marias", as(eve)...).wantProblem(t, 404, "not_found")
		b.process(t, order("marias"), append(as(eve), "Prefer", "wait=0")...).wantProblem(t, 409, "order_conflict")
		b.process(t, order("of "+eve.subject+eve.email),
			append(as(eve), "Idempotency-Key", "k", "Prefer", "wait=0")...).wantStatus(t, 202) // a key of her own
	}
	assert.Equal(t, b.count(t, `SELECT count(DISTINCT submitted_by) FROM orders`), 9, "principals have sent orders")
	b.call(t, "POST /api/orders/marias/approve", "", as(account{"e-2", "maria@shop.example", "shop"})...).wantStatus(t, 200)
	assert.Equal(t, b.text(t, `SELECT string_agg(actor, ' ') FROM transitions WHERE verb = 'approve'`), "oidc:"+issuer+"#e-2",
		"approved by")
}

// TestOIDCLongest: the longest principal, item and request id fit together into the index by which a repeated request is known.
func TestOIDCLongest(t *testing.T) {
	t.Parallel()
	b, _, bearer := withIssuer(t, "/"+strings.Repeat("r", 255-len("http://127.0.0.1:65535/")))
	var subject, wide strings.Builder
	for n := range 255 { // nothing that the database could compress
		subject.WriteByte("0123456789abcdefghijklmnopqrstuvwxyz"[n*n*7%36])
		wide.WriteRune(rune(0x20000 + n*97))
	}
	by := bearer("pawl", account{subject.String(), "", "warehouse"})
	for range 2 {
		b.adjust(t, wide.String(), fmt.Sprintf(`{"change":10,"reason":"delivery","requestId":%q}`, wide.String()), "Authorization", by).wantStatus(t, 200)
	}
	assert.Equal(t, b.count(t, `SELECT count(*) FROM stock_movements WHERE length(actor) > 500`), 1, "movements")
}

func TestOIDCIssuerIsAway(t *testing.T) {
	t.Parallel()
	b := guardedBy(t, access.Config{Issuer: access.Issuer{
		URL: "http://127.0.0.1:1", Audience: "pawl", RoleClaim: "roles", Roles: map[string]access.Roles{"support": {access.Read}},
	}})
	a := b.get(t, "/api/orders", "Authorization", "Bearer a.b.c")
	a.wantProblem(t, 503, "issuer_unavailable")
	assert.Equal(t, a.header.Get("Retry-After"), "30", "Retry-After")
	b.get(t, "/livez").wantStatus(t, 200)
}
