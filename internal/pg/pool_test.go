package pg_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"pawl/db"
	"pawl/internal/pg"
	"pawl/migrations"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

func TestMain(m *testing.M) { dbtest.Main(m) }

func TestOpen(t *testing.T) {
	t.Parallel()
	database := dbtest.New(t)
	t.Run("a direct connection is no pooler", func(t *testing.T) {
		t.Parallel()
		config, err := pgx.ParseConfig(database.URL)
		assert.NoError(t, err)
		for range 20 {
			if pooled, err := pg.BehindPooler(t.Context(), config); pooled || err != nil {
				t.Fatal(pooled, err)
			}
		}
	})
	t.Run("the pool prepares statements, unless the url says otherwise, and is as large as asked", func(t *testing.T) {
		t.Parallel()
		for url, want := range map[string]pgx.QueryExecMode{
			database.URL: pgx.QueryExecModeCacheStatement, database.URL + "&default_query_exec_mode=exec": pgx.QueryExecModeExec,
		} {
			pool := dbtest.Open(t, url, pg.Options{MaxConns: 3})
			if mode := pool.ConnConfig().DefaultQueryExecMode; pool.Stat().MaxConns() != 3 || mode != want {
				t.Errorf("%d connections, %s", pool.Stat().MaxConns(), mode)
			}
			if _, err := db.New(pool).InstallationID(t.Context()); err != nil {
				t.Error(err)
			}
		}
	})
	t.Run("connections of a service can be told from others", func(t *testing.T) {
		t.Parallel()
		for name, options := range map[string]pg.Options{"shop": {MaxConns: 1}, "pawl serve " + pg.ReplicaName() + " shop": {MaxConns: 1, Serves: true}} {
			pool := dbtest.Open(t, database.URL+"&application_name=shop", options)
			var got string
			if err := pool.QueryRow(t.Context(), "SHOW application_name").Scan(&got); err != nil || got != name {
				t.Errorf("named %q, want %q: %v", got, name, err)
			}
			if !options.Serves {
				if service(t, pool, name) != nil {
					t.Error("it is taken for a service")
				}
				continue
			}
			assert.Eventually(t, "the server knows the one connection of the pool", func() bool { // that of Open may still be ending
				found := service(t, pool, name)
				return found != nil && found.Connections == 1
			})
		}
	})
	t.Run("a url that is none, or leads nowhere, is an error without its password", func(t *testing.T) {
		t.Parallel()
		for _, url := range []string{
			"postgres://pawl:secret@127.0.0.1:nowhere/x",
			"postgres://pawl:secret@127.0.0.1:1/x?sslmode=disable",
			"postgres://pawl:secret@127.0.0.1:1/x?sslmode=disable&default_query_exec_mode=exec",
		} {
			pool, err := pg.Open(t.Context(), url, pg.Options{MaxConns: 1})
			if err == nil {
				pool.Close()
				t.Errorf("%s: no error", url)
			} else if strings.Contains(err.Error(), "secret") {
				t.Error(err)
			}
		}
	})
}

// service is what the server knows of a running service of that name; nil: it knows none.
func service(t *testing.T, pool *pg.Pool, name string) *db.ServerReplicasRow {
	t.Helper()
	replicas, err := db.New(pool).ServerReplicas(t.Context(), pg.ServiceName)
	assert.NoError(t, err)
	for _, r := range replicas {
		if r.Name == name {
			return &r
		}
	}
	return nil
}

// TestSearchPathOfConnections: whatever the url, the role and the database say, a connection finds nothing but what is
// PostgreSQL's own.
func TestSearchPathOfConnections(t *testing.T) {
	t.Parallel()
	database := dbtest.New(t)
	if _, err := database.Pool.Exec(t.Context(), `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = public', current_database()); END $$`); err != nil {
		t.Fatal(err)
	}
	for _, more := range []string{"", "&search_path=public", "&options=-csearch_path%3Dpublic"} {
		pool := dbtest.Open(t, strings.Replace(database.URL, "&options=-csearch_path%3Dpawl%2Cpublic", more, 1), pg.Options{MaxConns: 4})
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
		assert.NoError(t, assert.Err(database.Pool.Exec(t.Context(), sql)), sql)
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

// TestPlantedTableOfMigrations: on PostgreSQL 14 anybody may make the table that goose would make, with triggers of
// his.
func TestPlantedTableOfMigrations(t *testing.T) {
	t.Parallel()
	for _, table := range []string{"goose_db_version", "goose_lock"} {
		t.Run(table, func(t *testing.T) {
			t.Parallel()
			url := dbtest.Empty(t)
			conn := connect(t, url)
			for _, sql := range []string{`CREATE TABLE public.` + table + ` ()`, `ALTER TABLE public.` + table + ` OWNER TO pg_monitor`} {
				assert.NoError(t, assert.Err(conn.Exec(t.Context(), sql)))
			}
			if _, err := migrations.Up(t.Context(), url); !errors.Is(err, pg.ErrUntrusted) || !strings.Contains(err.Error(), "public."+table) {
				t.Error(err)
			}
		})
	}
}
