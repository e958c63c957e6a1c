// Command baseline is the service as a careful engineer writes it by hand: net/http
// and a connection pool, one table of orders, and each step a transaction of its own
// that locks the order with SELECT … FOR UPDATE, looks at its state, does the step's
// effect, updates the order and commits. It is what Pawl is measured against.
//
// Per order it commits four transactions and writes the same rows as Pawl: the order, its charge, its reservation, the
// stock of its item (when it is reserved and when it is sold), and one history row per move. It lacks leases, recovery
// by another process, the guard in the database, and lists with their indexes. With PROVIDER set to the URL of a
// provider, see remote.
package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"regexp"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

//go:embed schema.sql
var schema string

func main() {
	ctx := context.Background()
	pool, err := open(ctx)
	if err != nil {
		log.Fatal(err)
	}
	s := server{pool}
	run := s.run
	if provider := os.Getenv("PROVIDER"); provider != "" {
		r, err := newRemote(ctx, s, provider)
		if err != nil {
			log.Fatal(err)
		}
		run = r.run
	}
	http.HandleFunc("GET /health", func(w http.ResponseWriter, r *http.Request) {
		if err := pool.Ping(r.Context()); err != nil {
			http.Error(w, "database does not answer", http.StatusServiceUnavailable)
		}
	})
	http.HandleFunc("POST /api/orders/process", func(w http.ResponseWriter, r *http.Request) { process(w, r, run) })
	log.Fatal(http.ListenAndServe(net.JoinHostPort("127.0.0.1", os.Getenv("PORT")), nil))
}

// poolSize is how many connections the baseline has.
const poolSize = 32

// open opens the pool and creates the tables, unless an earlier process has.
func open(ctx context.Context) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(os.Getenv("DATABASE_URL"))
	if err != nil {
		return nil, fmt.Errorf("parse database url: %w", err)
	}
	config.MaxConns = poolSize
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	var there bool
	if err := pool.QueryRow(ctx, "SELECT to_regclass('orders') IS NOT NULL").Scan(&there); err != nil {
		return nil, fmt.Errorf("look for tables: %w", err)
	}
	if there {
		return pool, nil
	}
	if _, err := pool.Exec(ctx, schema); err != nil {
		return nil, fmt.Errorf("create tables: %w", err)
	}
	return pool, nil
}

type input struct {
	OrderID string      `json:"orderId"`
	Amount  json.Number `json:"amount"`
	Item    string      `json:"item"`
	Lines   []line      `json:"lines"`
}

type line struct {
	Item     string `json:"item"`
	Quantity int    `json:"quantity"`
}

type step struct {
	Completed bool `json:"completed"`
}

type answer struct {
	OrderID string `json:"orderId"`
	Status  string `json:"status"`
	Steps   struct {
		Charge  step `json:"charge"`
		Reserve step `json:"reserve"`
		Confirm step `json:"confirm"`
	} `json:"steps"`
}

var amountFormat = regexp.MustCompile(`^[0-9]{1,15}(\.[0-9]{1,2})?$`)

