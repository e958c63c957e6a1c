package engine_test

import (
	"context"
	"errors"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"pawl/engine"
	"pawl/migrations"
	"pawl/test/dbtest"
)

func TestReady(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, spoil string
		says        string // empty: ready
	}{
		{"a migrated database", `SELECT 1`, ""},
		{"one that a newer release has migrated", `INSERT INTO goose_db_version (version_id, is_applied) VALUES (99999, true)`, ""},
		{"an older one", `DELETE FROM goose_db_version WHERE version_id = (SELECT max(version_id) FROM goose_db_version)`, "this program needs"},
		{"one that goose does not know", `DROP TABLE goose_db_version`, "restore it from the backup"},
		{"one without our schema", `DROP SCHEMA pawl CASCADE; DELETE FROM goose_db_version WHERE version_id > 0`, "schema pawl is missing: run pawl migrate up"},
		{"one without a table", `DROP TABLE refunds CASCADE`, "SELECT on pawl.refunds, INSERT on pawl.refunds, UPDATE on pawl.refunds"},
		{"one whose orders can't be moved", `REVOKE UPDATE ON orders FROM ready`, "UPDATE on pawl.orders"},
		{"one whose lists can't be read", `REVOKE EXECUTE ON FUNCTION orders_within FROM PUBLIC, ready`, "EXECUTE on pawl.orders_within"},
		{"one whose versions can't be read", `REVOKE SELECT ON goose_db_version FROM ready`, "42501"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			log := &lines{}
			e := b.asRole(t, "ready").replica(t, engine.Config{
				SchemaVersion: migrations.Version(), Log: slog.New(slog.NewTextHandler(log, nil)),
			})
			b.exec(t, strings.ReplaceAll(c.spoil, " ready", " "+b.role("ready")))
			began := time.Now()
			for range 3 {
				err := e.Ready(t.Context())
				if c.says == "" && err != nil || c.says != "" && (!errors.Is(err, engine.ErrNotMigrated) || !strings.Contains(err.Error(), c.says)) {
					t.Errorf("%v, want %q", err, c.says)
				}
			}
			most := 1 + int(time.Since(began)/time.Second) // one a second
			if n := log.count("not ready"); c.says == "" && n > 0 || c.says != "" && (n < 1 || n > most) {
				t.Errorf("%d lines in the log, at most %d are due:\n%s", n, most, log)
			}
		})
	}
}

// TestReadyLooksAtEverything fails when a table, a view, or a function for statements was added that Ready does not look at.
func TestReadyLooksAtEverything(t *testing.T) {
	t.Parallel()
	b := setup(t)
	all := column[string](t, b.Pool, `SELECT 'pawl.' || tablename::text FROM pg_tables WHERE schemaname = 'pawl'
		UNION ALL SELECT 'pawl.' || viewname::text FROM pg_views WHERE schemaname = 'pawl'
		UNION ALL SELECT 'pawl.' || proname || '(' || oidvectortypes(proargtypes) || ')' FROM pg_proc
			WHERE pronamespace = 'pawl'::regnamespace AND prorettype <> 'trigger'::regtype
		ORDER BY 1`)
	if looked := engine.Needed(); !slices.Equal(all, looked) {
		t.Errorf("Ready looks at %q, there are %q", looked, all)
	}
}

// role is the name of a role of this database's own: roles belong to the whole server.
func (b *bundle) role(name string) string { return name + "_" + b.Pool.Config().ConnConfig.Database }

// asRole is the bundle's database for a role that may do what the service does, but is no superuser and owns nothing.
func (b *bundle) asRole(t *testing.T, name string) *bundle {
	t.Helper()
	role := b.role(name)
	b.exec(t, `CREATE ROLE `+role)
	t.Cleanup(func() {
		for _, sql := range []string{`DROP OWNED BY ` + role, `DROP ROLE ` + role} {
			if _, err := b.Pool.Exec(context.WithoutCancel(t.Context()), sql); err != nil {
				t.Error(err)
			}
		}
	})
	b.exec(t, `GRANT USAGE ON SCHEMA pawl TO `+role)
	b.exec(t, `GRANT ALL ON ALL TABLES IN SCHEMA pawl, public TO `+role)
	b.exec(t, `GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA pawl TO `+role)
	u, err := url.Parse(b.URL)
	if err != nil {
		t.Fatal(err)
	}
	query := u.Query()
	query.Set("role", role)
	u.RawQuery = query.Encode()
	return &bundle{Database: &dbtest.Database{URL: u.String(), Pool: b.Pool}}
}
