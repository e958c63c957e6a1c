package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"syscall"
	"time"
)

// window is how long to measure, after how long a warm-up.
type window struct{ warmUp, length time.Duration }

// run is everything one measurement needs. Its database may hold orders already.
type run struct {
	setup
	target   target
	database *database
	folder   string
	window   window
	provider *provider // nil: the ledger does every step
	follow   bool      // the events are followed meanwhile
}

// sample is what has been used up to one moment.
type sample struct {
	at                            time.Duration // on the load's clock
	service, postgres, load, busy time.Duration
	provider                      time.Duration
	counters
}

// measure starts the target, loads it, stops it and compares the database with what
// was answered.
func (r run) measure(ctx context.Context) (result, error) {
	s, err := r.target.start(ctx, r.database.url, r.folder)
	if err != nil {
		return result{}, err
	}
	out := result{setup: r.setup}
	seen, err := r.drive(ctx, s, &out)
	if err := errors.Join(err, s.stop()); err != nil {
		return out, err
	}
	return out, r.inspect(ctx, seen, &out)
}

func (r run) drive(ctx context.Context, s *server, out *result) (outcome, error) {
	var err error
	if out.Stored, err = r.database.lastOrder(ctx); err != nil {
		return outcome{}, err
	}
	if r.target.token {
		token, err := r.target.makeToken(ctx, r.database.url)
		if err != nil {
			return outcome{}, err
		}
		s.token = token
	}
	l := startLoad(s, r.setup)
	from, to, err := r.watched(ctx, s, l, out)
	l.stop()
	if err != nil {
		return outcome{}, err
	}
	seen := l.outcome(from.at, to.at)
	out.fill(seen, from, to)
	peak, err := peakMemory(s.pid)
	out.MemoryMiB = float64(peak) / (1 << 20)
	return seen, err
}

// watched is watch, while a reader follows the events if that is wanted.
func (r run) watched(ctx context.Context, s *server, l *load, out *result) (from, to sample, err error) {
	if !r.follow {
		return r.watch(ctx, s, l)
	}
	f, err := follow(ctx, s, l)
	if err != nil {
		return from, to, err
	}
	if err = pause(ctx, catchUp); err == nil {
		from, to, err = r.watch(ctx, s, l)
	}
	out.EventLags = f.stop(from.at, to.at)
	return from, to, err
}

// watch waits for the warm-up and the window and samples at both ends of the window.
func (r run) watch(ctx context.Context, s *server, l *load) (from, to sample, err error) {
	if err = pause(ctx, r.window.warmUp); err != nil {
		return from, to, err
	}
	if from, err = r.sample(ctx, s, l); err != nil {
		return from, to, err
	}
	if err = pause(ctx, r.window.length); err != nil {
		return from, to, err
	}
	to, err = r.sample(ctx, s, l)
	return from, to, err
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

func (r run) sample(ctx context.Context, s *server, l *load) (now sample, err error) {
	now.at = l.since()
	trees := map[*time.Duration]int{&now.service: s.pid, &now.postgres: r.database.server}
	if r.provider != nil {
		trees[&now.provider] = r.provider.server.pid
	}
	for used, pid := range trees {
		if *used, err = treeTime(pid); err != nil {
			return now, fmt.Errorf("read cpu: %w", err)
		}
	}
	var own syscall.Rusage
	if err = syscall.Getrusage(syscall.RUSAGE_SELF, &own); err != nil {
		return now, fmt.Errorf("read cpu of load: %w", err)
	}
	now.load = time.Duration(own.Utime.Nano() + own.Stime.Nano())
	if now.busy, err = busyTime(); err != nil {
		return now, fmt.Errorf("read cpu of machine: %w", err)
	}
	now.counters, err = r.database.counters(ctx)
	return now, err
}

// inspect runs after the service has ended: its connections have handed in their
// counts, and nothing moves any more.
func (r run) inspect(ctx context.Context, seen outcome, out *result) (err error) {
	if out.HOTShare, out.SeqScans, err = r.database.tableUse(ctx); err != nil {
		return err
	}
	if seen.errors > 0 {
		return nil // an order that was not answered may have been completed
	}
	out.BooksMismatch, err = r.database.check(ctx, out.Stored, seen.answered)
	return err
}

// setup is one row of the table to be.
type setup struct {
	Target         string
	Callers, Items int
	Ordered        bool    // ids
	Rate           float64 // orders per second offered, instead of callers that wait
}

func (s setup) String() string {
	return fmt.Sprintf("%s, %s, %s", s.Target, s.load(), itemsName(s.Items))
}

func (s setup) load() string {
	if s.Rate > 0 {
		return fmt.Sprintf("%g/s offered", s.Rate)
	}
	return fmt.Sprintf("%d callers", s.Callers)
}

// result is a row of the table. CPU is in seconds per 1,000 orders, latency in
// milliseconds; all is of the measured window, but for answered, errors, memory and
// what the provider counted, which are of the whole run.
type result struct {
	setup
	Stored           int64 // orders in the table at the start
	Orders, Answered int
	Seconds          float64
	OrdersPerSec     float64
	P50, P99, Max    float64
	Errors           int
	FirstError       string
	BooksMismatch    string
	MemoryMiB        float64
	WALPerOrder      float64
	FlushesPerOrder  float64 // of the log
	HOTShare         float64
	SeqScans         int64
	Checkpoints      int64
	Provider         *summary // nil: the ledger did every step
	EventLags        lags     // of the events, if they were followed
	OtherCPU         float64  // of the machine, used by processes that are no part of this

	ServiceCPU, PostgresCPU, LoadCPU, ProviderCPU float64
}

func (out *result) fill(seen outcome, from, to sample) {
	out.Orders, out.Answered, out.Errors = seen.completed, seen.answered, seen.errors
	if seen.first != nil {
		out.FirstError = seen.first.Error()
	}
	out.Seconds = (to.at - from.at).Seconds()
	orders := float64(max(out.Orders, 1))
	out.OrdersPerSec = float64(out.Orders) / out.Seconds
	out.P50 = milliseconds(percentile(seen.latencies, 50))
	out.P99 = milliseconds(percentile(seen.latencies, 99))
	out.Max = milliseconds(percentile(seen.latencies, 100))
	out.ServiceCPU = (to.service - from.service).Seconds() / orders * 1000
	out.PostgresCPU = (to.postgres - from.postgres).Seconds() / orders * 1000
	out.LoadCPU = (to.load - from.load).Seconds() / orders * 1000
	out.ProviderCPU = (to.provider - from.provider).Seconds() / orders * 1000
	ours := to.service + to.postgres + to.load + to.provider - from.service - from.postgres - from.load - from.provider
	out.OtherCPU = max(0, (to.busy-from.busy-ours).Seconds()/out.Seconds/float64(runtime.NumCPU()))
	out.WALPerOrder = float64(to.WAL-from.WAL) / orders
	out.FlushesPerOrder = float64(to.Flushes-from.Flushes) / orders
	out.Checkpoints = to.Checkpoints - from.Checkpoints
}

// problems are what must not stand unseen beside the figures.
func (out *result) problems() []string {
	var list []string
	if out.FirstError != "" {
		list = append(list, "first error: "+out.FirstError)
	}
	if out.BooksMismatch != "" {
		list = append(list, "books: "+out.BooksMismatch)
	}
	if out.SeqScans > 100 {
		list = append(list, fmt.Sprintf("%d sequential scans of orders", out.SeqScans))
	}
	return list
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
