package httpapi

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"pawl/db"
	"pawl/engine"
	"pawl/internal/access"
	"pawl/internal/version"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

// credentials are what requests can be sent with, by what it is called.
type credentials map[string]string

// guarded is the API over a database with tokens: one for each role, and some that are not good.
func guarded(t testing.TB) (*bundle, credentials, *access.Control) {
	t.Helper()
	b := setupWith(t, engine.Config{}, Config{}) // its engine; the service is made below, when there are tokens
	query, made := db.New(b.Pool), credentials{"no token": "", "no bearer": "Basic YTpi", "wrong": "Bearer pawl_"}
	create := func(name string, roles ...access.Role) string {
		issued, err := access.Create(t.Context(), query, access.Template{Name: name, Roles: roles, Lifetime: time.Hour, Actor: "test"})
		assert.NoError(t, err)
		return issued.Token
	}
	for _, role := range access.AllRoles {
		made[string(role)] = "Bearer " + create("only-"+string(role), role)
	}
	expired, revoked := create("expired", access.AllRoles...), create("revoked", access.AllRoles...)
	b.exec(t, `UPDATE tokens SET expires_at = now() - interval '1 second' WHERE name = 'expired'`)
	assert.NoError(t, assert.Err(access.Revoke(t.Context(), query, "revoked", "test")))
	good := create("good", access.AllRoles...)
	made["expired"], made["revoked"] = "Bearer "+expired, "Bearer "+revoked
	made["of the id of another"] = "Bearer " + good[:20] + made[string(access.Submit)][len("Bearer ")+20:]
	return b, made, b.guard(t)
}

// guard makes the service anew, with the tokens of its database.
func (b *bundle) guard(t testing.TB) *access.Control {
	t.Helper()
	pool := open(t, b.URL)
	control, err := access.New(t.Context(), db.New(pool), access.Config{})
	assert.NoError(t, err)
	b.api = New(b.engine, Config{Access: control, ResponseTimeout: patience, Events: b.tail, Webhooks: b.webhooks, Books: b.books})
	t.Cleanup(pool.Close)
	t.Cleanup(control.Stop)
	return control
}

// unread is a body that must not be read.
type unread struct{ t testing.TB }

func (u unread) Read([]byte) (int, error) {
	u.t.Error("the body of a request was read that was not allowed")
	return 0, io.EOF
}

// request is one for a pattern, about things that are not there.
func requestFor(t testing.TB, pattern string, body io.Reader) *http.Request {
	t.Helper()
	method, path, named := strings.Cut(pattern, " ")
	if !named {
		method, path = http.MethodGet, "/nothing"
	}
	path = strings.TrimSuffix(regexp.MustCompile(`\{\w+\}`).ReplaceAllString(path, "none"), "{$}")
	return httptest.NewRequestWithContext(t.Context(), method, path, body)
}

// TestEveryOperationForEveryRole asks each route with each credential. What it is answered with follows from the table of rules
// alone: a route that is added is asked, too.
func TestEveryOperationForEveryRole(t *testing.T) {
	t.Parallel()
	dbtest.SkipIfShort(t)
	b, sent, _ := guarded(t)
	asked := 0
	for _, pattern := range patterns(b) {
		for name, credential := range sent {
			rule := theServer().ruleAt(pattern)
			if pattern == "GET /api/events" && name == string(access.Submit) {
				rule = needs(access.Read) // of all orders
			}
			allowed := rule.class == alwaysOpen || slices.Contains(access.AllRoles, access.Role(name)) &&
				(len(rule.roles) == 0 || rule.roles.Has(access.Role(name)))
			var body io.Reader = unread{t}
			if allowed {
				body = strings.NewReader("{")
			}
			r := requestFor(t, pattern, body)
			asked++
			r.RemoteAddr = fmt.Sprintf("127.0.%d.%d:40000", asked/200, asked%200+1) // an address may fail only so often
			if credential != "" {
				r.Header.Set("Authorization", credential)
			}
			a := send(t, b.api, r)
			switch known := access.AllRoles.Has(access.Role(name)); {
			case allowed && (a.status == http.StatusUnauthorized || a.status == http.StatusForbidden) && !strings.Contains(pattern, "stripe"):
				t.Errorf("%s with %s: %d %s", pattern, name, a.status, a.body)
			case !allowed && known:
				wantForbidden(t, a, rule)
			case !allowed:
				a.wantProblem(t, http.StatusUnauthorized, "unauthenticated")
				assert.True(t, strings.HasPrefix(a.header.Get("WWW-Authenticate"), "Bearer"), pattern, "with", name, a.header)
			}
		}
	}
}

