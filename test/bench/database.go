package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"pawl/internal/pgembed"
)

// database is one fresh database of the cluster and a connection to look at it.
type database struct {
	url    string
	name   string
	conn   *pgx.Conn
	admin  *pgx.Conn // to another database: the fresh one can't drop itself
	server int       // pid of the postmaster
}

// newDatabase creates an empty database, after a checkpoint so that no run pays for
// what the one before it wrote.
func newDatabase(ctx context.Context, c *pgembed.Server, name string) (*database, error) {
	admin, err := pgx.Connect(ctx, c.URL("postgres"))
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	d := &database{url: c.URL(name), name: name, admin: admin, server: c.PID()}
	if err := execAll(ctx, admin, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)", "CREATE DATABASE "+name, "CHECKPOINT"); err != nil {
		return nil, fmt.Errorf("create database: %w", err)
	}
	if d.conn, err = connect(ctx, d.url); err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	return d, nil
}

// connect finds the tables where this release has them, and where earlier ones and the baseline do.
func connect(ctx context.Context, url string) (*pgx.Conn, error) {
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	config.RuntimeParams["search_path"] = "pawl, public"
	return pgx.ConnectConfig(ctx, config)
}

func execAll(ctx context.Context, conn *pgx.Conn, statements ...string) error {
	for _, sql := range statements {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return fmt.Errorf("%.40s: %w", sql, err)
		}
	}
	return nil
}

// drop removes the database. It works when ctx has ended too.
func (d *database) drop(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	_ = d.conn.Close(ctx)
	defer d.admin.Close(ctx)
	if _, err := d.admin.Exec(ctx, "DROP DATABASE "+d.name+" WITH (FORCE)"); err != nil {
		return fmt.Errorf("drop database: %w", err)
	}
	return nil
}

// counters are what PostgreSQL has counted since it started.
type counters struct {
	WAL         int64 // bytes
	Checkpoints int64 // begun
	Flushes     int64 // of the log
}

func (d *database) counters(ctx context.Context) (counters, error) {
	checkpoints := "SELECT checkpoints_timed + checkpoints_req FROM pg_stat_bgwriter"
	version, _, _ := strings.Cut(d.conn.PgConn().ParameterStatus("server_version"), ".")
	if version >= "17" {
		checkpoints = "SELECT num_timed + num_requested FROM pg_stat_checkpointer"
	}
	flushes := "SELECT wal_sync FROM pg_stat_wal"
	if version >= "18" {
		flushes = "SELECT sum(fsyncs)::bigint FROM pg_stat_io WHERE object = 'wal'"
	}
	var c counters
	err := d.conn.QueryRow(ctx, `SELECT (pg_current_wal_lsn() - '0/0')::bigint, (`+checkpoints+`), (`+flushes+`)`).Scan(&c.WAL, &c.Checkpoints, &c.Flushes)
	if err != nil {
		return c, fmt.Errorf("read counters: %w", err)
	}
	return c, nil
}

// tableUse is how the table of orders was used since the database was created: the share of updates that stayed
// on their page, and scans of all of it. Counts of connections that are still open may be missing.
func (d *database) tableUse(ctx context.Context) (hotShare float64, sequentialScans int64, err error) {
	err = d.conn.QueryRow(ctx, `SELECT n_tup_hot_upd::float8 / greatest(n_tup_upd, 1), seq_scan FROM pg_stat_user_tables
		WHERE schemaname IN ('pawl', 'public') AND relname = 'orders'`).Scan(&hotShare, &sequentialScans)
	if err != nil {
		return 0, 0, fmt.Errorf("read table statistics: %w", err)
	}
	return hotShare, sequentialScans, nil
}

// lastOrder is the highest order_no, 0 in an empty table.
func (d *database) lastOrder(ctx context.Context) (int64, error) {
	var no int64
	err := d.conn.QueryRow(ctx, "SELECT coalesce(max(order_no), 0) FROM orders").Scan(&no)
	if err != nil {
		return 0, fmt.Errorf("read last order: %w", err)
	}
	return no, nil
}

// check compares what is stored of the orders after a number with how many were
// answered: each is completed, has one charge, one reservation and four moves. It
// says what differs, or nothing.
func (d *database) check(ctx context.Context, after int64, answered int) (mismatch string, err error) {
	var orders, charges, reservations, moves int
	err = d.conn.QueryRow(ctx, `SELECT
		(SELECT count(*) FROM orders WHERE order_no > $1 AND status = 'completed'),
		(SELECT count(*) FROM charges WHERE order_no > $1),
		(SELECT count(*) FROM reservations WHERE order_no > $1),
		(SELECT count(*) FROM transitions WHERE order_no > $1 AND from_status <> to_status)`, after).Scan(&orders, &charges, &reservations, &moves)
	if err != nil {
		return "", fmt.Errorf("check orders: %w", err)
	}
	if orders != answered || charges != answered || reservations != answered || moves != 4*answered {
		return fmt.Sprintf("%d orders answered, but %d completed, %d charges, %d reservations, %d moves stored",
			answered, orders, charges, reservations, moves), nil
	}
	return "", nil
}

// The size of a small real installation. What makes an answered order durable is on in every server of pgembed.
var settings = map[string]string{
	"shared_buffers": "512MB", "max_wal_size": "4GB", "min_wal_size": "1GB", "wal_compression": "off", "max_connections": "200",
}

// A server that has run for a while writes its log into old files; a new one must
// create each of them first, which takes a tenth of its processor time and holds up
// every commit meanwhile. These files, of 16 MB, make the old ones: 1 GB.
const walFiles = 64

// startCluster makes and starts the private PostgreSQL that all targets of a run are measured on, in folder, reachable by
// a unix socket only. Commits take commitLatency longer than the disk does. The caller stops it.
func startCluster(ctx context.Context, folder string, extra map[string]string, commitLatency time.Duration) (*pgembed.Server, error) {
	if err := os.Chmod(folder, 0o711); err != nil { // the user of PostgreSQL must get through
		return nil, err
	}
	all := maps.Clone(settings)
	maps.Copy(all, extra)
	config := pgembed.Config{Dir: filepath.Join(folder, "postgres"), BinDir: os.Getenv("PAWL_PG_BIN"), Settings: all}
	if commitLatency > 0 {
		usual, err := pgembed.Look(ctx, config)
		if err == nil && usual.Dir == "" {
			err = fmt.Errorf("PostgreSQL is not installed: %s", usual.Install)
		}
		if err == nil {
			config.BinDir, err = slowPrograms(ctx, folder, usual.Dir, commitLatency)
		}
		if err != nil {
			return nil, fmt.Errorf("make a slow disk: %w", err)
		}
	}
	return pgembed.Start(ctx, config)
}

// age makes the files of the write-ahead log that an older server would have.
func age(ctx context.Context, c *pgembed.Server) error {
	conn, err := pgx.Connect(ctx, c.URL("postgres"))
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer conn.Close(ctx)
	for range walFiles {
		if err := execAll(ctx, conn, "SELECT pg_logical_emit_message(false, 'bench', ''), pg_switch_wal()"); err != nil {
			return fmt.Errorf("fill log: %w", err)
		}
	}
	return execAll(ctx, conn, "CHECKPOINT")
}
