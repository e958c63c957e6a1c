package dbtest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"pawl/internal/pgembed"
	"pawl/migrations"
	"pawl/test/assert"
)

// ServerVariable names the environment variable with the URL of a server to use instead of starting one.
const ServerVariable = "PAWL_TEST_DATABASE_URL"

// binVariable names the environment variable with the folder of the postgres to start, for tests of another major version.
const binVariable = "PAWL_TEST_PG_BIN"

// startLimit covers a download of the server on a machine that has none.
const startLimit = 6 * time.Minute

// server is where databases are made: one of ours, or a given one.
type server struct {
	url      func(database string) string
	admin    *pgxpool.Pool   // for CREATE and DROP DATABASE, kept open: each new connection is a process of the server's
	copying  string          // how CREATE DATABASE copies a template
	embedded *pgembed.Server // nil if it is not ours
	folder   string          // what to remove with it
	template func() (name string, err error)
	made     string // name of the template, once there is one
	roles    string // what the names of its roles begin with
}

// shared is the server of this test binary, started by the first test that needs one.
var shared struct {
	sync.Mutex
	server *server
	err    error
}

// use returns the shared server. Where it did not start, every test says why.
func use(t testing.TB) *server {
	t.Helper()
	shared.Lock()
	defer shared.Unlock()
	if shared.server == nil && shared.err == nil {
		shared.server, shared.err = openServer(os.Getenv(ServerVariable))
	}
	assert.NoError(t, shared.err)
	return shared.server
}

func openServer(given string) (*server, error) {
	s := &server{}
	s.template = sync.OnceValues(s.makeTemplate)
	if given == "" {
		return s, s.startEmbedded()
	}
	u, err := url.Parse(given)
	if err != nil || !strings.HasPrefix(u.Scheme, "postgres") {
		return nil, fmt.Errorf("%s is not a postgres:// URL", ServerVariable)
	}
	s.url = func(database string) string {
		other := *u
		other.Path = "/" + database
		return other.String()
	}
	return s, s.connect(strings.TrimPrefix(u.Path, "/"))
}

// connect opens connections to a database, from which others are made and dropped. Where the server can be told to copy a
// template file by file (PostgreSQL 15), it is: page by page through the log takes twice as long, and leaves out the file
// that spares each first connection reading the catalogs.
func (s *server) connect(database string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var err error
	if s.admin, err = pgxpool.New(ctx, s.url(database)); err != nil {
		return fmt.Errorf("connect to the test server: %w", err)
	}
	var version int
	if err := s.admin.QueryRow(ctx, "SELECT current_setting('server_version_num')::int").Scan(&version); err != nil {
		return fmt.Errorf("connect to the test server: %w", err)
	}
	if version >= 150000 {
		s.copying = " STRATEGY file_copy"
	}
	return nil
}

func (s *server) startEmbedded() error {
	removeStale()
	folder, err := newFolder(folderPattern)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	if s.embedded, err = pgembed.Start(ctx, config(folder)); err != nil {
		os.RemoveAll(folder)
		return err
	}
	s.folder, s.url = folder, s.embedded.URL
	return s.connect("postgres")
}

// config gives up what only matters when the machine stops. synchronous_commit stays on, because the service looks at it.
func config(folder string) pgembed.Config {
	return pgembed.Config{Dir: folder, BinDir: os.Getenv(binVariable), Settings: map[string]string{
		"fsync":            "off",
		"full_page_writes": "off",
		"max_connections":  "500",
		"shared_buffers":   "128MB",
		"max_wal_size":     "256MB",
		"wal_compression":  "off",                // the log is in memory or short-lived: compressing it only takes time
		"plan_cache_mode":  "force_generic_plan", // connections are short-lived: planning a statement five times takes longer than running it
		"jit":              "off",                // compiling a statement takes longer than anything that a test asks for
	}}
}

