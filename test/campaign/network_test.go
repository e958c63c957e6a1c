package campaign

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"pawl/internal/pgembed"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

// wire is the network between two programs: it carries bytes, until it is told otherwise.
type wire struct {
	listener net.Listener
	running  sync.WaitGroup
	closed   chan struct{}
	hole     atomic.Bool  // every connection is silent, new ones too
	oneIn    atomic.Int64 // one reply in so many is cut; 0: none
	cuts     atomic.Int64

	mu              sync.Mutex
	network, target string
	links           []*strand
	dice            dice
}

// strand is one connection.
type strand struct {
	wire           *wire
	client, server net.Conn
	silent         atomic.Bool // bytes vanish, in both directions, and so does the end of the other side
}

// newWire listens at the first address and connects to the second.
func newWire(t *testing.T, listen, target [2]string, seed int) *wire {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), listen[0], listen[1])
	assert.NoError(t, err)
	w := &wire{listener: listener, closed: make(chan struct{}), network: target[0], target: target[1], dice: newDice(seed, 77)}
	w.running.Go(w.accept)
	t.Cleanup(w.close)
	return w
}

func (w *wire) accept() {
	for {
		client, err := w.listener.Accept()
		if err != nil {
			return
		}
		w.mu.Lock()
		network, target := w.network, w.target
		w.mu.Unlock()
		server, err := net.Dial(network, target)
		if err != nil {
			client.Close()
			continue
		}
		s := &strand{wire: w, client: client, server: server}
		s.silent.Store(w.hole.Load())
		w.mu.Lock()
		w.links = append(w.links, s)
		w.mu.Unlock()
		w.running.Go(s.toServer)
		w.running.Go(s.toClient)
	}
}

// toServer carries what the client says. If the connection is silent when the client goes, the server finds out later.
func (s *strand) toServer() {
	defer s.end()
	buffer := make([]byte, 32<<10)
	for {
		n, err := s.client.Read(buffer)
		if err != nil {
			if s.silent.Load() {
				s.linger()
			}
			return
		}
		if s.silent.Load() {
			continue
		}
		if _, err := s.server.Write(buffer[:n]); err != nil {
			return
		}
	}
}

// linger keeps the server's side of a silent connection for a while after the client has gone.
func (s *strand) linger() {
	timer := time.NewTimer(5 * time.Second)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-s.wire.closed:
	}
}

// toClient carries what the server says, message by message (PostgreSQL manual, chapter 55), so that a cut is in the middle
// of one.
func (s *strand) toClient() {
	var head [5]byte
	for {
		if _, err := io.ReadFull(s.server, head[:]); err != nil {
			break
		}
		message := make([]byte, 1+int(binary.BigEndian.Uint32(head[1:])))
		copy(message, head[:])
		if _, err := io.ReadFull(s.server, message[5:]); err != nil {
			break
		}
		if s.silent.Load() {
			continue
		}
		if s.wire.cutsNow() {
			_, _ = s.client.Write(message[:len(message)/2]) // whether it arrives is the client's matter
			break
		}
		if _, err := s.client.Write(message); err != nil {
			break
		}
	}
	if !s.silent.Load() { // else the client does not hear that the server has gone
		s.end()
	}
}

func (s *strand) end() {
	s.client.Close()
	s.server.Close()
	s.wire.mu.Lock()
	defer s.wire.mu.Unlock()
	s.wire.links = slices.DeleteFunc(s.wire.links, func(other *strand) bool { return other == s })
}

func (w *wire) cutsNow() bool {
	n := w.oneIn.Load()
	if n == 0 {
		return false
	}
	w.mu.Lock()
	cut := w.dice.Int64N(n) == 0
	w.mu.Unlock()
	if cut {
		w.cuts.Add(1)
	}
	return cut
}

// silence lets one connection go silent for good. It tells whether there was one.
func (w *wire) silence() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	heard := slices.DeleteFunc(slices.Clone(w.links), func(s *strand) bool { return s.silent.Load() })
	if len(heard) == 0 {
		return false
	}
	heard[w.dice.IntN(len(heard))].silent.Store(true)
	return true
}

// swallow lets everything go silent: those that are there, and those to come.
func (w *wire) swallow() {
	w.hole.Store(true)
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.links {
		s.silent.Store(true)
	}
}

// retarget leads to another server from now on, and ends what leads to the old one.
func (w *wire) retarget(network, target string) {
	w.mu.Lock()
	w.network, w.target = network, target
	links := slices.Clone(w.links)
	w.mu.Unlock()
	for _, s := range links {
		s.client.Close()
		s.server.Close()
	}
}

func (w *wire) close() {
	select {
	case <-w.closed:
		return
	default:
		close(w.closed)
	}
	w.listener.Close()
	w.mu.Lock()
	links := slices.Clone(w.links)
	w.mu.Unlock()
	for _, s := range links {
		s.client.Close()
		s.server.Close()
	}
	w.running.Wait()
}

