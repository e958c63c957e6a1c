package httpapi

import (
	"context"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"pawl/db"
	"pawl/internal/access"
	"pawl/internal/events"
	"pawl/test/assert"
)

// signedIn is the API for a token that may read, with a browser that was signed in by a link.
func signedIn(t testing.TB) (b *bundle, cookie string) {
	t.Helper()
	b = setup(t)
	open := b.browse(t, "GET /login").body
	assert.True(t, strings.Contains(open, "<code>local</code>") && strings.Contains(open, `href="/">Open the console<`), "without tokens", open)
	template := access.Template{Name: "maria", Roles: access.Roles{access.Read, access.Operate}, Lifetime: time.Hour, Actor: "test"}
	assert.NoError(t, assert.Err(access.Create(t.Context(), db.New(b.Pool), template)))
	b.guard(t)
	return b, b.open(t, b.link(t))
}

// link is the path of a new link for maria.
func (b *bundle) link(t testing.TB) string {
	t.Helper()
	link, _, err := access.MakeLink(t.Context(), db.New(b.Pool), "maria", "test")
	assert.NoError(t, err)
	return "/login/" + link
}

// open opens a link with a browser, which may have a cookie, and returns its new cookie.
func (b *bundle) open(t testing.TB, link string, header ...string) (cookie string) {
	t.Helper()
	a := b.browse(t, "POST "+link, header...)
	assert.Require(t, a.status == http.StatusOK && strings.Contains(a.body, "token:maria"), a.status, a.body)
	cookie, rest, _ := strings.Cut(a.header.Get("Set-Cookie"), "; ")
	assert.Require(t, rest == "Path=/; HttpOnly; Secure; SameSite=Lax" && regexp.MustCompile(`^__Host-pawl-session=\w{43}$`).MatchString(cookie),
		"Set-Cookie", a.header.Get("Set-Cookie"))
	return cookie
}

// browse sends a request as a browser does for a page of the service.
func (b *bundle) browse(t testing.TB, request string, header ...string) answer {
	t.Helper()
	method, target, _ := strings.Cut(request, " ")
	r := httptest.NewRequestWithContext(t.Context(), method, target, nil)
	r.Host = "localhost:3000"
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	return send(t, b.api, r)
}

// wantSession wants a cookie to count, sooner or later, or not to.
func (b *bundle) wantSession(t *testing.T, cookie string, status int) {
	t.Helper()
	eventually(t, http.StatusText(status), func() bool { return b.browse(t, "GET /api/orders", "Cookie", cookie).status == status })
}

func TestSessions(t *testing.T) {
	t.Parallel()
	b, cookie := signedIn(t)
	b.held(t, "held", nil)
	t.Run("a browser reads, and writes as the token may", func(t *testing.T) {
		t.Parallel()
		b.browse(t, "GET /api/orders", "Cookie", "theme=dark; "+cookie).wantStatus(t, 200)
		b.browse(t, "GET /api/orders", "Cookie", cookie, "Sec-Fetch-Site", "none").wantStatus(t, 200) // typed by the person
		b.browse(t, "POST /api/orders/held/approve", "Cookie", cookie).wantProblem(t, 403, "forbidden")
		b.browse(t, "POST /api/orders/held/pause", "Cookie", cookie).wantProblem(t, 409, "not_applicable")
		a := b.browse(t, "GET /login", "Cookie", cookie)
		assert.True(t, strings.Contains(a.body, "token:maria") && a.header.Get("Cache-Control") == "no-store", a.header, a.body)
	})
	t.Run("what was sent with a token has its rights", func(t *testing.T) {
		t.Parallel()
		b.browse(t, "GET /api/orders", "Cookie", cookie, "Authorization", "Bearer pawl_x").wantProblem(t, 401, "unauthenticated")
	})
	t.Run("cookies that are none", func(t *testing.T) {
		t.Parallel()
		for _, other := range []string{"__Host-pawl-session=", "__Host-pawl-session=x", strings.ToUpper(cookie), "pawl-session" +
			cookie[len("__Host-pawl-session"):]} {
			b.browse(t, "GET /api/orders", "Cookie", other).wantProblem(t, 401, "unauthenticated")
		}
	})
	t.Run("who signs in again has another cookie, and the old one ends", func(t *testing.T) {
		t.Parallel()
		first := b.open(t, b.link(t))
		second := b.open(t, b.link(t), "Cookie", first)
		b.wantSession(t, first, 401)
		b.wantSession(t, second, 200)
	})
	t.Run("who signs out is out at once", func(t *testing.T) {
		t.Parallel()
		mine := b.open(t, b.link(t))
		b.wantSession(t, mine, 200)
		a := b.browse(t, "POST /logout", "Cookie", mine)
		assert.True(t, a.status == 200 && strings.HasPrefix(a.header.Get("Set-Cookie"), sessionCookie+"=; Path=/; Max-Age=0"),
			a.status, a.header)
		b.browse(t, "GET /api/orders", "Cookie", mine).wantProblem(t, 401, "unauthenticated")
	})
	t.Run("the database has neither links nor cookies", func(t *testing.T) {
		t.Parallel()
		link := b.link(t)
		for _, secret := range []string{strings.TrimPrefix(link, "/login/"), cookie[strings.Index(cookie, "=")+1:]} {
			assert.Equal(t, b.count(t, `SELECT (SELECT count(*) FROM pawl.sessions AS s WHERE strpos(s::text, $1) > 0)
				+ (SELECT count(*) FROM pawl.access_log AS l WHERE strpos(l::text, $1) > 0)`, secret), 0, "a secret is stored")
		}
		n := b.count(t, `SELECT count(*) FROM pawl.access_log WHERE event = 'session_opened' AND actor = 'token:maria' AND address = '127.0.0.1'`)
		assert.True(t, n != 0, "nobody wrote down who signed in")
	})
}