// process runs an order and answers with it when it has ended.
func process(w http.ResponseWriter, r *http.Request, run func(context.Context, input) (string, error)) {
	var in input
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 64<<10)).Decode(&in); err != nil {
		http.Error(w, "body is not an order", http.StatusBadRequest)
		return
	}
	if in.OrderID == "" || in.Item == "" && in.Lines == nil || !amountFormat.MatchString(in.Amount.String()) {
		http.Error(w, "orderId, amount and item are needed", http.StatusUnprocessableEntity)
		return
	}
	status, err := run(r.Context(), in)
	if errors.Is(err, errConflict) {
		http.Error(w, err.Error(), http.StatusConflict)
		return
	}
	if err != nil {
		log.Print(err)
		http.Error(w, "try again", http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(describe(in.OrderID, status)); err != nil {
		log.Print(err)
	}
}

func describe(orderID, status string) answer {
	a := answer{OrderID: orderID, Status: status}
	switch status {
	case "completed":
		a.Steps.Confirm.Completed = true
		fallthrough
	case "confirming":
		a.Steps.Reserve.Completed = true
		fallthrough
	case "reserving":
		a.Steps.Charge.Completed = true
	}
	return a
}

var (
	errConflict   = errors.New("the order exists with other input")
	errOutOfStock = errors.New("out of stock")
)

type server struct{ pool *pgxpool.Pool }

type order struct {
	no       int64
	id       string
	status   string
	item     string
	quantity int
	amount   string
}

// run moves the order from its current status to its end.
func (s *server) run(ctx context.Context, in input) (status string, err error) {
	if err := s.admit(ctx, in); err != nil {
		return "", fmt.Errorf("admit order: %w", err)
	}
	for {
		status, err = s.step(ctx, in.OrderID)
		if err != nil {
			return "", fmt.Errorf("move order: %w", err)
		}
		if status == "completed" || status == "failed" {
			return status, nil
		}
	}
}

// admit stores the order unless it exists; if it exists with other input, that is a conflict.
func (s *server) admit(ctx context.Context, in input) error {
	return pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		var no int64
		err := tx.QueryRow(ctx, `INSERT INTO orders (order_id, status, item, amount) VALUES ($1, 'charging', $2, $3)
			ON CONFLICT (order_id) DO NOTHING RETURNING order_no`, in.OrderID, in.Item, in.Amount.String()).Scan(&no)
		if errors.Is(err, pgx.ErrNoRows) {
			return compare(ctx, tx, in)
		}
		if err != nil {
			return err
		}
		if in.Lines != nil {
			if err := s.write(ctx, tx, lines(no, in.Lines)); err != nil {
				return err
			}
		}
		return s.write(ctx, tx, history(no, 1, "pending", "charging"))
	})
}

func compare(ctx context.Context, tx pgx.Tx, in input) error {
	var same bool
	err := tx.QueryRow(ctx, `SELECT item = $2 AND amount = $3 FROM orders WHERE order_id = $1`,
		in.OrderID, in.Item, in.Amount.String()).Scan(&same)
	if err == nil && !same {
		return errConflict
	}
	return err
}

// step makes the next move of the order and returns the new status. The row lock prevents a concurrent move.
func (s *server) step(ctx context.Context, orderID string) (status string, err error) {
	err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		var o order
		err := tx.QueryRow(ctx, `SELECT order_no, status, item, quantity, amount::text FROM orders WHERE order_id = $1 FOR UPDATE`,
			orderID).Scan(&o.no, &o.status, &o.item, &o.quantity, &o.amount)
		if err != nil {
			return err
		}
		status = o.status
		switch o.status {
		case "charging":
			status = "reserving"
			return s.write(ctx, tx, charge(o), update(o, status), history(o.no, 2, o.status, status))
		case "reserving":
			status = "confirming"
			// Here and below, the stock row, which many orders may need, is locked last and so for the shortest time.
			return s.write(ctx, tx, reserve(o), update(o, status), history(o.no, 3, o.status, status), take(o))
		case "confirming":
			status = "completed"
			return s.write(ctx, tx, update(o, status), history(o.no, 4, o.status, status), sell(o))
		}
		return nil
	})
	if errors.Is(err, errOutOfStock) {
		return s.fail(ctx, orderID)
	}
	return status, err
}

// fail refunds an order whose item is out of stock.
func (s *server) fail(ctx context.Context, orderID string) (status string, err error) {
	err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		var o order
		err := tx.QueryRow(ctx, `SELECT order_no, status FROM orders WHERE order_id = $1 FOR UPDATE`, orderID).Scan(&o.no, &o.status)
		if err != nil || o.status != "reserving" {
			status = o.status
			return err
		}
		status = "failed"
		refund := write{sql: `UPDATE charges SET refunded_at = now() WHERE order_no = $1`, args: []any{o.no}}
		return s.write(ctx, tx, refund, update(o, status), history(o.no, 3, o.status, status))
	})
	return status, err
}