// postgres is a server of one campaign. It keeps what it commits: fsync and the rest are on.
type postgres struct {
	t        *testing.T
	folder   string
	settings map[string]string
	running  *pgembed.Server

	programs, unflushed string // of a server that can lose its power: its programs, and its notes of what it has not flushed
}

const startLimit = 2 * time.Minute // on a busy machine; a download of the server where there is none

// newTemplate makes a migrated data folder, to be copied.
func newTemplate(t *testing.T, migrate func(url string)) *postgres {
	t.Helper()
	p := &postgres{t: t, folder: dbtest.Folder(t)}
	p.start()
	migrate(p.url())
	p.stop()
	return p
}

// copyTo makes a server with a copy of the data of this one, which does not run.
func (p *postgres) copyTo(t *testing.T, folder string, settings map[string]string) *postgres {
	t.Helper()
	target := filepath.Join(folder, "data")
	said, err := exec.CommandContext(t.Context(), "cp", "-a", filepath.Join(p.folder, "data"), target).CombinedOutput()
	assert.NoError(t, err, "copy a database", said)
	return &postgres{t: t, folder: folder, settings: settings}
}

// allowReplication has the server let a standby in where it lets us in. By default it rejects replication.
func (p *postgres) allowReplication() {
	p.t.Helper()
	rules := filepath.Join(p.folder, "pg_hba.conf")
	assert.NoError(p.t, os.WriteFile(rules, []byte("local  all,replication  pawl  peer  map=pawl\n"), 0o644))
	p.settings["hba_file"] = rules
}

// start starts the server and returns when it answers.
func (p *postgres) start() {
	p.t.Helper()
	assert.NoError(p.t, p.tryStart())
}

func (p *postgres) tryStart() error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(p.t.Context()), startLimit)
	defer cancel()
	settings := map[string]string{"max_connections": "300", "max_wal_size": "256MB", "shared_buffers": "64MB", "wal_compression": "off"}
	maps.Copy(settings, p.settings)
	running, err := pgembed.Start(ctx, pgembed.Config{Dir: p.folder, BinDir: p.programs, Settings: settings})
	if err == nil {
		p.running = running
	}
	return err
}

func (p *postgres) url() string { return p.running.URL("postgres") }

// socket is where the server listens.
func (p *postgres) socket() (network, address string) {
	config, err := pgconn.ParseConfig(p.url())
	assert.NoError(p.t, err)
	return pgconn.NetworkAddress(config.Host, config.Port)
}

// stop is pg_ctl stop -m fast.
func (p *postgres) stop() { p.end(0) }

// end sends a signal to the first process of the server and waits for its end: SIGQUIT is an immediate shutdown, SIGKILL
// what the out-of-memory killer does.
func (p *postgres) end(signal syscall.Signal) {
	if p.running == nil {
		return
	}
	if signal != 0 {
		_ = syscall.Kill(p.running.PID(), signal)
		<-p.running.Exited()
	}
	_ = p.running.Stop(context.WithoutCancel(p.t.Context())) // it may have ended by itself, on a full disk
}

func (p *postgres) ended() bool {
	select {
	case <-p.running.Exited():
		return true
	default:
		return false
	}
}

// session connects to the server itself, past all proxies. It is closed with the test. Whatever the default of the database
// is, what is done here does not fail because of what the replicas do meanwhile.
func (p *postgres) session(ctx context.Context) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	config, err := pgx.ParseConfig(p.url())
	if err != nil {
		return nil, err
	}
	config.RuntimeParams["default_transaction_isolation"] = "read committed"
	return pgx.ConnectConfig(ctx, config)
}

// ask reads a number.
func (p *postgres) ask(ctx context.Context, query string) (n int) {
	conn, err := p.session(ctx)
	if err != nil {
		return 0
	}
	defer conn.Close(context.WithoutCancel(ctx))
	_ = conn.QueryRow(ctx, query).Scan(&n) // 0 where there is no answer
	return n
}

// exec runs a statement that must succeed.
func (p *postgres) exec(statement string) {
	p.t.Helper()
	conn, err := p.session(p.t.Context())
	assert.NoError(p.t, err)
	defer conn.Close(p.t.Context())
	assert.NoError(p.t, assert.Err(conn.Exec(p.t.Context(), statement)), statement)
}

// user is the name that the URLs of the server have.
func (p *postgres) user() string {
	config, err := pgconn.ParseConfig(p.url())
	assert.NoError(p.t, err)
	return config.User
}

// throughTCP is the URL of the server's database at another address.
func (p *postgres) throughTCP(address net.Addr) string {
	return "postgres://" + p.user() + "@" + address.String() + "/postgres?sslmode=disable"
}

// escaped is a path within a connection string of libpq.
func escaped(path string) string { return "'" + strings.ReplaceAll(path, "'", `\'`) + "'" }

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
	assert.NoError(t, os.WriteFile(filepath.Join(p.folder, "pgbouncer.ini"), []byte(text), 0o644))
	if os.Geteuid() == 0 {
		assert.NoError(t, os.Chown(p.folder, nobody, nobody))
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