func TestSessionsOfOtherSites(t *testing.T) {
	t.Parallel()
	b, cookie := signedIn(t)
	b.held(t, "held", nil)
	t.Run("a page of another site does nothing with the cookie, and reads nothing", func(t *testing.T) {
		t.Parallel()
		for _, header := range [][]string{
			{"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Site", "same-site"},
			{"Sec-Fetch-Site", "", "Origin", "https://elsewhere.example"}, {"Sec-Fetch-Site", "", "Origin", "null"},
		} {
			header = append(header, "Cookie", cookie)
			b.browse(t, "GET /api/orders", header...).wantProblem(t, 401, "unauthenticated")
			b.browse(t, "GET /api/events", append(header, "Accept", eventStream)...).wantProblem(t, 401, "unauthenticated")
			b.browse(t, "POST /api/orders/held/cancel", header...).wantProblem(t, 401, "unauthenticated")
			b.browse(t, "POST /logout", header...).wantProblem(t, 403, "cross_origin")
			b.browse(t, "POST "+b.link(t), header...).wantProblem(t, 403, "cross_origin")
		}
		assert.Equal(t, b.count(t, `SELECT count(*) FROM pawl.orders WHERE stop_requested IS NOT NULL`), 0, "an order was stopped")
		b.browse(t, "GET /api/orders", "Cookie", cookie).wantStatus(t, 200)
	})
	t.Run("a name that is not ours is refused before the cookie is looked at", func(t *testing.T) {
		t.Parallel()
		for _, from := range []string{fromHere, "192.0.2.7:40000"} {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/api/orders", nil)
			r.RemoteAddr, r.Host = from, "evil.example:3000"
			send(t, b.api, r, "Cookie", cookie).wantProblem(t, 421, "misdirected_request")
		}
	})
	t.Run("nothing is taken that others on the way could read", func(t *testing.T) {
		t.Parallel()
		for _, request := range []string{"GET /api/orders", "POST " + b.link(t)} {
			method, target, _ := strings.Cut(request, " ")
			r := httptest.NewRequestWithContext(t.Context(), method, target, nil)
			r.RemoteAddr, r.Host = "192.0.2.7:40000", "localhost"
			a := send(t, b.api, r, "Cookie", cookie)
			assert.True(t, a.status == 401 || a.decoded(t).Code == "tls_required", request, a.status, a.body)
		}
	})
}

func TestLinks(t *testing.T) {
	t.Parallel()
	b, cookie := signedIn(t)
	t.Run("a link is opened once, and not by looking at it", func(t *testing.T) {
		t.Parallel()
		link := b.link(t)
		for range 2 {
			a := b.browse(t, "GET "+link)
			assert.Require(t, a.status == 200 && strings.Contains(a.body, `<form method="post">`) && a.header.Get("Set-Cookie") == "",
				a.status, a.header, a.body)
		}
		b.open(t, link)
		for _, method := range []string{"POST ", "GET "} {
			a := b.browse(t, method+link)
			assert.True(t, a.status == 404 && a.header.Get("Set-Cookie") == "" && strings.Contains(a.body, "This link does not work"), method, a.status, a.header)
		}
	})
	t.Run("the page of one that somebody made up leads nowhere", func(t *testing.T) {
		t.Parallel()
		a := b.browse(t, "GET /login/..%2Fapi%2Forders%2Forder-1%2Fcancel")
		assert.True(t, a.status == 404 && !strings.Contains(a.body, "<form") && !strings.Contains(a.body, "order-1"), a.status, a.body)
	})
	t.Run("a cookie is no link, and a link no cookie", func(t *testing.T) {
		t.Parallel()
		_, secret, _ := strings.Cut(cookie, "=")
		assert.Equal(t, b.browse(t, "POST /login/"+secret).status, 404)
		link := strings.TrimPrefix(b.link(t), "/login/")
		b.browse(t, "GET /api/orders", "Cookie", sessionCookie+"="+link).wantProblem(t, 401, "unauthenticated")
	})
}

