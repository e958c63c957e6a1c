package migrations_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"pawl/fsm"
	"pawl/internal/pg"
	"pawl/test/dbtest"
)

const (
	refundsGuard = "23514 refunds_guard"
	askRefund    = `INSERT INTO refunds (order_no, generation, number, currency, amount, restock, request_id)
		SELECT ` + numberOf + `, 0, $1::integer, 'USD', $2::text::numeric, nullif($3::integer, 0), 'id ' || $1`
)

// plantSold brings an order to its end, with its charge of 10 and its reservation of 2.
func (c *client) plantSold() {
	c.t.Helper()
	c.plant("planted", fsm.Completed)
	c.do(`INSERT INTO charges (order_no, generation, currency, amount) SELECT ` + numberOf + `, 0, 'USD', 10`)
	c.do(`INSERT INTO reservations (order_no, generation, item, quantity) SELECT ` + numberOf + `, 0, 'widget', 2`)
}

func TestRefundsStayWithinTheOrder(t *testing.T) {
	t.Parallel()
	c := connect(t, dbtest.New(t))
	c.plantSold()
	for _, much := range []string{"10.01", "0", "-1"} {
		if err := c.try(askRefund, 1, much, 0); err == nil {
			t.Errorf("%s of 10 was taken", much)
		}
	}
	c.refused(refundsGuard, askRefund, 1, "1", 3) // units of 2
	c.accepted(askRefund, 1, "10", 2)
	c.do(askRefund, 1, "4", 1)
	c.refused("23505 refunds_pkey", askRefund, 1, "1", 0)
	c.refused(refundsGuard, askRefund, 2, "6.01", 0)
	c.refused(refundsGuard, askRefund, 2, "6", 2)
	for _, state := range []string{"pending", "in_doubt", "accepted", "done"} { // all of them count
		c.do(`UPDATE refunds SET state = $1`, state)
		c.refused(refundsGuard, askRefund, 2, "6.01", 0)
	}
	c.refused(refundsGuard, `UPDATE refunds SET amount = 3`)
	c.refused(refundsGuard, `UPDATE refunds SET restock = NULL`)
	c.refused(refundsGuard, `UPDATE refunds SET number = 2`)
	c.refused(refundsGuard, `UPDATE refunds SET request_id = 'b'`)
	c.refused("23505 refunds_request", `INSERT INTO refunds (order_no, generation, number, currency, amount, request_id) SELECT order_no, 0, 2, 'USD', 1, 'id 1' FROM refunds`)
	c.refused(refundsGuard, `INSERT INTO refunds (order_no, generation, number, currency, amount) SELECT order_no, 0, 2, 'USD', 1 FROM refunds`)
	c.do(`UPDATE refunds SET state = 'failed'`)
	c.refused(refundsGuard, `UPDATE refunds SET state = 'done'`)
	c.accepted(askRefund, 2, "10", 1)              // what failed does not count
	c.refused(refundsGuard, askRefund, 2, "10", 2) // but its unit is back
	c.plant("charging", fsm.Charging)
	c.do(`INSERT INTO charges (order_no, generation, currency, amount) SELECT order_no, 0, 'USD', 10 FROM orders WHERE order_id = 'charging'`)
	c.refused(refundsGuard, `INSERT INTO refunds (order_no, generation, number, currency, amount, request_id) SELECT order_no, 0, 1, 'USD', 1, 'a' FROM charges ORDER BY order_no DESC LIMIT 1`)
	c.refused("23514 refund_state", `UPDATE refunds SET state = 'undone'`)
}

func TestOnlyWhatWasSoldIsRefunded(t *testing.T) {
	t.Parallel()
	database := dbtest.New(t)
	for name, statement := range map[string]string{
		"another currency":             `UPDATE charges SET currency = 'EUR'`,
		"an undone charge":             `UPDATE charges SET refunded_at = now()`,
		"no charge":                    `SET LOCAL pawl.archive = 'on'; DELETE FROM charges`,
		"the charge of somebody else":  `UPDATE charges SET executor = 'stripe'`,
		"the charge of another time":   `UPDATE charges SET generation = 1`,
		"units of somebody else":       `UPDATE reservations SET executor = 'http'`,
		"units that were released":     `UPDATE reservations SET released_at = now()`,
		"units of another reservation": `UPDATE reservations SET generation = 1`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := connect(t, database)
			c.plantSold()
			c.accepted(askRefund, 1, "1", 1)
			c.do(statement)
			c.refused(refundsGuard, askRefund, 1, "1", 1)
		})
	}
}

// Ten clients of each isolation level ask for a third of the charge at the same time, without the service: three get it.
func TestConcurrentRefundsStayWithinTheCharge(t *testing.T) {
	t.Parallel()
	for _, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} {
		t.Run(string(level), func(t *testing.T) {
			t.Parallel()
			database := dbtest.New(t)
			tx, err := database.Pool.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			planter := &client{t, tx}
			planter.plantSold()
			if err := tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			var clients sync.WaitGroup
			for n := range 10 {
				clients.Go(func() {
					if err := askAs(t, database, level, n+1); err != nil {
						t.Error(err)
					}
				})
			}
			clients.Wait()
			c := connect(t, database)
			if sum := valueOf[string](c, `SELECT count(*) || ' of ' || sum(amount) FROM refunds`); sum != "3 of 9.99" {
				t.Error(sum)
			}
		})
	}
}

// askAs asks for 3.33 until it is there or refused.
func askAs(t *testing.T, database *dbtest.Database, level pgx.TxIsoLevel, number int) error {
	t.Helper()
	for {
		err := pgx.BeginTxFunc(t.Context(), database.Pool, pgx.TxOptions{IsoLevel: level}, func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), askRefund, number, "3.33", 0)
			return err
		})
		switch said := pg.Describe(err); {
		case err == nil || said == refundsGuard:
			return nil
		case errors.Is(err, t.Context().Err()) || len(said) < 5 || said[:5] != "40001":
			return fmt.Errorf("ask for refund %d: %s: %w", number, said, err)
		}
	}
}
