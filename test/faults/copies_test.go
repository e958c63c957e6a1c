package faults

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"pawl/internal/simulator"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

// original is a service in use, of which copies are made: with a provider, a receiver of webhooks, and an order whose
// charge is in doubt.
type original struct {
	t        *testing.T
	server   *postgres
	provider *simulator.Simulator
	policy   string // a file
	url      string // of the provider
	inbox    *receiver
	client   *client
	folder   string // where the commands of the page run
}

func openOriginal(t *testing.T, settings ...string) *original {
	t.Helper()
	for _, name := range []string{"pg_dump", "pg_restore", "pg_basebackup"} {
		if _, err := exec.LookPath(filepath.Join(postgresPrograms(t), name)); err != nil {
			t.Skipf("NOT TESTED: there is no %s here", name)
		}
	}
	o := &original{t: t, server: startPostgres(t, settings...), provider: openProvider(t, "", ""), inbox: openReceiver(t),
		client: newClient(4, false), folder: t.TempDir()}
	t.Cleanup(o.client.close)
	server := httptest.NewServer(o.provider)
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
		assert.Succeeds(t, o.provider.Close())
	})
	o.url = server.URL
	o.policy = o.policyOf(map[string]string{"charge": refunds + "  retry: {initial: 200ms, cap: 200ms, maxRetries: 900, budget: 1h}\n  breaker: {failures: 1000000, open: 1ms}\n", "reserve": blind, "confirm": final})
	assert.NoError(t, o.provider.SetFaults(simulator.Rule{Fault: simulator.ErrorAfter, Step: "charge", OrderPrefix: "doubt"}))
	return o
}

// policyOf is a file with a policy that has these steps at the provider.
func (o *original) policyOf(executors map[string]string) string {
	o.t.Helper()
	file, text := filepath.Join(o.t.TempDir(), "policy.yaml"), ""
	for step, executor := range executors {
		text += step + ":\n" + fmt.Sprintf(executor, step, o.url)
	}
	assert.NoError(o.t, os.WriteFile(file, []byte(text), 0o600))
	return file
}

// postgresPrograms is the folder of the newest PostgreSQL here.
func postgresPrograms(t *testing.T) string {
	t.Helper()
	if dir := os.Getenv("PAWL_TEST_PG_BIN"); dir != "" {
		return dir
	}
	folders, _ := filepath.Glob("/usr/lib/postgresql/*/bin")
	if len(folders) == 0 {
		t.Skip("NOT TESTED: there are no programs of PostgreSQL here")
	}
	return folders[len(folders)-1]
}

// service is a process that serves a database at one address, also after it has started anew.
type service struct {
	*process
	address, database, token string
	client                   *client
}

func (o *original) serve(database string, flags ...string) *service {
	o.t.Helper()
	args := append([]string{"serve", "--database-url", database, "--listen", "127.0.0.1", "--port", dbtest.FreePort(o.t), "--public-url", "http://127.0.0.1:1"}, hasty...) // it is in what providers are sent
	s := &service{process: launch(o.t, nil, append(args, flags...)...), database: database, client: o.client}
	s.address = s.url()
	return s
}

func (s *service) get(path string) *answer {
	s.t.Helper()
	return s.send(http.MethodGet, path, "")
}

func (s *service) send(method, path, body string) *answer {
	s.t.Helper()
	return s.client.send(s.t.Context(), request{method: method, url: s.address + path, body: body, prefer: "respond-async", token: s.token})
}

// must sends a request that is answered with 2xx.
func (s *service) must(method, path, body string) *answer {
	s.t.Helper()
	a := s.send(method, path, body)
	assert.Require(s.t, a.err == nil && a.code/100 == 2, method, path, a)
	return a
}

// process takes an order to its end.
func (s *service) order(id string) {
	s.t.Helper()
	s.must(http.MethodPost, "/api/orders/process", fmt.Sprintf(`{"orderId":%q,"amount":9.99,"item":"boat"}`, id))
	eventually(s.t, patience, id+" completes", func() bool { return s.get("/api/orders/"+id).state() == "completed" })
}

// until waits for a status of an order and a beginning of why it is held.
func (s *service) until(id, status, reason string) {
	s.t.Helper()
	eventually(s.t, patience, id+" is "+status+" "+reason, func() bool {
		return count(s.t, s.database, `SELECT count(*) FROM books.orders WHERE order_id = $1 AND status = $2 AND coalesce(hold_reason, '') ^@ $3`, id, status, reason) == 1
	})
}

