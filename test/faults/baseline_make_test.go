package faults

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"pawl/internal/simulator"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

// TestMakeBaseline makes the baseline of the commit in PAWL_BASELINE, with its program: make baseline.
func TestMakeBaseline(t *testing.T) {
	t.Parallel()
	commit := os.Getenv("PAWL_BASELINE")
	if commit == "" {
		t.Skip("make baseline sets PAWL_BASELINE")
	}
	b := &baseline{Commit: commit}
	program := b.program(t)
	sources := filepath.Join(b.cache(t), "src")
	b = describe(t, sources)
	b.Commit, b.folder = commit, filepath.Join("../released", b.Version)
	assert.NoError(t, os.MkdirAll(b.folder, 0o755))
	api, err := os.ReadFile(filepath.Join(sources, "httpapi/openapi.yaml"))
	assert.NoError(t, err)
	b.write(t, "openapi.yaml", api)

	s := &shop{t: t, database: releasedDatabase(t, program), journal: filepath.Join(t.TempDir(), "books")}
	s.furnish(looking, callLimit)
	b.fill(s, program)
	b.dump(s, program)
	text, err := json.MarshalIndent(b, "", "  ")
	assert.NoError(t, err)
	assert.NoError(t, os.WriteFile(filepath.Join(b.folder, "release.json"), append(text, '\n'), 0o644))
}

// releasedDatabase is a database that a released program has migrated.
func releasedDatabase(t *testing.T, program string) *dbtest.Database {
	t.Helper()
	url := dbtest.Empty(t)
	code, said := runProgram(t, program, "migrate", "up", "--database-url", url)
	assert.Require(t, code == 0, said)
	return &dbtest.Database{URL: url, AdminURL: url, Pool: reader(t, url)}
}

// lasting is a policy under which an order is where it was, however much later its database is restored.
const lasting = `%s:
%s  timeout: 1m
  keyRetention: 87600h
  callbackTimeout: 20s
  retry: {initial: 100ms, cap: 1s, maxRetries: 999, budget: 720h}
  breaker: {failures: 1000000, open: 1ms}
`

// reopen replaces the service of a shop by one of a program with a policy.
func (s *shop) reopen(program, charge, more string, flags ...string) {
	s.t.Helper()
	for _, r := range s.replicas {
		r.all[0].terminate()
	}
	s.replicas = nil
	for step, how := range map[string]string{"charge": charge, "reserve": looking, "confirm": looking} {
		if charge == "" {
			more += step + ": {executor: ledger}\n"
		} else {
			more += fmt.Sprintf(lasting, step, fmt.Sprintf(how, step, s.url))
		}
	}
	assert.NoError(s.t, os.WriteFile(s.policy, []byte(more), 0o600))
	s.start(1, &replicas{t: s.t, database: s.database.URL, program: program, flags: flags})
}

// post sends a request that is answered with 2xx, and does not wait for the end of an order.
func (s *shop) post(path, body string) string {
	s.t.Helper()
	r := request{method: http.MethodPost, url: s.any() + path, body: body, prefer: "respond-async"}
	if !strings.Contains(body, "requestId") {
		r.header = [2]string{"Idempotency-Key", rand.Text()}
	}
	a := s.client.send(s.t.Context(), r)
	assert.Require(s.t, a.err == nil && a.code/100 == 2, "POST", path, body, a)
	return a.text
}

// released is an order of the baseline: what is done to it, where it is when its release ends, and how a later one ends it.
type released struct {
	id, terms    string   // of the request
	verbs        []string // after it has got to its end, or to its hold: path and body
	status, hold string
	later        string // the status in the end
}

const because = ` {"reason":"test","requestId":"1"`