// TestTwoCredentials are none: what is in front of the service may have judged the other one.
func TestTwoCredentials(t *testing.T) {
	t.Parallel()
	b, sent, _ := guarded(t)
	for _, credentials := range [][]string{{sent["read"], sent["wrong"]}, {sent["wrong"], sent["read"]},
		{sent["read"], sent["read"]}, {sent["read"], ""}, {"", sent["read"]}} {
		r := requestFor(t, "GET /api/orders", unread{t})
		r.Header["Authorization"] = credentials
		send(t, b.api, r).wantProblem(t, http.StatusUnauthorized, "unauthenticated")
	}
}

// wantForbidden checks that a refusal names the roles that would do.
func wantForbidden(t *testing.T, a answer, rule rule) {
	t.Helper()
	p := a.wantProblem(t, http.StatusForbidden, "forbidden")
	for _, role := range rule.roles {
		assert.Contains(t, p.Detail, string(role), role)
	}
}

// patterns are those of all routes of the service.
func patterns(b *bundle) (out []string) {
	s, _ := b.api.(*server)
	for operation := range rules {
		pattern := operation
		for _, op := range s.documented {
			if op.OperationID == operation {
				pattern = op.Method + " " + op.Path
			}
		}
		if pattern != "POST /test" && pattern != "GET /metrics" { // not of this service
			out = append(out, patternsOf(pattern)...)
		}
	}
	slices.Sort(out)
	return out
}

// TestEveryRuleHasARoute: a rule that nothing goes by is one that was forgotten. (A route without a rule panics.)
func TestEveryRuleHasARoute(t *testing.T) {
	t.Parallel()
	s := newServer(nil, Config{Metrics: http.NotFoundHandler(), Console: func(http.Handler) http.Handler { return http.NotFoundHandler() }})
	for _, pattern := range patterns(&bundle{api: s}) {
		_, found := s.mux.Handler(requestFor(t, pattern, nil))
		assert.Equal(t, found, pattern, "the rule is for another route than it says")
	}
	defer func() {
		assert.True(t, recover() != nil, "a route without a rule is served")
	}()
	s.handle("GET /new", func(http.ResponseWriter, *http.Request) {})
}

// TestOpenServiceFromElsewhere asks each route from another machine, without a token, while there is none.
func TestOpenServiceFromElsewhere(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, pattern := range patterns(b) {
		for name, proxy := range map[string]bool{"directly": false, "through a proxy here": true} {
			class := theServer().ruleAt(pattern).class
			r := requestFor(t, pattern, strings.NewReader("{"))
			if r.RemoteAddr = "192.0.2.7:40000"; proxy {
				r.RemoteAddr = fromHere
				r.Header.Set("X-Forwarded-For", "127.0.0.1")
			}
			w := httptest.NewRecorder()
			b.api.ServeHTTP(w, r)
			denied := w.Code == http.StatusUnauthorized || w.Code == http.StatusForbidden
			want := class == closedToOthers || class == inContract && proxy
			if denied != want && !strings.Contains(pattern, "stripe") && pattern != "POST /login/{link}" { // which want a signature, and TLS
				t.Errorf("%s, %s: %d %s", pattern, name, w.Code, w.Body)
			}
		}
	}
	assert.Equal(t, b.count(t, `SELECT count(*) FROM tokens`), 0, "tokens")
}

