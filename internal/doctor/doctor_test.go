package doctor_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"pawl/db"
	"pawl/internal/doctor"
	"pawl/migrations"
	"pawl/test/dbtest"
)

func TestMain(m *testing.M) { dbtest.Main(m) }

// healthy is the service of the tests. The server of dbtest gives up what only matters when the machine stops.
var healthy = doctor.Service{MaxConns: 12, AllowDataLoss: true, Version: migrations.Version(), Installation: "test"}

// setting changes one for everybody who connects to the database.
func setting(assignment string) string {
	return fmt.Sprintf(`DO $$ BEGIN EXECUTE format('ALTER DATABASE %%I SET %s', current_database()); END $$`, strings.ReplaceAll(assignment, "'", "''"))
}

// TestDatabase is what may be wrong with a database, and what is said of it.
func TestDatabase(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change string
		want   doctor.Finding // Found: a part of it
	}{
		"nothing is wrong":     {"SELECT", doctor.Finding{Subject: "schema", State: doctor.Good, Found: "can run"}},
		"no token":             {"SELECT", doctor.Finding{Subject: "tokens", State: doctor.Warning, Found: "none was made"}},
		"small log":            {"SELECT", doctor.Finding{Subject: "server", State: doctor.Warning, Found: "max_wal_size is 256 MB"}},
		"loss that is allowed": {"SELECT", doctor.Finding{Subject: "durability", State: doctor.Warning, Found: "has fsync off"}},
		"statements compiled":  {setting("jit = on"), doctor.Finding{Subject: "server", State: doctor.Warning, Found: "jit is on"}},
		"a time limit":         {setting("statement_timeout = '1min'"), doctor.Finding{Subject: "server", State: doctor.Warning, Found: "statement_timeout is 60000 ms"}},
		"read only":            {setting("default_transaction_read_only = on"), doctor.Finding{Subject: "server", State: doctor.Wrong, Found: "nothing can be written"}},
		"no triggers":          {setting("session_replication_role = replica"), doctor.Finding{Subject: "server", State: doctor.Wrong, Found: "session_replication_role is replica"}},
		"no warnings":          {setting("client_min_messages = error"), doctor.Finding{Subject: "durability", State: doctor.Wrong, Found: "client_min_messages"}},
		"a trigger is off":     {"ALTER TABLE pawl.orders DISABLE TRIGGER USER", doctor.Finding{Subject: "schema", State: doctor.Wrong, Found: "on pawl.orders is switched off"}},
		"a table is unlogged":  {"ALTER TABLE pawl.transitions SET UNLOGGED", doctor.Finding{Subject: "schema", State: doctor.Wrong, Found: "table pawl.transitions is not logged"}},
		"a column is gone":     {"ALTER TABLE pawl.orders RENAME COLUMN hold_reason TO why", doctor.Finding{Subject: "schema", State: doctor.Wrong, Found: "can't be prepared"}},
		"not granted": {"DO $$ DECLARE a record; BEGIN FOR a IN SELECT DISTINCT grantee::regrole AS role FROM pg_class, aclexplode(relacl) WHERE oid = 'pawl.transitions'::regclass " +
			"AND privilege_type = 'INSERT' LOOP EXECUTE format('REVOKE INSERT ON pawl.transitions FROM %s', a.role); END LOOP; END $$",
			doctor.Finding{Subject: "schema", State: doctor.Wrong, Found: "INSERT on pawl.transitions"}},
		"no rights": {"DO $$ DECLARE a record; BEGIN FOR a IN SELECT DISTINCT grantee::regrole AS role FROM pg_namespace, aclexplode(nspacl) WHERE nspname = 'pawl' " +
			"LOOP EXECUTE format('REVOKE ALL ON SCHEMA pawl FROM %s', a.role); END LOOP; END $$",
			doctor.Finding{Subject: "tokens", State: doctor.Wrong, Found: "permission denied"}},
		"restored elsewhere": {"UPDATE pawl.installation SET system_identifier = 1", doctor.Finding{Subject: "installation", State: doctor.Wrong, Found: "another PostgreSQL cluster"}},
		"copied within":      {"UPDATE pawl.installation SET database_oid = 1", doctor.Finding{Subject: "installation", State: doctor.Wrong, Found: "another database of this cluster"}},
		"of another name":    {"UPDATE pawl.installation SET name = 'prod'", doctor.Finding{Subject: "installation", State: doctor.Wrong, Found: `"prod", and this is "test"`}},
		"of a cluster that can't be told": {"REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC; UPDATE pawl.installation SET system_identifier = 1",
			doctor.Finding{Subject: "installation", State: doctor.Warning, Found: "can't be told"}},
		"nobody numbers": {"INSERT INTO pawl.transitions (order_no, seq, from_status, to_status, fence, at) VALUES (1, 1, 'pending', 'charging', 1, now() - interval '1 hour')",
			doctor.Finding{Subject: "events", State: doctor.Warning, Found: "has waited for 1h"}},
		"an endpoint is disabled": {"INSERT INTO pawl.webhook_endpoints (url, secret, event_no, created_by, state, disabled_at, disabled_reason) " +
			"VALUES ('https://shop.example', 'whsec_', 0, 'test', 'disabled', now(), 'it answered 410 Gone')",
			doctor.Finding{Subject: "webhooks", State: doctor.Warning, Found: "whe_1 since"}},
		"a migration is pending": {"DELETE FROM public.goose_db_version WHERE version_id = (SELECT max(version_id) FROM public.goose_db_version)",
			doctor.Finding{Subject: "migrations", State: doctor.Wrong, Found: "1 of "}},
		"of an earlier development version": {"CREATE TABLE pawl.migration_checksums ()",
			doctor.Finding{Subject: "migrations", State: doctor.Wrong, Found: "an earlier development version"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			database := dbtest.New(t)
			if _, err := database.Pool.Exec(t.Context(), c.change); err != nil {
				t.Fatal(err)
			}
			wants(t, doctor.Database(t.Context(), database.URL, healthy), c.want)
		})
	}
}

