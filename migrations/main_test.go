package migrations_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"

	"pawl/fsm"
	"pawl/internal/pg"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

func TestMain(m *testing.M) { dbtest.Main(m) }

// client is somebody with psql: it sends any statement, in a transaction that is rolled back with the test.
type client struct {
	t  *testing.T
	tx pgx.Tx
}

func connect(t *testing.T, database *dbtest.Database) *client {
	t.Helper()
	tx, err := database.Pool.Begin(t.Context())
	assert.NoError(t, err)
	t.Cleanup(func() {
		assert.Succeeds(t, tx.Rollback(context.WithoutCancel(t.Context())))
	})
	return &client{t, tx}
}

// refused sends a statement that must fail with this SQLSTATE and constraint, and leaves everything as it was.
func (c *client) refused(want, statement string, args ...any) {
	c.t.Helper()
	err := c.try(statement, args...)
	assert.True(c.t, err != nil && pg.Describe(err) == want, statement, args, "want", want, "got", err)
}

// accepted sends a statement that must succeed and change a row, and takes it back.
func (c *client) accepted(statement string, args ...any) {
	c.t.Helper()
	assert.Succeeds(c.t, c.try(statement, args...), statement, args)
}

var errNoRow = errors.New("no row was changed")

// try sends a statement under a savepoint.
func (c *client) try(statement string, args ...any) error {
	c.t.Helper()
	savepoint, err := c.tx.Begin(c.t.Context())
	assert.NoError(c.t, err)
	tag, err := savepoint.Exec(c.t.Context(), statement, args...)
	assert.NoError(c.t, savepoint.Rollback(c.t.Context()))
	if err == nil && tag.RowsAffected() == 0 {
		return errNoRow
	}
	return err
}

// do sends a statement that must succeed and change a row, and keeps it.
func (c *client) do(statement string, args ...any) {
	c.t.Helper()
	tag, err := c.tx.Exec(c.t.Context(), statement, args...)
	if err == nil && tag.RowsAffected() == 0 {
		err = errNoRow
	}
	assert.NoError(c.t, err, statement, args)
}

// change is what anybody can send from psql: a change of status with the columns that have to go with it.
const change = `UPDATE orders SET status = $2::text, seq = seq + 1, generation = generation + $3,
	ended_as = CASE WHEN $2::text IN ('completed', 'failed', 'canceled') THEN $2::text END,
	due_at = CASE WHEN $2::text NOT IN ('completed', 'failed', 'canceled') THEN now() END, owner = NULL, hold = NULL
	WHERE order_id = $1`

// plant brings an order into a state, one legal change after the other.
func (c *client) plant(orderID string, state fsm.State) {
	c.t.Helper()
	c.do(`INSERT INTO orders (order_id, status, due_at, fence, seq, currency, item, amount)
		VALUES ($1, 'pending', now(), 5, 5, 'USD', 'widget', 10)`, orderID)
	for _, s := range path(state) {
		c.do(change, orderID, s, 0)
	}
}

// path is a shortest way from pending to a state, pending left out.
func path(to fsm.State) []fsm.State {
	ways := map[fsm.State][]fsm.State{fsm.Pending: {}}
	for queue := []fsm.State{fsm.Pending}; ways[to] == nil; queue = queue[1:] {
		for _, e := range fsm.Edges() {
			if e.From == queue[0] && ways[e.To] == nil {
				ways[e.To] = append(slices.Clone(ways[e.From]), e.To)
				queue = append(queue, e.To)
			}
		}
	}
	return ways[to]
}

func valueOf[T any](c *client, sql string, args ...any) (v T) {
	c.t.Helper()
	assert.NoError(c.t, c.tx.QueryRow(c.t.Context(), sql, args...).Scan(&v), sql)
	return v
}
