package dbtest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"pawl/test/assert"
)

func TestMain(m *testing.M) { Main(m) }

// tables lists the tables of a database.
func tables(t *testing.T, url string) (names []string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	assert.NoError(t, err)
	defer conn.Close(t.Context())
	rows, err := conn.Query(t.Context(), "SELECT tablename::text FROM pg_tables WHERE schemaname IN ('pawl', 'public')")
	assert.NoError(t, err)
	names, err = pgx.CollectRows(rows, pgx.RowTo[string])
	assert.NoError(t, err)
	return names
}

func TestNew(t *testing.T) {
	t.Parallel()
	t.Run("a connection without options may vacuum the tables, as autovacuum does", func(t *testing.T) {
		t.Parallel()
		db := New(t)
		config, err := pgx.ParseConfig(use(t).url(db.Pool.Config().ConnConfig.Database))
		assert.NoError(t, err)
		config.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) { t.Error(n.Message) }
		conn, err := pgx.ConnectConfig(t.Context(), config)
		assert.NoError(t, err)
		defer conn.Close(context.WithoutCancel(t.Context()))
		assert.NoError(t, assert.Err(conn.Exec(t.Context(), "VACUUM pawl.orders")))
	})
	t.Run("a database ends with its test, open connections too", func(t *testing.T) {
		t.Parallel()
		var url string
		t.Run("a test", func(t *testing.T) { //nolint:paralleltest // its end is what is looked at
			db := New(t)
			url = db.URL
			assert.NoError(t, assert.Err(pgx.Connect(t.Context(), url)))
		})
		if _, err := pgx.Connect(t.Context(), url); err == nil || !strings.Contains(err.Error(), "3D000") { // invalid_catalog_name
			t.Fatal("still there", err)
		}
	})
	t.Run("a connection that is not released is reported", func(t *testing.T) {
		t.Parallel()
		pool, err := pgxpool.New(t.Context(), Empty(t))
		assert.NoError(t, err)
		conn, err := pool.Acquire(t.Context())
		assert.NoError(t, err)
		err = closePool(pool, time.Millisecond)
		assert.True(t, err != nil && strings.Contains(err.Error(), "1 connections"), err)
		conn.Release()
		assert.NoError(t, closePool(pool, time.Minute))
	})
}

func TestGivenServer(t *testing.T) {
	t.Parallel()
	given := use(t)
	t.Run("is used and left as it was", func(t *testing.T) {
		t.Parallel()
		s, err := openServer(given.url("postgres"))
		assert.NoError(t, err)
		template, err := s.template()
		assert.NoError(t, err)
		t.Run("a test", func(t *testing.T) { //nolint:paralleltest // its end comes before that of the server
			assert.True(t, slices.Contains(tables(t, s.url(s.database(t, template))), "orders"), "not migrated")
		})
		assert.NoError(t, s.close())
		assert.True(t, given.run(t.Context(), "ALTER DATABASE "+template+" ALLOW_CONNECTIONS true") != nil,
			"the template was left behind")
	})
	t.Run("must be named by a URL", func(t *testing.T) {
		t.Parallel()
		_, err := openServer("host=localhost password=secret")
		assert.True(t, err != nil && !strings.Contains(err.Error(), "secret"), err)
	})
}

func TestRestartable(t *testing.T) {
	t.Parallel()
	s := Restartable(t)
	pool, err := pgxpool.New(t.Context(), s.URL)
	assert.NoError(t, err)
	defer pool.Close()
	assert.NoError(t, assert.Err(pool.Exec(t.Context(), "CREATE TABLE kept AS SELECT 1 AS id")))
	for name, end := range map[string]func(testing.TB){"stopped": s.Stop, "killed": s.Kill} {
		end(t)
		for pool.Ping(t.Context()) == nil { // the last process of a killed server may answer once more before it hears of that
		}
		s.Start(t)
		got := tables(t, s.URL)
		assert.True(t, slices.Contains(got, "kept") && slices.Contains(got, "orders"), "a", name, "server came back with", got)
	}
}

func TestStaleFolders(t *testing.T) {
	t.Parallel()
	held := agedFolder(t)
	lock, err := os.OpenFile(filepath.Join(held, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	assert.NoError(t, err)
	defer lock.Close()
	assert.NoError(t, syscall.Flock(int(lock.Fd()), syscall.LOCK_EX))
	age(t, held)
	abandoned := agedFolder(t)
	young, err := newFolder(folderPattern)
	assert.NoError(t, err)
	defer os.RemoveAll(young)
	removeStale()
	for dir, kept := range map[string]bool{held: true, young: true, abandoned: false} {
		_, err := os.Stat(dir)
		assert.Equal(t, err == nil, kept, dir, "is kept", err == nil)
	}
}

func agedFolder(t *testing.T) string {
	t.Helper()
	dir, err := newFolder(folderPattern)
	assert.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	age(t, dir)
	return dir
}

func age(t *testing.T, dir string) {
	t.Helper()
	old := time.Now().Add(-time.Hour)
	assert.NoError(t, os.Chtimes(dir, old, old))
}

// variable makes this test binary, run again, do one of the things below in its only test.
const variable = "DBTEST_CHILD"

func TestMainOfAPackage(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		does string
		code int
		says string
	}{
		{"passes without a server", "nothing", 0, "PASS"},
		{"stops the server and removes its folder", "database", 0, "PASS"},
		{"fails when a goroutine is left", "leak", 1, "found unexpected goroutines"},
		{"fails when a test fails", "failure", 1, "FAIL"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			code, output := runChild(t, c.does)
			assert.Require(t, code == c.code && strings.Contains(output, c.says), "exit code", code, output)
			if c.does == "database" {
				serverGone(t, output)
			}
		})
	}
}

func runChild(t *testing.T, does string) (code int, output string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestChild$", "-test.v")
	cmd.Env = append(os.Environ(), variable+"="+does)
	printed, err := cmd.CombinedOutput()
	assert.Require(t, cmd.ProcessState != nil, err)
	return cmd.ProcessState.ExitCode(), string(printed)
}

// serverGone reads where the child's server was, and looks there.
func serverGone(t *testing.T, output string) {
	t.Helper()
	_, said, found := strings.Cut(output, "server at ")
	var folder string
	var pid int
	if _, err := fmt.Sscan(said, &folder, &pid); err != nil || !found {
		t.Fatalf("%v in %s", err, output)
	}
	_, err := os.Stat(folder)
	assert.True(t, os.IsNotExist(err), folder, "is still there", err)
	assert.True(t, syscall.Kill(pid, 0) != nil, "process", pid, "still runs")
}

// TestChild is the package of TestMainOfAPackage.
func TestChild(t *testing.T) {
	t.Parallel()
	switch os.Getenv(variable) {
	case "database":
		New(t)
		if s := use(t); s.embedded != nil {
			t.Logf("server at %s %d", s.folder, s.embedded.PID())
		} else {
			t.Log("server at /nonexistent 2147483647")
		}
	case "leak":
		go func() { select {} }()
	case "failure":
		t.Fatal("as asked")
	}
}