// TestTheFirstTokenClosesTheService on this machine, too, and for good.
func TestTheFirstTokenClosesTheService(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.guard(t)
	const order = `{"orderId":"order-1","amount":1,"item":"widget"}`
	b.process(t, order).wantStatus(t, http.StatusOK)
	assert.Contains(t, b.get(t, "/health").body, HowToClose, "it does not say that it is open")
	query := db.New(b.Pool)
	_, err := access.Create(t.Context(), query, access.Template{Name: "shop", Roles: access.Roles{access.Submit},
		Lifetime: time.Hour, Actor: "test"})
	assert.NoError(t, err)
	assert.NoError(t, assert.Err(access.Revoke(t.Context(), query, "shop", "test")))
	eventually(t, "the service is closed", func() bool { return b.process(t, order).status == http.StatusUnauthorized })
	b.get(t, "/livez").wantStatus(t, http.StatusOK)
}

// TestHealthIsForEverybody: balancers have no token. Why a service is not ready is for those who may read.
func TestHealthIsForEverybody(t *testing.T) {
	t.Parallel()
	b, sent, _ := guarded(t)
	ask := func(name string) answer {
		r := requestFor(t, "GET /health", nil)
		if name == "no bearer" { // and in the open
			r.RemoteAddr = "192.0.2.7:40000"
		}
		if credential := sent[name]; credential != "" {
			r.Header.Set("Authorization", credential)
		}
		return send(t, b.api, r)
	}
	for name := range sent {
		want := `{"status":"ok"}`
		if name == "read" {
			want = `{"status":"ok","version":"` + version.Number + `"}`
		}
		a := ask(name)
		assert.True(t, a.status == http.StatusOK && strings.TrimSpace(a.body) == want, "with", name, a.status, a.body)
	}
	b.exec(t, `DROP TABLE charge_operations CASCADE`)
	for name := range sent {
		a := ask(name)
		a.wantProblem(t, http.StatusServiceUnavailable, "unavailable")
		assert.Equal(t, strings.Contains(a.body, "migrated"), (name == string(access.Read)), "with", name, a.body)
	}
	assert.Equal(t, b.count(t, `SELECT count(*) FROM books.access_log WHERE operation = 'health'`), 0, "a denial was logged")
}

// TestDenialsAreLogged: once for all that are the same, and never with a credential in it.
func TestDenialsAreLogged(t *testing.T) {
	t.Parallel()
	b, sent, control := guarded(t)
	for range 20 {
		b.get(t, "/api/orders", "Authorization", sent["wrong"]).wantProblem(t, 401, "unauthenticated")
		b.call(t, "POST /api/orders/order-1/cancel", "", "Authorization", sent["submit"]).wantProblem(t, 403, "forbidden")
	}
	control.Stop() // what was gathered is written
	for _, where := range []string{
		`actor = 'anonymous' AND event = 'unauthenticated' AND operation = 'listOrders' AND subject IS NULL`,
		`actor = 'token:only-submit' AND event = 'forbidden' AND operation = 'cancelOrder' AND subject = 'order-1'`,
	} {
		rows := b.count(t, `SELECT count(*) FROM books.access_log WHERE address = '127.0.0.1' AND `+where)
		times := b.count(t, `SELECT coalesce(sum(times), 0) FROM books.access_log WHERE `+where)
		assert.True(t, rows != 0 && rows <= 2 && times == 20, where, rows, "rows of", times, "denials")
	}
	n := b.count(t, `SELECT count(*) FROM access_log AS l WHERE strpos(l::text, $1) > 0`, sent["submit"][len("Bearer pawl_")+10:])
	assert.Equal(t, n, 0, "a token is in the log")
}

