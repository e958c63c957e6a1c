package main

import (
	"fmt"
	"runtime"
	"time"
)

// setup is one row of the table to be.
type setup struct {
	Target         string
	Callers, Items int
	Ordered        bool    // ids
	Rate           float64 // orders per second offered, instead of callers that wait
	Console        bool    // somebody looks at its pages
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
	HOTShare         float64
	SeqScans         int64
	Checkpoints      int64
	Provider         *summary // nil: the ledger did every step
	EventLags        lags     // of the events, if they were followed
	Pages            map[string]lags
	OtherCPU         float64 // of the machine, used by processes that are no part of this

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
