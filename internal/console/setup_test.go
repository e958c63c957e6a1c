package console_test

import (
	"context"
	"html"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pawl/client"
	"pawl/db"
	"pawl/engine"
	"pawl/httpapi"
	"pawl/internal/access"
	"pawl/internal/books"
	"pawl/internal/console"
	"pawl/internal/events"
	"pawl/internal/pg"
	"pawl/internal/policy"
	"pawl/internal/policy/store"
	"pawl/internal/webhooks"
	"pawl/test/dbtest"
)

func TestMain(m *testing.M) {
	dbtest.Main(m)
}

// patience is how long a test waits for what must come about, however busy the machine is.
const patience = time.Minute

// service is a real one, with its console. It is open, so that whoever is on this machine may do all, until it has a token.
type service struct {
	*dbtest.Database
	url    string
	api    *client.Client // with all rights, as long as the service is open
	engine *engine.Engine
	tail   *events.Tail
	latest atomic.Int64 // how often the console has asked for the latest event
}

// setup starts a service. Orders of more than 500 USD wait for somebody's approval.
func setup(t *testing.T) *service {
	t.Helper()
	return setupWith(t, "approval: [{amountOver: 500, currency: USD, timeout: 24h}]\n")
}

// setupWith starts a service with a policy. Empty: with none.
func setupWith(t *testing.T, text string) *service {
	t.Helper()
	s := &service{Database: dbtest.New(t)}
	pool, err := pg.Open(t.Context(), s.URL, pg.Options{MaxConns: 4, Patience: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	query, ctx := db.New(pool), context.WithoutCancel(t.Context())
	if text != "" {
		if _, err := store.Use(ctx, query, []byte(text), "test"); err != nil {
			t.Fatal(err)
		}
	}
	control, err := access.New(ctx, query, access.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(control.Stop)
	s.engine = engine.New(pool, engine.Config{Bounds: policy.Bounds{SecretsDir: os.TempDir(), AllowPrivate: true}})
	s.engine.Start()
	t.Cleanup(func() {
		if err := s.engine.Stop(ctx); err != nil {
			t.Error(err)
		}
	})
	relay := events.NewRelay(query, events.RelayConfig{})
	relay.Start()
	t.Cleanup(relay.Stop)
	feed := events.NewReader(query, s.engine.Orders)
	tail := events.NewTail(feed, events.TailConfig{})
	tail.Start()
	s.tail = tail
	t.Cleanup(func() { tail.Stop(ctx) })
	proof := books.NewVerification(pool, books.VerificationConfig{})
	t.Cleanup(proof.Stop)
	server := httptest.NewServer(httpapi.New(s.engine, httpapi.Config{
		ResponseTimeout: patience, Events: tail, Access: control, Books: proof,
		Webhooks: webhooks.NewEndpoints(query, s.engine.Orders, webhooks.Options{Private: true, Latest: feed.Latest, Now: s.engine.Now}),
		Console: func(api http.Handler) http.Handler {
			return console.New(console.Config{Client: console.InMemory(s.counted(api))})
		},
	}))
	t.Cleanup(server.Close)
	s.url = server.URL
	if s.api, err = client.New(s.url, client.Options{}); err != nil {
		t.Fatal(err)
	}
	return s
}

// counted counts calls for the latest event.
func (s *service) counted(api http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("after") == "latest" {
			s.latest.Add(1)
		}
		api.ServeHTTP(w, r)
	})
}

// process places an order, and fails the test where it can't.
func (s *service) process(t *testing.T, body client.ProcessBody) *client.Order {
	t.Helper()
	order, err := s.api.Process(t.Context(), body)
	if err != nil {
		t.Fatal(err)
	}
	return order
}

// token makes the service closed, and returns the header of somebody with some roles.
func (s *service) token(t *testing.T, name string, roles ...access.Role) (header, value string) {
	t.Helper()
	issued, err := access.Create(t.Context(), db.New(s.Pool), access.Template{Name: name, Roles: roles, Lifetime: time.Hour, Actor: "test"})
	if err != nil {
		t.Fatal(err)
	}
	return "Authorization", "Bearer " + issued.Token
}

// shown is a page that came.
type shown struct {
	status int
	header http.Header
	body   string
}

// get asks for a page. Header is names and values in turn.
func (s *service) get(t *testing.T, path string, header ...string) shown {
	t.Helper()
	return s.ask(t, s.request(t, http.MethodGet, path, nil), header)
}

// post sends a form, and does not follow where it leads.
func (s *service) post(t *testing.T, path string, form url.Values, header ...string) shown {
	t.Helper()
	return s.ask(t, s.request(t, http.MethodPost, path, form), header)
}

func (s *service) request(t *testing.T, method, path string, form url.Values) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, s.url+path, strings.NewReader(form.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	if method == http.MethodPost {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	return r
}

func (s *service) ask(t *testing.T, r *http.Request, header []string) shown {
	t.Helper()
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	answer, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return shown{answer.StatusCode, answer.Header, string(body)}
}

// want fails the test unless the page has the status and all of the texts.
func (p shown) want(t *testing.T, status int, texts ...string) shown {
	t.Helper()
	if p.status != status {
		t.Fatalf("status %d, want %d: %s", p.status, status, p.body)
	}
	for _, text := range texts {
		if !strings.Contains(p.body, text) {
			t.Errorf("the page lacks %q: %s", text, p.body)
		}
	}
	return p
}

// lacks fails the test if the page has one of the texts.
func (p shown) lacks(t *testing.T, texts ...string) shown {
	t.Helper()
	for _, text := range texts {
		if strings.Contains(p.body, text) {
			t.Errorf("the page has %q: %s", text, p.body)
		}
	}
	return p
}

var hiddenInput = regexp.MustCompile(`<input type="hidden" name="(\w+)" value="([^"]*)">`)

// fill is what a page would send with the fields filled in: names and values in turn.
func (p shown) fill(filled ...string) url.Values {
	form := url.Values{}
	for _, match := range hiddenInput.FindAllStringSubmatch(p.body, -1) {
		form.Set(match[1], html.UnescapeString(match[2]))
	}
	for i := 0; i < len(filled); i += 2 {
		form.Set(filled[i], filled[i+1])
	}
	return form
}

// do opens the page of a task, fills it in, and presses its button.
func (s *service) do(t *testing.T, path string, filled ...string) shown {
	t.Helper()
	return s.post(t, path, s.get(t, path).want(t, 200, "<button").fill(filled...))
}

func (s *service) scan(t *testing.T, query string, into ...any) {
	t.Helper()
	if err := s.Pool.QueryRow(t.Context(), query).Scan(into...); err != nil {
		t.Fatal(err)
	}
}

func (s *service) sql(t *testing.T, statement string, arguments ...any) {
	t.Helper()
	if _, err := s.Pool.Exec(t.Context(), statement, arguments...); err != nil {
		t.Fatal(err)
	}
}
