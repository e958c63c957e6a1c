package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

var (
	errConflict   = errors.New("the order exists with other input")
	errOutOfStock = errors.New("out of stock")
)

type server struct{ pool *pgxpool.Pool }

type order struct {
	no       int64
	status   string
	item     string
	quantity int
	amount   string
}

// run takes the order from where it stands to its end.
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

// admit stores the order unless it is known; known with other input is a conflict.
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

// step makes the next move of the order, whichever that is, and says where it
// stands then. The row lock keeps everybody else from the same move.
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
			// Here and below the stock row, which many orders may want, is locked last and so for the shortest time.
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

// fail refunds an order whose item ran out.
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
