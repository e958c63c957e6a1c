package books_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"pgregory.net/rapid"

	"pawl/db"
	"pawl/engine/ledger"
	"pawl/fsm"
	"pawl/internal/books"
	"pawl/internal/orders"
	"pawl/internal/pg"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

func TestVerify(t *testing.T) {
	t.Parallel()

	t.Run("an empty database is in order", func(t *testing.T) {
		t.Parallel()
		report := newShop(t).verify(books.Options{})
		assert.True(t, report.OK() && len(report.Checks) == 16 && len(report.Orders) == 0 && len(report.Money) == 0, "report", report)
	})

	filled := newShop(t)
	filled.fill()
	t.Run("orders in every state are in order, whatever the ranges", func(t *testing.T) {
		t.Parallel()
		for _, size := range []int32{0, 1, 3, 1000} {
			report := filled.in(t).verify(books.Options{RangeSize: size})
			assert.True(t, len(offenders(report)) == 0 && report.OK(), "ranges of", size, "found", offenders(report))
			checkTotals(t, report)
		}
	})

	t.Run("one connection is enough, and nothing is written", func(t *testing.T) {
		t.Parallel()
		s := filled.in(t)
		config := s.pool.Config()
		config.MaxConns = 1
		config.ConnConfig.RuntimeParams["default_transaction_read_only"] = "on"
		pool, err := pgxpool.NewWithConfig(s.ctx, config)
		s.must(err)
		defer pool.Close()
		report := s.verifyOn(pool, books.Options{RangeSize: 5})
		assert.True(t, len(offenders(report)) == 0 && report.OK(), "found", offenders(report))
	})

	t.Run("a connection that is lost between two snapshots is no error", func(t *testing.T) {
		t.Parallel()
		s := filled.in(t)
		proxy := dbtest.NewProxy(t, s.pool.Config().ConnString())
		pool, err := pg.Open(s.ctx, proxy.URL, pg.Options{MaxConns: 2})
		s.must(err)
		defer pool.Close()
		reads := []string{"VerifyExtent", "VerifyNextNumber", "VerifyItemsEnd", "VerifyLate", "VerifyStuck"}
		var mu sync.Mutex
		var lost []string
		proxy.On(func(statement string) dbtest.Fate {
			mu.Lock()
			defer mu.Unlock()
			if !slices.Contains(reads, statement) || slices.Contains(lost, statement) {
				return dbtest.Passes
			}
			lost = append(lost, statement)
			return dbtest.LoseReply
		})
		report, err := books.Verify(s.ctx, pool, books.Options{})
		s.must(err)
		assert.True(t, len(offenders(report)) == 0 && report.OK() && len(lost) == len(reads), "found", offenders(report), "lost", lost)
	})

	t.Run("a context that ends is an error, not a verdict", func(t *testing.T) {
		t.Parallel()
		s := filled.in(t)
		ctx, cancel := context.WithCancel(s.ctx)
		_, err := books.Verify(ctx, s.pool, books.Options{RangeSize: 1, Progress: func(int64, int64) { cancel() }})
		assert.ErrorIs(t, err, context.Canceled, "error")
	})
}

func TestVerifyOfOrdersWithRemoteSteps(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.fillRemote()
	s.admitRemote("undoing", "boat") // canceled in doubt
	s.call("undoing")
	s.stop("undoing")
	s.answer("undoing", fsm.Stopped, false)
	s.admitRemote("again", "boat") // refused in doubt, and undone with a reference, then charged, and undone without a doubt
	s.call("again")
	s.call("again")
	s.answer("again", fsm.Refused, false)
	s.done("again", fsm.Refunding)
	s.redrive("again")
	s.move("again")
	s.done("again", fsm.Charging)
	s.call("again")
	s.answer("again", fsm.Refused, false)
	for _, size := range []int32{0, 1, 3, 1000} {
		report := s.verify(books.Options{RangeSize: size})
		assert.True(t, len(offenders(report)) == 0 && report.OK(), "ranges of", size, "found", report)
		want := []books.Money{{Currency: "EUR", Orders: 10, Charges: 7, Charged: "73.50", Refunded: "21.00", Authorized: "42.00", Voided: "0.00", Kept: "10.50",
			UnderWay: "0.00", Disputed: "0.00", Lost: "0.00"}}
		assert.Equal(t, report.Money, want, "money")
		month := report.Months[0]
		assert.Equal(t, report.Months, []books.Movement{{month.Period, "EUR", "10.50", "0.00", "0.00", "0.00"}}, "moved: no authorization, nor what was in doubt")
		for filter, n := range map[*orders.Filter]int64{{Statuses: fsm.States(), Charged: true}: 6, {Statuses: fsm.States(), Authorized: true}: 4, {Statuses: fsm.States(), Refunded: true}: 2} {
			totals, found, _, err := orders.NewReader(t.Context(), s.q).Totals(t.Context(), *filter)
			assert.True(t, err == nil && found == n && len(totals) == 1, "listed", found, totals, err)
		}
		i := slices.IndexFunc(report.Checks, func(c books.VerificationCheck) bool { return c.Name == "calls" })
		assert.Equal(t, report.Checks[i].Checked, 23, "judged calls")
	}
}

