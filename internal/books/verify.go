// Package books verifies the database: every completed order has one charge, one reservation and one path through the
// state machine, nothing is left of the others, and money and stock add up.
//
// It reads a database in use. A snapshot of minutes would keep the database from cleaning up behind finished orders, so
// it reads ranges, each in a snapshot of a second or so. Everything that belongs to one order, or counts for one item,
// is in one range. A move is one statement, so a snapshot has all of it or nothing, and an unfinished order is as
// consistent as a finished one.
package books

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"pawl/db"
	"pawl/fsm"
	"pawl/internal/pg"
)

// Options configures Verify. Zero values mean the defaults.
type Options struct {
	// RangeSize is how many order numbers or items a snapshot covers: 50,000. A larger range is faster, and its snapshot
	// takes longer.
	RangeSize int32
	// MaxOffenders limits the offenders that are named for each check: 20. All are counted.
	MaxOffenders int32
	// StuckAfter is how long an order may be due before it is reported as stuck: 5 minutes.
	StuckAfter time.Duration
	// Background uses one connection, and rests after each snapshot for three times as long as that took: about a
	// quarter of a core, and four times the duration.
	Background bool
	// Provider, if set, is compared with the books.
	Provider *Provider
	// Progress, if set, is called with the number of orders and items that were read, and their total; one call at a
	// time. done never falls.
	Progress func(done, total int64)
}

func (o Options) withDefaults() Options {
	o.RangeSize = cmp.Or(max(o.RangeSize, 0), 50_000)
	o.MaxOffenders = cmp.Or(max(o.MaxOffenders, 0), 20)
	o.StuckAfter = cmp.Or(max(o.StuckAfter, 0), 5*time.Minute)
	if o.Progress == nil {
		o.Progress = func(int64, int64) {}
	}
	return o
}

// Database is a pool of connections.
type Database interface {
	db.DBTX
	BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error)
}

// Verify reads what was committed when it was called, and reports what is wrong. It writes nothing, locks no row, and
// uses two connections of the pool (one in the background, or if there is only one). It also runs on a standby. It
// ignores orders that were admitted later. An error means that something could not be read; violations are in the
// report. If only books of providers could not be read, the report is about our books and those of the other providers;
// after any other error it is empty.
func Verify(ctx context.Context, pool Database, opt Options) (Report, error) {
	v := &verifier{pool: pool, opt: opt.withDefaults(), ledger: newLedger(opt.withDefaults().MaxOffenders)}
	start := time.Now()
	for _, part := range []func(context.Context) error{v.measure, v.orders, v.items, v.whole} {
		if err := part(ctx); err != nil {
			return Report{}, err
		}
	}
	ours := v.ledger.report(time.Since(start))
	if opt.Provider == nil {
		return ours, nil
	}
	v.ledger.checks = append(v.ledger.checks, providerChecks...)
	away, err := v.reconcile(ctx)
	if err != nil {
		return ours, err
	}
	return v.ledger.report(time.Since(start)), away
}

type verifier struct {
	pool   Database
	opt    Options
	extent db.VerifyExtentRow
	ledger *ledger

	mu     sync.Mutex // guards proved
	proved int64      // completed proofs of the current range
}

func (v *verifier) measure(ctx context.Context) (err error) {
	if v.extent, err = pg.Repeat(ctx, ctx, db.New(v.pool).VerifyExtent); err != nil {
		return fmt.Errorf("measure books: %w", err)
	}
	return nil
}

// orders verifies single orders, and their sums.
func (v *verifier) orders(ctx context.Context) error {
	v.progress(0, 0)
	return v.spans(ctx, func(r span) error { return v.prove(ctx, r) })
}

// spans calls each with the ranges of existing order numbers.
func (v *verifier) spans(ctx context.Context, each func(span) error) error {
	for next := int64(math.MinInt64); next <= v.extent.LastNumber; {
		first, err := read(ctx, db.New(v.pool).VerifyNextNumber, next)
		if errors.Is(err, pgx.ErrNoRows) || err == nil && first > v.extent.LastNumber {
			return nil
		}
		if err != nil {
			return fmt.Errorf("find next order number: %w", err)
		}
		r := v.span(first)
		if err := each(r); err != nil {
			return fmt.Errorf("verify orders %d to %d: %w", r.First, r.Last, err)
		}
		if r.Last == v.extent.LastNumber {
			return nil
		}
		next = r.Last + 1
	}
	return nil
}

// span is the range that starts at a number. It ends at the last order of the start at the latest.
func (v *verifier) span(first int64) span {
	last := first + int64(v.opt.RangeSize) - 1
	if last > v.extent.LastNumber || last < first { // it may overflow
		last = v.extent.LastNumber
	}
	return span{Most: v.opt.MaxOffenders, First: first, Last: last}
}

