package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/pflag"

	"pawl/db"
	"pawl/fsm/diagram"
	"pawl/internal/cell"
	"pawl/internal/cli/remote"
	"pawl/internal/doctor"
	"pawl/internal/pg"
	"pawl/internal/pgembed"
	"pawl/migrations"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

func TestMain(m *testing.M) { dbtest.Main(m) }

// execute runs a command line in this process and returns what it printed to standard output.
func execute(t *testing.T, args ...string) (string, error) {
	t.Helper()
	out, _, err := executeBoth(t, args...)
	return out, err
}

func executeBoth(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd := Command(os.DirFS("../.."))
	cmd.SetArgs(args)
	cmd.SetOut(&out)
	cmd.SetErr(&errs)
	err = cmd.ExecuteContext(t.Context())
	return out.String(), errs.String(), err
}

// printed runs a command line that must succeed.
func printed(t *testing.T, args ...string) string {
	t.Helper()
	out, err := execute(t, args...)
	assert.NoError(t, err, "pawl", strings.Join(args, " "), out)
	return out
}

// matches compares a text with lines of regular expressions.
func matches(t *testing.T, got, want string) {
	t.Helper()
	assert.True(t, regexp.MustCompile(`^`+want+`$`).MatchString(got), "printed", got, want)
}

// checkLine runs a command line and compares its exit code and output.
func checkLine(t *testing.T, line string, code int, prints string) {
	t.Helper()
	out, err := execute(t, strings.Fields(line)...)
	if got := codeOf(err); got != code || !regexp.MustCompile(prints).MatchString(out) || strings.Contains(fmt.Sprint(err), "strconv.") {
		t.Errorf("pawl %s: error %v, exit code %d, want %d, printed\n%s", line, err, got, code, out)
	}
}

// TestCommands is what operators type, one line after the other, and what comes of it.
func TestCommands(t *testing.T) {
	t.Parallel()
	at := " --database-url " + dbtest.Empty(t)
	for _, c := range []struct {
		line   string
		code   int
		prints string // a regular expression
	}{
		{"migrate status" + at, 0, `(?m)^00001_orders.sql +pending$`},
		{"verify" + at, exitUnavailable, `^$`}, // an empty database has no books
		{"migrate up" + at, 0, `^(applied \d{5}_\w+\.sql\n)+$`},
		{"migrate up" + at, 0, `^nothing is pending\n$`},
		{"migrate search-keys --add email --add invoice" + at, 0, `^email\ninvoice\n$`},
		{"migrate search-keys --add email --remove invoice" + at, 0, `^email\n$`},
		{"verify" + at, 0, `(?m)^ok +completed +0$`},
		{"policy list" + at, 0, `^version +stored +last activated`},
		{"policy activate 1" + at, exitFailure, `^$`}, // there is none
		{"policy schema", 0, `"title": "Pawl policy"`},
		{"openapi", 0, `(?m)^openapi: 3\.1`},
		{"diagram", 0, whole(diagram.Mermaid())},
		{"diagram --format mermaid", 0, whole(diagram.Mermaid())},
		{"diagram --format svg", 0, whole(diagram.SVG())},
		{"diagram --format markdown", 0, whole(diagram.Markdown())},
		{"serve --lease 0s", exitConfig, `^$`}, {"serve --auth sometimes", exitConfig, `^$`},
		{"serve --auth required --port 0" + at, exitConfig, `^$`}, // no token was made
		{"verify --database-url nonsense", exitConfig, `^$`},
		{"verify --database-url postgres://127.0.0.1:1/pawl", exitUnavailable, `^$`},
		{"migrate up --pg-bin /nonexistent --data-dir " + dataFolder(t), exitConfig, `^$`},
		{"holds --url http://127.0.0.1:1", exitUnavailable, `^$`},
	} {
		checkLine(t, c.line, c.code, c.prints)
	}
	for _, line := range []string{
		"bogus", "--bogus", "serve --bogus", "verify --bogus", "serve twice", "diagram svg", "diagram --format png", "verify everything",
		"migrate", "migrate sideways", "migrate up now", "--port many", "serve --lease soon", "orders", "orders frobnicate",
		"orders process order-1 --item widget", "orders show", "orders list --url nonsense", "holds -o yaml", "doctor -o yaml",
		"policy", "policy forget", "policy list 1", "policy show", "policy show x", "policy show 0", "policy show 1 2", "policy show 4294967297",
		"policy diff 1", "policy activate", "policy check", "policy check a b", "policy schema now",
	} {
		checkLine(t, line, exitUsage, `^$`)
	}
}