// checkTotals knows what fill makes: every order is 10.50 EUR.
func checkTotals(t *testing.T, report books.Report) {
	t.Helper()
	wantOrders := map[string]int64{
		"pending": 1, "charging": 1, "reserving": 1, "confirming": 2, "completed": 2,
		"releasing": 1, "refunding": 1, "failed": 1, "canceled": 2,
	}
	assert.Equal(t, report.Orders, wantOrders, "orders")
	wantMoney := []books.Money{{Currency: "EUR", Orders: 12, Charges: 10, Charged: "105.00", Refunded: "31.50", Authorized: "0.00", Voided: "0.00", Kept: "73.50",
		UnderWay: "52.50", Disputed: "0.00", Lost: "0.00"}}
	assert.Equal(t, report.Money, wantMoney, "money")
	want := map[string]int64{
		"completed": 2, "states": 10, "path": 51, "undone": 5, "refunds": 3, "protocol": 12,
		"money": 10, "stock": 3, "orphans": 71, "numbers": 10, "calls": 0, "late": 0, "access_log": 0, "stuck": 6,
	}
	for _, check := range report.Checks {
		assert.Equal(t, check.Checked, want[check.Name], check.Name, "judged rows")
		assert.True(t, check.Proves != "" && check.Offenders != nil, check.Name, check)
	}
}

func TestVerifyNamesTheFirstOffendersAndCountsAll(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	var ids []string
	for i := range 12 {
		ids = append(ids, fmt.Sprintf("order %02d", i))
		s.admit(ids[i], "lamp")
	}
	s.sql(noGuards + "DELETE FROM transitions")
	report := s.verify(books.Options{RangeSize: 5, MaxOffenders: 7})
	i := slices.IndexFunc(report.Checks, func(c books.VerificationCheck) bool { return c.Violations > 0 })
	check := report.Checks[i]
	assert.True(t, check.Name == "path" && check.Violations == 12, check.Name, "has", check.Violations, "violations, want 12 of path")
	assert.Equal(t, offenders(report), found{"path": ids[:7]}, "found")
}

func TestVerifyTellsHowFarItIs(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.fill()
	s.sql("INSERT INTO transitions (order_no, seq, to_status, fence) VALUES (1000000, 1, 'pending', 0)")
	var steps [][2]int64
	s.verify(books.Options{RangeSize: 4, Progress: func(done, total int64) { steps = append(steps, [2]int64{done, total}) }})
	first, last := steps[0], steps[len(steps)-1]
	assert.True(t, first == [2]int64{0, 15} && last == [2]int64{15, 15}, "from", first, "to", last, "want 12 orders and 3 items")
	assert.True(t, slices.IsSortedFunc(steps, func(a, b [2]int64) int { return int(a[0] - b[0]) }), "done falls", steps)
}

// Most databases are one range: the bar of a person would stay at nothing until the end.
func TestVerifyTellsHowFarItIsWithinARange(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.fill()
	seen := map[int64]bool{}
	s.verify(books.Options{Progress: func(done, _ int64) { seen[done] = true }})
	assert.True(t, len(seen) >= 6, "only", slices.Sorted(maps.Keys(seen)))
}

func TestVerifyWarnsOfStuckOrders(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.fill()
	s.sql("UPDATE orders SET due_at = now() - interval '1 hour' WHERE order_id = 'reserving'")
	for after, want := range map[time.Duration]int{0: 1, time.Minute: 1, 2 * time.Hour: 0} {
		report := s.verify(books.Options{StuckAfter: after})
		got := offenders(report)["stuck"]
		assert.True(t, len(got) == want && report.OK(), "after", after, got, "OK", report.OK())
	}
}