type callerShape struct {
	Name       string
	Roles      access.Roles
	Open       bool
	Operations []string
	Forbidden  map[string]string
}

// whoAmI asks /api/me.
func whoAmI(t *testing.T, api http.Handler, from string, header ...string) (c callerShape) {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/api/me", nil)
	r.RemoteAddr = from
	a := send(t, api, r, header...)
	err := json.Unmarshal([]byte(a.body), &c)
	assert.Require(t, err == nil && a.status == http.StatusOK && c.Roles != nil && c.Operations != nil, a.status, a.body, err)
	return c
}

// TestWhoAmI asks with each credential. What a caller is told that it may do follows from the rules, which another test holds
// the service to.
func TestWhoAmI(t *testing.T) {
	t.Parallel()
	b, sent, _ := guarded(t)
	for name, credential := range sent {
		var header []string
		if credential != "" {
			header = []string{"Authorization", credential}
		}
		c := whoAmI(t, b.api, fromHere, header...)
		want, as := access.Roles{}, "anonymous"
		if access.AllRoles.Has(access.Role(name)) {
			want, as = access.Roles{access.Role(name)}, "token:only-"+name
		}
		assert.True(t, c.Name == as && slices.Equal(c.Roles, want) && !c.Open, "with", name, c)
		for operation, rule := range rules {
			may := len(want) > 0 && rule.roles.Has(want[0]) && operation != "GET /metrics" && operation != "health"
			assert.Equal(t, slices.Contains(c.Operations, operation), may, "with", name, operation, !may, "in what it may do")
			assert.Equal(t, c.Forbidden[operation] != "", !may && rule.class != alwaysOpen && operation != "GET /metrics", "with", name, operation, "has a role that it needs")
		}
	}
	assert.Equal(t, b.count(t, `SELECT count(*) FROM books.access_log WHERE operation = 'getCaller'`), 0,
		"a question was logged as denied")
}

func TestWhoAmIOnAnOpenService(t *testing.T) {
	t.Parallel()
	api, forOperations := NewWithOperations(nil, Config{})
	here := whoAmI(t, api, fromHere)
	assert.True(t, here.Name == "local" && slices.Equal(here.Roles, access.AllRoles) && here.Open && slices.Contains(here.Operations, "listOrders"),
		here)
	for handler, may := range map[http.Handler]bool{api: false, forOperations: true} {
		if c := whoAmI(t, handler, fromHere); slices.Contains(c.Operations, "createWebhookEndpoint") != may {
			t.Errorf("an operation that only the address for operations has: %v", c.Operations)
		}
	}
	elsewhere := whoAmI(t, api, "192.0.2.7:40000")
	assert.True(t, elsewhere.Name == "anonymous" && slices.Equal(elsewhere.Operations, []string{"processOrder", "getOrder"}),
		elsewhere)
	c := whoAmI(t, api, fromHere, "X-Forwarded-For", "127.0.0.1")
	assert.Equal(t, len(c.Roles)+len(c.Operations), 0, "through a proxy here", c)
}

// TestWhoAmIInABrowser: a cookie counts for what a page of the service asks.
func TestWhoAmIInABrowser(t *testing.T) {
	t.Parallel()
	b, cookie := signedIn(t)
	c := whoAmI(t, b.api, fromHere, "Cookie", cookie, "Sec-Fetch-Site", "same-origin")
	assert.True(t, c.Name == "token:maria" && slices.Contains(c.Operations, "pauseOrder"), c)
	c = whoAmI(t, b.api, fromHere, "Cookie", cookie, "Sec-Fetch-Site", "cross-site")
	assert.True(t, c.Name == "anonymous" && len(c.Operations) == 0, "for another site", c)
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/api/me", nil)
	r.RemoteAddr = "192.0.2.7:40000"
	send(t, b.api, r, "Authorization", "Bearer x").wantProblem(t, http.StatusForbidden, "tls_required")
}
