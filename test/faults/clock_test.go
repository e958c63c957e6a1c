package faults

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	pawl "pawl/client"
	"pawl/internal/simulator"
	"pawl/test/assert"
	"pawl/test/clocks"
	"pawl/test/dbtest"
)

// deaf stands before the provider and keeps its answers to charges to itself. What is asked of the provider it does.
type deaf struct {
	provider http.Handler
	url      string

	mu      sync.Mutex
	calls   []string         // the keys of all charges and undos, in order
	signed  []time.Time      // when, as they say themselves
	swallow func(n int) bool // whether the answer to the n-th of them is lost
}

func (d *deaf) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	heard := w
	d.mu.Lock()
	d.calls = append(d.calls, r.URL.Path+" "+r.Header.Get("Idempotency-Key"))
	if at, err := strconv.ParseInt(r.Header.Get("Webhook-Timestamp"), 10, 64); err == nil {
		d.signed = append(d.signed, time.Unix(at, 0))
	}
	if d.swallow(len(d.calls)) {
		w = httptest.NewRecorder()
	}
	d.mu.Unlock()
	d.provider.ServeHTTP(w, r)
	if w != heard {
		heard.WriteHeader(http.StatusInternalServerError)
	}
}

func (d *deaf) seen() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]string{}, d.calls...)
}

// openDeafShop opens a shop whose charges go through one that is deaf, at an endpoint that can't be looked up. Keys are
// remembered for 24 hours, so they are sent for 23.
func openDeafShop(t *testing.T, retry string, swallow func(n int) bool) (*shop, *deaf) {
	t.Helper()
	s := openShop(t, blind, callLimit)
	d := &deaf{provider: s.provider, swallow: swallow}
	server := httptest.NewServer(d)
	t.Cleanup(server.Close)
	d.url = server.URL
	secret := filepath.Join(t.TempDir(), "secret")
	write(t, secret, "a secret of 16 bytes or more")
	s.write(fmt.Sprintf("charge: {executor: http, url: %[1]s/charge, undoUrl: %[1]s/charge/undo, keyRetention: 24h, secret: 'file:%[4]s', retry: {%[2]s}}\n"+
		"reserve: {executor: simulator, url: %[3]s}\nconfirm: {executor: simulator, url: %[3]s}\n", d.url, retry, s.url, secret))
	return s, d
}

// write makes another policy the shop's.
func (s *shop) write(policy string) {
	s.t.Helper()
	write(s.t, s.policy, policy)
}

func (s *shop) exec(sql string, args ...any) {
	s.t.Helper()
	conn, err := pgx.Connect(s.t.Context(), s.database.AdminURL)
	assert.NoError(s.t, err)
	defer conn.Close(s.t.Context())
	assert.NoError(s.t, assert.Err(conn.Exec(s.t.Context(), sql, args...)))
}

// started is when a process started, as its log says.
func (p *process) started() time.Time {
	p.t.Helper()
	var line struct{ Time time.Time }
	assert.NoError(p.t, json.NewDecoder(strings.NewReader(p.stderr())).Decode(&line))
	return line.Time
}

// late makes a replica look for orders that are due so seldom that it does not hear the time from the database by that
// while a test runs.
var late = []string{"--lease", "10m", "--recovery-interval", "10m"}

// TestWallClockStepsForward sets the clock of the machine a day ahead while the first call of a charge is under way, which
// gets no answer: the key is a second old, whatever that clock says.
func TestWallClockStepsForward(t *testing.T) {
	buildStepped(t)
	t.Parallel()
	clock := clocks.New(t, t.TempDir())
	s, d := openDeafShop(t, "initial: 5ms, cap: 50ms", func(n int) bool {
		if n == 1 {
			clock.Step(26 * time.Hour)
		}
		return n == 1
	})
	r := s.start(1, &replicas{t: t, database: s.database.URL, flags: late, clock: clock})
	a := s.client.process(t.Context(), r.addresses()[0], order{id: "one", amount: "9.99", item: "boat"}, "")
	if a.state() != "completed" {
		t.Errorf("%s\n%s", a, s.trace("one"))
	}
	calls := d.seen()
	assert.True(t, len(calls) == 2 && calls[0] == calls[1], "the charge was called for", calls, "want twice with one key")
	for _, at := range d.signed { // no call is under way any more
		assert.True(t, time.Since(at).Abs() <= 5*time.Minute, "a call is signed as of", at)
	}
	assert.Equal(t, len(d.signed), 2, "calls are signed")
	s.prove()
}

