package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

func TestMeasureRemoteCountsWhatTheProviderDid(t *testing.T) {
	t.Parallel()
	service := testTarget(t, "pawl")
	for name, s := range map[string]setup{
		"at a rate":    {Target: "pawl", Items: 10, Rate: 100},
		"with callers": {Target: "pawl", Items: 10, Callers: 20},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := run{setup: s, target: service, database: testDatabase(t), folder: t.TempDir(),
				window: window{warmUp: 300 * time.Millisecond, length: time.Second}, provider: newProvider(service.binary)}
			out, err := r.measureRemote(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if out.Orders == 0 || out.Errors != 0 || out.BooksMismatch != "" || out.P50 < 150 || out.ProviderCPU <= 0 ||
				out.Provider.Requests < 3*out.Answered || out.Provider.Steps["confirm"].Effects != out.Answered {
				t.Errorf("result %+v, provider %+v", out, out.Provider)
			}
		})
	}
}

func TestProviderMismatchIsNamed(t *testing.T) {
	t.Parallel()
	s := &summary{RepeatedEffects: 1, Requests: 9}
	if got := s.mismatch(2, false); got != "0 orders with two live charges, 0 effects beside a live one, 1 keys with more than one effect" {
		t.Error(got)
	}
	if got := s.mismatch(2, true); !strings.HasSuffix(got, "; 2 orders answered, but confirm was done 0 times") {
		t.Error(got)
	}
	if got := (&summary{}).mismatch(0, true); got != "" {
		t.Error(got)
	}
}

// Nothing is answered before a hundred orders have come, which takes an open loop.
func TestOfferedOrdersDoNotWaitForOthers(t *testing.T) {
	t.Parallel()
	var came atomic.Int64
	all, release := make(chan struct{}), make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if came.Add(1) == 100 {
			close(all)
		}
		<-release
		_, _ = w.Write([]byte(`{"status":"completed"}`))
	}))
	t.Cleanup(s.Close)
	l := startLoad(&server{address: strings.TrimPrefix(s.URL, "http://")}, setup{Items: 1, Rate: 1000})
	select {
	case <-all:
	case <-time.After(30 * time.Second):
		t.Error("fewer than 100 orders came")
	}
	stalled := l.since()
	close(release)
	l.stop()
	out := l.outcome(0, stalled)
	if out.errors != 0 || out.completed != 0 || len(out.latencies) < 100 {
		t.Errorf("while nothing was answered: %d completed, %d due; %d errors: %v", out.completed, len(out.latencies), out.errors, out.first)
	}
	if longest := percentile(out.latencies, 100); longest < stalled/2 {
		t.Errorf("nothing was answered for %v, and the longest order took %v", stalled, longest)
	}
}

func TestOutcomeOfAnOpenLoopIsOfTheOrdersDueInTheWindow(t *testing.T) {
	t.Parallel()
	l := &load{setup: setup{Rate: 1}, callers: []*caller{{answers: []answer{{at: 3, took: 2}, {at: 9, took: 6}, {at: 12, took: 3}}}}}
	out := l.outcome(2, 10)
	if out.completed != 2 || len(out.latencies) != 2 || out.latencies[0] != 3 || out.latencies[1] != 6 {
		t.Errorf("outcome %+v, want 2 completed, latencies 3 and 6", out)
	}
}
