package doctor_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"pawl/db"
	"pawl/internal/doctor"
	"pawl/migrations"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

func TestMain(m *testing.M) { dbtest.Main(m) }

// healthy is the service of the tests. The server of dbtest gives up what only matters when the machine stops.
var healthy = doctor.Service{MaxConns: 12, AllowDataLoss: true, Version: migrations.Version(), Installation: "test"}

// setting changes one for everybody who connects to the database.
func setting(assignment string) string {
	return fmt.Sprintf(`DO $$ BEGIN EXECUTE format('ALTER DATABASE %%I SET %s', current_database()); END $$`, strings.ReplaceAll(assignment, "'", "''"))
}

// revoke takes a right from every role that an access list names.
func revoke(right, list string) string {
	return `DO $$ DECLARE a record; BEGIN FOR a IN SELECT DISTINCT grantee::regrole AS role FROM ` + list +
		` LOOP EXECUTE format('REVOKE ` + right + ` FROM %s', a.role); END LOOP; END $$`
}

// TestDatabase is what may be wrong with a database, and what is said of it.
func TestDatabase(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change, subject string
		state           doctor.State
		found           string // a part of it
	}{
		"nothing is wrong":     {"SELECT", "schema", doctor.Good, "can run"},
		"no token":             {"SELECT", "tokens", doctor.Warning, "there is none"},
		"small log":            {"SELECT", "server", doctor.Warning, "max_wal_size is 256 MB"},
		"loss that is allowed": {"SELECT", "durability", doctor.Warning, "has fsync off"},
		"statements compiled":  {setting("jit = on"), "server", doctor.Warning, "jit is on"},
		"a time limit":         {setting("statement_timeout = '1min'"), "server", doctor.Warning, "statement_timeout is 60000 ms"},
		"read only":            {setting("default_transaction_read_only = on"), "server", doctor.Wrong, "nothing can be written"},
		"no triggers":          {setting("session_replication_role = replica"), "server", doctor.Wrong, "session_replication_role is replica"},
		"no warnings":          {setting("client_min_messages = error"), "durability", doctor.Wrong, "client_min_messages"},
		"a trigger is off":     {"ALTER TABLE pawl.orders DISABLE TRIGGER USER", "schema", doctor.Wrong, "on pawl.orders is switched off"},
		"a table is unlogged":  {"ALTER TABLE pawl.transitions SET UNLOGGED", "schema", doctor.Wrong, "table pawl.transitions is not logged"},
		"a table is logged":    {"ALTER TABLE pawl.order_numbering SET LOGGED", "schema", doctor.Warning, "every step of an order waits for the disk"},
		"a column is gone":     {"ALTER TABLE pawl.orders RENAME COLUMN hold_reason TO why", "schema", doctor.Wrong, "can't be prepared"},
		"not granted": {revoke("INSERT ON pawl.charges", "pg_class, aclexplode(relacl) WHERE oid = 'pawl.charges'::regclass AND privilege_type = 'INSERT'"),
			"schema", doctor.Wrong, "INSERT on pawl.charges"},
		"no rights": {revoke("ALL ON SCHEMA pawl", "pg_namespace, aclexplode(nspacl) WHERE nspname = 'pawl'"),
			"tokens", doctor.Wrong, "permission denied"},
		"restored elsewhere": {"UPDATE pawl.installation SET system_identifier = 1", "installation", doctor.Wrong, "another PostgreSQL cluster"},
		"copied within":      {"UPDATE pawl.installation SET database_oid = 1", "installation", doctor.Wrong, "another database of this cluster"},
		"of another name":    {"UPDATE pawl.installation SET name = 'prod'", "installation", doctor.Wrong, `"prod", and this is "test"`},
		"of a cluster that can't be told": {"REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC; UPDATE pawl.installation SET system_identifier = 1",
			"installation", doctor.Warning, "can't be detected"},
		"nobody numbers": {"INSERT INTO pawl.transitions (order_no, seq, from_status, to_status, fence, at) VALUES (1, 1, 'pending', 'charging', 1, now() - interval '1 hour')",
			"events", doctor.Warning, "has waited for 1h"},
		"an endpoint is disabled": {"INSERT INTO pawl.webhook_endpoints (url, secret, event_no, created_by, state, disabled_at, disabled_reason) " +
			"VALUES ('https://shop.example', 'whsec_', 0, 'test', 'disabled', now(), 'it answered 410 Gone')",
			"webhooks", doctor.Warning, "whe_1 since"},
		"a migration is pending": {"DELETE FROM public.goose_db_version WHERE version_id = (SELECT max(version_id) FROM public.goose_db_version)",
			"migrations", doctor.Wrong, "1 of "},
		"of an earlier development version": {"CREATE TABLE pawl.migration_checksums ()",
			"migrations", doctor.Wrong, "an earlier development version"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			database := dbtest.New(t)
			assert.NoError(t, assert.Err(database.Pool.Exec(t.Context(), c.change)))
			wants(t, examined(t, database.URL, healthy), finding(c.subject, c.state, c.found))
		})
	}
}

// wants looks for a finding, which has an advice if there is something to do.
func wants(t *testing.T, findings []doctor.Finding, want doctor.Finding) {
	t.Helper()
	for _, f := range findings {
		if f.Subject == want.Subject && f.State == want.State && strings.Contains(f.Found, want.Found) {
			assert.Equal(t, (f.Advice == ""), (f.State == doctor.Good), "the advice is", f.Advice)
			return
		}
	}
	t.Errorf("no %v in %+v", want, findings)
}

