package cli

import (
	"bytes"
	"cmp"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"pawl/db"
	"pawl/internal/access"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

// dataFolder is the name of a folder that is not there, in one that PostgreSQL's user can pass.
func dataFolder(t *testing.T) string {
	t.Helper()
	parent, err := os.MkdirTemp("/tmp", "pawl-test-") // t.TempDir lets no other user pass
	assert.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(parent) })
	assert.NoError(t, os.Chmod(parent, 0o755))
	return filepath.Join(parent, "pawl")
}

// readers are the commands that look at a database and change nothing, or nothing that is not there.
var readers = []string{"verify", "migrate status", "migrate down", "policy list", "policy show 1", "policy diff 1 2", "policy activate 1"}

func TestOnlySomeCommandsMakeADatabase(t *testing.T) {
	t.Parallel()
	for _, line := range readers {
		t.Run(line, func(t *testing.T) {
			t.Parallel()
			dir := dataFolder(t)
			stdout, _, err := executeBoth(t, append(strings.Fields(line), "--data-dir", dir)...)
			if exitCode(err) != exitUnavailable || stdout != "" || !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), "pawl migrate up") {
				t.Errorf("exit code %d, printed %q: %v", exitCode(err), stdout, err)
			}
			if _, err := os.Stat(dir); !os.IsNotExist(err) {
				t.Errorf("made %s: %v", dir, err)
			}
		})
	}
	t.Run("migrate up, and then the others read it", func(t *testing.T) {
		t.Parallel()
		dir := dataFolder(t)
		for _, line := range []string{"migrate up", "migrate status", "verify", "doctor"} {
			_, stderr, err := executeBoth(t, append(strings.Fields(line), "--data-dir", dir)...)
			if err != nil || stderr != "database: "+dir+"\n" {
				t.Errorf("%s: %v, said %q", line, err, stderr)
			}
		}
	})
}

func TestCommandsSayWhichDatabaseTheyRead(t *testing.T) {
	t.Parallel()
	url := dbtest.New(t).URL
	for _, line := range append(readers, "migrate up") {
		if line == "migrate down" {
			continue // would change what the others read
		}
		_, stderr, _ := executeBoth(t, append(strings.Fields(line), "--database-url", url)...)
		if stderr != "database: "+masked(url)+"\n" || !strings.HasPrefix(masked(url), "postgres://") {
			t.Errorf("%s says %q", line, stderr)
		}
	}
	for _, flags := range [][]string{nil, {"-o", "json"}} {
		if out := printed(t, append([]string{"verify", "--database-url", url}, flags...)...); !strings.Contains(out, masked(url)) {
			t.Errorf("the report does not name %s:\n%s", masked(url), out)
		}
	}
}

func TestServeLooksAtThePortBeforeItMakesADatabase(t *testing.T) {
	t.Parallel()
	taken, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	assert.NoError(t, err)
	t.Cleanup(func() { taken.Close() })
	_, port, _ := net.SplitHostPort(taken.Addr().String())
	dir := dataFolder(t)
	_, err = execute(t, "serve", "--listen", "127.0.0.1", "--port", port, "--data-dir", dir)
	if _, statErr := os.Stat(dir); exitCode(err) != exitFailure || !strings.Contains(err.Error(), "in use") || !os.IsNotExist(statErr) {
		t.Errorf("error %v; %s: %v", err, dir, statErr)
	}
}

func TestAnnouncement(t *testing.T) {
	t.Parallel()
	a := announcement{url: "http://localhost:3000", data: "/var/lib/pawl", reach: (&config{everywhere: true}).reach()}
	var out, logged bytes.Buffer
	log := slog.New(slog.NewJSONHandler(&logged, nil))
	a.say(&out, log, false)
	if want := "pawl serves http://localhost:3000, described at http://localhost:3000/docs, data in /var/lib/pawl\n" +
		byPort + "\n"; out.String() != want || logged.Len() > 0 {
		t.Errorf("printed %q, logged %q", &out, &logged)
	}
	out.Reset()
	a.say(&out, log, true)
	const fields = `"msg":"pawl serves","url":"http://localhost:3000","docs":"http://localhost:3000/docs","data":"/var/lib/pawl","reach":"` + byPort + `"}`
	if !strings.HasSuffix(logged.String(), fields+"\n") || out.Len() > 0 {
		t.Errorf("printed %q, logged %q", &out, &logged)
	}
}

