package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"

	"pawl/internal/load"
	"pawl/test/bench/machine"
)

// window is how long to measure, and how long to warm up before.
type window struct{ warmUp, length time.Duration }

// run is a measurement. Its database may contain orders already.
type run struct {
	setup
	target   target
	database *database
	folder   string
	window   window
	provider *provider // nil: the ledger does every step
	follow   bool      // the events are followed meanwhile

	together *sync.WaitGroup // of runs that begin their loads at the same moment; nil: it runs alone
}

// sample is the usage up to one moment.
type sample struct {
	at                            time.Duration // on the load's clock
	service, postgres, load, busy time.Duration
	provider                      time.Duration
	machine.Counters
}

// measure starts the target, loads it, stops it and compares the database with the answers.
func (r run) measure(ctx context.Context) (result, error) {
	out := result{setup: r.setup}
	var replicas []*server
	var err error
	for len(replicas) < max(r.Replicas, 1) && err == nil {
		var s *server
		if s, err = r.target.start(ctx, r.database.url, r.folder); err == nil {
			replicas = append(replicas, s)
		}
	}
	if r.together != nil {
		r.together.Done()
		r.together.Wait()
	}
	var seen load.Outcome
	if err == nil {
		seen, err = r.drive(ctx, replicas, &out)
	}
	for _, s := range replicas {
		err = errors.Join(err, s.stop())
	}
	if err != nil {
		return out, err
	}
	return out, r.inspect(ctx, seen, &out)
}

func (r run) drive(ctx context.Context, replicas []*server, out *result) (load.Outcome, error) {
	s := replicas[0]
	var err error
	if r.Target == troubledName {
		if err := s.trouble(ctx); err != nil {
			return load.Outcome{}, err
		}
	}
	if out.Stored, err = r.database.lastOrder(ctx); err != nil {
		return load.Outcome{}, err
	}
	if r.target.token {
		token, err := r.target.makeToken(ctx, r.database.url)
		if err != nil {
			return load.Outcome{}, err
		}
		s.token = token
	}
	stream := load.Load{}.Start()
	if r.Beside {
		stream = startStream(s, r.setup)
	}
	l := startLoad(replicas, r.setup)
	from, to, err := r.watched(ctx, replicas, l, out)
	for _, l := range []*load.Running{l, stream} {
		l.Halt()
		l.Wait()
	}
	if err != nil {
		return load.Outcome{}, err
	}
	seen := l.Outcome(from.at, to.at)
	other := stream.Outcome(0, 0)
	seen.All, seen.Errors, seen.First = seen.All+other.All, seen.Errors+other.Errors, cmp.Or(seen.First, other.First)
	out.fill(seen, from, to)
	for _, s := range replicas {
		peak, err := peakMemory(s.PID)
		if err != nil {
			return seen, err
		}
		out.MemoryMiB = max(out.MemoryMiB, float64(peak)/(1<<20))
	}
	return seen, nil
}

// watched is watch, while a reader follows the events if that is wanted.
func (r run) watched(ctx context.Context, replicas []*server, l *load.Running, out *result) (from, to sample, err error) {
	if !r.follow {
		return r.watch(ctx, replicas, l)
	}
	f, err := follow(ctx, replicas[0], l)
	if err != nil {
		return from, to, err
	}
	if err = pause(ctx, catchUp); err == nil {
		from, to, err = r.watch(ctx, replicas, l)
	}
	out.EventLags = f.stop(from.at, to.at)
	return from, to, err
}