// work has an original do what a copy could do again: an order that is done, one in doubt, and an endpoint that was
// sent all events.
func (o *original) work(s *service) {
	o.t.Helper()
	s.must(http.MethodPost, "/api/webhook-endpoints", fmt.Sprintf(`{"url":%q}`, o.inbox.url))
	s.order("done")
	s.must(http.MethodPost, "/api/orders/process", `{"orderId":"doubt","amount":9.99,"item":"boat"}`)
	eventually(o.t, patience, "its charge is in doubt", func() bool { return len(o.provider.Requests("doubt")) > 2 })
	o.inbox.awaits(s)
}

// quarantined checks that a service shows a database that belongs elsewhere, and changes neither it nor anything
// outside, for far longer than all leases last and an order waits for its next call.
func (o *original) quarantined(s *service) {
	o.t.Helper()
	const state = `SELECT concat((SELECT count(*) FROM pawl.transitions), ' ', (SELECT count(*) FROM pawl.event_batches), ' ', (SELECT max(seq) FROM pawl.webhook_endpoints),
		' ', (SELECT max(fence) FROM pawl.orders), ' ', (SELECT count(*) FROM pawl.step_calls))`
	before, calls, sent := query[string](o.t, s.database, state)[0], len(o.provider.Requests("doubt")), o.inbox.count()
	for path, code := range map[string]int{"/livez": 200, "/health": 503, "/api/orders/done": 200, "/api/orders/doubt": 200, "/api/events": 200, "/api/orders?status=completed": 200} {
		a := s.get(path)
		assert.True(o.t, a.code == code && (code != 503 || a.body.Code == "quarantined"), path, a)
	}
	for path, body := range map[string]string{
		"/api/orders/process": `{"orderId":"new","amount":1,"item":"boat"}`, "/api/orders/doubt/cancel": `{"reason":"test"}`, "/api/orders/done/refunds": `{"reason":"test","requestId":"1"}`,
		"/api/webhook-endpoints/whe_1/test": `{}`, "/api/inventory/boat/adjustments": `{"change":1,"reason":"test","requestId":"1"}`,
	} {
		a := s.send(http.MethodPost, path, body)
		assert.True(o.t, a.code == http.StatusServiceUnavailable && a.body.Code == "quarantined", "POST", path, a)
	}
	assert.Contains(o.t, s.get("/metrics").text, "\npawl_quarantined 1\n", "the metric does not say so")
	if a := s.get("/api/me"); !strings.Contains(a.text, `"quarantined":true`) || strings.Contains(a.text, "processOrder") {
		o.t.Error(a)
	}
	a := s.get("/console")
	assert.Contains(o.t, a.text, "pawl adopt --as-copy", "the console has no banner", a)
	eventually(o.t, patience, "all leases have ended long ago", func() bool {
		return count(o.t, s.database, `SELECT count(*) FROM (SELECT due_at FROM pawl.orders UNION ALL SELECT due_at FROM pawl.event_relay UNION ALL SELECT due_at FROM pawl.webhook_endpoints) AS l
			WHERE l.due_at > now() - interval '4 seconds'`) == 0
	})
	assert.Equal(o.t, query[string](o.t, s.database, state)[0], before)
	if n := len(o.provider.Requests("doubt")); n != calls {
		o.t.Errorf("the provider was called %d times", n-calls)
	}
	n := o.inbox.count()
	assert.Equal(o.t, n, sent, n-sent, "webhooks were sent")
	code, said := run(o.t, "doctor", "--database-url", s.database, "--installation", "staging")
	assert.True(o.t, code == 1 && strings.Contains(said, "quarantined"), "doctor", code, said)
}

// block is the first block of a kind after a text of docs/operations/restore.md.
func block(t *testing.T, after, kind string) string {
	t.Helper()
	return blockOf(t, "restore.md", after, kind)
}

func blockOf(t *testing.T, name, after, kind string) string {
	t.Helper()
	printed := regexp.MustCompile("(?s)\n" + regexp.QuoteMeta(after) + ".*?```" + kind + "\n(.*?)```").FindStringSubmatch(page(t, name))
	assert.Require(t, printed != nil, name, "has no", kind, "after", after)
	return printed[1]
}