func TestVerifyAddsMoneyExactly(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	for i := range 3 {
		id := fmt.Sprint(i)
		s.admit(id, "lamp")
		s.sql(noGuards + "UPDATE orders SET amount = 999999999999999.999 WHERE order_id = '" + id + "'")
		s.moveTo(id, "completed")
	}
	report := s.verify(books.Options{RangeSize: 1})
	want := []books.Money{{Currency: "EUR", Orders: 3, Charges: 3, Charged: "2999999999999999.997", Refunded: "0.000",
		Authorized: "0.000", Voided: "0.000", Kept: "2999999999999999.997", UnderWay: "0.000", Disputed: "0.000", Lost: "0.000"}}
	assert.Equal(t, report.Money, want, "OK:", report.OK(), "money")

	// By day, newest first: what an unfinished order has been charged is under way.
	s.admit("old", "lamp")
	s.sql(noGuards + "UPDATE orders SET amount = 5, created_at = '2026-01-31 23:59:59+00' WHERE order_id = 'old'")
	s.moveTo("old", "reserving")
	report = s.verify(books.Options{RangeSize: 2})
	days := report.Days
	assert.True(t, len(days) == 2 && days[0].Kept == want[0].Kept && days[1].Day == "2026-01-31" &&
		days[1].Kept == "5" && days[1].UnderWay == "5" && days[1].Charges == 1, "days", days)
}

func TestVerification(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.fill()
	pool, err := pgxpool.NewWithConfig(s.ctx, s.pool.Config())
	s.must(err)
	defer pool.Close()
	v := books.NewVerification(pool, books.VerificationConfig{Options: books.Options{RangeSize: 3}})
	defer v.Stop()
	last := func() books.Stored {
		t.Helper()
		found, err := v.Last(s.ctx)
		s.must(err)
		if found == nil {
			return books.Stored{}
		}
		return *found
	}
	assert.Equal(t, last().Number, 0, "verifications before the first one is started")

	release := s.lock("late_undos")
	defer release()
	s.must(v.Start(s.ctx, "ann"))
	first := last()
	other := books.NewVerification(s.pool, books.VerificationConfig{}) // of another replica
	s.must(other.Start(s.ctx, "bob"))
	assert.True(t, first.Running && last().Number == first.Number && last().StartedBy == "ann", "started", first, "then", last())
	release()
	assert.Eventually(t, "the verification ends", func() bool { return !last().Running })
	right, err := other.Report(s.ctx, 0)
	s.must(err)
	state := last()
	assert.True(t, state.Reported && right.OK() && right.Number == first.Number && state.Done == state.Total && state.Done != 0 && len(state.Wrong) == 0, "state", state)

	s.sql(noGuards + "UPDATE inventory SET sold = sold + 1 WHERE item = 'lamp'; UPDATE orders SET outcome = 'failed' WHERE order_id = 'reserving'")
	s.must(v.Start(s.ctx, "bob"))
	assert.Eventually(t, "the verification ends", func() bool { return !last().Running })
	wrong, err := v.Report(s.ctx, 0)
	s.must(err)
	assert.True(t, !wrong.OK() && last().StartedBy == "bob" && len(offenders(wrong.Report)["stock"]) == 1 && strings.Join(last().Wrong, " ") == "protocol stock", "state", wrong)
	s.stop("reserving")
	changed, err := v.Report(s.ctx, 0)
	s.must(err)
	protocol := slices.IndexFunc(wrong.Checks, func(c books.VerificationCheck) bool { return c.Name == "protocol" })
	was, is := wrong.Checks[protocol].Offenders[0], changed.Checks[protocol].Offenders[0]
	assert.True(t, !was.Changed && is.Changed && is.ID == "reserving", "changed since:", was, is)

	s.sql("ALTER TABLE late_undos RENAME TO gone")
	s.must(v.Start(s.ctx, "bob"))
	assert.Eventually(t, "the verification ends", func() bool { return !last().Running })
	again, err := v.Report(s.ctx, 0)
	s.must(err)
	assert.True(t, !last().Reported && again.Number == wrong.Number, "it was not read to the end, and says", again)
	// One whose process has ended does not run, and does not keep another from running.
	s.sql("UPDATE verifications SET finished_at = NULL, seen_at = now() - interval '2 minutes' WHERE report IS NULL")
	assert.Equal(t, last().Running, false, "runs")
	s.sql("ALTER TABLE gone RENAME TO late_undos")
	report, err := books.VerifyAndStore(s.ctx, s.pool, "the owner", books.Options{})
	s.must(err)
	state = last()
	assert.True(t, !report.OK() && state.StartedBy == "the owner" && state.Reported, "stored", state)
}

