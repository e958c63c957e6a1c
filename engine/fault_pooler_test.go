package engine_test

import (
	"bytes"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"pawl/dbtest"
	"pawl/engine"
	"pawl/migrations"
)

const poolerSettings = `
[databases]
* = host=%s port=%d %s
[pgbouncer]
pool_mode = transaction
default_pool_size = 4
unix_socket_dir = %s
listen_port = 6432
auth_type = any
`

// pooler starts PgBouncer in transaction mode in front of a database, with fewer connections than its clients have.
// It returns the URL behind it.
func pooler(t *testing.T, databaseURL string) string {
	t.Helper()
	binary, err := exec.LookPath("pgbouncer")
	if err != nil {
		if binary, err = exec.LookPath("/usr/sbin/pgbouncer"); err != nil {
			t.Skip("NOT TESTED: there is no PgBouncer here (Debian package pgbouncer)")
		}
	}
	// PgBouncer does not run as root, and another user can't reach the server's socket: the proxy can.
	server, err := pgconn.ParseConfig(newProxy(t, databaseURL).URL)
	if err != nil {
		t.Fatal(err)
	}
	folder, err := os.MkdirTemp("/tmp", "pawl-pgbouncer-*") // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(folder) })
	settings := filepath.Join(folder, "pgbouncer.ini")
	login := "user=" + server.User
	if server.Password != "" { // it refuses an empty one
		login += " password=" + server.Password
	}
	text := fmt.Sprintf(poolerSettings, server.Host, server.Port, login, folder)
	if err := os.WriteFile(settings, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	cmd := exec.Command(binary, settings)
	cmd.Stderr = &said
	if os.Geteuid() == 0 {
		const nobody = 65534
		if err := os.Chown(folder, nobody, nobody); err != nil {
			t.Fatal(err)
		}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
		if t.Failed() {
			t.Logf("pgbouncer: %s", said.Bytes()[:min(said.Len(), 2000)])
		}
	})
	behind := url.URL{Scheme: "postgres", User: url.User(server.User), Path: "/" + server.Database,
		RawQuery: url.Values{"host": {folder}, "port": {strconv.Itoa(6432)}}.Encode()}
	eventually(t, "PgBouncer answers", func() bool {
		conn, err := pgx.Connect(t.Context(), behind.String())
		if err != nil {
			return false
		}
		return conn.Close(t.Context()) == nil
	})
	return behind.String()
}

func TestBehindPooler(t *testing.T) {
	t.Parallel()
	t.Run("orders are completed", func(t *testing.T) {
		t.Parallel()
		b := &bundle{Database: dbtest.New(t)}
		pool := openPool(t, pooler(t, b.URL))
		if mode := pool.Config().ConnConfig.DefaultQueryExecMode; mode != pgx.QueryExecModeCacheDescribe {
			t.Errorf("the pooler was not noticed: %s", mode)
		}
		b.engine = startOn(t, pool, engine.Config{})
		for range 2 * int(pool.Config().MaxConns) { // one server after the other, by chance
			if err := engine.CheckSchema(t.Context(), pool, migrations.Version()); err != nil {
				t.Fatal(err)
			}
		}
		b.setStock(t, "few", 10)
		b.completes(t, ask(t, b.engine, requests("order", 500)...), 500)
		answers := ask(t, b.engine, withItem("few", requests("few", 20))...)
		for range 20 {
			if a := <-answers; a.err != nil || !a.order.Order.Status.Final() {
				t.Errorf("%s: told %s: %v", a.orderID, a.order.Order.Status, a.err)
			}
		}
		proveBooks(t, b.Pool)
	})
	t.Run("migrations are applied", func(t *testing.T) {
		t.Parallel()
		behind := pooler(t, dbtest.Empty(t))
		for range 2 {
			if err := migrations.Up(t.Context(), behind); err != nil {
				t.Fatal(err)
			}
		}
		list, err := migrations.Status(t.Context(), behind)
		if err != nil || len(list) == 0 {
			t.Fatal(list, err)
		}
		for _, m := range list {
			if !m.Applied {
				t.Errorf("%s is not applied", m.Name)
			}
		}
	})
}