// shell runs the commands of the page after a text, less the first few lines, and returns what they print.
func (o *original) shell(after string, less int, variables ...string) string {
	o.t.Helper()
	lines := strings.SplitAfterN(block(o.t, after, "sh"), "\n", less+1)
	cmd := exec.CommandContext(o.t.Context(), "sh", "-ec", lines[less])
	cmd.Dir = o.folder
	cmd.Env = append(append(dbtest.Neutral(), "PATH="+filepath.Dir(program())+":"+postgresPrograms(o.t)+":"+os.Getenv("PATH")), variables...)
	said, err := cmd.CombinedOutput()
	assert.NoError(o.t, err, lines[less], said)
	return string(said)
}

// dumpInto restores a dump on another server.
func (o *original) dumpInto(restored *postgres) {
	o.t.Helper()
	o.shell("## A dump", 0, "DATABASE_URL="+o.server.url)
	o.shell("Restore it into an empty database", 0, "RESTORED_URL="+restored.url)
}

// TestRestoredDatabase does what docs/operations/restore.md says of a dump. A service on what was restored does nothing.
// Once that was adopted, it goes on where the dump was taken, and its new events are not taken for those that were lost.
// Orders that only the provider knows come back without a second charge, or are undone.
func TestRestoredDatabase(t *testing.T) {
	build(t)
	t.Parallel()
	if _, err := exec.LookPath("jq"); err != nil {
		t.Skip("NOT TESTED: there is no jq here")
	}
	o := openOriginal(t)
	first := o.serve(o.server.url, "--policy", o.policy)
	o.work(first)
	restored := startPostgres(t)
	o.dumpInto(restored)
	first.order("lost")
	assert.NoError(t, o.provider.SetFaults(simulator.Rule{Fault: simulator.Error, Step: "reserve"}, simulator.Rule{Fault: simulator.ErrorAfter, Step: "charge", OrderPrefix: "doubt"}))
	for _, id := range []string{"unwanted", "compared"} {
		first.must(http.MethodPost, "/api/orders/process", fmt.Sprintf(`{"orderId":%q,"amount":9.99,"item":"boat"}`, id))
		eventually(t, patience, id+" is charged", func() bool { return len(o.provider.Books(id)) > 0 })
	}
	o.inbox.awaits(first)
	first.terminate()

	second := o.serve(restored.url, "--policy", o.policyOf(map[string]string{"charge": looking, "reserve": looking, "confirm": looking}))
	o.quarantined(second)
	o.shell("3. Adopt it.", 0, "RESTORED_URL="+restored.url)
	eventually(t, patience, "it goes on by itself", func() bool { return second.get("/health").code == http.StatusOK })
	assert.NoError(t, o.provider.SetFaults())
	second.until("doubt", "completed", "")
	second.order("instead")
	lost, instead := numberOf(t, o.server.url, "lost"), numberOf(t, restored.url, "instead")
	assert.True(t, instead > lost, "the lost order had number", lost, "and the next one has", instead)
	o.bringBack(second)
	verify(t, restored.url)
}

// bringBack does what the page says of orders that only the provider knows.
func (o *original) bringBack(s *service) {
	o.t.Helper()
	known := func() string {
		o.shell("Orders that were charged after the backup", 0, "PROVIDER="+o.url, "RESTORED_URL="+s.database)
		ids, err := os.ReadFile(filepath.Join(o.folder, "lost-orders"))
		assert.NoError(o.t, err)
		return string(ids)
	}
	assert.Equal(o.t, known(), "compared\nlost\nunwanted\n")
	assert.NoError(o.t, os.WriteFile(filepath.Join(o.folder, "orders.ndjson"), []byte(`{"orderId":"lost","amount":9.99,"item":"boat"}`+"\n"), 0o600))
	o.shell("**Send them again**", 0, "PAWL_URL="+s.address)
	s.until("lost", "completed", "")
	eventually(o.t, patience, "its new events are not taken for the lost ones", func() bool {
		o.inbox.mu.Lock()
		defer o.inbox.mu.Unlock()
		return o.inbox.numbers["lost"] == numberOf(o.t, s.database, "lost")
	})
	s.terminate()

	_, said := run(o.t, "token", "create", "operator", "--roles", "submit,read,operate", "--database-url", s.database)
	blinded := o.serve(s.database, "--policy", o.policyOf(map[string]string{"charge": blind}))
	blinded.token = tokenIn(said)
	calls := len(o.provider.Requests("compared"))
	blinded.must(http.MethodPost, "/api/orders/process", `{"orderId":"compared","amount":9.99,"item":"boat"}`)
	eventually(o.t, patience, "the provider answers 422", func() bool { return len(o.provider.Requests("compared")) > calls })
	blinded.must(http.MethodPost, "/api/orders/compared/cancel", `{"reason":"the provider compares bodies"}`)
	blinded.until("compared", "canceled", "")
	blinded.terminate()

	assert.NoError(o.t, o.provider.SetFaults(simulator.Rule{Fault: simulator.Decline, Step: "reserve"}))
	s = o.serve(s.database, "--policy", o.policyOf(map[string]string{"charge": looking, "reserve": looking}))
	said = o.shell("**An order that nobody wants any more**", 0, "PAWL_URL="+s.address, "PAWL_TOKEN="+tokenIn(said), "LOST_ORDER=unwanted", "AMOUNT=9.99", "CURRENCY=USD")
	assert.Contains(o.t, said, "failed")
	assert.Equal(o.t, known(), "")
	for id, state := range map[string]simulator.State{"doubt": simulator.Live, "lost": simulator.Live, "unwanted": simulator.Undone, "compared": simulator.Undone} {
		charges := 0
		for _, entry := range o.provider.Books(id) {
			if entry.Step == "charge" {
				charges++
				assert.Equal(o.t, entry.Effects, 1, id)
				assert.Equal(o.t, entry.State, state, id)
			}
		}
		assert.Equal(o.t, charges, 1, "charges of", id)
	}
}