// itemReservations is how many reservations a snapshot of items covers, as a multiple of a range: they are only summed.
// All reservations of an item are in one snapshot.
const itemReservations = 20

// items verifies the stock. The planner may choose a nested loop here, because few of many reservations are looked up.
func (v *verifier) items(ctx context.Context) error {
	done := int64(0)
	for after, open := "", true; open; {
		reservations := min(int64(v.opt.RangeSize)*itemReservations, math.MaxInt32)
		upto, err := read(ctx, db.New(v.pool).VerifyItemsEnd, db.VerifyItemsEndParams{
			After: after, Skip: v.opt.RangeSize - 1, SkipReservations: int32(reservations) - 1})
		if err != nil {
			return fmt.Errorf("find items after %q: %w", after, err)
		}
		err = v.snapshot(ctx, func(q *db.Queries) error {
			found, err := q.VerifyStock(ctx, db.VerifyStockParams{Most: v.opt.MaxOffenders, After: after, Upto: upto})
			done += found.Checked
			return v.ledger.enter(stock, finding(found), err)
		})
		if err != nil {
			return fmt.Errorf("after item %q: %w", after, err)
		}
		v.progress(v.extent.LastNumber, done)
		after, open = upto, upto != ""
	}
	return nil
}

// lateAfter is how long the undo of a late effect may take: the provider may be away.
const lateAfter = time.Hour

// whole verifies what belongs to no range.
func (v *verifier) whole(ctx context.Context) error {
	q, most := db.New(v.pool), v.opt.MaxOffenders
	found, err := read(ctx, q.VerifyLate, db.VerifyLateParams{Most: most, LateSeconds: lateAfter.Seconds()})
	if err := v.ledger.enter(late, finding(found), err); err != nil {
		return err
	}
	logged, err := read(ctx, q.VerifyAccess, most)
	if err := v.ledger.enter(entries, finding(logged), err); err != nil {
		return err
	}
	gone, err := read(ctx, q.VerifyForgotten, most)
	if err := v.ledger.enter(forgotten, finding(gone), err); err != nil {
		return err
	}
	sums, err := pg.Repeat(ctx, ctx, q.VerifyForgottenSums)
	if err != nil {
		return fmt.Errorf("read sums of forgotten orders: %w", err)
	}
	v.ledger.addForgotten(sums)
	moved, err := pg.Repeat(ctx, ctx, q.VerifyForgottenMovements)
	if err != nil {
		return fmt.Errorf("read movements of forgotten orders: %w", err)
	}
	for _, m := range moved {
		v.ledger.move(Movement{m.Day, m.Currency, m.Captured, m.Undone, m.Refunded, m.Lost})
	}
	due, err := read(ctx, q.VerifyStuck, db.VerifyStuckParams{Most: most, StuckSeconds: v.opt.StuckAfter.Seconds()})
	return v.ledger.enter(stuck, finding(due), err)
}

// prove runs all proofs over a range, concurrently if there are two connections for it.
func (v *verifier) prove(ctx context.Context, r span) error {
	v.proved = 0
	groups, ctx := errgroup.WithContext(ctx)
	if v.opt.Background {
		groups.SetLimit(1)
	}
	for _, proofs := range orderProofs {
		groups.Go(func() error {
			return v.snapshot(ctx, func(q *db.Queries) error { return v.run(ctx, q, proofs, r) })
		})
	}
	return groups.Wait()
}

func (v *verifier) run(ctx context.Context, q *db.Queries, proofs []proof, r span) error {
	if _, err := q.VerifySettings(ctx); err != nil {
		return fmt.Errorf("set planner: %w", err)
	}
	for _, p := range proofs {
		if err := p(ctx, q, r, v.ledger); err != nil {
			return err
		}
		v.advance(r)
	}
	return nil
}

// advance reports progress after each proof of a range, because a database may have only one range.
func (v *verifier) advance(r span) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.proved++
	all := int64(len(orderProofs[0]) + len(orderProofs[1]))
	v.progress(r.Last-(r.Last-r.First+1)*(all-v.proved)/all, 0)
}

// read repeats a statement for a moment if its connection is lost, which should not end a verification of minutes. The
// pool also closes connections on which a busy server is late.
func read[P, T any](ctx context.Context, statement func(context.Context, P) (T, error), params P) (T, error) {
	return pg.Repeat(ctx, ctx, func(ctx context.Context) (T, error) { return statement(ctx, params) })
}

// snapshot runs do in a read-only transaction with one view of the database. In the background it rests afterwards.
func (v *verifier) snapshot(ctx context.Context, do func(*db.Queries) error) error {
	began := time.Now()
	options := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	err := pgx.BeginTxFunc(ctx, v.pool, options, func(tx pgx.Tx) error { return do(db.New(tx)) })
	if v.opt.Background && err == nil {
		pg.Sleep(ctx, restFactor*time.Since(began))
	}
	return err
}

