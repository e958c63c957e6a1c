package console_test

import (
	"bufio"
	"context"
	"html"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"regexp"
	"slices"
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
	"pawl/test/assert"
	"pawl/test/dbtest"
)

func TestMain(m *testing.M) {
	dbtest.Main(m)
}

// patience is how long a test waits for something that must happen, however busy the machine is.
const patience = time.Minute

// service is a real one with its console. It is open, so that everybody on this machine may do everything, until it has a token.
type service struct {
	*dbtest.Database
	url      string
	provider string         // the books that can be compared with
	api      *client.Client // with all rights, as long as the service is open
	tail     *events.Tail
	latest   atomic.Int64 // how often the console has asked for the latest event
}

// setup starts a service in which orders of more than 500 USD wait for approval.
func setup(t *testing.T) *service {
	t.Helper()
	return setupWith(t, "approval: [{amountOver: 500, currency: USD, timeout: 24h}]\n")
}

// setupWith starts a service with a policy, or with none.
func setupWith(t *testing.T, text string) *service {
	t.Helper()
	s := &service{Database: dbtest.New(t)}
	pool, err := pg.Open(t.Context(), s.URL, pg.Options{MaxConns: 4, Patience: 5 * time.Second})
	assert.NoError(t, err)
	t.Cleanup(pool.Close)
	query, ctx := db.New(pool), context.WithoutCancel(t.Context())
	if text != "" {
		assert.NoError(t, assert.Err(store.Use(ctx, query, []byte(text), "test")))
	}
	control, err := access.New(ctx, query, access.Config{})
	assert.NoError(t, err)
	t.Cleanup(control.Stop)
	orders := engine.New(pool, engine.Config{Bounds: policy.Bounds{SecretsDir: os.TempDir(), AllowPrivate: true}})
	orders.Start()
	t.Cleanup(func() {
		assert.Succeeds(t, orders.Stop(ctx))
	})
	relay := events.NewRelay(query, events.RelayConfig{})
	relay.Start()
	t.Cleanup(relay.Stop)
	feed := events.NewReader(query, orders.Orders)
	s.tail = events.NewTail(feed, events.TailConfig{})
	s.tail.Start()
	t.Cleanup(func() { s.tail.Stop(ctx) })
	proof := books.NewVerification(pool, books.VerificationConfig{
		At: func(_ context.Context, at []string) (*books.Provider, error) {
			return &books.Provider{URLs: slices.Repeat([]string{s.provider}, len(at)), Compared: at, Key: func(sent books.Sent) (string, string) {
				if sent.OrderID == "late" {
					return "pawl-" + strings.Repeat("b", 52), at[0]
				}
				return "", ""
			}}, nil
		},
		Named: func(context.Context) ([]string, error) {
			return []string{"charge=" + s.provider, "reserve=" + s.provider}, nil
		},
	})
	t.Cleanup(proof.Stop)
	server := httptest.NewServer(httpapi.New(orders, httpapi.Config{
		ResponseTimeout: patience, Events: s.tail, Access: control, Books: proof,
		Webhooks: webhooks.NewEndpoints(query, orders.Orders, webhooks.Options{Private: true, Latest: feed.Latest, Now: orders.Now}),
		Console: func(api http.Handler) http.Handler {
			return console.New(console.Config{Client: console.InMemory(s.counted(api))})
		},
	}))
	t.Cleanup(server.Close)
	s.url = server.URL
	s.api, err = client.New(s.url, client.Options{})
	assert.NoError(t, err)
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

// process places an order.
func (s *service) process(t *testing.T, body client.ProcessBody) *client.Order {
	t.Helper()
	order, err := s.api.Process(t.Context(), body)
	assert.NoError(t, err)
	return order
}

// wait places orders that wait for approval.
func (s *service) wait(t *testing.T, ids ...string) {
	t.Helper()
	for _, id := range ids {
		s.process(t, client.ProcessBody{OrderID: id, Amount: "600", Item: "lamp", CustomerID: "ann"})
	}
}

// order processes an order, or stores one with a status and a hold.
func (s *service) order(t *testing.T, id, status, hold string) {
	t.Helper()
	if hold == "" {
		s.process(t, client.ProcessBody{OrderID: id, Amount: "9", Item: "i"})
		return
	}
	s.sql(t, `WITH o AS (INSERT INTO orders (order_id, status, hold, hold_reason, amount, currency, item, due_at)
		VALUES ($1, $2, $3::text, 'a test', 9, 'USD', 'i', CASE WHEN $3::text = 'retry' THEN now() + interval '1 hour' END) RETURNING order_no)
		INSERT INTO transitions (order_no, seq, from_status, to_status, fence) SELECT order_no, 1, 'pending', $2, 0 FROM o`, id, status, hold)
}

// doubt gives an order that is charged a call whose outcome is unknown.
func (s *service) doubt(t *testing.T, id string) {
	t.Helper()
	s.order(t, id, "charging", "attention")
	s.sql(t, `WITH o AS (UPDATE orders SET policy = 1, calls = 1, in_doubt_since = now(), hold_reason = 'outcome_unknown: asked'
		WHERE order_id = $1 RETURNING order_no)
		INSERT INTO step_calls (order_no, call, fence, generation, step, operation) SELECT order_no, 1, 0, 0, 'charge', 'do' FROM o`, id)
}

// plant stores an order that is held while it is charged, with the calls that a replica would have made.
func (s *service) plant(t *testing.T, hold, reason, orderID string) {
	t.Helper()
	s.sql(t, `WITH held AS (
			INSERT INTO orders (order_id, status, hold, hold_reason, fence, amount, currency, item, policy, calls, in_doubt_since)
			VALUES ($1, 'charging', $2::text, nullif($3::text, ''), 1, 5, 'USD', 'widget', 1,
				CASE WHEN $2::text = 'attention' THEN 7 END, CASE WHEN $2::text = 'attention' THEN now() END)
			RETURNING order_no), made AS (
			INSERT INTO step_calls (order_no, fence, call, generation, policy, step, operation, started_at, finished_at, outcome, code,
				detail, reference)
			SELECT order_no, 1, n, 0, 1, 'charge', 'do', now() - make_interval(mins => 8 - n), now(), 'unknown', 'timeout',
				'no answer in time to try ' || n, 'ch_' || n
			FROM held, generate_series(1, 7) AS n WHERE $2::text = 'attention')
		INSERT INTO transitions (order_no, seq, from_status, to_status, fence) SELECT order_no, 1, 'pending', 'charging', 1 FROM held`,
		orderID, hold, reason)
}

// token closes the service, and returns the header of a token with some roles.
func (s *service) token(t *testing.T, name string, roles ...access.Role) (header []string) {
	t.Helper()
	issued, err := access.Create(t.Context(), db.New(s.Pool), access.Template{Name: name, Roles: roles, Lifetime: time.Hour, Actor: "test"})
	assert.NoError(t, err)
	return []string{"Authorization", "Bearer " + issued.Token}
}

func (s *service) scan(t *testing.T, query string, into ...any) {
	t.Helper()
	assert.NoError(t, s.Pool.QueryRow(t.Context(), query).Scan(into...))
}

// count fails the test unless a query counts so many.
func (s *service) count(t *testing.T, want int, sql string) {
	t.Helper()
	n := 0
	s.scan(t, sql, &n)
	assert.Equal(t, n, want, sql)
}

func (s *service) sql(t *testing.T, statement string, arguments ...any) {
	t.Helper()
	assert.NoError(t, assert.Err(s.Pool.Exec(t.Context(), statement, arguments...)))
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

// post sends a form, and does not follow a redirect.
func (s *service) post(t *testing.T, path string, form url.Values, header ...string) shown {
	t.Helper()
	return s.ask(t, s.request(t, http.MethodPost, path, form), header)
}

// do opens the page of a task, fills it in, and presses its button.
func (s *service) do(t *testing.T, path string, filled ...string) shown {
	t.Helper()
	page := s.get(t, path).want(t, 200, "<button")
	if form := page.fill(filled...); strings.Contains(page.body, `<form method="GET"`) {
		page, _, _ := strings.Cut(path, "?")
		return s.get(t, page+"?"+form.Encode())
	} else {
		return s.post(t, path, form)
	}
}

func (s *service) request(t *testing.T, method, path string, form url.Values) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, s.url+path, strings.NewReader(form.Encode()))
	assert.NoError(t, err)
	if method == http.MethodPost {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	return r
}

// send sends a request with a header, and closes the answer with the test.
func send(t *testing.T, r *http.Request, header []string) *http.Response {
	t.Helper()
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	answer, err := http.DefaultTransport.RoundTrip(r)
	assert.NoError(t, err)
	t.Cleanup(func() { answer.Body.Close() })
	return answer
}

func (s *service) ask(t *testing.T, r *http.Request, header []string) shown {
	t.Helper()
	answer := send(t, r, header)
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	assert.NoError(t, err)
	return shown{answer.StatusCode, answer.Header, string(body)}
}

// want fails the test unless the page has the status and all of the texts. A text that begins with ! it must not have.
func (p shown) want(t *testing.T, status int, texts ...string) shown {
	t.Helper()
	if p.status != status {
		t.Fatalf("status %d, want %d: %s", p.status, status, p.body)
	}
	for _, text := range texts {
		text, absent := strings.CutPrefix(text, "!")
		assert.True(t, strings.Contains(p.body, text) != absent, "on the page, want ", !absent, ": ", text, ": ", p.body)
	}
	return p
}

// fieldsOf are what the form of a page sends along: hidden fields, and orders that are chosen.
func (p shown) fieldsOf() url.Values {
	form := url.Values{}
	input := regexp.MustCompile(`<input type="(?:hidden" name="(\w+)" value="([^"]*)"|checkbox" name="(id)" value="([^"]*)" checked)`)
	for _, match := range input.FindAllStringSubmatch(p.body, -1) {
		form.Add(match[1]+match[3], html.UnescapeString(match[2]+match[4]))
	}
	return form
}

// fill is the form of a page with fields filled in: names and values in turn.
func (p shown) fill(filled ...string) url.Values {
	form := p.fieldsOf()
	for i := 0; i < len(filled); i += 2 {
		form.Set(filled[i], filled[i+1])
	}
	return form
}

// found are the ids of the orders that a page lists, in its order.
func (p shown) found() (ids []string) {
	row := regexp.MustCompile(`<th scope="row"><a href="/console/order\?id=[^"]*"><bdi>([^<]*)</bdi>`)
	for _, match := range row.FindAllStringSubmatch(p.body, -1) {
		ids = append(ids, html.UnescapeString(match[1]))
	}
	return ids
}

// link is where a link of the page leads, by its text.
func (p shown) link(t *testing.T, text string) string {
	t.Helper()
	match := regexp.MustCompile(`<a [^>]*href="([^"]*)"[^>]*>` + regexp.QuoteMeta(text) + `</a>`).FindStringSubmatch(p.body)
	assert.Require(t, match != nil, "no link says", text, p.body)
	return html.UnescapeString(match[1])
}

// live is where a page listens.
func (p shown) live(t *testing.T) string {
	t.Helper()
	_, rest, found := strings.Cut(p.body, ` data-live="`)
	path, _, _ := strings.Cut(rest, `"`)
	assert.Require(t, found, "the page is not live")
	return html.UnescapeString(path)
}

// listener hears what a page hears.
type listener struct{ lines *bufio.Scanner }

func (s *service) listen(t *testing.T, path string, header ...string) listener {
	t.Helper()
	answer := send(t, s.request(t, http.MethodGet, path, nil), header) //nolint:bodyclose // send closes it
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

var eventually = assert.Eventually
