package faults

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pawl/test/dbtest"
)

// TestExitCodes: a supervisor tells by the code whether it helps to start again (sysexits(3)).
func TestExitCodes(t *testing.T) {
	build(t)
	t.Parallel()
	taken, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { taken.Close() })
	_, port, _ := net.SplitHostPort(taken.Addr().String())
	file := filepath.Join(t.TempDir(), "pawl.yaml")
	if err := os.WriteFile(file, []byte("lease: 5s\nleese: 5s\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	nobody := "postgres://pawl:hunter2@127.0.0.1:1/pawl"
	database := dbtest.Empty(t)
	for _, c := range []struct {
		name string
		env  []string
		args string
		code int
		says string
	}{
		{"an unknown command", nil, "bogus", 2, `unknown command "bogus"`},
		{"an unknown flag", nil, "serve --bogus", 2, "unknown flag: --bogus"},
		{"a word too many", nil, "verify everything", 2, `"everything"`},
		{"a migration nobody knows", nil, "migrate sideways", 2, `"sideways"`},
		{"a flag without sense", nil, "--port many", 2, "--port"},
		{"a variable without sense", []string{"PORT=many"}, "", 78, "PORT"},
		{"a setting out of range", nil, "--lease 1ms", 78, "lease: at least 1s"},
		{"no currency", nil, "--currency usd", 78, "currency: "},
		{"no log level", []string{"PAWL_LOG_LEVEL=loud"}, "", 78, "log-level: "},
		{"a settings file that is not there", nil, "--config /nonexistent", 78, "/nonexistent"},
		{"a settings file with a misspelt key", nil, "--config " + file, 78, `"leese"`},
		{"no database URL", []string{"DATABASE_URL=nonsense"}, "", 78, "database url"},
		{"a database that loses what it commits", []string{"DATABASE_URL=" + database}, "", 78, "--allow-data-loss"},
		{"nobody at the database URL", []string{"DATABASE_URL=" + nobody}, "", 69, "see where the database belongs: waited 30s for the database: database unavailable: connect to database: failed to connect"},
		{"no such database", []string{"DATABASE_URL=" + database + "&dbname=nowhere"}, "", 69, `database "nowhere" does not exist`}, // which nobody waits for
		{"nobody to migrate", []string{"DATABASE_URL=" + nobody}, "migrate up", 69, "refused"},
		{"nobody to verify", []string{"DATABASE_URL=" + nobody}, "verify", 69, "refused"},
		{"no PostgreSQL where it was said to be", nil, "--pg-bin /nonexistent --data-dir " + filepath.Join(dbtest.Folder(t), "pawl"), 78, "/nonexistent"},
		{"a port that is taken", []string{"DATABASE_URL=" + database}, "--allow-data-loss --listen 127.0.0.1 --port " + port, 1, "in use"},
		{"a command that was misspelt", nil, "serv", 2, "did you mean serve?"},
		{"a demo of less than no time", nil, "demo --seconds -1", 2, "seconds: from 0"},
		{"a demo in a folder that is in use", nil, "demo --data-dir " + filepath.Dir(file), 2, "folder is not empty"},
		{"no database to verify", nil, "verify --data-dir /nonexistent", 69, "pawl migrate up"},
		{"books that were never opened", []string{"DATABASE_URL=" + dbtest.Empty(t)}, "verify", 69, "pawl migrate up"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := launch(t, c.env, strings.Fields(c.args)...)
			code, said := p.exitCode(), p.stderr()
			if code != c.code || !strings.Contains(said, c.says) {
				t.Errorf("ends with %d, want %d, and says %q, want %q", code, c.code, said, c.says)
			}
			if strings.Contains(said, "hunter2") || strings.Contains(said, "goroutine") || strings.Count(said, "\n") > 6 {
				t.Errorf("says too much: %s", said)
			}
		})
	}
}
