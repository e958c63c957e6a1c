package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"pawl/internal/pgembed"
	"pawl/test/bench/machine"
)

// peer is a way to process orders.
type peer struct {
	name   string
	engine func(context.Context, *site) (*machine.Process, error) // starts a server that the code needs besides PostgreSQL; nil: none
	code   func(context.Context) error                            // runs in a process of its own; nil: binary does
	binary string                                                 // that prepare builds
	joined func(context.Context, *site) error                     // is repeated until the code is ready; nil: its /health says so

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

	engineProcess, codeProcess *machine.Process
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
	s.port = machine.FreePort()
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
	command.Env = append(machine.Inherited(), "DATABASE_URL="+s.url, "PAWL_LISTEN=127.0.0.1", "PORT="+strconv.Itoa(s.port), "ENGINE="+s.engineAddress)
	ready := machine.Answers("http://" + at(s.port) + "/health")
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
	for _, p := range []*machine.Process{s.codeProcess, s.engineProcess} {
		if p != nil {
			_ = p.Stop(2 * time.Second) // engines wait long, and their databases are dropped
		}
	}
	for _, conn := range []*pgx.Conn{s.conn, s.admin} {
		if conn != nil {
			err = errors.Join(err, conn.Close(ctx))
		}
	}
	return err
}

// run starts a command, and waits until ready returns nil.
func (s *site) run(ctx context.Context, command *exec.Cmd, ready func(context.Context) error) (*machine.Process, error) {
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // so that Ctrl-C reaches only this program, which stops them
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return machine.Start(ctx, command, s.folder, ready)
}

func freePorts(n int) (ports []int) {
	for range n {
		ports = append(ports, machine.FreePort())
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
