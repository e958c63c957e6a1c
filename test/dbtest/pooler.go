package dbtest

import (
	"bytes"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"pawl/test/assert"
)

const poolerSettings = `
[databases]
* = host=%s port=%d %s
[pgbouncer]
pool_mode = %s
default_pool_size = %d
unix_socket_dir = %s
listen_port = 6432
auth_type = any
`

// Pooler starts PgBouncer in front of a database, in the mode transaction with fewer connections than its clients have,
// and in the mode session with enough. It returns the URL behind it, and ends with the test. Where there is no
// PgBouncer the test is skipped.
func Pooler(t testing.TB, databaseURL, mode string) string {
	t.Helper()
	binary, err := exec.LookPath("pgbouncer")
	if err != nil {
		if binary, err = exec.LookPath("/usr/sbin/pgbouncer"); err != nil {
			t.Skip("NOT TESTED: there is no PgBouncer here (Debian package pgbouncer)")
		}
	}
	// PgBouncer does not run as root, and another user can't reach the server's socket: the proxy can.
	server, err := pgconn.ParseConfig(NewProxy(t, databaseURL).URL)
	assert.NoError(t, err)
	closePublic(t, server.Database)
	folder, err := os.MkdirTemp("/tmp", "pawl-pgbouncer-*") // the path of a socket is short
	assert.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(folder) })
	settings := filepath.Join(folder, "pgbouncer.ini")
	login := "user=" + server.User
	if server.Password != "" { // it refuses an empty one
		login += " password=" + server.Password
	}
	if role := asksFor(server.RuntimeParams["options"]); role != "" { // it knows no options
		login += " connect_query='SET ROLE " + role + "'"
	}
	size := 4
	if mode == "session" {
		size = 40
	}
	text := fmt.Sprintf(poolerSettings, server.Host, server.Port, login, mode, size, folder)
	assert.NoError(t, os.WriteFile(settings, []byte(text), 0o644))
	var said bytes.Buffer
	cmd := exec.Command(binary, settings)
	cmd.Stderr = &said
	if os.Geteuid() == 0 {
		const nobody = 65534
		assert.NoError(t, os.Chown(folder, nobody, nobody))
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	}
	assert.NoError(t, cmd.Start())
	t.Cleanup(func() {
		cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
		if t.Failed() {
			t.Logf("pgbouncer: %s", said.Bytes()[:min(said.Len(), 2000)])
		}
	})
	behind := url.URL{Scheme: "postgres", User: url.User(server.User), Path: "/" + server.Database,
		RawQuery: url.Values{"host": {folder}, "port": {strconv.Itoa(6432)}}.Encode()}
	awaitPooler(t, behind.String())
	return behind.String()
}

// asksFor is the role among the options of a connection, or nothing.
func asksFor(options string) string {
	for option := range strings.FieldsSeq(options) {
		if role, found := strings.CutPrefix(option, "-crole="); found {
			return role
		}
	}
	return ""
}

// closePublic does what operations.md tells those to do who have a pooler: on PostgreSQL 14 everybody may create in public.
func closePublic(t testing.TB, database string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), use(t).url(database))
	assert.NoError(t, err)
	defer conn.Close(t.Context())
	assert.NoError(t, assert.Err(conn.Exec(t.Context(), "REVOKE CREATE ON SCHEMA public FROM PUBLIC")))
}

func awaitPooler(t testing.TB, url string) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; {
		conn, err := pgx.Connect(t.Context(), url)
		if err == nil {
			conn.Close(t.Context())
			return
		}
		assert.Require(t, !time.Now().After(end), "PgBouncer does not answer", err)
		select {
		case <-t.Context().Done():
		case <-time.After(5 * time.Millisecond):
		}
	}
}
