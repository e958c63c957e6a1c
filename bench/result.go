package main

import (
	"fmt"
	"runtime"
	"time"
)

// setup is one row of the table to be.
type setup struct {
	Target  string `json:"target"`
	Callers int    `json:"callers"`
	Items   int    `json:"items"`

	Rate float64 `json:"rate,omitempty"` // orders per second offered, instead of callers that wait
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
	Stored        int64   `json:"stored"` // orders in the table at the start
	Orders        int     `json:"orders"`
	Answered      int     `json:"answered"`
	Seconds       float64 `json:"seconds"`
	OrdersPerSec  float64 `json:"orders_per_second"`
	P50           float64 `json:"p50_ms"`
	P99           float64 `json:"p99_ms"`
	Max           float64 `json:"max_ms"`
	Errors        int     `json:"errors"`
	FirstError    string  `json:"first_error,omitempty"`
	ServiceCPU    float64 `json:"service_cpu_s_per_1000"`
	PostgresCPU   float64 `json:"postgres_cpu_s_per_1000"`
	LoadCPU       float64 `json:"load_cpu_s_per_1000"`
	OtherCPU      float64 `json:"other_cpu_share"` // of the machine, used by processes that are no part of this
	MemoryMiB     float64 `json:"service_peak_rss_mib"`
	WALPerOrder   float64 `json:"wal_bytes_per_order"`
	HOTShare      float64 `json:"hot_share"`
	SeqScans      int64   `json:"sequential_scans_of_orders"`
	Checkpoints   int64   `json:"checkpoints"`
	BooksMismatch string  `json:"books_mismatch,omitempty"`

	ProviderCPU float64  `json:"provider_cpu_s_per_1000,omitempty"`
	Provider    *summary `json:"provider,omitempty"` // nil: the ledger did every step
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