// A service that shuts down does not wait for the books to be read.
func TestVerificationStops(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	v := books.NewVerification(s.pool, books.VerificationConfig{})
	defer s.lock("late_undos")()
	s.must(v.Start(s.ctx, "ann"))
	v.Stop()
	last, err := v.Last(s.ctx)
	s.must(err)
	assert.True(t, !last.Running && !last.Reported, "state", last)
	assert.ErrorIs(t, v.Start(s.ctx, "ann"), books.ErrStopped, "error")
}

// lock keeps everybody from a table until it is released.
func (s *shop) lock(table string) (release func()) {
	s.Helper()
	tx, err := s.pool.Begin(s.ctx)
	s.must(err)
	_, err = tx.Exec(s.ctx, "LOCK TABLE "+table)
	s.must(err)
	return func() { _ = tx.Rollback(s.ctx) }
}

// TestVerificationRests: in the background about three quarters of the time go to others. pg.Sleep may be a fifth shorter.
func TestVerificationRests(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.fill()
	pool := &snapshots{Database: s.pool}
	_, err := books.Verify(s.ctx, pool, books.Options{Background: true, RangeSize: 3})
	s.must(err)
	assert.Require(t, len(pool.began) >= 4, len(pool.began), "snapshots")
	for i, began := range pool.began[1:] {
		took, rested := pool.ended[i].Sub(pool.began[i]), began.Sub(pool.ended[i])
		assert.True(t, rested >= 3*took*4/5, "it rested for", rested, "after a snapshot of", took)
	}
}

// snapshots is a database that keeps when transactions began and ended.
type snapshots struct {
	books.Database
	began, ended []time.Time
}

type snapshot struct {
	pgx.Tx
	of *snapshots
}

func (s *snapshots) BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error) {
	tx, err := s.Database.BeginTx(ctx, options)
	s.began = append(s.began, time.Now())
	return snapshot{tx, s}, err
}

func (s snapshot) Commit(ctx context.Context) error {
	s.of.ended = append(s.of.ended, time.Now())
	return s.Tx.Commit(ctx)
}

// Whatever the statements of the service do to orders, in whatever order, is in order.
func TestEveryLegalHistoryVerifiesClean(t *testing.T) {
	t.Parallel()
	base := newShop(t)
	dbtest.Check(t, func(r *rapid.T) {
		s := *base
		s.failer = r
		s.sql("SET LOCAL session_replication_role = replica; TRUNCATE orders, transitions, charges, charge_operations, reservations, inventory, stock_movements RESTART IDENTITY")
		s.last = nil
		var ids []string
		pick := func() string { return rapid.SampledFrom(ids).Draw(r, "order") }
		begin := func(admit func(id, item string)) {
			ids = append(ids, fmt.Sprintf("order %d", len(ids)))
			admit(ids[len(ids)-1], rapid.SampledFrom([]string{"lamp", "sofa"}).Draw(r, "item"))
		}
		begin(s.admit)
		r.Repeat(map[string]func(*rapid.T){
			"admit":         func(*rapid.T) { begin(s.admit) },
			"admit to wait": func(*rapid.T) { begin(s.admitToWait) },
			"move":          func(*rapid.T) { s.moveUnlessFinal(pick()) },
			"move again":    func(*rapid.T) { s.moveUnlessFinal(pick()) },
			"drive": func(*rapid.T) {
				for id := pick(); s.moveUnlessFinal(id); {
				}
			},
			"stop":      func(*rapid.T) { s.stop(pick()) },
			"take over": func(*rapid.T) { s.takeOver(pick()) },
			"hold": func(*rapid.T) {
				if id := pick(); !s.order(id).Status.Final() {
					s.hold(id)
				}
			},
			"redrive": func(*rapid.T) { s.redrive(pick()) },
			"stock": func(*rapid.T) {
				s.stock(rapid.SampledFrom([]string{"lamp", "sofa"}).Draw(r, "item"), rapid.Int64Range(0, 9).Draw(r, "on hand"))
			},
		})
		size := rapid.Int32Range(1, 20).Draw(r, "range")
		if report := s.verify(books.Options{RangeSize: size}); len(offenders(report)) > 0 {
			r.Fatalf("found %v", offenders(report))
		}
	})
}

// moveUnlessFinal makes the next move, if there is one that needs no person.
func (s *shop) moveUnlessFinal(id string) bool {
	o := s.order(id)
	if o.Status.Final() || o.Hold != nil {
		return false
	}
	s.move(id)
	return true
}