// write is a statement that must change exactly one row.
type write struct {
	sql    string
	args   []any
	refuse error // the error if no row was changed; nil: impossible
}

func charge(o order) write {
	return write{sql: `INSERT INTO charges (order_no, amount) VALUES ($1, $2)`, args: []any{o.no, o.amount}}
}

func lines(no int64, lines []line) write {
	items, quantities := make([]string, len(lines)), make([]int, len(lines))
	for i, l := range lines {
		items[i], quantities[i] = l.Item, l.Quantity
	}
	return write{sql: `INSERT INTO order_lines (order_no, line, item, quantity)
		SELECT $1, l.line, l.item, l.quantity FROM unnest($2::text[], $3::integer[]) WITH ORDINALITY AS l(item, quantity, line)`,
		args: []any{no, items, quantities}}
}

// reserve, take and sell do so for all lines of an order at once, in the order of the items, if it has no item.
func reserve(o order) write {
	if o.item == "" {
		return write{sql: `INSERT INTO reservations (order_no, line, item, quantity)
			SELECT order_no, line, item, quantity FROM order_lines WHERE order_no = $1`, args: []any{o.no}}
	}
	return write{sql: `INSERT INTO reservations (order_no, item, quantity) VALUES ($1, $2, $3)`, args: []any{o.no, o.item, o.quantity}}
}

// take reserves the units. An item without stock is not limited.
func take(o order) write {
	if o.item == "" {
		return write{sql: `WITH wanted AS MATERIALIZED (
				SELECT item, sum(quantity) AS quantity FROM order_lines WHERE order_no = $1 GROUP BY item
			), taken AS (
				INSERT INTO inventory AS i (item, reserved) SELECT item, quantity FROM wanted ORDER BY item
				ON CONFLICT (item) DO UPDATE SET reserved = i.reserved + excluded.reserved
				WHERE NOT i.tracked OR i.reserved + excluded.reserved <= i.on_hand RETURNING item)
			SELECT 1 WHERE (SELECT count(*) FROM taken) = (SELECT count(*) FROM wanted)`, args: []any{o.no}, refuse: errOutOfStock}
	}
	return write{sql: `INSERT INTO inventory AS i (item, reserved) VALUES ($1, $2)
		ON CONFLICT (item) DO UPDATE SET reserved = i.reserved + excluded.reserved
		WHERE NOT i.tracked OR i.reserved + excluded.reserved <= i.on_hand`, args: []any{o.item, o.quantity}, refuse: errOutOfStock}
}

// sell removes the reserved units from the stock.
func sell(o order) write {
	if o.item == "" {
		return write{sql: `INSERT INTO inventory AS i (item, reserved)
			SELECT item, sum(quantity) FROM order_lines WHERE order_no = $1 GROUP BY item ORDER BY item
			ON CONFLICT (item) DO UPDATE SET reserved = i.reserved - excluded.reserved,
				on_hand = CASE WHEN i.tracked THEN i.on_hand - excluded.reserved ELSE i.on_hand END`, args: []any{o.no}}
	}
	return write{sql: `UPDATE inventory SET reserved = reserved - $2,
		on_hand = CASE WHEN tracked THEN on_hand - $2 ELSE on_hand END WHERE item = $1`, args: []any{o.item, o.quantity}}
}

func update(o order, status string) write {
	return write{sql: `UPDATE orders SET status = $2 WHERE order_no = $1`, args: []any{o.no, status}}
}

func history(no int64, seq int, from, to string) write {
	return write{sql: `INSERT INTO transitions (order_no, seq, from_status, to_status) VALUES ($1, $2, $3, $4)`,
		args: []any{no, seq, from, to}}
}

func (s *server) write(ctx context.Context, tx pgx.Tx, writes ...write) error {
	for _, w := range writes {
		tag, err := tx.Exec(ctx, w.sql, w.args...)
		if err != nil {
			return err
		}
		if tag.RowsAffected() == 0 && w.refuse != nil {
			return w.refuse
		}
	}
	return nil
}
