package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/procfs"

	"pawl/db"
	"pawl/engine/ledger"
	"pawl/fsm"
)

// steps are the statements of an order.
var steps = []string{"admit", "charge", "reserve", "confirm"}

// figures are those of one order, as the mean of a round, or sums on the way there.
type figures struct {
	cpu  [4]float64 // microseconds, by step
	wal  float64    // bytes
	hot  float64    // updates of its row that stayed on the page
	wall float64    // microseconds
}

func (f figures) total() float64 { return f.cpu[0] + f.cpu[1] + f.cpu[2] + f.cpu[3] }

// add runs some sets of a size and adds what they took.
func (v *variant) add(ctx context.Context, sum *figures, size, sets int) error {
	if err := v.count(ctx, sum, -1); err != nil {
		return err
	}
	began := time.Now()
	for range sets {
		if err := v.set(ctx, size, sum); err != nil {
			return fmt.Errorf("variant %s, sets of %d: %w", v.name, size, err)
		}
	}
	sum.wall += float64(time.Since(began).Microseconds())
	return v.count(ctx, sum, 1)
}

// each divides what was added up by the number of orders.
func (f figures) each(orders int) figures {
	for _, sum := range []*float64{&f.cpu[0], &f.cpu[1], &f.cpu[2], &f.cpu[3], &f.wal, &f.hot, &f.wall} {
		*sum /= float64(orders)
	}
	return f
}

// set takes one set of new orders through all steps and adds up what that took.
func (v *variant) set(ctx context.Context, size int, f *figures) error {
	clock, err := v.cpu()
	if err != nil {
		return err
	}
	lap := func(step int) error {
		now, err := v.cpu()
		f.cpu[step] += float64(now-clock) / 1000
		clock = now
		return err
	}
	nos, err := v.admit(ctx, size)
	if err != nil {
		return err
	}
	if err := lap(0); err != nil {
		return err
	}
	for i, state := range []fsm.State{fsm.Charging, fsm.Reserving, fsm.Confirming} {
		moved, err := ledger.Moves[state](ctx, v.query, ledger.Batch{OrderNos: nos, Expected: state, Fence: 1, Seq: int32(i) + 1})
		if err != nil {
			return fmt.Errorf("%s: %w", steps[i+1], err)
		}
		if len(moved) != size {
			return fmt.Errorf("%s: %d of %d orders moved", steps[i+1], len(moved), size)
		}
		if err := lap(i + 1); err != nil {
			return err
		}
	}
	return nil
}

var owner = uuid.New()

func (v *variant) admit(ctx context.Context, size int) ([]int64, error) {
	p := db.OrdersAdmitParams{Owner: owner, LeaseSeconds: 10}
	for range size {
		v.made++
		p.OrderIds = append(p.OrderIds, fmt.Sprintf("%016x%016x", uint64(v.made)*0x9E3779B97F4A7C15, v.made))
		p.Amounts, p.Currencies = append(p.Amounts, "99.99"), append(p.Currencies, "USD")
		p.Items = append(p.Items, fmt.Sprintf("item %d", rand.IntN(v.items)))
		p.Quantities, p.Metadata = append(p.Quantities, 1), append(p.Metadata, "")
	}
	rows, err := ledger.Admit(ctx, v.query, p)
	if err == nil && len(rows) != size {
		err = fmt.Errorf("%d of %d orders admitted", len(rows), size)
	}
	if err != nil {
		return nil, fmt.Errorf("admit: %w", err)
	}
	nos := make([]int64, size)
	for i, row := range rows {
		nos[i] = row.OrderNo
	}
	return nos, nil
}

// cpu is the processor time of the connection's process so far, in nanoseconds.
func (v *variant) cpu() (uint64, error) {
	process, err := procfs.NewProc(int(v.conn.PgConn().PID()))
	if err != nil {
		return 0, fmt.Errorf("look at the process of PostgreSQL: %w", err)
	}
	stat, err := process.Schedstat()
	return stat.RunningNanoseconds, err
}

// count adds, with a sign, the bytes of log that were written so far, and the updates of orders that stayed on their page.
func (v *variant) count(ctx context.Context, sum *figures, sign float64) error {
	var wal, hot float64
	_, err := v.conn.Exec(ctx, "SELECT pg_stat_force_next_flush()")
	if err == nil {
		err = v.conn.QueryRow(ctx, `SELECT (pg_current_wal_insert_lsn() - '0/0')::float8,
			(SELECT n_tup_hot_upd::float8 FROM pg_stat_user_tables WHERE schemaname = 'pawl' AND relname = 'orders')`).Scan(&wal, &hot)
	}
	if err != nil {
		return fmt.Errorf("read counters: %w", err)
	}
	sum.wal, sum.hot = sum.wal+sign*wal, sum.hot+sign*hot
	return nil
}