// TestServerIsReplaced puts another server, with what was restored, where that of a running service was.
func TestServerIsReplaced(t *testing.T) {
	build(t)
	t.Parallel()
	o := openOriginal(t)
	s := o.serve(o.server.url, "--policy", o.policy)
	o.work(s)
	restored := startPostgres(t)
	o.dumpInto(restored)
	for _, server := range []*postgres{restored, o.server} {
		server.immediate()
	}
	data := filepath.Join(o.server.dir, "data")
	for _, move := range [][2]string{{data, data + ".original"}, {filepath.Join(restored.dir, "data"), data}} {
		assert.NoError(t, os.Rename(move[0], move[1]))
	}
	o.server.start()
	eventually(t, patience, "the service has started anew", func() bool { return s.get("/health").body.Code == "quarantined" })
	o.quarantined(s)
	assert.NoError(t, os.Rename(data+".original", filepath.Join(restored.dir, "data")))
	restored.start() // for its end
}

// TestCopyOfTheFiles is about a copy that only its name tells, and that becomes a database for tests, as
// docs/operations/restore.md says. It never calls a provider for an order that the original has.
func TestCopyOfTheFiles(t *testing.T) {
	build(t)
	t.Parallel()
	o := openOriginal(t)
	first := o.serve(o.server.url, "--policy", o.policy, "--installation", "prod")
	o.work(first)
	if _, said := run(t, "token", "create", "shop", "--roles", "submit,read,operate,settle", "--database-url", o.server.url); !strings.Contains(said, "pawl_") {
		t.Fatal(said)
	} else {
		first.token = tokenIn(said)
	}
	copied := o.backup(nil)
	copied.start()
	copied.url = copied.server.URL("postgres")
	second := o.serve(copied.url, "--installation", "staging", "--policy", o.policy) // the same text is another policy there
	second.token = first.token
	first.terminate()
	o.quarantined(second)

	said := o.shell("## Staging from a copy", 2, "STAGING_DATABASE_URL="+copied.url)
	eventually(t, patience, "it goes on by itself", func() bool { return second.get("/health").code == http.StatusOK })
	if a := second.get("/api/orders/done"); a.code != http.StatusUnauthorized {
		t.Errorf("with the token of the original: %s", a)
	}
	second.token = tokenIn(said)
	calls, sent := len(o.provider.Requests("doubt"))+len(o.provider.Requests("done")), o.inbox.count()
	second.until("doubt", "charging", "policy_unusable: the policy belongs to the installation")
	second.order("new") // by the policy that the copy was given, under keys of its own
	second.must(http.MethodPost, "/api/orders/done/refunds", `{"reason":"test","requestId":"1"}`)
	a := second.send(http.MethodPost, "/api/orders/doubt/retry", `{"reason":"test","policy":"active"}`)
	assert.Equal(t, a.body.Code, "policy_switch_refused", "under the policy of the copy", a)
	for _, verb := range []string{"retry", "cancel"} {
		second.must(http.MethodPost, "/api/orders/doubt/"+verb, `{"reason":"test"}`)
		eventually(t, patience, "nothing can be done about it", func() bool {
			return count(t, copied.url, `SELECT count(*) FROM books.orders WHERE order_id = 'doubt' AND hold = 'attention' AND hold_reason ^@ 'policy_unusable'`) == 1
		})
	}
	second.must(http.MethodPost, "/api/orders/doubt/step-result", `{"step":"charge","outcome":"not_done","reason":"test"}`)
	eventually(t, patience, "the refund was tried", func() bool {
		return count(t, copied.url, `SELECT count(*) FROM books.refunds WHERE code = 'policy_unusable' AND state = 'pending'`) == 1
	})
	now := len(o.provider.Requests("doubt")) + len(o.provider.Requests("done"))
	assert.Equal(t, now, calls, "the provider was called", now-calls, "times by a copy for what the original has")
	n := o.inbox.count()
	assert.Equal(t, n, sent, n-sent, "webhooks were sent by a copy")
	verify(t, copied.url)
	assert.True(t, len(o.provider.Requests("new")) != 0, "the copy does not call the provider that its own policy names")
	for _, left := range query[string](t, copied.url, `SELECT 'endpoint ' || url FROM pawl.webhook_endpoints WHERE state = 'enabled' UNION ALL SELECT 'token ' || name FROM pawl.tokens
		WHERE revoked_at IS NULL AND name <> 'tester'`) {
		t.Error("the copy has an ", left)
	}

	third := o.serve(o.server.url, "--policy", o.policy, "--installation", "prod") // the original goes on
	third.token = first.token
	assert.NoError(t, o.provider.SetFaults())
	third.until("doubt", "completed", "")
}