// close stops a server of ours. On a given one it removes the template.
func (s *server) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if s.admin != nil {
		defer s.admin.Close()
	}
	if s.embedded != nil {
		err := s.embedded.Stop(ctx)
		return errors.Join(err, os.RemoveAll(s.folder))
	}
	if s.made == "" {
		return nil
	}
	if err := s.drop(ctx, s.made); err != nil {
		return err
	}
	return s.run(ctx, fmt.Sprintf("DROP ROLE IF EXISTS %s_owner, %[1]s_serve, %[1]s_read", s.roles))
}

// serves is the role of the service. Each connection sets it: as the role of a whole database it would be autovacuum's as
// well, which would skip the tables, because the role does not own them. The session user is another one, so the role
// needs a right to see the state of its own statements.
func (s *server) serves() string { return s.roles + "_serve" }

// makeTemplate migrates a database and closes it to connections: CREATE DATABASE copies no template that is in use.
func (s *server) makeTemplate() (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	name := newName("template")
	if err := s.create(ctx, name, "template1"); err != nil {
		return "", err
	}
	s.made = name
	if _, err := migrations.Up(ctx, s.url(name)); err != nil {
		return "", fmt.Errorf("migrate template: %w", err)
	}
	s.roles = newName("roles")
	if err := migrations.Roles(ctx, s.url(name), s.roles); err != nil {
		return "", fmt.Errorf("make roles: %w", err)
	}
	if err := s.run(ctx, "GRANT pg_read_all_stats TO "+s.serves()); err != nil {
		return "", err
	}
	return name, s.run(ctx, "ALTER DATABASE "+name+" ALLOW_CONNECTIONS false")
}

// create copies template, and retries while the autovacuum daemon uses it.
func (s *server) create(ctx context.Context, name, template string) error {
	for {
		err := s.run(ctx, "CREATE DATABASE "+name+" TEMPLATE "+template+s.copying)
		var refused *pgconn.PgError
		if !errors.As(err, &refused) || refused.Code != "55006" { // object_in_use
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func (s *server) drop(ctx context.Context, name string) error {
	return s.run(ctx, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)")
}

// run executes one statement that no transaction may surround.
func (s *server) run(ctx context.Context, statement string) error {
	if _, err := s.admin.Exec(ctx, statement); err != nil {
		return fmt.Errorf("%s: %w", statement, err)
	}
	return nil
}

// newName is unique also on a server that others test on, and needs no quotes in SQL.
func newName(kind string) string {
	return "pawl_" + kind + "_" + strings.ToLower(rand.Text()[:16])
}

// Server is a PostgreSQL server that belongs to one test, for tests that take it away from the service. Its methods
// are for the test's own goroutine.
type Server struct {
	// URL is of a migrated database. It is the same after every Start.
	URL string

	running *pgembed.Server
	folder  string
}

// Restartable starts a server for this test alone, and stops it after the test. It costs about a second:
// tests that do not stop the server use New.
func Restartable(t testing.TB) *Server {
	t.Helper()
	s := &Server{folder: folder(t, folderPattern)}
	s.Start(t)
	t.Cleanup(func() { s.Stop(t) })
	s.URL = withOptions(s.running.URL("postgres"), findsTables)
	assert.NoError(t, assert.Err(migrations.Up(t.Context(), s.URL)))
	return s
}

// Start starts the server again, after Stop or Kill, and returns when it answers.
func (s *Server) Start(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startLimit)
	defer cancel()
	running, err := pgembed.Start(ctx, config(s.folder))
	assert.NoError(t, err)
	s.running = running
}

// Set changes a setting of the running server, and returns when it is in effect. Write the value as SHOW prints it
// (1s, not 1000ms): it is compared.
func (s *Server) Set(t testing.TB, name, value string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), s.URL)
	assert.NoError(t, err)
	defer conn.Close(t.Context())
	for _, statement := range []string{"ALTER SYSTEM SET " + name + " = '" + value + "'", "SELECT pg_reload_conf()"} {
		assert.NoError(t, assert.Err(conn.Exec(t.Context(), statement)), "dbtest", statement)
	}
	for now := ""; now != value; { // the reload takes a moment
		assert.NoError(t, conn.QueryRow(t.Context(), "SELECT current_setting($1)", name).Scan(&now))
	}
	if name == "synchronous_standby_names" && value != "" {
		s.awaitSyncRep(t, conn)
	}
}