// TestWallClockStepsBack sets the clock back while a key grows too old to be sent again, which the provider has forgotten
// then: to send it would charge twice.
func TestWallClockStepsBack(t *testing.T) {
	buildStepped(t)
	t.Parallel()
	clock := clocks.New(t, t.TempDir())
	s, d := openDeafShop(t, "initial: 5m, cap: 5m", func(int) bool { return true })
	r := s.start(1, &replicas{t: t, database: s.database.URL, flags: late, clock: clock})
	s.order("one")
	const held = `SELECT count(*) FROM books.orders AS o WHERE o.hold = $1`
	eventually(t, patience, "the charge got no answer", func() bool { return count(t, s.database.URL, held, "retry") == 1 })
	first := len(d.seen())
	clock.Step(-3 * time.Hour)
	s.exec(`UPDATE orders SET in_doubt_since = in_doubt_since - interval '24 hours'`)
	s.exec(`UPDATE step_calls SET started_at = started_at - interval '24 hours', finished_at = finished_at - interval '24 hours'`)
	var problem *pawl.Problem
	_, err := s.api(r.addresses()[0]).RetryOrder(t.Context(), "one", pawl.RetryBody{OnBehalfOf: "test", Reason: "test"})
	assert.True(t, errors.As(err, &problem) && problem.Code == pawl.ProblemCodeOutcomeUnknown, "retry", err)
	s.exec(`UPDATE orders SET due_at = now()`)
	heir := s.start(1, &replicas{t: t, database: s.database.URL, clock: clock}) // takes it up, and was born with the wrong clock
	said := heir.all[0].started()
	assert.Equal(t, time.Since(said).Round(time.Hour), 3*time.Hour, "the clock was not set back: the log begins at", said)
	eventually(t, patience, "it waits for a person", func() bool { return count(t, s.database.URL, held, "attention") == 1 })
	if calls := d.seen(); len(calls) != first {
		t.Errorf("a key that may be forgotten was sent: %q\n%s", calls, s.trace("one"))
	}
	o := s.outcomes()["one"]
	assert.True(t, o.Status == "charging" && strings.HasPrefix(o.Reason, "outcome_unknown"), o)
}

