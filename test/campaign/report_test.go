package campaign

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// report is the table of a run.
type report struct {
	seed, seconds int
	mu            sync.Mutex
	lines         []string
}

// result is what came of one campaign.
type result struct {
	*field
	began, ended time.Time // of the fault
	violations   []string
}

// figures are what is measured of the answers while the fault went on.
type figures struct {
	requests, answers, refused, failed int
	gap                                time.Duration
	codes                              map[string]int
}

// measure looks at callers alone: people are few, and ask slow things.
func (r *result) measure() figures {
	f := figures{codes: map[string]int{}}
	last := r.began
	for _, a := range slices.SortedFunc(slices.Values(r.callers.answers), func(a, b answer) int { return a.at.Compare(b.at) }) {
		if a.at.Before(r.began) || a.at.After(r.ended) {
			continue
		}
		f.requests++
		if !a.settled() {
			f.failed++
			f.codes[a.code]++
			if a.status == 503 {
				f.refused++
			}
			continue
		}
		f.answers++
		f.gap, last = max(f.gap, a.at.Sub(last)), a.at
	}
	f.gap = max(f.gap, r.ended.Sub(last))
	return f
}

func (t *report) skipped(name, reason string) {
	t.line("| %s | NOT TESTED: %s | | | | | |", name, strings.TrimSpace(reason))
}

func (t *report) line(format string, arguments ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lines = append(t.lines, fmt.Sprintf(format, arguments...))
}

// add prints a line, and fails the test for what must not be. What is above a limit is marked; on demand it fails the test, too.
func (t *report) add(r *result, strict bool) {
	f := r.measure()
	percent := func(n int) float64 { return 100 * float64(n) / float64(max(f.requests, 1)) }
	errors := fmt.Sprintf("%.2f %%", percent(f.failed))
	var parts []string
	for _, code := range slices.SortedFunc(maps.Keys(f.codes), func(a, b string) int { return f.codes[b] - f.codes[a] }) {
		parts = append(parts, fmt.Sprintf("%s %.2f", code, percent(f.codes[code])))
	}
	if len(parts) > 0 {
		errors += ": " + strings.Join(parts, ", ")
	}
	gap := f.gap.Round(10 * time.Millisecond).String()
	excess := func(broken bool, format string, arguments ...any) string {
		if !broken {
			return ""
		}
		if strict {
			r.t.Errorf(format, arguments...)
		}
		return " (!)"
	}
	if r.row.refused > 0 {
		errors += excess(percent(f.refused) >= r.row.refused, "%.2f %% were refused, at most %.0f %%", percent(f.refused), r.row.refused)
	}
	if r.row.gap != nil {
		limit := r.row.gap(r.field)
		gap += excess(f.gap > limit, "nobody was answered for %s, at most %s", f.gap, limit)
	}
	if r.outage > 0 {
		gap += fmt.Sprintf("; away %s", r.outage.Round(10*time.Millisecond))
	}
	for i, v := range r.violations {
		if i < 20 {
			r.t.Error(v)
		}
	}
	if r.bit.Load() == 0 && !r.row.quiet {
		r.t.Error("the fault has never bitten")
	}
	t.line("| %s | %d %s in %.0f s | %d | %d | %s | %s | %d |", r.row.name, r.bit.Load(), r.what,
		r.ended.Sub(r.began).Seconds(), len(r.callers.orders), f.answers, errors, gap, len(r.violations))
}

// print writes the table.
func (t *report) print(w io.Writer) {
	fmt.Fprintf(w, "\nPAWL_FAULT_SEED=%d PAWL_FAULT_SECONDS=%d\n\n", t.seed, t.seconds)
	fmt.Fprintln(w, "| campaign | faults that bit | orders | answers | errors | longest without an answer | violations |")
	fmt.Fprintln(w, "|---|---|--:|--:|---|---|--:|")
	for _, line := range t.lines {
		fmt.Fprintln(w, line)
	}
	fmt.Fprintln(w, "\n(!): more than the documents say")
}