func TestAddressThatIsShown(t *testing.T) {
	t.Parallel()
	for listen, want := range map[string][2]string{
		"":        {"http://localhost:3000", ""},
		"0.0.0.0": {"http://localhost:3000", everywhere}, "::": {"http://localhost:3000", everywhere},
		"192.0.2.2": {"http://192.0.2.2:3000", ""},
	} {
		bound := &net.TCPAddr{IP: net.ParseIP(cmp.Or(listen, "127.0.0.1")), Port: 3000}
		assert.Equal(t, [2]string{shownURL("http", listen, bound), (&config{Listen: listen}).reach()}, want,
			"--listen", listen)
	}
}

func TestSuggestions(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"serv": "did you mean serve?", "varify": "did you mean verify?", "migrate stats": "did you mean status?", "policy shw 1": "did you mean show?",
		"frobnicate": "", "serve twice": "",
	} {
		_, err := execute(t, strings.Fields(line)...)
		if exitCode(err) != exitUsage || want != "" && !strings.HasSuffix(err.Error(), want) || want == "" && strings.Contains(err.Error(), "mean") {
			t.Errorf("pawl %s: %v", line, err)
		}
	}
}

// TestAnOpenServiceSaysSo: in the log, with the command that closes it, and as a metric. Where a token is required it
// does not start.
func TestAnOpenServiceSaysSo(t *testing.T) {
	t.Parallel()
	database := dbtest.New(t)
	start := func(auth string) (log string, open float64, err error) {
		t.Helper()
		control, err := access.New(t.Context(), db.New(database.Pool), access.Config{})
		assert.NoError(t, err)
		defer control.Stop()
		var said bytes.Buffer
		registry := prometheus.NewRegistry()
		err = checkOpen(t.Context(), &config{Auth: auth}, control, telemetry{registry, slog.New(slog.NewTextHandler(&said, nil))})
		families, gatherErr := registry.Gather()
		if gatherErr != nil || len(families) != 1 {
			t.Fatalf("%v %v", families, gatherErr)
		}
		return said.String(), families[0].GetMetric()[0].GetGauge().GetValue(), err
	}
	if log, open, err := start(authOnceThereIsAToken); err != nil || open != 1 ||
		!strings.Contains(log, "pawl token create") || !strings.Contains(log, "WARN") {
		t.Errorf("open: %v, %v: %s", err, open, log)
	}
	if _, _, err := start(authRequired); exitCode(err) != exitConfig || !strings.Contains(err.Error(), "pawl token create") {
		t.Errorf("where a token is required: %v", err)
	}
	if _, err := access.Create(t.Context(), db.New(database.Pool), access.Template{Name: "shop", Lifetime: time.Hour, Actor: "test"}); err != nil {
		t.Fatal(err)
	}
	for _, auth := range []string{authOnceThereIsAToken, authRequired} {
		if log, open, err := start(auth); err != nil || open != 0 || log != "" {
			t.Errorf("closed, with auth %s: %v, %v: %s", auth, err, open, log)
		}
	}
}

func TestServeRejectsARoleWithoutWarnings(t *testing.T) {
	t.Parallel()
	database := dbtest.New(t)
	check := func() error { return checkDurable(t.Context(), database.URL, true, slog.New(slog.DiscardHandler)) }
	assert.NoError(t, check())
	if _, err := database.Pool.Exec(t.Context(), `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET client_min_messages = error', current_database()); END $$`); err != nil {
		t.Fatal(err)
	}
	if check() == nil {
		t.Error("accepted")
	}
}
