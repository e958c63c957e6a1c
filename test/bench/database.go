package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/jackc/pgx/v5"

	"pawl/internal/pgembed"
)

// database is a new database of the cluster, and a connection to inspect it.
type database struct {
	url    string
	name   string
	conn   *pgx.Conn
	admin  *pgx.Conn // to another database, to drop this one
	server int       // pid of the postmaster
}

// newDatabase creates an empty database, after a checkpoint, so that no run pays for the writes of the one before it.
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

// connect sets the search_path for the tables of this release, of earlier ones and of the baseline.
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

// drop removes the database. It works even if ctx has ended.
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

// check compares the stored orders after a number with how many were answered: each must be completed, and have one
// charge, one reservation and four moves. It returns the differences, or nothing.
func (d *database) check(ctx context.Context, after int64, answered int) (mismatch string, err error) {
	var orders, charges, reservations, moves int
	err = d.conn.QueryRow(ctx, `SELECT
		(SELECT count(*) FROM orders WHERE order_no > $1 AND status = 'completed'),
		(SELECT count(*) FROM charges WHERE order_no > $1),
		(SELECT count(DISTINCT order_no) FROM reservations WHERE order_no > $1),
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

// A full table costs most after a checkpoint, when the first change of each page is written whole. With ten times the
// usual number of checkpoints, spread as usual, every run spans two of them, which is worse than real use.
var storedSettings = map[string]string{"checkpoint_timeout": "30s"}

const storedWindow = 90 * time.Second

var storedCallers = []int{64, 256}

const storedItems = 10_000

// withStored measures the service alternately on an empty database and on one with many orders, under the same load and
// for the same time.
func (p *plan) withStored(ctx context.Context) (err error) {
	d, err := p.filled(ctx, p.stored, fillSQL, storedItems, p.ordered)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.drop(ctx)) }()
	w := p.window
	w.length = max(w.length, storedWindow)
	for _, callers := range storedCallers {
		for round := range 2 * p.rounds {
			r := run{setup: setup{Target: "pawl", Callers: callers, Items: storedItems}, window: w}
			if round%4 == 1 || round%4 == 2 { // empty, stored, stored, empty
				r.database = d
			}
			if err := execAll(ctx, d.conn, "CHECKPOINT"); err != nil {
				return err
			}
			if err := p.do(ctx, r); err != nil {
				return err
			}
		}
	}
	return nil
}

// filled creates a database with the schema and orders, as the service would have written them.
func (p *plan) filled(ctx context.Context, orders int64, sql string, shape ...any) (*database, error) {
	d, err := p.database(ctx)
	if err != nil {
		return nil, err
	}
	s, err := p.built["pawl"].start(ctx, d.url, p.folder)
	if err == nil {
		err = s.stop()
	}
	if err == nil {
		err = d.fill(ctx, orders, sql, shape...)
	}
	if err != nil {
		return nil, errors.Join(err, d.drop(ctx))
	}
	return d, nil
}

// fillSize orders are one transaction.
const fillSize = 250_000

// fill adds orders while no service runs. The statement gets how many to store now, how many are missing, and the shape.
func (d *database) fill(ctx context.Context, orders int64, sql string, shape ...any) error {
	// The triggers would reject orders that begin as completed.
	if err := execAll(ctx, d.conn, "SET session_replication_role = replica"); err != nil {
		return err
	}
	for done := int64(0); done < orders; done += fillSize {
		fmt.Fprintf(os.Stderr, "\rstoring orders: %d of %d", done, orders)
		if _, err := d.conn.Exec(ctx, sql, append([]any{min(fillSize, orders-done), orders - done}, shape...)...); err != nil {
			return fmt.Errorf("store orders: %w", err)
		}
	}
	fmt.Fprintf(os.Stderr, "\rstoring orders: %d of %d\n", orders, orders)
	return execAll(ctx, d.conn, "RESET session_replication_role", fillItemsSQL, fillBatchesSQL, "VACUUM (ANALYZE)", "SELECT pg_stat_reset()")
}

// fillSQL stores completed orders, whose ids are uuidv7 ($4) or random.
const fillSQL = `
WITH stored AS (
  INSERT INTO orders (order_id, status, ended_as, fence, seq, created_at, finished_at, amount, currency, item)
  SELECT CASE WHEN $4::boolean THEN lpad(to_hex((extract(epoch FROM clock_timestamp()) * 1000)::bigint), 12, '0') ELSE '' END
      || right(encode(uuid_send(gen_random_uuid()), 'hex'), CASE WHEN $4::boolean THEN 20 ELSE 32 END),
    'completed', 'completed', 1, 4, now(), now(), 99.99, 'USD',
    'item-' || lpad((floor(random() * $3::integer))::text, 5, '0')
  FROM generate_series(1, $1::bigint) WHERE $2::bigint > 0
  RETURNING order_no, order_id, item, quantity, amount, currency
), charged AS (
  INSERT INTO charges (order_no, generation, currency, amount) SELECT order_no, 0, currency, amount FROM stored
), reserved AS (
  INSERT INTO reservations (order_no, generation, item, quantity) SELECT order_no, 0, item, quantity FROM stored
)
INSERT INTO transitions (order_no, seq, from_status, to_status, fence, id_hash, previous_no)
SELECT s.order_no, m.seq, m.from_status, m.to_status, 1,
  CASE WHEN m.seq = 1 THEN hashtext(s.order_id) END, CASE WHEN m.seq = 1 AND s.order_no > 1 THEN s.order_no - 1 END
FROM stored AS s CROSS JOIN (VALUES
  (1, 'pending', 'charging'), (2, 'charging', 'reserving'), (3, 'reserving', 'confirming'), (4, 'confirming', 'completed')
) AS m(seq, from_status, to_status)`

// Everything stored is sold: nothing is reserved, and untracked items have no stock.
const fillItemsSQL = `INSERT INTO inventory (item, sold) SELECT item, sum(quantity) FROM reservations GROUP BY item
  ON CONFLICT (item) DO UPDATE SET sold = excluded.sold`

// All events have their numbers already, because numbering millions of them is not measured.
const fillBatchesSQL = `WITH last AS (
    SELECT coalesce(max(last_event_no), 0) AS event_no, coalesce(max(position_to), 0) AS position FROM event_batches)
  INSERT INTO event_batches (first_event_no, last_event_no, position_from, position_to, epoch, whole)
  SELECT l.event_no + sum(t.events) OVER w - t.events + 1, l.event_no + sum(t.events) OVER w, lag(t.position + 1, 1, l.position) OVER w,
    t.position + 1, (SELECT coalesce(max(e.epoch), 0) FROM event_epochs AS e), true
  FROM (SELECT position, count(*) AS events FROM transitions WHERE position >= (SELECT position FROM last) GROUP BY position) AS t, last AS l
  WINDOW w AS (ORDER BY t.position)`
