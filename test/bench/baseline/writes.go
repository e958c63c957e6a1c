package main

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// write is a statement that must change exactly one row.
type write struct {
	sql    string
	args   []any
	refuse error // what it means when no row was changed; nil: impossible
}

func charge(o order) write {
	return write{sql: `INSERT INTO charges (order_no, amount) VALUES ($1, $2)`, args: []any{o.no, o.amount}}
}

func reserve(o order) write {
	return write{sql: `INSERT INTO reservations (order_no, item, quantity) VALUES ($1, $2, $3)`, args: []any{o.no, o.item, o.quantity}}
}

// take reserves the units. An item that was never given stock does not run out.
func take(o order) write {
	return write{sql: `INSERT INTO inventory AS i (item, reserved) VALUES ($1, $2)
		ON CONFLICT (item) DO UPDATE SET reserved = i.reserved + excluded.reserved
		WHERE NOT i.tracked OR i.reserved + excluded.reserved <= i.on_hand`, args: []any{o.item, o.quantity}, refuse: errOutOfStock}
}

// sell takes the reserved units off the shelf.
func sell(o order) write {
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
