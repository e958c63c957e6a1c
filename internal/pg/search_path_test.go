package pg_test

import (
	"errors"
	"strings"
	"testing"

	"pawl/internal/pg"
	"pawl/migrations"
	"pawl/test/dbtest"
)

// TestSearchPathOfConnections: whatever the url, the role and the database say, a connection finds nothing but what is
// PostgreSQL's own.
func TestSearchPathOfConnections(t *testing.T) {
	t.Parallel()
	database := dbtest.New(t)
	if _, err := database.Pool.Exec(t.Context(), `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = public', current_database()); END $$`); err != nil {
		t.Fatal(err)
	}
	for _, more := range []string{"", "&search_path=public", "&options=-csearch_path%3Dpublic"} {
		pool := open(t, strings.Replace(database.URL, "&options=-csearch_path%3Dpawl%2Cpublic", more, 1))
		var path string
		if err := pool.QueryRow(t.Context(), "SELECT current_setting('search_path')").Scan(&path); err != nil || path != "pg_catalog, pg_temp" {
			t.Errorf("with %q it finds %s: %v", more, path, err)
		}
	}
}

// TestSearchPathBehindPooler: there the path can't be set, so one that leads to what others may create is refused.
func TestSearchPathBehindPooler(t *testing.T) {
	t.Parallel()
	database := dbtest.New(t)
	exec := func(sql string) {
		if _, err := database.Pool.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	behind := dbtest.Pooler(t, database.URL)
	for _, c := range []struct{ change, found string }{
		{`GRANT CREATE ON SCHEMA public TO PUBLIC`, "public"}, // as in every database of PostgreSQL 14
		{`REVOKE CREATE ON SCHEMA public FROM PUBLIC`, ""},
		{`GRANT CREATE ON SCHEMA public TO pg_monitor`, "public"},
		{`DROP SCHEMA public CASCADE`, ""},
		{`CREATE SCHEMA public AUTHORIZATION pg_monitor GRANT USAGE ON SCHEMA public TO PUBLIC`, "public"},
	} {
		exec(c.change)
		for name, try := range map[string]func() error{
			"a pool": func() error {
				pool, err := pg.Open(t.Context(), behind, pg.Options{MaxConns: 1})
				if err == nil {
					pool.Close()
				}
				return err
			},
			"a migration": func() error {
				_, err := pg.ConnectConfig(t.Context(), behind)
				return err
			},
		} {
			err := try()
			if (err != nil) != (c.found != "") || err != nil && (!errors.Is(err, pg.ErrUntrusted) || !strings.Contains(err.Error(), "schema "+c.found+",")) {
				t.Errorf("%s after %s: %v", name, c.change, err)
			}
		}
	}
}

// TestPlantedTableOfMigrations: on PostgreSQL 14 anybody may make the table that goose would make, with triggers of his.
func TestPlantedTableOfMigrations(t *testing.T) {
	t.Parallel()
	for _, table := range []string{"goose_db_version", "goose_lock"} {
		t.Run(table, func(t *testing.T) {
			t.Parallel()
			url := dbtest.Empty(t)
			conn := connect(t, url)
			for _, sql := range []string{`CREATE TABLE public.` + table + ` ()`, `ALTER TABLE public.` + table + ` OWNER TO pg_monitor`} {
				if _, err := conn.Exec(t.Context(), sql); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := migrations.Up(t.Context(), url); !errors.Is(err, pg.ErrUntrusted) || !strings.Contains(err.Error(), "public."+table) {
				t.Error(err)
			}
		})
	}
}