// watch waits for the warm-up and the window and samples at both ends of the window.
func (r run) watch(ctx context.Context, replicas []*server, l *load.Running) (from, to sample, err error) {
	if err = pause(ctx, r.window.warmUp); err != nil {
		return from, to, err
	}
	if from, err = r.sample(ctx, replicas, l); err != nil {
		return from, to, err
	}
	if err = pause(ctx, r.window.length); err != nil {
		return from, to, err
	}
	to, err = r.sample(ctx, replicas, l)
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

func (r run) sample(ctx context.Context, replicas []*server, l *load.Running) (now sample, err error) {
	now.at = l.Since()
	trees := map[int]*time.Duration{r.database.server: &now.postgres}
	for _, s := range replicas {
		trees[s.PID] = &now.service
	}
	if r.provider != nil {
		trees[r.provider.server.PID] = &now.provider
	}
	for pid, sum := range trees {
		used, err := machine.TreeTime(pid)
		if err != nil {
			return now, fmt.Errorf("read cpu: %w", err)
		}
		*sum += used
	}
	var own syscall.Rusage
	if err = syscall.Getrusage(syscall.RUSAGE_SELF, &own); err != nil {
		return now, fmt.Errorf("read cpu of load: %w", err)
	}
	now.load = time.Duration(own.Utime.Nano() + own.Stime.Nano())
	if now.busy, err = machine.BusyTime(); err != nil {
		return now, fmt.Errorf("read cpu of machine: %w", err)
	}
	now.Counters, err = machine.ReadCounters(ctx, r.database.conn)
	return now, err
}

// inspect runs after the service has ended, when its connections have reported their counters.
func (r run) inspect(ctx context.Context, seen load.Outcome, out *result) (err error) {
	if out.HOTShare, out.SeqScans, err = r.database.tableUse(ctx); err != nil {
		return err
	}
	if seen.Errors > 0 {
		return nil // an order that was not answered may have been completed
	}
	out.BooksMismatch, err = r.database.check(ctx, out.Stored, seen.All)
	return err
}

// setup describes a row of the table.
type setup struct {
	Target         string
	Callers, Items int
	Lines          int     // of each order; 0: it has an item
	Ordered        bool    // ids
	Rate           float64 // orders per second offered, instead of callers that wait
	Beside         bool    // a stream of orders
	Replicas       int     // of the service, on one database; 0: one
	Cells          int     // that share the load, each with a PostgreSQL of its own; 0: it is not about cells
	Cell           int     // the number of this one; of a row for all cells, 0
}

func (s setup) String() string {
	text := fmt.Sprintf("%s, %s, %s", s.Target, s.load(), itemsName(s.Items))
	if s.Lines > 0 {
		text += fmt.Sprintf(", %d lines", s.Lines)
	}
	if s.Cells > 0 {
		text += fmt.Sprintf(", cells: %d", s.Cells)
	}
	return text
}

func (s setup) load() string {
	if s.Beside {
		return fmt.Sprintf("%g/s offered beside a stream", s.Rate)
	}
	text := fmt.Sprintf("%d callers", s.Callers)
	if s.Rate > 0 {
		text = fmt.Sprintf("%g/s offered", s.Rate)
	}
	if s.Replicas > 1 {
		text += fmt.Sprintf(" to %d replicas", s.Replicas)
	}
	return text
}

// result is a row of the table. CPU is in seconds per 1,000 orders, latency in milliseconds, memory that of the largest
// replica. All values are of the measured window, except answered, errors, memory and the provider's counts, which are of
// the whole run.
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

func (out *result) fill(seen load.Outcome, from, to sample) {
	out.Orders, out.Answered, out.Errors = seen.Succeeded, seen.All, seen.Errors
	if seen.First != nil {
		out.FirstError = seen.First.Error()
	}
	out.Seconds = (to.at - from.at).Seconds()
	orders := float64(max(out.Orders, 1))
	out.OrdersPerSec = float64(out.Orders) / out.Seconds
	out.P50 = milliseconds(load.Percentile(seen.Latencies, 50))
	out.P99 = milliseconds(load.Percentile(seen.Latencies, 99))
	out.Max = milliseconds(load.Percentile(seen.Latencies, 100))
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

// problems are printed below the figures.
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

// follower reads the stream of events like a listener, and records the delay of each event since the begin of its
// transaction.
type follower struct {
	body    io.ReadCloser
	running sync.WaitGroup
	load    *load.Running
	events  []lateness
}

// catchUp is how long a follower has before the window begins: at first, there is a backlog of events.
const catchUp = 10 * time.Second

type lateness struct{ came, lag time.Duration } // came is on the load's clock

// lags are the delays of the events of a window, in ascending order.
type lags []time.Duration

// follow returns when the service has begun to answer, so that no event is missed. The database uses the clock of this
// machine.
func follow(ctx context.Context, to *server, l *load.Running) (*follower, error) {
	body, err := to.get(ctx, "/api/events", "text/event-stream")
	if err != nil {
		return nil, fmt.Errorf("follow events: %w", err)
	}
	f := &follower{load: l, body: body}
	f.running.Go(f.read)
	return f, nil
}

var timestampOf = []byte(`"timestamp":"`)

func (f *follower) read() {
	lines := bufio.NewScanner(f.body)
	for lines.Scan() {
		_, rest, found := bytes.Cut(lines.Bytes(), timestampOf)
		text, _, ended := bytes.Cut(rest, []byte(`"`))
		if !found || !ended {
			continue // other lines of an event, and heartbeats
		}
		if at, err := time.Parse(time.RFC3339Nano, string(text)); err == nil {
			f.events = append(f.events, lateness{f.load.Since(), time.Since(at)})
		}
	}
}

// stop ends it and returns the delays of the events in a window.
func (f *follower) stop(from, to time.Duration) lags {
	f.body.Close()
	f.running.Wait()
	return inWindow(f.events, from, to)
}

func inWindow(all []lateness, from, to time.Duration) (found lags) {
	for _, l := range all {
		if l.came >= from && l.came < to {
			found = append(found, l.lag)
		}
	}
	slices.Sort(found)
	return found
}

// withFollower measures the service with orders offered at a rate while a reader follows its events.
func (p *plan) withFollower(ctx context.Context) error {
	for range p.rounds {
		for _, items := range p.items {
			for _, rate := range p.rates {
				s := setup{Target: "pawl", Rate: float64(rate), Items: items}
				if err := p.do(ctx, run{setup: s, window: p.window, follow: true}); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (l lags) String() string {
	return fmt.Sprintf("%d events, late by p50 %.0f ms, p99 %.0f ms, at most %.0f ms", len(l),
		milliseconds(load.Percentile(l, 50)), milliseconds(load.Percentile(l, 99)), milliseconds(load.Percentile(l, 100)))
}
