package load

import (
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"pawl/test/assert"
)

func TestMostRequests(t *testing.T) {
	t.Parallel()
	var seen [1000]atomic.Int64
	var ended atomic.Int64
	r := Load{Callers: 7, Most: len(seen), Caller: func(int) (send func(int) error, end func()) {
		return func(n int) error { seen[n].Add(1); return nil }, func() { ended.Add(1) }
	}}.Start()
	r.Wait()
	for n := range seen {
		assert.Equal(t, seen[n].Load(), 1, "request", n, "was sent times")
	}
	if out := r.Outcome(0, r.Since()); out.All != len(seen) || len(out.Latencies) != len(seen) || ended.Load() != 7 {
		t.Errorf("%d succeeded, %d latencies, %d callers have ended", out.All, len(out.Latencies), ended.Load())
	}
}

// TestRequestsAtARateDoNotWaitForOthers answers nothing before a hundred requests have come, which takes an open loop.
func TestRequestsAtARateDoNotWaitForOthers(t *testing.T) {
	t.Parallel()
	var came atomic.Int64
	all, release := make(chan struct{}), make(chan struct{})
	r := Load{Rate: 1000, Caller: func(int) (send func(int) error, end func()) {
		return func(int) error {
			if came.Add(1) == 100 {
				close(all)
			}
			<-release
			return nil
		}, func() {}
	}}.Start()
	select {
	case <-all:
	case <-time.After(30 * time.Second):
		t.Error("fewer than 100 requests came")
	}
	stalled := r.Since()
	close(release)
	r.Halt()
	r.Wait()
	out := r.Outcome(0, stalled)
	assert.True(t, out.Errors == 0 && out.Succeeded == 0 && len(out.Latencies) >= 100,
		"while nothing was answered", out.Succeeded, "succeeded", len(out.Latencies), "due", out.Errors, "errors", out.First)
	longest := Percentile(out.Latencies, 100)
	assert.True(t, longest >= stalled/2, "nothing was answered for", stalled, "and the longest request took", longest)
}

func TestOutcomeOfAWindow(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name      string
		rate      float64
		from, to  time.Duration
		answers   [][]answer
		latencies []time.Duration
		succeeded int
	}{
		{"of a closed loop: what ended in it", 0, 2, 4, [][]answer{{{1, 9}, {2, 5}, {3, 4}}, {{2, 3}, {4, 9}}}, []time.Duration{3, 4, 5}, 3},
		{"of an open loop: what was due in it", 1, 2, 10, [][]answer{{{3, 2}, {9, 6}, {12, 3}}}, []time.Duration{3, 6}, 2},
	} {
		r := &Running{Load: Load{Rate: c.rate}, callers: []*caller{{errors: 1, first: errors.New("x")}}}
		all := 0
		for _, answers := range c.answers {
			r.callers = append(r.callers, &caller{answers: answers})
			all += len(answers)
		}
		out := r.Outcome(c.from, c.to)
		assert.True(t, slices.Equal(out.Latencies, c.latencies) && out.Succeeded == c.succeeded && out.All == all &&
			out.Errors == 1 && out.First != nil, c.name, out)
	}
}

func TestPercentileIsOfTheNearestRank(t *testing.T) {
	t.Parallel()
	var sorted []time.Duration
	for n := range time.Duration(1000) {
		sorted = append(sorted, n)
	}
	for p, want := range map[float64]time.Duration{50: 500, 99: 990, 100: 999} {
		assert.Equal(t, Percentile(sorted, p), want, "p", p)
	}
	assert.Equal(t, Percentile(nil, 50), 0, "p50 of nothing")
}
