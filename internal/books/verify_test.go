package books_test

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"pawl/internal/books"
	"pawl/internal/pg"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

func TestVerify(t *testing.T) {
	t.Parallel()

	t.Run("an empty database is in order", func(t *testing.T) {
		t.Parallel()
		report := newShop(t).verify(books.Options{})
		if !report.OK() || len(report.Checks) != 14 || len(report.Orders) != 0 || len(report.Money) != 0 {
			t.Errorf("report %+v", report)
		}
	})

	filled := newShop(t)
	filled.fill()
	t.Run("orders in every state are in order, whatever the ranges", func(t *testing.T) {
		t.Parallel()
		for _, size := range []int32{0, 1, 3, 1000} {
			report := filled.in(t).verify(books.Options{RangeSize: size})
			if got := offenders(report); len(got) > 0 || !report.OK() {
				t.Errorf("ranges of %d: found %v", size, got)
			}
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
		if got := offenders(report); len(got) > 0 || !report.OK() {
			t.Errorf("found %v", got)
		}
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
		if got := offenders(report); len(got) > 0 || !report.OK() || len(lost) != len(reads) {
			t.Errorf("found %v, lost %q", got, lost)
		}
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
	for _, size := range []int32{0, 1, 3, 1000} {
		report := s.verify(books.Options{RangeSize: size})
		if got := offenders(report); len(got) > 0 || !report.OK() {
			t.Errorf("ranges of %d: found %v", size, report)
		}
		want := []books.Money{{Currency: "EUR", Charges: 6, Charged: "63.00", Refunded: "21.00", Authorized: "31.50", Kept: "10.50"}}
		assert.Equal(t, report.Money, want, "money")
		i := slices.IndexFunc(report.Checks, func(c books.Check) bool { return c.Name == "calls" })
		assert.Equal(t, report.Checks[i].Checked, 17, "judged calls, want 17")
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
	wantMoney := []books.Money{{Currency: "EUR", Charges: 10, Charged: "105.00", Refunded: "31.50", Authorized: "0.00", Kept: "73.50"}}
	assert.Equal(t, report.Money, wantMoney, "money")
	want := map[string]int64{
		"completed": 2, "states": 10, "path": 51, "undone": 5, "refunds": 3, "protocol": 12,
		"money": 10, "stock": 3, "orphans": 71, "numbers": 10, "calls": 0, "late": 0, "access_log": 0, "stuck": 6,
	}
	for _, check := range report.Checks {
		assert.Equal(t, check.Checked, want[check.Name], check.Name, "judged rows")
		if check.Proves == "" || check.Offenders == nil {
			t.Errorf("%s: %+v", check.Name, check)
		}
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
	i := slices.IndexFunc(report.Checks, func(c books.Check) bool { return c.Violations > 0 })
	if check := report.Checks[i]; check.Name != "path" || check.Violations != 12 {
		t.Errorf("%s has %d violations, want 12 of path", check.Name, check.Violations)
	}
	assert.Equal(t, offenders(report), found{"path": ids[:7]}, "found")
}

func TestVerifyTellsHowFarItIs(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.fill()
	s.sql("INSERT INTO transitions (order_no, seq, to_status, fence) VALUES (1000000, 1, 'pending', 0)")
	var steps [][2]int64
	s.verify(books.Options{RangeSize: 4, Progress: func(done, total int64) { steps = append(steps, [2]int64{done, total}) }})
	if first, last := steps[0], steps[len(steps)-1]; first != [2]int64{0, 15} || last != [2]int64{15, 15} {
		t.Errorf("from %v to %v, want 12 orders and 3 items", first, last)
	}
	if !slices.IsSortedFunc(steps, func(a, b [2]int64) int { return int(a[0] - b[0]) }) {
		t.Errorf("done falls: %v", steps)
	}
}

// Most databases are one range: the bar of a person would stay at nothing until the end.
func TestVerifyTellsHowFarItIsWithinARange(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.fill()
	seen := map[int64]bool{}
	s.verify(books.Options{Progress: func(done, _ int64) { seen[done] = true }})
	if len(seen) < 6 {
		t.Errorf("only %v", slices.Sorted(maps.Keys(seen)))
	}
}

func TestVerifyWarnsOfStuckOrders(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.fill()
	s.sql("UPDATE orders SET due_at = now() - interval '1 hour' WHERE order_id = 'reserving'")
	for after, want := range map[time.Duration]int{0: 1, time.Minute: 1, 2 * time.Hour: 0} {
		report := s.verify(books.Options{StuckAfter: after})
		if got := offenders(report)["stuck"]; len(got) != want || !report.OK() {
			t.Errorf("after %s: %v, OK %v", after, got, report.OK())
		}
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
	want := []books.Money{{Currency: "EUR", Charges: 3, Charged: "2999999999999999.997", Refunded: "0.000",
		Authorized: "0.000", Kept: "2999999999999999.997"}}
	if !report.OK() || !reflect.DeepEqual(report.Money, want) {
		t.Errorf("money %v, want %v", report.Money, want)
	}
}
