package events_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"pawl/db"
	"pawl/internal/events"
	"pawl/internal/orders"
	"pawl/internal/pg"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

func TestMain(m *testing.M) { dbtest.Main(m) }

// feed is a database with a history that a test writes itself, and a reader of its events.
type feed struct {
	*testing.T
	*dbtest.Database
	query  *db.Queries // as the role of the service
	reader *events.Reader
	owner  uuid.UUID
	fence  int64
}

func newFeed(t *testing.T) *feed {
	t.Helper()
	f := &feed{T: t, Database: dbtest.New(t), owner: uuid.New()}
	f.open()
	f.exec(`INSERT INTO orders (status, order_id, currency, item, amount, due_at)
		SELECT 'pending', 'order-' || n, 'EUR', 'widget', 9.99, now() FROM generate_series(1, 9) AS n`)
	return f
}

// open connects as the service does, and with all rights where there is no pool for that yet.
func (f *feed) open() {
	f.Helper()
	if f.Pool == nil {
		admin, err := pgxpool.New(f.Context(), f.URL)
		assert.NoError(f, err)
		f.Cleanup(admin.Close)
		f.Pool = admin
	}
	f.query = db.New(dbtest.Open(f, f.URL, pg.Options{MaxConns: 4}))
	f.reader = events.NewReader(f.query, orders.NewReader(f.Context(), f.query))
}

func (f *feed) exec(sql string, args ...any) {
	f.Helper()
	assert.NoError(f, assert.Err(f.Pool.Exec(f.Context(), sql, args...)), sql)
}

// begin opens a transaction that has a number, and returns it.
func (f *feed) begin() pgx.Tx {
	f.Helper()
	tx, err := f.Pool.Begin(f.Context())
	assert.NoError(f, err)
	f.Cleanup(func() { tx.Rollback(context.WithoutCancel(f.Context())) }) //nolint:errcheck // it may have ended
	assert.NoError(f, assert.Err(tx.Exec(f.Context(), `SELECT txid_current()`)))
	return tx
}

// write adds a row to the history of an order.
func (f *feed) write(tx pgx.Tx, orderNo int64, seq int) {
	f.Helper()
	if _, err := tx.Exec(f.Context(), `INSERT INTO transitions (order_no, seq, from_status, to_status, fence, verb)
		VALUES ($1, $2, 'charging', 'charging', 1, 'call')`, orderNo, seq); err != nil {
		f.Fatal(err)
	}
}

// add adds rows to the history of an order, in a transaction of its own.
func (f *feed) add(orderNo int64, seqs ...int) {
	f.Helper()
	tx := f.begin()
	for _, seq := range seqs {
		f.write(tx, orderNo, seq)
	}
	f.commit(tx)
}

func (f *feed) commit(txs ...pgx.Tx) {
	f.Helper()
	for _, tx := range txs {
		assert.NoError(f, tx.Commit(f.Context()))
	}
}

// relayLease does not end within a test, in seconds.
const relayLease = 3600

// hold takes the lease of the relay.
func (f *feed) hold() {
	f.Helper()
	held, err := f.query.EventRelayHold(f.Context(), db.EventRelayHoldParams{Owner: f.owner, LeaseSeconds: relayLease})
	assert.NoError(f, err)
	f.fence = held.Fence
}

// number has the relay look once.
func (f *feed) number() db.EventBatchAddRow {
	f.Helper()
	added, err := f.query.EventBatchAdd(f.Context(), db.EventBatchAddParams{Owner: f.owner, Fence: f.fence})
	assert.NoError(f, err)
	return added
}

// numberUntil has the relay look until so many events have a number: other tests of the server hold the horizon, too.
func (f *feed) numberUntil(events int64) {
	f.Helper()
	assert.Eventually(f.T, fmt.Sprintf("%d events have a number", events), func() bool {
		f.number()
		state, err := f.query.EventRelayState(f.Context())
		assert.NoError(f, err)
		return state.LastEventNo >= events
	})
}

// all reads the feed in pages of so many, from a cursor on.
func (f *feed) all(after events.Cursor, filter events.Filter, limit int) (found []events.Event) {
	f.Helper()
	for {
		page, err := f.reader.After(f.Context(), after, filter, limit)
		assert.NoError(f, err)
		if found, after = append(found, page.Events...), page.Next; !page.More {
			return found
		}
	}
}

// shown are events as a test compares them: without the time at the end of their ids.
func shown(all []events.Event) (out []string) {
	for _, e := range all {
		out = append(out, fmt.Sprintf("%d %s", e.No, e.ID[:strings.LastIndexByte(e.ID, '_')]))
	}
	return out
}
