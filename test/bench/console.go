package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// consolePages are what a person looks at, with the order that has the longest history among them.
var consolePages = []string{
	"/console", "/console/attention", "/console/orders", "/console/orders?q=status:failed", "/console/orders?q=status:open", "/console/order?id=" + longOrder,
	"/console/errors", "/console/webhooks", "/console/policies", "/console/stock", "/console/books",
}

const (
	lookEvery = time.Second // as often as a page that is open loads itself while orders move
	longOrder = "long"
	longMoves = 5000
	held      = 100_000
)

// onlooker is a person at the console while the service is under load: it listens as an open page does, and loads one page after the other.
type onlooker struct {
	running sync.WaitGroup
	cancel  context.CancelFunc
	load    *load
	pages   map[string][]lateness
	err     error
	deaf    error // why it no longer listens
}

func look(ctx context.Context, at *server, l *load) *onlooker {
	ctx, cancel := context.WithCancel(ctx)
	o := &onlooker{cancel: cancel, load: l, pages: map[string][]lateness{}}
	o.running.Go(func() { o.run(ctx, at) })
	o.running.Go(func() {
		if err := loadPage(ctx, at, "/console/live?after="); ctx.Err() == nil {
			o.deaf = fmt.Errorf("the live page has ended: %w", cmp.Or(err, io.EOF))
		}
	})
	return o
}

func (o *onlooker) run(ctx context.Context, at *server) {
	next := time.NewTicker(lookEvery)
	defer next.Stop()
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			return
		case <-next.C:
		}
		page := consolePages[i%len(consolePages)]
		began := time.Now()
		if err := loadPage(ctx, at, page); err != nil && ctx.Err() == nil {
			o.err = errors.Join(o.err, fmt.Errorf("%s: %w", page, err))
			return
		}
		o.pages[page] = append(o.pages[page], lateness{o.load.since(), time.Since(began)})
	}
}

func loadPage(ctx context.Context, at *server, page string) error {
	body, err := at.get(ctx, page, anything)
	if err != nil {
		return err
	}
	defer body.Close()
	_, err = io.Copy(io.Discard, body)
	return err
}

// stop ends it and returns how long each page took in a window, in ascending order.
func (o *onlooker) stop(from, to time.Duration) (map[string]lags, error) {
	o.cancel()
	o.running.Wait()
	found := map[string]lags{}
	for page, loads := range o.pages {
		if took := inWindow(loads, from, to); took != nil {
			found[page] = took
		}
	}
	return found, errors.Join(o.err, o.deaf)
}

// withConsole measures the service with many orders in the table, in turn without the console and with a person who
// looks at one page after the other.
func (p *plan) withConsole(ctx context.Context, d *database) error {
	if err := d.fillConsole(ctx); err != nil {
		return err
	}
	for round := range 2 * p.rounds {
		r := run{setup: setup{Target: "pawl", Callers: 256, Items: storedItems}, window: p.window, database: d}
		r.Console = round%4 == 1 || round%4 == 2
		// Both come every half minute otherwise: a window with one of them costs a quarter more than one without.
		if err := execAll(ctx, d.conn, "VACUUM (ANALYZE)", "CHECKPOINT"); err != nil {
			return err
		}
		if err := p.do(ctx, r); err != nil {
			return err
		}
	}
	return nil
}

// fillConsole adds what is slow to show: orders that wait for a person or for a retry, and one with a long history.
func (d *database) fillConsole(ctx context.Context) error {
	fmt.Fprintf(os.Stderr, "storing %d orders that wait for a person, as many that wait for a retry, and one of %d moves\n", held, longMoves)
	err := d.withoutTriggers(ctx, func() error {
		return execAll(ctx, d.conn, fmt.Sprintf(fillHeldSQL, held), fmt.Sprintf(fillLongSQL, longOrder, longMoves))
	})
	if err != nil {
		return err
	}
	return execAll(ctx, d.conn, fillBatchesSQL, "VACUUM (ANALYZE)", "SELECT pg_stat_reset()")
}

const fillHeldSQL = `
WITH stored AS (
  INSERT INTO orders (order_id, status, fence, seq, created_at, amount, currency, item, hold, hold_reason, due_at)
  SELECT 'held-' || n, 'charging', 1, 2, now() - n * interval '1 second', 99.99, 'USD', 'item-00001', 'attention',
    (ARRAY['key_expired', 'step_failed', 'retries_exhausted'])[1 + n %% 3], NULL
  FROM generate_series(1, %[1]d) AS n
  UNION ALL
  SELECT 'tried-again-' || n, 'charging', 1, 2, now() - n * interval '1 second', 99.99, 'USD', 'item-00001', 'retry', NULL,
    now() + interval '1 day' + n * 7919 %% %[1]d * interval '1 second'
  FROM generate_series(1, %[1]d) AS n
  RETURNING order_no, order_id
)
INSERT INTO transitions (order_no, seq, from_status, to_status, fence, id_hash, previous_no)
SELECT s.order_no, m.seq, m.from_status, 'charging', 1,
  CASE WHEN m.seq = 1 THEN hashtext(s.order_id) END, CASE WHEN m.seq = 1 THEN s.order_no - 1 END
FROM stored AS s CROSS JOIN (VALUES (1, 'pending'), (2, 'charging')) AS m(seq, from_status)`

const fillLongSQL = `
WITH stored AS (
  INSERT INTO orders (order_id, status, fence, seq, created_at, amount, currency, item, hold, hold_reason)
  VALUES ('%s', 'charging', 1, %[2]d, now(), 99.99, 'USD', 'item-00001', 'paused', 'paused')
  RETURNING order_no, order_id
)
INSERT INTO transitions (order_no, seq, from_status, to_status, fence, id_hash, previous_no)
SELECT s.order_no, n, CASE WHEN n = 1 THEN 'pending' ELSE 'charging' END, 'charging', 1,
  CASE WHEN n = 1 THEN hashtext(s.order_id) END, CASE WHEN n = 1 THEN s.order_no - 1 END
FROM stored AS s CROSS JOIN generate_series(1, %[2]d) AS n`

// printConsole says how long the pages took, and what they cost the callers: medians of the rounds.
func (r report) printConsole(w io.Writer) {
	all := map[string]lags{}
	var with, without []result
	for _, x := range r.Results {
		if !x.Console {
			without = append(without, x)
			continue
		}
		with = append(with, x)
		for page, took := range x.Pages {
			all[page] = append(all[page], took...)
		}
	}
	if len(with) == 0 {
		return
	}
	fmt.Fprintf(w, "\n%d callers, with the console open: %s of the orders/s (%s against %s), %s of the CPU per order\n", with[0].Callers,
		ratio(with, without, ordersPerSec), spread(with), spread(without), ratio(with, without, cpuPerOrder))
	for _, page := range slices.SortedFunc(maps.Keys(all), func(a, b string) int {
		return cmp.Or(cmp.Compare(len(strings.Split(a, "?")), len(strings.Split(b, "?"))), cmp.Compare(a, b))
	}) {
		slices.Sort(all[page])
		fmt.Fprintf(w, "%-32s %4d times, p50 %4.0f ms, p95 %4.0f ms, at most %4.0f ms\n", page, len(all[page]),
			milliseconds(percentile(all[page], 50)), milliseconds(percentile(all[page], 95)), milliseconds(percentile(all[page], 100)))
	}
}