// soldEarlier are orders whose charges are captured later; sold are charged at once.
var (
	soldEarlier = []released{
		{id: "authorized", status: "completed"},
		{id: "captured", verbs: []string{"captures" + because + `,"amount":"40.00"}`, `captures {"reason":"test","requestId":"2","amount":"10.00","final":true}`}, status: "completed"},
		{id: "voided", verbs: []string{"void" + because + `}`}, status: "completed"},
		{id: "capturing", verbs: []string{"captures" + because + `,"amount":"40.00"}`}, status: "completed"},
	}
	sold = []released{
		{id: "done", terms: `,"metadata":{"basket":"b-1"},"customerId":"ann","paymentMethod":"pm_1"`, status: "completed"},
		{id: "basket", terms: `,"lines":[{"item":"cup","quantity":2,"amount":"100.00"},{"item":"pot","quantity":1,"amount":"20.00"}]`, status: "completed"},
		{id: "repaid", verbs: []string{"refunds" + because + `}`}, status: "completed"},
		{id: "reduced", verbs: []string{"refunds" + because + `,"amount":"20.00"}`, `disputes {"reference":"dp_1","state":"opened","amount":"50.00"}`}, status: "completed"},
		{id: "repaying", verbs: []string{"refunds" + because + `,"amount":"30.00"}`}, status: "completed"},
		{id: "declined", status: "failed"},
		{id: "refused", status: "failed"},
		{id: "canceled", terms: large, verbs: []string{"cancel" + because + `}`}, status: "canceled"},
	}
	stranded = []released{
		{id: "charging", terms: `,"concurrencyKey":"gate"`, status: "charging", later: "completed"},
		{id: "queued", terms: `,"concurrencyKey":"gate"`, status: "pending", hold: "queued", later: "completed"},
		{id: "reserving", status: "reserving", later: "completed"},
		{id: "confirming", status: "confirming", later: "completed"},
		{id: "retrying", status: "charging", hold: "retry", later: "completed"},
		{id: "called", status: "charging", hold: "callback", later: "completed"},
		{id: "releasing", status: "releasing", hold: "retry", verbs: []string{"cancel" + because + `}`}, later: "canceled"},
		{id: "refunding", status: "refunding", hold: "retry", later: "failed"},
		{id: "attention", status: "refunding", hold: "attention", later: "failed"},
		{id: "approval", terms: large, status: "pending", hold: "approval", later: "completed"},
		{id: "paused", terms: large, verbs: []string{"pause" + because + `}`}, status: "pending", hold: "paused", later: "completed"},
		{id: "scheduled", terms: `,"startAt":"%s"`, status: "pending", hold: "scheduled", later: "canceled"},
	}
)

const (
	large     = `,"currency":"EUR"` // needs approval
	approvals = "approval:\n  - {currency: EUR}\nconcurrency: {by: concurrencyKey, limit: 1}\n"
)

// fill makes orders in every state: forgotten ones, ended ones, and, in the end, some that are on their way.
func (b *baseline) fill(s *shop, program string) {
	t := s.t
	s.reopen(program, "", "")
	stockUp(t, s.any(), scarce, 1)
	for i, item := range []string{"cup", scarce, scarce, "pot"} {
		s.post("/api/orders/process", fmt.Sprintf(`{"orderId":"forgotten-%d","amount":"10.00","item":%q}`, i, item))
	}
	settle(t, s.database.URL, patience)
	s.replicas[0].all[0].terminate()
	s.replicas = nil
	s.database.Age(t, 40*24*time.Hour)
	s.reopen(program, "", "", "--order-retention", "744h")
	eventually(t, patience, "the first orders are forgotten", func() bool { return len(s.outcomes()) == 0 })

	s.faults(strandingFaults()...)
	s.reopen(program, lookingParts+"  captureWithin: 8760h\n", "")
	for _, url := range []string{openReceiver(t).url, s.url + "/nowhere"} { // the second answers 404
		s.post("/api/webhook-endpoints", fmt.Sprintf(`{"url":%q}`, url))
	}
	s.sell(soldEarlier)
	s.reopen(program, looking, approvals)
	s.sell(sold)
	code, said := runProgram(t, program, "verify", "--store", "--provider", s.url, "--database-url", s.database.URL)
	assert.Require(t, code == 0, said)
	s.sell(stranded)
	s.replicas[0].all[0].kill()
}

func strandingFaults() (rules []simulator.Rule) {
	for id, faults := range map[string][]simulator.Rule{
		"capturing":  {{Fault: simulator.Error, Step: "charge", Operation: "capture"}},
		"repaying":   {{Fault: simulator.Error, Step: "charge", Operation: "refund"}},
		"declined":   {{Fault: simulator.Decline, Step: "charge"}},
		"refused":    {{Fault: simulator.Decline, Step: "reserve"}},
		"charging":   {{Fault: simulator.Hang, Step: "charge"}},
		"reserving":  {{Fault: simulator.Hang, Step: "reserve"}},
		"confirming": {{Fault: simulator.Hang, Step: "confirm"}},
		"retrying":   {{Fault: simulator.Error, Step: "charge"}},
		"called":     {{Fault: simulator.CallbackNever, Step: "charge"}},
		"releasing":  {{Fault: simulator.NotDone, Step: "confirm"}, {Fault: simulator.Error, Step: "reserve", Operation: "undo"}},
		"refunding":  {{Fault: simulator.Decline, Step: "reserve"}, {Fault: simulator.Error, Step: "charge", Operation: "undo"}},
		"attention":  {{Fault: simulator.Decline, Step: "reserve"}, {Fault: simulator.Decline, Step: "charge", Operation: "undo"}},
	} {
		for _, rule := range faults {
			rule.OrderPrefix = id
			rules = append(rules, rule)
		}
	}
	return rules
}

// sell sends orders, and does to them what is to be done.
func (s *shop) sell(orders []released) {
	s.t.Helper()
	for _, o := range orders {
		terms, item := o.terms, `,"item":"boat"`
		if strings.Contains(terms, "%s") {
			terms = fmt.Sprintf(terms, time.Now().Add(300*24*time.Hour).UTC().Format(time.RFC3339))
		}
		if strings.Contains(terms, `"lines"`) {
			item = ""
		}
		s.post("/api/orders/process", fmt.Sprintf(`{"orderId":%q,"amount":"120.00"%s%s}`, o.id, item, terms))
	}
	for _, o := range orders {
		s.handle(o)
	}
}

