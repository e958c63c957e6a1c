package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"pawl/internal/pgembed"
)

// peer is a way to process orders.
type peer struct {
	name   string
	engine func(context.Context, *site) (*process, error) // starts a server that the code needs besides PostgreSQL; nil: none
	code   func(context.Context) error                    // runs in a process of its own; nil: binary does
	binary string                                         // that prepare builds
	joined func(context.Context, *site) error             // is repeated until the code is ready; nil: its /health says so

	path     func(orderID string) string // of a request; nil: /api/orders/process of the code
	attach   func(orderID string) string // answers for an order that a request has begun before; nil: a request does
	effects  bool                        // the effects are in the tables of this program, not in the peer's own
	patience time.Duration               // how long the peer may take to finish what it had begun when it was killed
}

// atOnce is the patience with a peer that continues as soon as it is back.
const atOnce = 15 * time.Second

var peers = []peer{
	{name: "by hand", binary: "baseline", patience: atOnce},
	{name: "Pawl", binary: "pawl", patience: 30 * time.Second},
	dbosPeer, riverPeer, restatePeer, localPeer, temporalPeer,
}

// Completed orders, and all that have begun, in the tables of this program or in those of Pawl and of the one by hand.
func (p peer) completed() string {
	if p.effects {
		return "SELECT order_id FROM confirmations"
	}
	return "SELECT order_id FROM orders WHERE status = 'completed'"
}

func (p peer) begun() string {
	if p.effects {
		return "SELECT order_id FROM charges"
	}
	return "SELECT order_id FROM orders"
}

// site is where a peer runs: a new database, and its processes.
type site struct {
	peer
	cluster       *pgembed.Server
	admin, conn   *pgx.Conn // to another database, and to that of the peer
	url           string
	tools, folder string        // what prepare made, and where this peer may write
	latency       time.Duration // added to every flush of the engine's own log, as it is to PostgreSQL's

	port          int    // of the code
	engineAddress string // of the engine, for the code
	front         string // to which callers send; the code, if the engine has set none

	engineProcess, codeProcess *process
}

const database = "peers"

// start creates the database and runs the peer on it. The caller stops it.
func (s *site) start(ctx context.Context) (err error) {
	if s.admin, err = pgx.Connect(ctx, s.cluster.URL("postgres")); err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	if err := s.create(ctx, database, "template1"); err != nil {
		return err
	}
	s.url = s.cluster.URL(database)
	config, err := pgx.ParseConfig(s.url)
	if err != nil {
		return err
	}
	config.RuntimeParams["search_path"] = "pawl, public"
	if s.conn, err = pgx.ConnectConfig(ctx, config); err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	if s.effects {
		if _, err := s.conn.PgConn().Exec(ctx, effects).ReadAll(); err != nil {
			return fmt.Errorf("create tables: %w", err)
		}
	}
	s.port = freePorts(1)[0]
	if s.engine != nil {
		if s.engineProcess, err = s.engine(ctx, s); err != nil {
			return fmt.Errorf("start engine: %w", err)
		}
	}
	s.front = cmp.Or(s.front, at(s.port))
	if err := s.startCode(ctx); err != nil {
		return err
	}
	if _, err := s.admin.Exec(ctx, "CHECKPOINT"); err != nil {
		return fmt.Errorf("write checkpoint: %w", err)
	}
	return nil
}

// create creates a database as a copy, in the place of an older one.
func (s *site) create(ctx context.Context, name, template string) error {
	for _, sql := range []string{"DROP DATABASE IF EXISTS " + name + " WITH (FORCE)", "CREATE DATABASE " + name + " TEMPLATE " + template} {
		if _, err := s.admin.Exec(ctx, sql); err != nil {
			return fmt.Errorf("create database: %w", err)
		}
	}
	return nil
}

// startCode starts the code, at first and after it was killed.
func (s *site) startCode(ctx context.Context) (err error) {
	command := exec.Command(filepath.Join(s.tools, s.binary), "serve")
	if s.code != nil {
		self, err := os.Executable()
		if err != nil {
			return err
		}
		command = exec.Command(self, "code", s.name)
	}
	inherited := slices.DeleteFunc(os.Environ(), func(line string) bool { return strings.HasPrefix(line, "PAWL_") })
	command.Env = append(inherited, "DATABASE_URL="+s.url, "PAWL_LISTEN=127.0.0.1", "PORT="+strconv.Itoa(s.port), "ENGINE="+s.engineAddress)
	ready := answers("http://" + at(s.port) + "/health")
	if s.joined != nil {
		ready = func(ctx context.Context) error { return s.joined(ctx, s) }
	}
	if s.codeProcess, err = s.run(ctx, command, ready); err != nil {
		return fmt.Errorf("start code: %w", err)
	}
	return nil
}

// stop ends what start has begun, also after an error.
func (s *site) stop(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	s.codeProcess.stop()
	s.engineProcess.stop()
	for _, conn := range []*pgx.Conn{s.conn, s.admin} {
		if conn != nil {
			err = errors.Join(err, conn.Close(ctx))
		}
	}
	return err
}

// process is a process that runs.
type process struct {
	command *exec.Cmd
	log     string
	ended   chan struct{}
}

// run starts a command, and waits until ready returns nil.
func (s *site) run(ctx context.Context, command *exec.Cmd, ready func(context.Context) error) (*process, error) {
	log, err := os.CreateTemp(s.folder, filepath.Base(command.Path)+"-*.log")
	if err != nil {
		return nil, err
	}
	defer log.Close()
	command.Dir, command.Stdout, command.Stderr = s.folder, log, log
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // so that Ctrl-C reaches only this program, which stops them
	if err := command.Start(); err != nil {
		return nil, fmt.Errorf("start: %w", err)
	}
	p := &process{command: command, log: log.Name(), ended: make(chan struct{})}
	go func() { // ends with the process, for which stop waits
		_ = command.Wait() // nobody asks how it ended
		close(p.ended)
	}()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for err := ready(ctx); err != nil; err = ready(ctx) {
		select {
		case <-p.ended:
			return p, fmt.Errorf("%s ended at its start: %s", command.Path, p.tail())
		case <-ctx.Done():
			return p, fmt.Errorf("wait for %s: %w: %s", command.Path, err, p.tail())
		case <-time.After(50 * time.Millisecond):
		}
	}
	return p, nil
}

// stop asks the process to end, and kills it after two seconds: engines wait long, and their databases are dropped.
func (p *process) stop() {
	if p == nil {
		return
	}
	_ = p.command.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.ended:
	case <-time.After(2 * time.Second):
		p.kill()
	}
}

func (p *process) kill() {
	_ = p.command.Process.Kill()
	<-p.ended
}

func (p *process) tail() string {
	text, _ := os.ReadFile(p.log)
	return string(text[max(0, len(text)-2000):])
}

// answers returns a function that succeeds when a GET is answered with 200.
func answers(url string) func(context.Context) error {
	return func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
		if err != nil {
			return err
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return err
		}
		response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return errors.New(response.Status)
		}
		return nil
	}
}

// freePorts are free at the moment, and under 32,768: Temporal stores its own as int2.
func freePorts(n int) (ports []int) {
	for len(ports) < n {
		port := 20_000 + rand.IntN(12_000)
		listener, err := net.Listen("tcp", at(port))
		if err == nil {
			listener.Close()
			ports = append(ports, port)
		}
	}
	return ports
}

func at(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