// wants looks for a finding, which has an advice if there is something to do.
func wants(t *testing.T, findings []doctor.Finding, want doctor.Finding) {
	t.Helper()
	for _, f := range findings {
		if f.Subject == want.Subject && f.State == want.State && strings.Contains(f.Found, want.Found) {
			if (f.Advice == "") != (f.State == doctor.Good) {
				t.Errorf("the advice is %q", f.Advice)
			}
			return
		}
	}
	t.Errorf("no %v in %+v", want, findings)
}

func TestHealthyDatabaseHasNothingWrong(t *testing.T) {
	t.Parallel()
	var report doctor.Report
	report.Add(doctor.Database(t.Context(), dbtest.New(t).URL, healthy)...)
	var subjects []string
	for _, f := range report.Findings {
		subjects = append(subjects, f.Subject)
	}
	if report.Wrong() > 0 {
		t.Errorf("%+v", report)
	}
	for _, want := range []string{"database", "server", "durability", "connections", "clock", "role", "migrations", "schema", "installation", "events", "webhooks", "tokens"} {
		if !strings.Contains(strings.Join(subjects, " "), want) {
			t.Errorf("nothing is said of %s: %v", want, subjects)
		}
	}
}

func TestRolesAndRoom(t *testing.T) {
	t.Parallel()
	database := dbtest.New(t)
	wants(t, doctor.Database(t.Context(), database.AdminURL, healthy), doctor.Finding{Subject: "role", State: doctor.Warning, Found: "is a superuser"})
	own, greedy := healthy, healthy
	own.OwnServer, greedy.MaxConns = true, 600
	wants(t, doctor.Database(t.Context(), database.AdminURL, own), doctor.Finding{Subject: "role", State: doctor.Good})
	wants(t, doctor.Database(t.Context(), database.URL, greedy), doctor.Finding{Subject: "connections", State: doctor.Wrong, Found: "max_connections is 500"})
	strict := healthy
	strict.AllowDataLoss = false
	wants(t, doctor.Database(t.Context(), database.URL, strict), doctor.Finding{Subject: "durability", State: doctor.Wrong, Found: "fsync off"})
}