// TestFailoverIsNoCopy has a standby that lacks the last orders take over, and then restores a backup to a point in
// time. Both go on by themselves, and no event has the id of one that was lost.
func TestFailoverIsNoCopy(t *testing.T) {
	build(t)
	t.Parallel()
	archive := dbtest.Folder(t)
	if err := os.Chmod(archive, 0o777); err != nil { //nolint:gosec // the server runs as another user
		t.Fatal(err)
	}
	var settings []string
	for _, line := range regexp.MustCompile(`(?m)^(\w+) = '?(.*?)'?$`).FindAllStringSubmatch(block(t, "## A point in time", "ini"), -1) {
		settings = append(settings, line[1], strings.ReplaceAll(line[2], "/backup/wal", archive))
	}
	o := openOriginal(t, settings...)
	named := []string{"--policy", o.policy, "--installation", "prod"}
	first := o.serve(o.server.url, named...)
	standby := o.backup(map[string]string{"restore_command": "cp " + archive + "/%f %p"})
	restored := o.backup(nil)
	o.work(first)
	target := query[string](t, o.server.url, "SELECT clock_timestamp()::text")[0]
	first.order("later") // than the point in time; the standby has it
	name := query[string](t, o.server.url, "SELECT pg_walfile_name(pg_switch_wal())")[0]
	eventually(t, patience, "the log is in the archive", func() bool { _, err := os.Stat(filepath.Join(archive, name)); return err == nil })
	o.shell("Restore the newest [base backup]", 0, "PGDATA="+filepath.Join(restored.dir, "data"), "ARCHIVE="+archive, "TARGET="+target)
	for n := range 40 { // a sequence may skip 32 numbers
		first.order(fmt.Sprintf("lost-%d", n))
	}
	o.inbox.awaits(first)
	first.kill()
	o.server.kill()
	for name, server := range map[string]*postgres{"standby": standby, "recovery": restored} {
		if name == "standby" {
			assert.NoError(t, os.WriteFile(filepath.Join(server.dir, "data", "standby.signal"), nil, 0o644))
		}
		server.start()
		server.url = server.server.URL("postgres")
		if name == "standby" {
			query[bool](t, server.url, "SELECT pg_promote()")
		}
		eventually(t, patience, "it takes writes", func() bool { return !query[bool](t, server.url, "SELECT pg_is_in_recovery()")[0] })
		s := o.serve(server.url, named...)
		a := s.get("/health")
		assert.Equal(t, a.code, http.StatusOK, name, a)
		lost := count(t, server.url, `SELECT count(*) FROM pawl.orders WHERE order_id ^@ 'lost-'`)
		assert.True(t, lost == 0, name, lost, "orders that were to be lost are there")
		assert.Equal(t, s.get("/api/orders/later").code == http.StatusOK, (name == "standby"),
			name, "the order after the point in time is there")
		for n := range 40 {
			s.order(fmt.Sprintf("%s-%d", name, n))
		}
		o.inbox.awaits(s)
		shared := `SELECT count(*) FROM pawl.orders WHERE order_no = ANY($1) AND order_id ^@ $2`
		n := count(t, server.url, shared, o.inbox.numbersOf("lost-"), name)
		assert.True(t, n == 0, name, n, "orders have the numbers of lost ones")
		s.terminate()
	}
}