// TestAllCells: --all runs a command for each cell, and notices what is missing or there twice. What is certainly wrong
// in one cell counts more than another that does not answer.
func TestAllCells(t *testing.T) {
	t.Parallel()
	databases := [2]*dbtest.Database{dbtest.New(t), dbtest.New(t)}
	for i, database := range databases {
		query := db.New(database.Pool)
		assert.NoError(t, assert.Err(migrations.Settle(t.Context(), query, "", cell.Cell{Number: i, Of: 2})))
		served(t, query, firstPolicy)
		served(t, query, strings.Replace(secondPolicy, "45m", fmt.Sprint(45+i, "m"), 1))
	}
	lower, upper := databases[0].URL, databases[1].URL
	both := lower + " " + upper
	const head = `cell 0/2, postgres://.*\n(.*\n)+\ncell 1/2, postgres://.*\n(.*\n)+`
	for _, c := range []struct {
		line, urls string
		code       int
		prints     string
		says       string
	}{
		{"verify", both, 0, `^` + head + `$`, ""},
		{"verify -o json", both, 0, `^{"cell":"0/2","url":"postgres://.*}\n{\n`, ""},
		{"verify", lower, exitFailure, `^cell 0/2`, "the orders of cell 1/2 are in none of these cells"},
		{"verify", lower + " " + lower, exitFailure, `^cell 0/2`, "the orders of cell 0/2 are in 2 of these cells"},
		{"verify", upper + " postgres://127.0.0.1:1/pawl " + lower, exitUnavailable, `(?m)^cell 0/2`, "@127.0.0.1:1/pawl: no verdict"},
		{"verify", "", exitUsage, `^$`, "--all needs --database-url"},
		{"doctor --allow-data-loss", both, 0, `^` + head + `$`, ""},
		{"policy list", both, 0, `^` + head + `$`, ""},
		{"policy activate 2", both, exitFailure, `^$`, "nothing was activated: cell 1/2, postgres://"},
		{"policy activate 1", lower, exitFailure, `^$`, "cell 1/2 are in none"},
		{"policy activate 1", both, 0, `^` + head + `$`, ""},
		{"policy activate 9", both, exitFailure, `^$`, "there is no policy 9"},
	} {
		out, err := execute(t, append(strings.Fields(c.line), "--all", "--data-dir", dataFolder(t), "--database-url", c.urls)...)
		if code := codeOf(err); code != c.code || !regexp.MustCompile(c.prints).MatchString(out) || !strings.Contains(fmt.Sprint(err), c.says) {
			t.Errorf("pawl %s --all: error %v, exit code %d, want %d, printed\n%s", c.line, err, code, c.code, out)
		}
	}
	for _, database := range databases {
		matches(t, printed(t, "policy", "list", "--database-url", database.URL), `.*\n1\* .*\n2 .*\n`)
	}
	admitted(t, databases[1])
	_, err := databases[1].Pool.Exec(t.Context(), `INSERT INTO charges (order_no, generation, currency, amount) VALUES (99, 0, 'EUR', 5)`)
	assert.NoError(t, err)
	_, err = execute(t, "verify", "--all", "--database-url", "postgres://127.0.0.1:1/pawl "+upper)
	assert.Equal(t, codeOf(err), exitFailure, err)
}

// codeOf is the exit code after a command.
func codeOf(err error) int {
	if err == nil {
		return 0
	}
	return exitCode(err)
}

func whole(text string) string { return "^" + regexp.QuoteMeta(text) + "$" }