func TestSessionsEnd(t *testing.T) {
	t.Parallel()
	t.Run("with their time", func(t *testing.T) {
		t.Parallel()
		b, cookie := signedIn(t)
		b.exec(t, `UPDATE pawl.sessions SET expires_at = now()`)
		b.wantSession(t, cookie, 401)
		link := b.link(t)
		b.exec(t, `UPDATE pawl.sessions SET expires_at = now() WHERE opened_at IS NULL`)
		assert.Equal(t, b.browse(t, "GET "+link).status, 404, "an old link looks right")
		assert.Equal(t, b.browse(t, "POST "+link).status, 404, "an old link opens a session")
	})
	t.Run("with their token", func(t *testing.T) {
		t.Parallel()
		b, cookie := signedIn(t)
		link := b.link(t)
		assert.NoError(t, assert.Err(access.Revoke(t.Context(), db.New(b.Pool), "maria", "test")))
		b.wantSession(t, cookie, 401)
		assert.Equal(t, b.browse(t, "POST "+link).status, 404, "the link of a revoked token opens a session")
		_, _, err := access.MakeLink(t.Context(), db.New(b.Pool), "maria", "test")
		assert.True(t, err != nil, "a link for a revoked token")
	})
	t.Run("a cookie of another service is no matter while this one is open", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.guard(t)
		b.browse(t, "GET /api/orders", "Cookie", sessionCookie+"="+strings.Repeat("a", 43)).wantStatus(t, 200)
	})
}

// TestMemoryOfPages: pages and forms wait until there is memory for them, and give it back.
func TestMemoryOfPages(t *testing.T) {
	t.Parallel()
	begun, end := make(chan bool, 1), make(chan bool)
	api := New(nil, Config{Console: func(http.Handler) http.Handler {
		return http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/console/slow" {
				begun <- true
				<-end
			}
		})
	}})
	send := func(ctx context.Context, method, path string, length int64) int {
		r := httptest.NewRequestWithContext(ctx, method, path, nil)
		r.Host, r.RemoteAddr, r.ContentLength = "localhost", fromHere, length
		w := httptest.NewRecorder()
		api.ServeHTTP(w, r)
		return w.Code
	}
	slow := make(chan int, 1)
	go func() { slow <- send(t.Context(), "POST", "/console/slow", maxForm) }()
	<-begun
	soon, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	for _, length := range []int64{maxForm, -1, 1 << 40} { // one that nobody knows may be as long
		assert.Equal(t, send(soon, "POST", "/console/form", length), http.StatusServiceUnavailable,
			"another form of", length, "bytes")
	}
	assert.Equal(t, send(t.Context(), "GET", "/console/orders", 0), http.StatusOK, "a page")
	const some = 2 << 20
	assert.Equal(t, send(t.Context(), "POST", "/console/form", some), http.StatusOK, "a shorter form")
	close(end)
	assert.Equal(t, <-slow, http.StatusOK)
	assert.Equal(t, send(t.Context(), "POST", "/console/form", maxForm), http.StatusOK, "there is room again")
}

// TestPagesThatListen: pages count as those who listen to events do, and hear of the end of the service.
func TestPagesThatListen(t *testing.T) {
	t.Parallel()
	tail := events.NewTail(nil, events.TailConfig{})
	server := NewServer(New(nil, Config{Events: tail, Console: func(http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		})
	}}), Listening{Connections: 8})
	address := serveOn(t, server)
	var streams []*sse
	for range 4 {
		s, status, _ := askForStream(t, address, "/console/live")
		assert.Require(t, status == http.StatusOK, status)
		streams = append(streams, s)
	}
	_, status, _ := askForStream(t, address, "/console/live")
	assert.Equal(t, status, http.StatusServiceUnavailable, "one too many")
	streams[0].Close()
	eventually(t, "there is a place again", func() bool {
		s, status, _ := askForStream(t, address, "/console/live")
		streams[0] = s
		return status == http.StatusOK
	})
	tail.Stop(t.Context())
	for _, s := range streams {
		rest := s.block()
		assert.True(t, rest == nil, rest)
	}
}
