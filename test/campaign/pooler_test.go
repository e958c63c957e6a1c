package campaign

import (
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"pawl/test/dbtest"
)

const poolerSettings = `
[databases]
* = host=127.0.0.1 port=%d user=%s
[pgbouncer]
pool_mode = transaction
default_pool_size = 10
max_client_conn = 300
unix_socket_dir = %s
listen_port = 6432
auth_type = any
`

// pooler is PgBouncer in transaction mode.
type pooler struct {
	t              *testing.T
	binary, folder string
	cmd            *exec.Cmd
}

func findPooler() string {
	for _, name := range []string{"pgbouncer", "/usr/sbin/pgbouncer"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	return ""
}

// newPooler starts PgBouncer before the server at a port.
func newPooler(t *testing.T, port int, user string) *pooler {
	t.Helper()
	p := &pooler{t: t, binary: findPooler(), folder: dbtest.Folder(t)}
	text := fmt.Sprintf(poolerSettings, port, user, p.folder)
	if err := os.WriteFile(filepath.Join(p.folder, "pgbouncer.ini"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(p.folder, nobody, nobody); err != nil {
			t.Fatal(err)
		}
	}
	p.start()
	t.Cleanup(func() { p.end(syscall.SIGKILL) })
	return p
}

const nobody = 65534

func (p *pooler) start() {
	p.cmd = exec.Command(p.binary, "-q", filepath.Join(p.folder, "pgbouncer.ini"))
	p.cmd.SysProcAttr = &syscall.SysProcAttr{}
	if os.Geteuid() == 0 { // it refuses to run as root
		p.cmd.SysProcAttr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
	}
	if err := p.cmd.Start(); err != nil {
		p.t.Error(err)
		return
	}
	socket := filepath.Join(p.folder, ".s.PGSQL.6432")
	await(p.t.Context(), 10*time.Second, func() bool { _, err := os.Stat(socket); return err == nil })
}

func (p *pooler) end(signal syscall.Signal) {
	_ = p.cmd.Process.Signal(signal)
	_ = p.cmd.Wait() // it was told to end
}

func (p *pooler) url(user string) string {
	return (&url.URL{Scheme: "postgres", User: url.User(user), Path: "/postgres", RawQuery: url.Values{
		"host": {p.folder}, "port": {"6432"}, "sslmode": {"disable"}}.Encode()}).String()
}