func TestMigrate(t *testing.T) {
	t.Parallel()
	url := dbtest.Empty(t)
	migrate := func(to string, flags ...string) string {
		return printed(t, append([]string{"migrate", to, "--database-url", url}, flags...)...)
	}
	pending := func() (names []string) {
		return regexp.MustCompile(`(?m)^(\S+) +pending$`).FindAllString(migrate("status"), -1)
	}
	all := strings.Count(migrate("status"), "\n")
	n := len(pending())
	assert.True(t, n == all && all != 0, "an empty database has", n, "of", all, "migrations pending")
	migrate("up")
	left := pending()
	assert.True(t, len(left) == 0 && hasOrders(t, url), "still pending", left)
	matches(t, migrate("status"), `00001_orders\.sql +\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ\n(.*\n)+`)
	matches(t, migrate("status", "-o", "json"), `\{"name":"00001_orders\.sql","applied":true,"appliedAt":"\S+"\}\n(.*\n)+`)
	for i := range all {
		migrate("down")
		assert.Equal(t, len(pending()), i+1, "after steps down are pending")
	}
	assert.True(t, !hasOrders(t, url), "down leaves tables behind")
	assert.ErrorIs(t, assert.Err(execute(t, "migrate", "down", "--database-url", url)), migrations.ErrNoneApplied,
		"with nothing to take back")
	migrate("up")
}

// TestMigrateDownRefuses is about people who lose more than they know.
func TestMigrateDownRefuses(t *testing.T) {
	t.Parallel()
	both := []string{"--yes", "--drop-data"}
	for _, c := range []struct {
		name         string
		order, serve bool
		says         string
	}{
		{"orders", true, false, "orders in this database: 1, connections of running services: 0"},
		{"running services", false, true, "orders in this database: 0, connections of running services: 1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			database := dbtest.New(t)
			if c.order {
				admitted(t, database)
			}
			if c.serve {
				pool, err := openPool(t.Context(), database.URL, pg.Options{MaxConns: 1, Serves: true})
				assert.NoError(t, err)
				t.Cleanup(pool.Close)
			}
			status := printed(t, "migrate", "status", "--database-url", database.AdminURL)
			for _, flags := range [][]string{nil, both[:1], both[1:]} {
				out, err := execute(t, append([]string{"migrate", "down", "--database-url", database.AdminURL}, flags...)...)
				assert.True(t, exitCode(err) == exitFailure && strings.Contains(fmt.Sprint(err), c.says), flags, err)
				matches(t, out, `rolling back \d{5}_\w+\.sql:\n(  (DROP|DELETE|ALTER) .*\n)+`)
			}
			assert.Equal(t, printed(t, "migrate", "status", "--database-url", database.AdminURL), status)
			out := printed(t, append([]string{"migrate", "down", "--database-url", database.AdminURL}, both...)...)
			assert.True(t, strings.HasSuffix(out, "\ndone\n"), "printed", out)
			now := printed(t, "migrate", "status", "--database-url", database.AdminURL)
			assert.Equal(t, strings.Count(now, "pending"), 1, "status", now)
		})
	}
}

// admitted puts an order into a database.
func admitted(t *testing.T, database *dbtest.Database) {
	t.Helper()
	_, err := database.Pool.Exec(t.Context(), `WITH o AS (
		INSERT INTO orders (status, fence, due_at, order_id, currency, item, amount)
			VALUES ('charging', 1, now(), 'order 1', 'EUR', 'lamp', 5) RETURNING order_no)
		INSERT INTO transitions (order_no, seq, from_status, to_status, fence) SELECT order_no, 1, 'pending', 'charging', 1 FROM o`)
	assert.NoError(t, err)
}

// TestCommandsFindTheRunningService is about our own database while another process uses it: in a folder whose name is
// too long for a socket, and with variables in the environment that are meant for another database.
func TestCommandsFindTheRunningService(t *testing.T) {
	t.Setenv("PGPORT", "1")
	t.Setenv("PGHOST", "/nonexistent")
	t.Setenv("PGUSER", "nobody")
	dir := filepath.Join(filepath.Dir(dataFolder(t)), strings.Repeat("long", 25))
	server, err := pgembed.Start(t.Context(), pgembed.Config{Dir: dir, Settings: map[string]string{"fsync": "off", "shared_buffers": "16MB"}})
	assert.NoError(t, err)
	for _, line := range []string{"migrate up", "migrate status", "verify"} {
		printed(t, append(strings.Fields(line), "--data-dir", dir)...)
	}
	assert.True(t, hasOrders(t, server.URL("postgres")), "another database was migrated")
	assert.NoError(t, server.Stop(context.WithoutCancel(t.Context())))
}

