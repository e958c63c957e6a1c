package pgembed

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"pawl/test/assert"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"
)

// TestMain turns the test binary into a small program of its own when a test runs it again: a process that can be
// killed.
func TestMain(m *testing.M) {
	if dir := os.Getenv("PGEMBED_HELPER_DIR"); dir != "" {
		os.Exit(helper(dir))
	}
	if url := os.Getenv("PGEMBED_HELPER_URL"); url != "" {
		say(tryURL(url))
		os.Exit(0)
	}
	for name, value := range foreign {
		_ = os.Setenv(name, value)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if cluster.base != "" {
			os.RemoveAll(cluster.base)
		}
		os.Exit(code)
	}))
}

// foreign are variables that a server which saw them would trip over, or that are none of its business.
var foreign = map[string]string{"PGDATA": "/nonexistent", "PGPORT": "1", "PAWL_SECRET": "hush"}

func say(words ...any) { _, _ = fmt.Fprintln(os.Stdout, words...) }

// helper starts a server on dir, says so, and lives until its standard input ends.
func helper(dir string) int {
	cfg := Config{Dir: dir, Settings: quick, withoutDeathSignal: os.Getenv("PGEMBED_HELPER_ORPHANS") != ""}
	cfg.Log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	s, err := Start(context.Background(), cfg)
	if err != nil {
		say("error", err)
		return 1
	}
	say("ready", s.PID(), s.URL("postgres"))
	_, _ = io.Copy(io.Discard, os.Stdin)
	if err := s.Stop(context.Background()); err != nil {
		say("error", err)
		return 1
	}
	return 0
}

// quick makes a server that survives only the end of processes, not of the machine: what these tests are about.
var quick = map[string]string{"fsync": "off", "shared_buffers": "16MB"}

// folder is an empty base folder that an unprivileged server user can pass through, which t.TempDir is not.
func folder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp(parentFolder(), "pgembed-test-")
	assert.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	assert.NoError(t, os.Chmod(dir, 0o755))
	return dir
}

// cluster is one that was made and stopped again.
var cluster struct {
	sync.Mutex
	base string
}

// filled is a base folder with a copy of that cluster: to make one costs five times as much.
func filled(t *testing.T) string {
	t.Helper()
	cluster.Lock()
	defer cluster.Unlock()
	if cluster.base == "" {
		base, err := os.MkdirTemp(parentFolder(), "pgembed-cluster-")
		assert.NoError(t, err)
		assert.NoError(t, os.Chmod(base, 0o755))
		stop(t, start(t, Config{Dir: base}))
		cluster.base = base // it is whole
	}
	dir := folder(t)
	out, err := exec.CommandContext(deadline(t), "cp", "-a", filepath.Join(cluster.base, "data"), dir).CombinedOutput()
	assert.NoError(t, err, out)
	return dir
}

// parentFolder is in memory where there is plenty: these tests make some thirty clusters of a thousand files each.
func parentFolder() string {
	var fs syscall.Statfs_t
	if err := syscall.Statfs("/dev/shm", &fs); err == nil && fs.Bavail*uint64(fs.Bsize) >= 4<<30 {
		return "/dev/shm"
	}
	return "/tmp"
}

// deadline ends a test that hangs with a message instead of a dump.
func deadline(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// start starts a server that ends with the test.
func start(t *testing.T, cfg Config) *Server {
	t.Helper()
	if cfg.Settings == nil {
		cfg.Settings = quick
	}
	s, err := Start(deadline(t), cfg)
	assert.NoError(t, err)
	t.Cleanup(func() { stop(t, s) })
	return s
}

func stop(t *testing.T, s *Server) {
	t.Helper()
	assert.Succeeds(t, s.Stop(context.WithoutCancel(t.Context())))
}

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(deadline(t), url)
	assert.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	return conn
}

// query returns the one text value of a query.
func query(t *testing.T, url, sql string, args ...any) (value string) {
	t.Helper()
	assert.NoError(t, connect(t, url).QueryRow(deadline(t), sql, args...).Scan(&value), sql)
	return value
}

// keepRow commits a row that rowKept looks for.
func keepRow(t *testing.T, url string) {
	t.Helper()
	assert.NoError(t, assert.Err(connect(t, url).Exec(deadline(t), "CREATE TABLE kept AS SELECT 'committed' AS word")))
}

func rowKept(t *testing.T, url string) {
	t.Helper()
	assert.Equal(t, query(t, url, "SELECT word FROM kept"), "committed", "row", "after the restart")
}

// child is the test binary run as a helper.
type child struct {
	cmd   *exec.Cmd
	input io.WriteCloser
	lines *bufio.Scanner
}

// runChild runs a helper on dir. Nobody who reads its pipes outlives it: the server writes to its log only.
func runChild(t *testing.T, dir string, prepare func(*exec.Cmd)) *child {
	t.Helper()
	self, err := os.Executable()
	assert.NoError(t, err)
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), "PGEMBED_HELPER_DIR="+dir)
	cmd.Stderr = os.Stderr
	if prepare != nil {
		prepare(cmd)
	}
	input, err := cmd.StdinPipe()
	assert.NoError(t, err)
	output, err := cmd.StdoutPipe()
	assert.NoError(t, err)
	assert.NoError(t, cmd.Start())
	c := &child{cmd: cmd, input: input, lines: bufio.NewScanner(output)}
	t.Cleanup(func() { c.kill() })
	return c
}

// ready waits for the helper's server.
func (c *child) ready(t *testing.T) (pid int, url string) {
	t.Helper()
	assert.Require(t, c.lines.Scan(), "helper said nothing")
	assert.NoError(t, assert.Err(fmt.Sscanf(c.lines.Text(), "ready %d %s", &pid, &url)), "helper said", c.lines.Text())
	return pid, url
}

// kill ends the helper as a power cut would: nothing of it runs any more.
func (c *child) kill() {
	_ = c.cmd.Process.Kill()
	_ = c.cmd.Wait()
}

// finish ends the helper the polite way.
func (c *child) finish(t *testing.T) {
	t.Helper()
	c.input.Close()
	assert.NoError(t, c.cmd.Wait(), "helper")
}

var eventually = assert.Eventually

func alive(pid int) bool {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err == nil {
		return len(line) > 0
	}
	return syscall.Kill(pid, 0) == nil
}

// onlyRoot skips what only root can set up.
func onlyRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to start processes as other users")
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func globbed(t *testing.T, elements ...string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(elements...))
	assert.NoError(t, err)
	return found
}

// wantError fails unless err says all of it.
func wantError(t *testing.T, err error, parts ...string) {
	t.Helper()
	assert.Require(t, err != nil, "no error")
	for _, part := range parts {
		assert.Contains(t, err.Error(), part, err)
	}
}
