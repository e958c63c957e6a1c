package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
	"time"

	"github.com/prometheus/procfs"

	"pawl/internal/load"
	"pawl/test/bench/machine"
)

// setup is what is measured in every round.
type setup struct {
	peer    string
	latency time.Duration // added to each flush of a log
	callers int
}

// result is the measurement of a window. CPU is in seconds per 1,000 orders, without the load; latencies in milliseconds.
type result struct {
	setup
	perSecond, p50, p99   float64
	cpuPeer, cpuPostgres  float64
	commits, flushes, log float64 // per order; the log in KB, that of the peer's engine included
	others                float64 // share of the machine that went to other processes
}

// sample is the usage up to a moment.
type sample struct {
	at                         time.Duration // on the clock of the load
	postgres, peer, load, busy time.Duration
	written                    uint64 // by the engine, in bytes
	machine.Counters
}

func (s *site) sample(ctx context.Context, l *callers) (now sample, err error) {
	now.at = l.Since()
	trees := map[int]*time.Duration{s.cluster.PID(): &now.postgres, os.Getpid(): &now.load}
	for _, p := range []*machine.Process{s.codeProcess, s.engineProcess} {
		if p != nil {
			trees[p.PID] = &now.peer
		}
	}
	for pid, sum := range trees {
		used, err := machine.TreeTime(pid)
		if err != nil {
			return now, fmt.Errorf("read cpu: %w", err)
		}
		*sum += used
	}
	now.load -= now.postgres + now.peer // our children
	if now.busy, err = machine.BusyTime(); err != nil {
		return now, fmt.Errorf("read cpu of machine: %w", err)
	}
	if s.engineProcess != nil {
		engine, err := procfs.NewProc(s.engineProcess.PID)
		if err != nil {
			return now, err
		}
		io, err := engine.IO()
		if err != nil {
			return now, fmt.Errorf("read bytes written: %w", err)
		}
		now.written = io.WriteBytes
	}
	now.Counters, err = machine.ReadCounters(ctx, s.conn)
	return now, err
}

// window is how long to measure, and how long to warm up before.
type window struct{ warmUp, length time.Duration }

// measure loads the site, and returns how many orders were answered in all.
func (s *site) measure(ctx context.Context, n int, w window) (out result, answered int, err error) {
	l := s.load(n)
	from, to, err := s.watch(ctx, l, w)
	l.Halt()
	l.Wait()
	if err != nil {
		return out, 0, err
	}
	seen := l.Outcome(from.at, to.at)
	if seen.Errors > 0 {
		return out, 0, fmt.Errorf("%d errors, one of the first: %w", seen.Errors, seen.First)
	}
	out = result{setup: setup{s.name, s.latency, n}}
	orders := float64(max(seen.Succeeded, 1))
	seconds := (to.at - from.at).Seconds()
	out.perSecond = float64(seen.Succeeded) / seconds
	out.p50, out.p99 = milliseconds(load.Percentile(seen.Latencies, 50)), milliseconds(load.Percentile(seen.Latencies, 99))
	out.cpuPeer = (to.peer - from.peer).Seconds() * 1000 / orders
	out.cpuPostgres = (to.postgres - from.postgres).Seconds() * 1000 / orders
	out.commits = float64(to.Commits-from.Commits) / orders
	out.flushes = float64(to.Flushes-from.Flushes) / orders
	out.log = float64(uint64(to.WAL-from.WAL)+to.written-from.written) / 1000 / orders
	ours := to.postgres + to.peer + to.load - from.postgres - from.peer - from.load
	out.others = max(0, (to.busy-from.busy-ours).Seconds()/seconds/float64(runtime.NumCPU()))
	return out, seen.All, nil
}

func (s *site) watch(ctx context.Context, l *callers, w window) (from, to sample, err error) {
	if err = pause(ctx, w.warmUp); err != nil {
		return from, to, err
	}
	if from, err = s.sample(ctx, l); err != nil {
		return from, to, err
	}
	if err = pause(ctx, w.length); err != nil {
		return from, to, err
	}
	to, err = s.sample(ctx, l)
	return from, to, err
}

// check compares the database with the answers: each order was charged, reserved and completed once.
func (s *site) check(ctx context.Context, answered int) error {
	var charges, reservations, completed int
	err := s.conn.QueryRow(ctx, `SELECT (SELECT count(*) FROM charges), (SELECT count(*) FROM reservations),
		(SELECT count(*) FROM (`+s.completed()+`) AS c)`).Scan(&charges, &reservations, &completed)
	if err != nil {
		return fmt.Errorf("check orders: %w", err)
	}
	if charges != answered || reservations != answered || completed != answered {
		return fmt.Errorf("%d orders answered, but %d charges, %d reservations, %d completed", answered, charges, reservations, completed)
	}
	return nil
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// median is over the rounds of a setup.
func median(rounds []result, of func(result) float64) float64 {
	var values []float64
	for _, r := range rounds {
		values = append(values, of(r))
	}
	slices.Sort(values)
	return (values[(len(values)-1)/2] + values[len(values)/2]) / 2
}