// restFactor is the duration of a rest in the background, as a multiple of the duration of the snapshot before it.
const restFactor = 3

// progress reports all orders up to a number, and some items.
func (v *verifier) progress(number, items int64) {
	numbers := int64(0)
	if v.extent.LastOrder > 0 {
		numbers = v.extent.LastOrder - v.extent.FirstOrder + 1
	}
	done := min(max(number-v.extent.FirstOrder+1, 0), numbers) + min(items, v.extent.Items)
	v.opt.Progress(done, numbers+v.extent.Items)
}

// span is a range of order numbers, including both ends, and how many offenders to name.
type span = struct {
	Most  int32
	First int64
	Last  int64
}

// finding is the result of a proof for a range.
type finding = struct {
	Checked    int64
	Violations int64
	Offenders  []string
	Faults     []string
}

// proof reads a range in the snapshot of q, and enters its findings.
type proof func(ctx context.Context, q *db.Queries, r span, l *ledger) error

// orderProofs has two groups that take about the same time.
var orderProofs = [2][]proof{
	{provePath, plain(undone, (*db.Queries).VerifyUndone), proveMoney, proveMovements, plain(calls, (*db.Queries).VerifyCalls)},
	{
		proveEffects,
		plain(orphans, (*db.Queries).VerifyOrphans),
		plain(numbers, (*db.Queries).VerifyNumbers),
		plain(protocol, (*db.Queries).VerifyProtocol),
		plain(refunds, (*db.Queries).VerifyRefunds),
		plain(lines, (*db.Queries).VerifyLines),
	},
}

// Statements of proofs have the parameters of span and the columns of finding. sqlc generates separate types for each;
// one with other fields does not compile.
type (
	params interface{ ~span }
	row    interface{ ~finding }
)

func plain[P params, R row](name string, statement func(*db.Queries, context.Context, P) (R, error)) proof {
	return func(ctx context.Context, q *db.Queries, r span, l *ledger) error {
		found, err := statement(q, ctx, P(r))
		return l.enter(name, finding(found), err)
	}
}

// proveEffects runs one statement for two checks, because completed orders matter most.
func proveEffects(ctx context.Context, q *db.Queries, r span, l *ledger) error {
	rows, err := q.VerifyEffects(ctx, db.VerifyEffectsParams(r))
	if err != nil {
		return fmt.Errorf("prove effects: %w", err)
	}
	for _, found := range rows {
		name := states
		if found.Status == fsm.Completed {
			name = completed
		}
		l.add(name, finding{found.Checked, found.Violations, found.Offenders, found.Faults})
		l.count(string(found.Status), found.Checked)
	}
	return nil
}

// provePath passes the edges of the state machine, which the database has in no table.
func provePath(ctx context.Context, q *db.Queries, r span, l *ledger) error {
	params := db.VerifyPathParams{Most: r.Most, First: r.First, Last: r.Last}
	for _, edge := range fsm.Edges() {
		params.FromStates = append(params.FromStates, string(edge.From))
		params.ToStates = append(params.ToStates, string(edge.To))
	}
	found, err := q.VerifyPath(ctx, params)
	return l.enter(path, finding(found), err)
}

func proveMoney(ctx context.Context, q *db.Queries, r span, l *ledger) error {
	rows, err := q.VerifyMoney(ctx, db.VerifyMoneyParams{First: r.First, Last: r.Last})
	if err != nil {
		return fmt.Errorf("prove %s: %w", money, err)
	}
	for _, m := range rows {
		found := finding{Checked: m.Charges}
		if !m.Balanced {
			found.Violations = 1
			found.Offenders = []string{m.Currency}
			found.Faults = []string{fmt.Sprintf("order_no %d to %d, placed on %s: charged %s, refunded %s, not refunded %s, held by orders %s",
				r.First, r.Last, cmp.Or(m.Day, "no day"), m.Charged, m.Refunded, m.Standing, m.Held)}
		}
		l.add(money, found)
		l.sum(m.Day, Money{
			Currency: m.Currency, Orders: m.Orders, Charges: m.Charges, Charged: m.Charged, Refunded: m.Refunded,
			Authorized: m.Authorized, Voided: m.Voided, Kept: m.Kept, UnderWay: m.UnderWay, Disputed: m.Disputed, Lost: m.Lost,
		})
	}
	return nil
}

// proveMovements proves nothing by itself: it adds up the days on which money moved.
func proveMovements(ctx context.Context, q *db.Queries, r span, l *ledger) error {
	rows, err := q.VerifyMovements(ctx, db.VerifyMovementsParams{First: r.First, Last: r.Last})
	if err != nil {
		return fmt.Errorf("add up movements: %w", err)
	}
	for _, m := range rows {
		l.move(Movement{m.Day, m.Currency, m.Captured, m.Undone, m.Refunded, m.Lost})
	}
	return nil
}
