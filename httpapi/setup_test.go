package httpapi

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"pawl/db"
	"pawl/engine"
	"pawl/internal/books"
	"pawl/internal/events"
	"pawl/internal/pg"
	"pawl/internal/policy"
	"pawl/internal/webhooks"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

// patience is how long a test waits for what must come about, however busy the machine is.
const patience = time.Minute

// fromHere is the address of a caller on this machine.
const fromHere = "127.0.0.1:40000"

// bundle is the API over a database of the test's own, with an engine at work on it.
type bundle struct {
	*dbtest.Database
	engine   *engine.Engine
	api      http.Handler
	tail     *events.Tail
	webhooks *webhooks.Endpoints
	books    *books.Verification
	grace    time.Duration // for orders in flight, when the test ends
}

func setup(t testing.TB) *bundle {
	t.Helper()
	return setupWith(t, engine.Config{Lease: lease}, Config{ResponseTimeout: patience})
}

func setupWith(t testing.TB, of engine.Config, cfg Config) *bundle {
	t.Helper()
	b := &bundle{Database: dbtest.New(t), grace: patience}
	b.serve(t, b.URL, of, cfg)
	return b
}

func (b *bundle) serve(t testing.TB, url string, of engine.Config, cfg Config) {
	t.Helper()
	b.serveOn(t, open(t, url), of, cfg)
}

func open(t testing.TB, url string) *pg.Pool {
	t.Helper()
	// No statement is given up on a machine that stands still for a moment; and each connection plans every statement for itself.
	pool, err := pg.Open(t.Context(), url, pg.Options{MaxConns: 4, Patience: 5 * time.Second})
	assert.NoError(t, err)
	return pool
}

func (b *bundle) serveOn(t testing.TB, pool *pg.Pool, of engine.Config, cfg Config) {
	t.Helper()
	of.Bounds = policy.Bounds{SecretsDir: os.TempDir(), AllowPrivate: true} // providers are on this machine
	e := engine.New(pool, of)
	e.Start()
	reader := events.NewReader(db.New(pool), e.Orders)
	cfg.Events = events.NewTail(reader, events.TailConfig{})
	cfg.Events.Start()
	cfg.Webhooks = webhooks.NewEndpoints(db.New(pool), e.Orders, webhooks.Options{Private: true, Latest: reader.Latest, Now: e.Now})
	cfg.Books = books.NewVerification(pool, books.VerificationConfig{})
	b.engine, b.tail, b.webhooks, b.books, b.api = e, cfg.Events, cfg.Webhooks, cfg.Books, New(e, cfg)
	t.Cleanup(func() {
		cfg.Books.Stop()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), b.grace)
		defer cancel()
		cfg.Events.Stop(ctx)
		if err := e.Stop(ctx); err != nil {
			t.Log("orders were left unfinished:", err)
		}
		pool.Close()
	})
}

// withoutEngine is the API for requests that never get as far as the engine.
func withoutEngine() *bundle { return &bundle{api: New(nil, Config{})} }

// withoutDatabase is the API over a database that does not answer.
func withoutDatabase(t testing.TB) *bundle {
	t.Helper()
	proxy := dbtest.NewProxy(t, dbtest.New(t).URL)
	b := &bundle{grace: time.Second / 10} // its orders are never stored, and would be waited for
	pool := open(t, proxy.URL)
	proxy.On(func(string) dbtest.Fate { return dbtest.LoseRequest })
	b.serveOn(t, pool, engine.Config{}, Config{ResponseTimeout: patience})
	return b
}

// exec changes the database behind the service's back.
func (b *bundle) exec(t testing.TB, sql string, arguments ...any) {
	t.Helper()
	assert.NoError(t, assert.Err(b.Pool.Exec(t.Context(), sql, arguments...)))
}

// count reads one number from the database.
func (b *bundle) count(t testing.TB, sql string, arguments ...any) (n int) {
	t.Helper()
	assert.NoError(t, b.Pool.QueryRow(t.Context(), sql, arguments...).Scan(&n))
	return n
}

// lease does not end within a test. An engine with shorter ones would not wait for the end of one as long as this.
const lease = time.Hour

