package pgembed

import (
	"context"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"pawl/test/assert"
)

// The folder of the socket is the first lock. These tests open it, and look at the second one.
func TestOtherUsersAreNotLetIn(t *testing.T) {
	t.Parallel()
	s := start(t, Config{Dir: folder(t), Settings: map[string]string{"fsync": "off", "shared_buffers": "16MB", "unix_socket_permissions": "0777"}})
	t.Run("no way in is trusted, and none leads over the network", func(t *testing.T) {
		t.Parallel()
		const rules = `SELECT string_agg(concat_ws(' ', type, user_name, auth_method, error), ', ' ORDER BY line_number) FROM pg_hba_file_rules`
		assert.Equal(t, query(t, s.URL("postgres"), rules), "local {pawl} peer, local {all} scram-sha-256")
	})
	t.Run("another role needs its password", func(t *testing.T) {
		t.Parallel()
		query(t, s.URL("postgres"), "SELECT 'works'")
		if _, err := connect(t, s.URL("postgres")).Exec(deadline(t), "CREATE ROLE reader LOGIN PASSWORD 'hush'"); err != nil {
			t.Fatal(err)
		}
		for password, want := range map[string]string{"hush": "connected", "": "failed", "guess": "28P01"} {
			if got := tryURL(asRole(t, s, url.UserPassword("reader", password))); !strings.Contains(got, want) {
				t.Errorf("with the password %q: %s", password, got)
			}
		}
	})
	t.Run("another user of the machine can't be the superuser", func(t *testing.T) {
		t.Parallel()
		onlyRoot(t)
		assert.NoError(t, os.Chmod(s.folders.socket, 0o755))
		for _, name := range []string{"nobody", "daemon", "postgres", "pawl"} { // the last one runs the server
			assert.Contains(t, tryAs(t, name, s.URL("postgres")), "Peer authentication failed", "as", name)
		}
	})
}

// The files with the access rules are written at every start, even if they were changed.
func TestAccessIsWrittenAnew(t *testing.T) {
	t.Parallel()
	cfg := Config{Dir: folder(t)}
	s := start(t, cfg)
	stop(t, s)
	for _, name := range []string{"pg_hba.conf", "pg_ident.conf"} {
		assert.NoError(t, replaceOwned(s.folders.data, name, []byte("local all all trust\n"), s.account))
	}
	s = start(t, cfg)
	if got := query(t, s.URL("postgres"), "SELECT count(*)::text FROM pg_hba_file_rules WHERE auth_method = 'trust'"); got != "0" {
		t.Errorf("%s lines trust", got)
	}
}

// tryURL says how it went to connect.
func tryURL(databaseURL string) string {
	conn, err := pgx.Connect(context.Background(), databaseURL)
	if err != nil {
		return err.Error()
	}
	conn.Close(context.Background())
	return "connected"
}

// tryAs has another user of the machine connect.
func tryAs(t *testing.T, name, databaseURL string) string {
	t.Helper()
	self, err := os.Executable()
	assert.NoError(t, err)
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), "PGEMBED_HELPER_URL="+databaseURL)
	asUser(t, cmd, lookup(t, name))
	printed, err := cmd.CombinedOutput()
	assert.NoError(t, err, printed)
	return string(printed)
}

func asRole(t *testing.T, s *Server, role *url.Userinfo) string {
	t.Helper()
	u, err := url.Parse(s.URL("postgres"))
	assert.NoError(t, err)
	u.User = role
	return u.String()
}