// TestWallClockAndLeases has the clocks of two replicas hours apart. Who lives keeps its orders, for longer than a lease
// lasts; what the dead leave is taken over when the database says so.
func TestWallClockAndLeases(t *testing.T) {
	buildStepped(t)
	t.Parallel()
	s := openShop(t, looking, overlong)
	const lease, calls = 8 * time.Second, 3 * time.Second
	// One call at a time: the other orders wait in the memory of their replica, some for longer than a lease.
	s.write(fmt.Sprintf("charge: {executor: simulator, url: %[1]s, timeout: 20s, inFlight: 1}\n"+
		"reserve: {executor: simulator, url: %[1]s}\nconfirm: {executor: simulator, url: %[1]s}\n", s.url))
	s.faults(simulator.Rule{Fault: simulator.Slow, Delay: calls, Step: "charge"})
	clock, others := clocks.New(t, t.TempDir()), clocks.New(t, t.TempDir())
	drives := s.start(1, &replicas{t: t, database: s.database.URL, flags: []string{"--lease", lease.String()}, clock: clock})
	send := func(of string) {
		t.Helper()
		for n := range 4 {
			o := order{id: fmt.Sprint(of, n), amount: "9.99", item: "boat"}
			a := s.client.process(t.Context(), drives.addresses()[0], o, "respond-async")
			assert.Require(t, a.code == http.StatusAccepted, a)
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		_, err := s.provider.Await(ctx, func(r simulator.Request) bool { return strings.HasPrefix(r.OrderID, of) })
		assert.NoError(t, err)
	}
	const takenOver = `SELECT count(DISTINCT t.order_id) FROM books.transitions AS t WHERE t.verb = 'take_over'`

	send("alive")
	clock.Step(-5 * time.Hour)
	others.Step(26 * time.Hour)
	s.start(1, &replicas{t: t, database: s.database.URL, flags: []string{"--lease", lease.String()}, clock: others})
	s.settle(3 * patience)
	if n := count(t, s.database.URL, takenOver); n != 0 {
		t.Errorf("%d orders were taken from a replica that drove them\n%s", n, s.trace("alive3"))
	}

	send("dead")
	others.Step(-5 * time.Hour)
	drives.all[0].kill()
	killed := query[time.Time](t, s.database.URL, `SELECT now()`)[0]
	s.settle(3 * patience)
	for n := range 4 {
		id := fmt.Sprint("dead", n)
		const when = `SELECT count(*) FROM books.transitions AS t WHERE t.order_id = $1 AND t.verb = 'take_over' AND t.at < $2`
		if count(t, s.database.URL, when, id, killed.Add(patience)) == 0 {
			t.Errorf("order %s was not taken over in time\n%s", id, s.trace(id))
		}
	}
	for id, o := range s.outcomes() {
		if o.Status != "completed" {
			t.Errorf("order %s: %s\n%s", id, o, s.trace(id))
		}
	}
	s.prove()
}

// TestDatabaseClockStepsBack sets the clock of the database back by three hours while a replica drives orders and
// numbers events, and kills the replica: the other one takes its orders up, and numbers what happens, when the leases
// would have ended.
func TestDatabaseClockStepsBack(t *testing.T) {
	build(t)
	t.Parallel()
	clock := clocks.NewDatabase(t, dbtest.Folder(t))
	server := startPostgresFrom(t, clock.Bin)
	const held = 20
	r := startReplicas(t, 1, server.url, hasty...)
	dies := r.all[0]
	stockUp(t, r.addresses()[0], scarce, stock)
	unlock := lockStock(t, server.url)
	c := newClient(1, false)
	for n := range held {
		o := order{id: fmt.Sprint("held ", n), amount: "9.99", item: scarce}
		a := c.process(t.Context(), r.addresses()[0], o, "respond-async")
		assert.Require(t, a.code == http.StatusAccepted, a)
	}
	eventually(t, patience, "the orders wait for their stock", func() bool { return unfinished(t, server.url) == held })
	startReplicas(t, 1, server.url, hasty...)
	before := query[time.Time](t, server.url, `SELECT now()`)[0]
	clock.Step(-3 * time.Hour)
	now := query[time.Time](t, server.url, `SELECT now()`)[0]
	assert.Require(t, before.Sub(now) >= 2*time.Hour, "the clock was not set back: it was", before, "and is", now)
	dies.kill()
	unlock()
	settle(t, server.url, 2*patience) // the orders may be locked when their leases are first found too long, and are looked at once a minute
	assert.Equal(t, takeOvers(t, server.url), held, "orders were taken over")
	const unnumbered = `SELECT (SELECT count(*) FROM pawl.transitions) + (SELECT count(*) FROM pawl.stock_movements)
		- (SELECT coalesce(max(b.last_event_no), 0) FROM pawl.event_batches AS b)`
	eventually(t, patience, "all events have numbers", func() bool { return count(t, server.url, unnumbered) == 0 })
}

// buildStepped makes the program available as build does, and with a wall clock that can be set as well.
func buildStepped(t *testing.T) {
	t.Helper()
	build(t)
	built.Lock()
	defer built.Unlock()
	if built.stepped == "" {
		built.stepped = filepath.Join(filepath.Dir(built.path), "pawl-stepped")
		clocks.Build(t, "../..", built.stepped)
	}
}

// stepped is where buildStepped put it.
func stepped() string {
	built.Lock()
	defer built.Unlock()
	return built.stepped
}

func write(t testing.TB, path, text string) {
	t.Helper()
	assert.NoError(t, os.WriteFile(path, []byte(text), 0o600))
}