// backup takes a base backup of the running server, for another one that is not started yet.
func (o *original) backup(settings map[string]string) *postgres {
	o.t.Helper()
	rules := filepath.Join(o.server.dir, "data", "replication.conf") // the usual rules refuse replication
	assert.NoError(o.t, os.WriteFile(rules, []byte("local  replication  pawl  trust\nlocal  all  pawl  peer  map=pawl\n"), 0o644))
	if o.server.settings["hba_file"] == "" {
		o.server.settings["hba_file"] = rules
		o.server.immediate()
		o.server.start()
	}
	copied := &postgres{t: o.t, dir: dbtest.Folder(o.t), settings: map[string]string{}}
	for name, value := range settings {
		copied.settings[name] = value
	}
	data, err := os.Stat(filepath.Join(o.server.dir, "data"))
	assert.NoError(o.t, err)
	variables := []string{"DATABASE_URL=" + o.server.url, "BACKUP=" + filepath.Join(o.t.TempDir(), "backup"), "PGDATA=" + filepath.Join(copied.dir, "data"),
		fmt.Sprintf("OWNER=%d", data.Sys().(*syscall.Stat_t).Uid)}
	o.shell("## A base backup", 0, variables...)
	o.shell("To restore it, copy it", 0, variables...)
	o.t.Cleanup(func() {
		if copied.server != nil {
			_ = copied.server.Stop(context.WithoutCancel(o.t.Context()))
		}
	})
	return copied
}

func tokenIn(said string) string {
	return regexp.MustCompile(`pawl_[0-9A-Za-z_]{20,}`).FindString(said)
}

func numberOf(t *testing.T, url, id string) int64 {
	t.Helper()
	return count(t, url, `SELECT order_no FROM pawl.orders WHERE order_id = $1`, id)
}

// receiver takes what is sent to an endpoint, and drops what has an id that it knows, as docs/events.md advises.
type receiver struct {
	t   *testing.T
	url string

	mu       sync.Mutex
	events   map[string]string // that were taken: order and seq, by id
	numbers  map[string]int64  // of orders, as the ids of their events have them
	requests int
}

func openReceiver(t *testing.T) *receiver {
	t.Helper()
	r := &receiver{t: t, events: map[string]string{}, numbers: map[string]int64{}}
	server := httptest.NewServer(r)
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	r.url = server.URL + "/hook"
	return r
}

func (r *receiver) ServeHTTP(_ http.ResponseWriter, request *http.Request) {
	text, err := io.ReadAll(request.Body)
	if err != nil {
		return // the sender was killed
	}
	id := request.Header.Get("webhook-id")
	var e struct {
		ID   string
		Data struct {
			OrderID string
			Seq     int
		}
	}
	err = json.Unmarshal(text, &e)
	assert.True(r.t, err == nil && e.ID == id, text, "with the id", id, err)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.requests++
	is := fmt.Sprintf("%s %d", e.Data.OrderID, e.Data.Seq)
	if was, known := r.events[id]; known {
		assert.Equal(r.t, was, is, id, "is not what came before: it would be dropped")
		return
	}
	r.events[id] = is
	r.numbers[e.Data.OrderID], _ = strconv.ParseInt(strings.Split(id, "_")[1], 10, 64)
}

func (r *receiver) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.requests
}

// numbersOf are the numbers of orders whose names begin so.
func (r *receiver) numbersOf(prefix string) (numbers []int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, no := range r.numbers {
		if strings.HasPrefix(id, prefix) {
			numbers = append(numbers, no)
		}
	}
	return numbers
}

// awaits returns when the inbox has all events of the orders that have ended at a service.
func (r *receiver) awaits(s *service) {
	r.t.Helper()
	eventually(r.t, patience, "all webhooks have come", func() bool {
		rows := query[string](r.t, s.database, `SELECT o.order_id || ' ' || t.seq FROM pawl.orders AS o JOIN pawl.transitions AS t USING (order_no) WHERE o.ended_as IS NOT NULL`)
		r.mu.Lock()
		defer r.mu.Unlock()
		have := map[string]bool{}
		for _, is := range r.events {
			have[is] = true
		}
		for _, row := range rows {
			if !have[row] {
				return false
			}
		}
		return true
	})
}