// examined is what is found at a database.
func examined(t *testing.T, url string, service doctor.Service) []doctor.Finding {
	t.Helper()
	var report doctor.Report
	report.Database(t.Context(), url, service)
	return report.Findings
}

func finding(subject string, state doctor.State, found string) doctor.Finding {
	return doctor.Finding{Subject: subject, State: state, Found: found}
}

// TestHealthyDatabase has something to say on every subject, also behind a pooler, and finds nothing wrong.
func TestHealthyDatabase(t *testing.T) {
	t.Parallel()
	url := dbtest.New(t).URL
	for at, connections := range map[string]string{url: "max_connections is", dbtest.Pooler(t, url, "transaction"): "a pooler shares them"} {
		findings := examined(t, at, healthy)
		var subjects []string
		for _, f := range findings {
			subjects = append(subjects, f.Subject)
			assert.True(t, f.State != doctor.Wrong, f)
		}
		const all = "database server durability connections clock role migrations schema installation events webhooks tokens"
		assert.Equal(t, strings.Join(slices.Compact(subjects), " "), all, "checked")
		wants(t, findings, finding("connections", doctor.Good, connections))
		wants(t, findings, finding("schema", doctor.Good, ""))
	}
}

func TestRolesAndRoom(t *testing.T) {
	t.Parallel()
	database := dbtest.New(t)
	wants(t, examined(t, database.AdminURL, healthy), finding("role", doctor.Warning, "is a superuser"))
	own, greedy := healthy, healthy
	own.OwnServer, greedy.MaxConns = true, 600
	wants(t, examined(t, database.AdminURL, own), finding("role", doctor.Good, ""))
	wants(t, examined(t, database.URL, greedy), finding("connections", doctor.Wrong, "max_connections is 500"))
	strict := healthy
	strict.AllowDataLoss = false
	wants(t, examined(t, database.URL, strict), finding("durability", doctor.Wrong, "fsync off"))
}

// TestEmptyDatabaseStaysEmpty: whoever looks for what is wrong must not make tables.
func TestEmptyDatabaseStaysEmpty(t *testing.T) {
	t.Parallel()
	url := dbtest.Empty(t)
	wants(t, examined(t, url, healthy), finding("migrations", doctor.Warning, "are pending"))
	conn, err := pgx.Connect(t.Context(), url)
	assert.NoError(t, err)
	defer conn.Close(context.WithoutCancel(t.Context()))
	var tables int
	err = conn.QueryRow(t.Context(), "SELECT count(*) FROM pg_tables WHERE schemaname NOT IN ('pg_catalog', 'information_schema')").Scan(&tables)
	assert.True(t, err == nil && tables == 0, tables, "tables", err)
}

func TestUnreachable(t *testing.T) {
	t.Parallel()
	for url, advice := range map[string]string{
		"nonsense":                                          "write it as",
		"postgres://127.0.0.1:1/pawl":                       "start PostgreSQL there",
		"postgres://pawl.invalid/pawl":                      "name of the host",
		strings.Replace(dbtest.Empty(t), "test", "gone", 1): "createdb",
	} {
		findings := examined(t, url, healthy)
		assert.True(t, len(findings) == 1 && findings[0].State == doctor.Wrong && strings.Contains(findings[0].Advice, advice),
			url, findings)
	}
}

// A standby that no commit waits for is seen, also by a role that does not see what it is.
func TestStandbyThatIsNotSynchronous(t *testing.T) {
	t.Parallel()
	server := dbtest.Restartable(t)
	letIn(t, connect(t, server.URL), "local replication all trust", "local all all trust")
	config, err := pgx.ParseConfig(server.URL)
	assert.NoError(t, err)
	standby := config.Config.Copy()
	standby.RuntimeParams = map[string]string{"replication": "true", "application_name": "standby"}
	conn, err := pgconn.ConnectConfig(t.Context(), standby)
	assert.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	wants(t, examined(t, server.URL, healthy), finding("durability", doctor.Warning, "1 standbys are connected and none is synchronous"))
	assert.NoError(t, assert.Err(connect(t, server.URL).Exec(t.Context(), "CREATE ROLE unprivileged LOGIN PASSWORD 'secret'")))
	config.User, config.Password = "unprivileged", "secret"
	unprivileged, err := pgx.ConnectConfig(t.Context(), config)
	assert.NoError(t, err)
	defer unprivileged.Close(context.WithoutCancel(t.Context()))
	var report doctor.Report
	assert.NoError(t, report.Durability(t.Context(), db.New(unprivileged), true))
	wants(t, report.Findings, finding("durability", doctor.Warning, "1 standbys are connected"))
}

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	assert.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	return conn
}

// letIn puts lines before all others of pg_hba.conf.
func letIn(t *testing.T, conn *pgx.Conn, lines ...string) {
	t.Helper()
	var name string
	assert.NoError(t, conn.QueryRow(t.Context(), "SHOW hba_file").Scan(&name))
	text, err := os.ReadFile(name)
	if err == nil {
		err = os.WriteFile(name, append([]byte(strings.Join(lines, "\n")+"\n"), text...), 0o600)
	}
	var before time.Time
	if err == nil {
		err = conn.QueryRow(t.Context(), "SELECT pg_conf_load_time() FROM pg_reload_conf()").Scan(&before)
	}
	for loaded := false; err == nil && !loaded; { // the signal takes a moment
		err = conn.QueryRow(t.Context(), "SELECT pg_conf_load_time() > $1", before).Scan(&loaded)
	}
	assert.NoError(t, err)
}