// elsewhere stores an order that another replica drives, with a lease. See setup.
func (b *bundle) elsewhere(t testing.TB, orderID string) {
	t.Helper()
	b.exec(t, `INSERT INTO orders (order_id, status, fence, owner, due_at, amount, currency, item)
		VALUES ($1, 'charging', 1, gen_random_uuid(), now() + $2::interval, 1, 'USD', 'i')`, orderID, lease)
	b.exec(t, `INSERT INTO transitions (order_no, seq, from_status, to_status, fence)
		SELECT order_no, 1, 'pending', 'charging', 1 FROM orders WHERE order_id = $1`, orderID)
}

// held stores an order that waits for a person.
func (b *bundle) held(t testing.TB, orderID string, due *time.Time) {
	t.Helper()
	b.exec(t, `INSERT INTO orders (order_id, status, fence, hold, hold_reason, due_at, amount, currency, item)
		VALUES ($1, 'charging', 1, 'attention', 'look at me', $2, 1, 'USD', 'i')`, orderID, due)
	b.exec(t, `INSERT INTO transitions (order_no, seq, from_status, to_status, fence)
		SELECT order_no, 1, 'pending', 'charging', 1 FROM orders WHERE order_id = $1`, orderID)
}

// answer is what came back, checked against the OpenAPI document.
type answer struct {
	status int
	header http.Header
	body   string
}

// call sends a request, "METHOD target", and checks the answer against the document.
func (b *bundle) call(t testing.TB, request, body string, header ...string) answer {
	t.Helper()
	method, target, _ := strings.Cut(request, " ")
	r := httptest.NewRequestWithContext(t.Context(), method, target, strings.NewReader(body))
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	return send(t, b.api, r, header...)
}

// send sends a request from this machine, if the test does not say from where, and checks the answer against the document.
func send(t testing.TB, api http.Handler, r *http.Request, header ...string) answer {
	t.Helper()
	if r.RemoteAddr == "192.0.2.1:1234" { // of httptest
		r.RemoteAddr = fromHere
	}
	if r.Host == "example.com" { // of httptest, too
		r.Host = "localhost"
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	api.ServeHTTP(w, r)
	text, err := io.ReadAll(w.Result().Body)
	assert.NoError(t, err)
	a := answer{w.Code, w.Header(), string(text)}
	checkAnswer(t, r.Pattern, a)
	return a
}

func (b *bundle) process(t testing.TB, body string, header ...string) answer {
	t.Helper()
	return b.call(t, "POST /api/orders/process", body, header...)
}

func (b *bundle) get(t testing.TB, target string, header ...string) answer {
	t.Helper()
	return b.call(t, "GET "+target, "", header...)
}

// shape is whatever an answer of this API can hold.
type shape struct {
	Type, Title, Code, Detail       string
	OrderID, Status, Currency, Item string
	Hold, HoldReason, StopRequested string
	Amount                          string
	Quantity, Generation, Seq       int
	Metadata                        map[string]string
	SubmittedBy                     string
	CreatedAt, FinishedAt           time.Time
	Steps                           map[string]struct{ Completed, Undone bool }
	Failure                         *struct{ Step, Code, Detail string }
	AllowedActions                  []string
	Errors                          []fieldError
	Order                           *shape
	Orders                          []shape
	NextCursor                      string
	Transitions                     []transition
	Movements                       []movement
	Deliveries                      []delivery
	Items                           []shape
	Tracked                         bool
	OnHand, Reserved                int
	Available                       *int
}

// decoded reads the body. The status of a problem is a number, that of an order text.
func (a answer) decoded(t testing.TB) shape {
	t.Helper()
	var s shape
	text := a.body
	if a.status >= 400 {
		text = strings.Replace(text, `"status":`, `"httpStatus":`, 1)
	}
	assert.NoError(t, json.Unmarshal([]byte(text), &s), a.body)
	return s
}

// wantProblem checks status and code, and returns the problem.
func (a answer) wantProblem(t testing.TB, status int, code string) shape {
	t.Helper()
	assert.Require(t, a.status == status && a.header.Get("Content-Type") == "application/problem+json",
		a.status, a.header.Get("Content-Type"), a.body, "want problem", status)
	p := a.decoded(t)
	assert.Require(t, p.Code == code && p.Type == "/problems/"+code, "code", p.Code, code, a.body)
	return p
}

func (a answer) wantStatus(t testing.TB, status int) shape {
	t.Helper()
	assert.Require(t, a.status == status, a.status, a.body, status)
	return a.decoded(t)
}

func TestMain(m *testing.M) {
	rules["POST /test"] = rule{class: alwaysOpen} // a route of tests
	dbtest.Main(m)
}