func hasOrders(t *testing.T, url string) (found bool) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	assert.NoError(t, err)
	defer conn.Close(t.Context())
	assert.NoError(t, conn.QueryRow(t.Context(), "SELECT to_regclass('orders') IS NOT NULL").Scan(&found))
	return found
}

func TestExitCode(t *testing.T) {
	t.Parallel()
	_, unreachable := pgx.Connect(t.Context(), "postgres://127.0.0.1:1/pawl")
	_, misspelt := pgx.ParseConfig("nonsense")
	for _, c := range []struct {
		err  error
		code int
	}{
		{errors.New("anything"), 1},
		{context.Canceled, 1},
		{usageError{errors.New("bogus")}, 2},
		{errUnavailable, 69},
		{remote.ErrUsage, 2},
		{remote.ErrUnavailable, 69},
		{errDatabaseExited, 70},
		{configError{errors.New("lease")}, 78},
		{fmt.Errorf("%w: %w", errUnavailable, misspelt), 78}, // no database to wait for
		{&pgconn.PgError{Code: "42501"}, 1},                  // insufficient_privilege
		{&pgconn.PgError{Code: "25006"}, 1},                  // read_only_sql_transaction
		{&pgconn.PgError{Code: "42P07"}, 1},                  // duplicate_table
		{&pgconn.PgError{Code: "57P01"}, 69},                 // admin_shutdown
		{&pgconn.PgError{Code: "53300"}, 69},                 // too_many_connections
		{io.ErrUnexpectedEOF, 69},
		{pgconn.ErrConnClosed, 69},
		{&net.OpError{Op: "read", Err: errors.New("reset")}, 69},
		{unreachable, 69},
	} {
		assert.Equal(t, exitCode(databaseError(fmt.Errorf("migrate: %w", c.err))), c.code, c.err, "exit code")
	}
	assert.NoError(t, databaseError(nil))
}

func TestCompletion(t *testing.T) {
	t.Parallel()
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		out, err := execute(t, "completion", shell)
		assert.True(t, err == nil && strings.Contains(out, "pawl"), shell, "error", err, "printed", len(out), "bytes")
	}
	for flag, value := range map[string]string{"--status": "completed", "--hold": "attention", "-o": "csv"} {
		assert.Contains(t, printed(t, "__complete", "orders", "list", flag, ""), value+"\n", flag, "is not completed")
	}
	for line, want := range map[string][]string{
		"":         {"serve", "migrate", "verify", "diagram"},
		"migrate ": {"up", "down", "status"},
		"serve --": {"--port", "--lease"},
	} {
		out, err := execute(t, append([]string{"__complete"}, strings.Split(line, " ")...)...)
		for _, word := range want {
			assert.True(t, err == nil && regexp.MustCompile(`(?m)^`+word+`\t`).MatchString(out),
				"pawl", line, "<TAB> does not offer", word, "error", err, out)
		}
	}
}

// serveSettings are the flags of serve, the file's left out.
func serveSettings() (flags []*pflag.Flag) {
	serveCommand().Flags().VisitAll(func(f *pflag.Flag) {
		if f.Name != "config" {
			flags = append(flags, f)
		}
	})
	return flags
}

func TestHelpMentionsEverySetting(t *testing.T) {
	t.Parallel()
	for _, line := range []string{"--help", "serve --help", "help serve"} {
		out, err := execute(t, strings.Fields(line)...)
		assert.NoError(t, err, "pawl", line)
		for _, f := range serveSettings() {
			assert.True(t, strings.Contains(out, " --"+f.Name+" ") && strings.Contains(out, f.Usage),
				"pawl", line, "does not explain --", f.Name)
		}
		assert.Contains(t, out, " --config ", "pawl", line, "does not explain --config")
	}
}