// While several writers move sets of the same orders and items, every range shows
// the books in order: a move is in a snapshot whole, or not at all.
func TestVerifyFindsNothingWhileOrdersMove(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	for i := range 5 {
		s.stock(fmt.Sprintf("item %d", i), 150)
	}
	ctx, stop := context.WithCancel(s.ctx)
	var writers sync.WaitGroup
	for n := range 3 {
		w := &writer{pool: s.pool, q: s.q, owner: uuid.New(), random: rand.New(rand.NewPCG(uint64(n), 1)), name: fmt.Sprint(n)}
		writers.Go(func() {
			if err := w.run(ctx, 40); err != nil && ctx.Err() == nil {
				t.Errorf("writer %d: %v", n, err)
			}
		})
	}
	finished := make(chan struct{})
	go func() { defer close(finished); writers.Wait() }()
	defer func() { stop(); <-finished }()
	for {
		if report := s.verify(books.Options{RangeSize: 64}); len(offenders(report)) > 0 {
			t.Errorf("found %+v", report)
			return
		}
		select {
		case <-finished:
			report := s.verify(books.Options{})
			if !report.OK() || report.Orders["completed"] == 0 || report.Orders["failed"] == 0 || report.Orders["canceled"] == 0 {
				t.Errorf("at the end %v, found %v", report.Orders, offenders(report))
			}
			return
		default:
		}
	}
}

// writer admits sets of orders and drives them as the service does.
type writer struct {
	pool   *pgxpool.Pool
	q      *db.Queries
	owner  uuid.UUID
	random *rand.Rand
	name   string
}

func (w *writer) run(ctx context.Context, sets int) error {
	for set := range sets {
		if err := w.admit(ctx, set); err != nil {
			return fmt.Errorf("admit: %w", err)
		}
	}
	return nil
}

// admit brings 16 orders to their ends, but for those that are held.
func (w *writer) admit(ctx context.Context, set int) error {
	params := db.OrdersAdmitParams{Owner: w.owner, LeaseSeconds: 60}
	for i := range 16 {
		params.OrderIds = append(params.OrderIds, fmt.Sprintf("%s/%d/%02d", w.name, set, i))
		params.Amounts = append(params.Amounts, fmt.Sprintf("%d.%02d", w.random.IntN(1000), w.random.IntN(100)))
		params.Currencies = append(params.Currencies, []string{"EUR", "USD", "CHF"}[w.random.IntN(3)])
		params.Items = append(params.Items, fmt.Sprintf("item %d", w.random.IntN(6)))
		params.Quantities = append(params.Quantities, 1+w.random.Int32N(3))
		params.Metadata = append(params.Metadata, "")
	}
	admitted, err := w.q.OrdersAdmit(ctx, params)
	if err != nil {
		return err
	}
	var numbers []int64
	for _, order := range admitted {
		numbers = append(numbers, order.OrderNo)
	}
	for {
		if err := w.disturb(ctx, params.OrderIds[w.random.IntN(16)], numbers); err != nil {
			return err
		}
		if left, err := w.move(ctx, numbers); err != nil || left == 0 {
			return err
		}
	}
}

// disturb stops an order, or hands some back and takes them over.
func (w *writer) disturb(ctx context.Context, id string, numbers []int64) error {
	if w.random.IntN(3) > 0 {
		return stop(ctx, w.pool, id)
	}
	some := numbers[w.random.IntN(len(numbers)):]
	if _, err := w.q.LeasesRelease(ctx, db.LeasesReleaseParams{OrderNos: some, Owner: w.owner}); err != nil {
		return err
	}
	_, err := w.q.LeasesClaim(ctx, db.LeasesClaimParams{OrderNos: some, Owner: w.owner, LeaseSeconds: 60})
	return err
}

// version is what a set of orders has in common.
type version struct {
	state fsm.State
	fence int64
	seq   int32
}

// move makes one move of every order that has one, and returns how many had.
func (w *writer) move(ctx context.Context, numbers []int64) (left int, err error) {
	orders, err := w.q.OrdersByNo(ctx, db.OrdersByNoParams{OrderNos: numbers})
	if err != nil {
		return 0, err
	}
	sets := map[version][]int64{}
	for _, row := range orders {
		if o := row; !o.Status.Final() && o.Hold == nil {
			v := version{o.Status, o.Fence, o.Seq}
			sets[v] = append(sets[v], o.OrderNo)
			left++
		}
	}
	for v, set := range sets {
		if _, err := ledger.Moves[v.state](ctx, w.q, ledger.Batch{OrderNos: set, Expected: v.state, Fence: v.fence, Seq: v.seq}); err != nil {
			return 0, fmt.Errorf("move from %s: %w", v.state, err)
		}
	}
	return left, nil
}
