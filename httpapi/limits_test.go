package httpapi

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"fmt"
	"net/http"
	"net/http/httptest"
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
		if policy := a.header.Get("RateLimit-Policy"); policy != `"failed-attempts";q=20;w=60` {
			t.Fatal("RateLimit-Policy", policy)
		}
		if left := a.header.Get("RateLimit"); !strings.HasPrefix(left, `"failed-attempts";r=0;t=`) {
			t.Fatal("RateLimit", left)
		}
		if pause := a.header.Get("Retry-After"); pause < "1" || pause > "3" {
			t.Fatal("Retry-After", pause)
		}
	}
	if refused == 0 { // one more attempt every 3 s, so all of them in three minutes
		t.Error("an address may fail as often as it likes")
	}
	if counted := counters(t, registry, "pawl_requests_limited_total")["failed-attempts"]; counted != float64(refused) {
		t.Errorf("%v were counted of %d", counted, refused)
	}
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
			if got := a.header.Get("RateLimit-Policy"); got != policy {
				t.Fatalf("RateLimit-Policy %s, want %s", got, policy)
			}
			refused = a
			return a.status == http.StatusTooManyRequests
		})
		p := refused.wantProblem(t, 429, "too_many_requests")
		if left := refused.header.Get("RateLimit"); refused.header.Get("Retry-After") != "1" ||
			!strings.HasPrefix(left, `"requests";r=0;t=1, "in-flight";r=`) || !strings.Contains(p.Detail, "requests") {
			t.Errorf("%v %s", refused.header, refused.body)
		}
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
		if seconds, err := strconv.Atoi(a.header.Get("Retry-After")); err != nil || seconds < 10 {
			t.Error("Retry-After", a.header.Get("Retry-After"))
		}
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
	if policy := read.header.Get("RateLimit-Policy"); policy != `"requests";q=1000;w=1, "in-flight";q=20;qu="concurrent-requests"` {
		t.Error("RateLimit-Policy", policy)
	}
	b.get(t, "/api/orders", "Authorization", bearer("shop", maria)).wantProblem(t, 401, "unauthenticated")
	lacking := b.get(t, "/api/orders", "Authorization", bearer("pawl", account{"u-17", "maria@example.com", "read"})).wantProblem(t, 403, "forbidden")
	if !strings.Contains(lacking.Detail, "oidc:"+issuer+"#u-17") {
		t.Error(lacking.Detail)
	}
	b.get(t, "/api/orders").wantProblem(t, 401, "unauthenticated") // an issuer ends openness, on this machine, too
	b.call(t, "POST /api/orders/held/approve", "", "Authorization", bearer("pawl", maria)).wantProblem(t, 403, "forbidden")
	me := b.get(t, "/api/me", "Authorization", bearer("pawl", maria))
	if !strings.Contains(me.body, `"name":"oidc:`+issuer+`#u-17","email":"maria@example.com"`) {
		t.Error(me.body)
	}
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
	if by := b.text(t, `SELECT string_agg(actor, ' ') FROM transitions WHERE verb = 'approve'`); by != "oidc:"+issuer+"#e-2" {
		t.Errorf("approved by %s", by)
	}
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