func (s *shop) handle(o released) {
	s.t.Helper()
	switch o.id {
	case "releasing":
		s.until(o.id, "confirming", "retry")
	case "paused", "canceled":
		s.until(o.id, "pending", "approval")
	default:
		s.until(o.id, o.status, o.hold)
	}
	for _, verb := range o.verbs {
		path, body, _ := strings.Cut(verb, " ")
		s.post("/api/orders/"+o.id+"/"+path, body)
		eventually(s.t, patience, "its charge operation is done, or was tried", func() bool {
			return count(s.t, s.database.URL, `SELECT count(*) FROM pawl.charge_operations AS c JOIN pawl.orders AS o USING (order_no)
				WHERE o.order_id = $1 AND (c.state NOT IN ('done', 'failed', 'in_doubt') OR c.calling)`, o.id) == 0
		})
	}
	s.until(o.id, o.status, o.hold)
}

// dump stores the database, what the provider has, and how the released program shows the orders. INSERT statements need
// no psql.
func (b *baseline) dump(s *shop, program string) {
	t := s.t
	cmd := exec.CommandContext(t.Context(), filepath.Join(postgresPrograms(t), "pg_dump"), "--no-owner", "--no-privileges", "--inserts", "--rows-per-insert=100", s.database.URL)
	text, err := cmd.Output()
	assert.NoError(t, err)
	b.write(t, "database.sql", regexp.MustCompile(`(?m)^\\.*\n`).ReplaceAll(text, nil))
	assert.NoError(t, s.provider.Close())
	books, err := os.ReadFile(s.journal)
	assert.NoError(t, err)
	b.write(t, "provider.ndjson", books)

	s.database = b.restore(s)
	shown := s.read(program)
	var lines strings.Builder
	for _, id := range slices.Sorted(maps.Keys(shown)) {
		fmt.Fprintln(&lines, shown[id])
	}
	want := len(soldEarlier) + len(sold) + len(stranded)
	assert.Require(t, len(shown) == want, len(shown), "orders, want", want)
	b.write(t, "orders.ndjson", []byte(lines.String()))
}

// restore makes a database of the dump, whose provider is the one of the shop, and as if it had been dumped five minutes
// ago: all leases have ended, and nothing is too old. Its webhooks go to the test.
func (b *baseline) restore(s *shop) *dbtest.Database {
	t := s.t
	t.Helper()
	url := dbtest.Empty(t)
	sink := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(sink.Close)
	conn, err := pgx.Connect(t.Context(), url)
	assert.NoError(t, err)
	defer conn.Close(t.Context())
	for _, sql := range []string{b.read(t, "database.sql"), "RESET ALL; SET session_replication_role = replica", rejuvenate,
		`UPDATE pawl.webhook_endpoints SET url = '` + sink.URL + `'`,
		`UPDATE pawl.policies AS p SET source = now.source, hash = sha256(convert_to(now.source, 'UTF8'))
			FROM (SELECT version, regexp_replace(source, 'http://127.0.0.1:\d+', '` + s.url + `', 'g') AS source FROM pawl.policies) AS now
			WHERE now.version = p.version`} {
		assert.NoError(t, assert.Err(conn.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol)))
	}
	return &dbtest.Database{URL: url, AdminURL: url, Pool: reader(t, url)}
}

const rejuvenate = `DO $$
DECLARE
  age interval := now() - interval '5 minutes' - (SELECT max(at) FROM pawl.transitions);
  change text;
BEGIN
  FOR change IN
    SELECT format('UPDATE %s SET %s', c.oid::regclass, string_agg(format('%1$I = CASE WHEN %1$I < ''3000-01-01'' THEN %1$I + %2$L ELSE %1$I END', a.attname, age), ', ')) -- later is never
    FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    WHERE c.relnamespace = 'pawl'::regnamespace AND c.relkind = 'r' AND a.atttypid IN ('timestamptz'::regtype, 'pawl.moment'::regtype)
    GROUP BY c.oid
  LOOP
    EXECUTE change;
  END LOOP;
END $$`

// read serves the restored database, which belongs elsewhere, so that nothing moves, and reads all orders.
func (s *shop) read(program string) map[string]string {
	s.t.Helper()
	shown := map[string]string{}
	s.replicas = nil
	r := s.start(1, &replicas{t: s.t, database: s.database.URL, program: program})
	a := s.client.get(s.t.Context(), r.addresses()[0]+"/health")
	assert.Require(s.t, a.body.Code == "quarantined", a)
	for id := range s.outcomes() {
		a := s.client.get(s.t.Context(), r.addresses()[0]+"/api/orders/"+id)
		assert.True(s.t, a.err == nil && a.code == http.StatusOK, "order", id, a)
		shown[id] = strings.TrimSpace(a.text)
	}
	r.all[0].terminate()
	s.replicas = nil
	return shown
}
