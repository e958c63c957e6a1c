package pg_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"pawl/db"
	"pawl/internal/pg"
	"pawl/test/dbtest"
)

func TestOpen(t *testing.T) {
	t.Parallel()
	database := dbtest.New(t)
	t.Run("a direct connection is no pooler", func(t *testing.T) {
		t.Parallel()
		config, err := pgx.ParseConfig(database.URL)
		if err != nil {
			t.Fatal(err)
		}
		for range 20 {
			if pooled, err := pg.BehindPooler(t.Context(), config); pooled || err != nil {
				t.Fatal(pooled, err)
			}
		}
		if config.DefaultQueryExecMode != pgx.QueryExecModeCacheStatement {
			t.Errorf("the caller's settings were changed to %s", config.DefaultQueryExecMode)
		}
	})
	t.Run("the pool prepares statements and is as large as asked", func(t *testing.T) {
		t.Parallel()
		pool, err := pg.Open(t.Context(), database.URL, pg.Options{MaxConns: 3})
		if err != nil {
			t.Fatal(err)
		}
		defer pool.Close()
		if mode := pool.ConnConfig().DefaultQueryExecMode; pool.Stat().MaxConns() != 3 || mode != pgx.QueryExecModeCacheStatement {
			t.Errorf("%d connections, %s", pool.Stat().MaxConns(), mode)
		}
		if _, err := db.New(pool).InstallationID(t.Context()); err != nil {
			t.Error(err)
		}
	})
	t.Run("connections of a service can be told from others", func(t *testing.T) {
		t.Parallel()
		for name, options := range map[string]pg.Options{"shop": {MaxConns: 1}, "pawl serve " + pg.ReplicaName() + " shop": {MaxConns: 1, Serves: true}} {
			pool, err := pg.Open(t.Context(), database.URL+"&application_name=shop", options)
			if err != nil {
				t.Fatal(err)
			}
			defer pool.Close()
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
			await(t, "the server knows the one connection of the pool", func() bool { // that of Open may still be ending
				found := service(t, pool, name)
				return found != nil && found.Connections == 1
			})
		}
	})
	t.Run("a mode named in the url wins", func(t *testing.T) {
		t.Parallel()
		pool, err := pg.Open(t.Context(), database.URL+"&default_query_exec_mode=exec", pg.Options{MaxConns: 1})
		if err != nil {
			t.Fatal(err)
		}
		defer pool.Close()
		if mode := pool.ConnConfig().DefaultQueryExecMode; mode != pgx.QueryExecModeExec {
			t.Error(mode)
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
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range replicas {
		if r.Name == name {
			return &r
		}
	}
	return nil
}