// awaitSyncRep returns when commits wait for a standby. Another process of the server applies that setting, some time
// after current_setting shows it.
func (s *Server) awaitSyncRep(t testing.TB, conn *pgx.Conn) {
	t.Helper()
	writer, err := pgx.Connect(t.Context(), s.URL)
	assert.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var ended sync.WaitGroup
	ended.Go(func() {
		for err == nil {
			_, err = writer.Exec(ctx, "SELECT pg_logical_emit_message(true, 'dbtest', '')")
		}
	})
	for waits := false; !waits; {
		const waiting = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1 AND wait_event = 'SyncRep')"
		assert.NoError(t, conn.QueryRow(t.Context(), waiting, writer.PgConn().PID()).Scan(&waits))
	}
	cancel()
	ended.Wait()
	_ = writer.Close(t.Context()) // it is closed
}

// Stop shuts the server down: clients are disconnected, their transactions rolled back. A stopped server stays stopped.
func (s *Server) Stop(t testing.TB) {
	t.Helper()
	assert.Succeeds(t, s.running.Stop(context.WithoutCancel(t.Context())), "dbtest")
}

// Kill ends the server with SIGKILL, as the out-of-memory killer does. The next Start recovers what was committed.
func (s *Server) Kill(t testing.TB) {
	t.Helper()
	assert.NoError(t, syscall.Kill(s.running.PID(), syscall.SIGKILL), "dbtest: kill server")
	<-s.running.Exited()
	s.Stop(t)
}

const (
	folderPattern = "pawl-dbtest-*"
	memoryFolder  = "/dev/shm"
	diskFolder    = "/tmp" // not os.TempDir, whose path can be too long for a socket
	memoryNeeded  = 4 << 30
)

// Folder makes an empty folder for a server that a test runs itself, and removes it when the test ends. Other users can
// enter it, and so can the one whom root runs PostgreSQL as.
func Folder(t testing.TB) string {
	t.Helper()
	return folder(t, "pawl-test-*") // removeStale leaves it alone: nothing in it is locked
}

func folder(t testing.TB, pattern string) string {
	t.Helper()
	dir, err := newFolder(pattern)
	assert.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// newFolder makes a folder for a server. It is open because root's server runs as another user; what it holds is closed.
func newFolder(pattern string) (string, error) {
	dir, err := os.MkdirTemp(parentFolder(), pattern)
	if err != nil {
		return "", fmt.Errorf("make server folder: %w", err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return "", fmt.Errorf("open server folder: %w", err)
	}
	return dir, nil
}

// parentFolder is in memory where there is plenty: a database is some 300 files, and copying them there takes a third of
// the time and none of the disk. Containers often have only 64 MiB of it.
func parentFolder() string {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(memoryFolder, &fs); err == nil && fs.Bavail*uint64(fs.Bsize) >= memoryNeeded {
		return memoryFolder
	}
	return diskFolder
}

// removeStale removes the folders of test binaries that ended without Main: by a panic, a time-out, a kill. A live
// server's folder is locked; a young one may not be locked yet.
func removeStale() {
	inMemory, _ := filepath.Glob(filepath.Join(memoryFolder, folderPattern))
	onDisk, _ := filepath.Glob(filepath.Join(diskFolder, folderPattern))
	for _, dir := range append(inMemory, onDisk...) {
		info, err := os.Stat(dir)
		if err != nil || time.Since(info.ModTime()) < time.Minute || inUse(dir) {
			continue
		}
		os.RemoveAll(dir)
	}
}

// inUse tells whether a pgembed server holds dir, or it is not ours to look at.
func inUse(dir string) bool {
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR, 0)
	if err != nil {
		return !os.IsNotExist(err)
	}
	defer lock.Close()
	return syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil
}