func TestBehindPooler(t *testing.T) {
	t.Parallel()
	var report doctor.Report
	report.Add(doctor.Database(t.Context(), dbtest.Pooler(t, dbtest.New(t).URL), healthy)...)
	wants(t, report.Findings, doctor.Finding{Subject: "connections", State: doctor.Good, Found: "a pooler shares them"})
	wants(t, report.Findings, doctor.Finding{Subject: "schema", State: doctor.Good})
	if report.Wrong() > 0 {
		t.Errorf("%+v", report)
	}
}

// TestEmptyDatabaseStaysEmpty: whoever looks for what is wrong must not make tables.
func TestEmptyDatabaseStaysEmpty(t *testing.T) {
	t.Parallel()
	url := dbtest.Empty(t)
	wants(t, doctor.Database(t.Context(), url, healthy), doctor.Finding{Subject: "migrations", State: doctor.Warning, Found: "are pending"})
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	var tables int
	if err := conn.QueryRow(t.Context(), "SELECT count(*) FROM pg_tables WHERE schemaname NOT IN ('pg_catalog', 'information_schema')").Scan(&tables); err != nil || tables > 0 {
		t.Errorf("%d tables: %v", tables, err)
	}
}

func TestUnreachable(t *testing.T) {
	t.Parallel()
	for url, advice := range map[string]string{
		"nonsense":                                          "write it as",
		"postgres://127.0.0.1:1/pawl":                       "start PostgreSQL there",
		"postgres://pawl.invalid/pawl":                      "name of the host",
		strings.Replace(dbtest.Empty(t), "test", "gone", 1): "createdb",
	} {
		findings := doctor.Database(t.Context(), url, healthy)
		if len(findings) != 1 || findings[0].State != doctor.Wrong || !strings.Contains(findings[0].Advice, advice) {
			t.Errorf("%s: %+v", url, findings)
		}
	}
}

// A standby that no commit waits for is seen, also by a role that does not see what it is.
func TestStandbyThatIsNotSynchronous(t *testing.T) {
	t.Parallel()
	server := dbtest.Restartable(t)
	letIn(t, connect(t, server.URL), "local replication all trust", "local all all trust")
	config, err := pgx.ParseConfig(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	standby := config.Config.Copy()
	standby.RuntimeParams = map[string]string{"replication": "true", "application_name": "standby"}
	conn, err := pgconn.ConnectConfig(t.Context(), standby)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	wants(t, doctor.Database(t.Context(), server.URL, healthy), doctor.Finding{Subject: "durability", State: doctor.Warning, Found: "1 standbys are connected and none is synchronous"})
	if _, err := connect(t, server.URL).Exec(t.Context(), "CREATE ROLE unprivileged LOGIN PASSWORD 'secret'"); err != nil {
		t.Fatal(err)
	}
	config.User, config.Password = "unprivileged", "secret"
	unprivileged, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer unprivileged.Close(context.WithoutCancel(t.Context()))
	findings, err := doctor.Durability(t.Context(), db.New(unprivileged), true)
	if err != nil {
		t.Fatal(err)
	}
	wants(t, findings, doctor.Finding{Subject: "durability", State: doctor.Warning, Found: "1 standbys are connected"})
}

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	return conn
}

// letIn puts lines before all others of pg_hba.conf.
func letIn(t *testing.T, conn *pgx.Conn, lines ...string) {
	t.Helper()
	var name string
	if err := conn.QueryRow(t.Context(), "SHOW hba_file").Scan(&name); err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
}