func page(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile("../../" + name)
	assert.NoError(t, err)
	return string(text)
}

var (
	settingRow = regexp.MustCompile("(?m)^\\| `--([a-z-]+)` \\| ([^|]*) \\| ([^|]*?) ?\\|")
	quoted     = regexp.MustCompile("`([^`]+)`")
)

// TestDocsListTheSettings compares the table of operations.md with the flags: names, variables, defaults. Those of
// OpenID Connect are in security.md.
func TestDocsListTheSettings(t *testing.T) {
	t.Parallel()
	const name = "docs/operations.md"
	listed, security := map[string][]string{}, page(t, "docs/security.md")
	for _, row := range settingRow.FindAllStringSubmatch(page(t, name), -1) {
		listed[row[1]] = row[2:]
	}
	for _, f := range serveSettings() {
		if row, found := listed[f.Name]; found {
			checkSettingRow(t, name, f, row)
			delete(listed, f.Name)
		} else if !strings.HasPrefix(f.Name, "oidc-") || !strings.Contains(security, "`--"+f.Name+"`") {
			t.Errorf("%s does not list --%s", name, f.Name)
		}
	}
	for flag := range listed {
		t.Errorf("%s lists --%s, which is not a setting", name, flag)
	}
}

func checkSettingRow(t *testing.T, page string, f *pflag.Flag, row []string) {
	t.Helper()
	var names []string
	for _, match := range quoted.FindAllStringSubmatch(row[0], -1) {
		names = append(names, match[1])
	}
	slices.Sort(names)
	assert.Equal(t, slices.Sorted(slices.Values(variables(f.Name))), names, page, "lists --", f.Name, "with")
	assert.True(t, f.DefValue == "" || row[1] == "`"+f.DefValue+"`",
		page, "lists --", f.Name, "with the default", row[1], "want", f.DefValue)
}

func TestDoctor(t *testing.T) {
	t.Parallel()
	at := " --database-url " + dbtest.New(t).URL
	for _, c := range []struct {
		line   string
		code   int
		prints string
	}{
		{"doctor --allow-data-loss" + at, 0, `(?m)^ok +schema +all statements can run on it$`},
		{"doctor" + at, exitFailure, `(?m)^WRONG +durability +the database has fsync off and may lose .*\n +-> turn it on, or set --allow-data-loss$`},
		{"doctor --lease 0s --allow-data-loss" + at, exitFailure, `(?m)^WRONG +settings +lease must be at least 1s`},
		{"doctor --policy /nonexistent.yaml --allow-data-loss" + at, exitFailure, `(?m)^WRONG +settings +.*/nonexistent.yaml`},
		{"doctor --max-connections 1000000000" + at, exitFailure, `(?m)^warn +files `},
		{"doctor --database-url postgres://127.0.0.1:1/pawl", exitFailure, `(?m)^WRONG +database .*\n +-> start PostgreSQL there`},
		{"doctor --data-dir " + dataFolder(t), 0, `(?m)^(ok|warn) +postgres (.*\n)+(ok|warn) +disk (.*\n)+warn +database +there is none yet`},
		{"doctor --pg-bin /nonexistent --data-dir " + dataFolder(t), exitFailure, `(?m)^WRONG +postgres .*/nonexistent`},
	} {
		checkLine(t, c.line, c.code, c.prints)
	}
	var report doctor.Report
	err := json.Unmarshal([]byte(printed(t, strings.Fields("doctor -o json --allow-data-loss"+at)...)), &report)
	assert.True(t, err == nil && len(report.Findings) >= 9, report, err)
}

func TestUnknownVariables(t *testing.T) {
	t.Parallel()
	got := unknownVariables([]string{
		"PAWL_LEASE=9s", "PAWL_MAX_CONN=3", "PAWL_SECRET_STRIPE=x", "PAWL_PORT_3000_TCP=tcp://10.0.0.1", "PAWL_SERVICE_HOST=10.0.0.1", "PAWL_TOKEN=t", "HOME=/",
	}, "PAWL_SECRET_")
	assert.Equal(t, strings.Join(got, " "), "PAWL_MAX_CONN", got)
}
