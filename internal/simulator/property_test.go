package simulator_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"pawl/internal/simulator"
)

// actor is somebody who asks at a time, and leaves a second later.
type actor struct {
	at   time.Duration
	undo bool
	key  int
}

// TestUndoIsForEver has dos and undos of some keys come at any time, with any fault that
// keeps the contract. Once an undo of a key has been answered, nothing is live under it.
func TestUndoIsForEver(t *testing.T) {
	t.Parallel()
	items := []string{
		"approve", "slow:30ms", "slow:3s", "hang", "timeout-before", "timeout-after", "cut-after", "error2", "error-after", "not-done", "decline",
		"refuse-connection", "async:20ms", "async:2s", "callback-twice:10ms", "callback-late:1s", "callback-before", "callback-never", "answer-twice",
		"forget-declines", "timeout-after@charge/undo", "slow:20ms@charge/undo",
	}
	rapid.Check(t, func(rt *rapid.T) {
		kinds := rapid.SliceOfN(rapid.SampledFrom(items), 1, 4).Draw(rt, "items")
		actors := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) actor {
			return actor{
				at:   time.Duration(rapid.IntRange(0, 60).Draw(rt, "ms")) * time.Millisecond,
				undo: rapid.Bool().Draw(rt, "undo"), key: rapid.IntRange(0, len(kinds)-1).Draw(rt, "key"),
			}
		}), 1, 30).Draw(rt, "actors")
		var faults []string
		synctest.Test(t, func(t *testing.T) { faults = play(t, kinds, actors) })
		if len(faults) > 0 {
			rt.Fatal(strings.Join(faults, "\n"))
		}
	})
}

func play(t *testing.T, items []string, actors []actor) (faults []string) {
	t.Helper()
	sim := simulator.New()
	sim.CallbackTo(func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
	})
	var mu sync.Mutex
	undone := map[string]bool{}
	look := func() { // mu is held
		for _, e := range sim.Books("") {
			if undone[e.Key] && (e.State == simulator.Live || e.State == simulator.Pending) || e.Effects > 1 {
				faults = append(faults, fmt.Sprintf("%+v", e))
			}
		}
	}
	var all sync.WaitGroup
	for _, a := range actors {
		all.Go(func() {
			<-time.After(a.at)
			ctx, leave := context.WithTimeout(t.Context(), time.Second)
			defer leave()
			key := fmt.Sprintf("key %d", a.key)
			c := call{key: key, order: key, item: items[a.key], callback: "http://caller/"}
			if a.undo {
				c.key, c.undo = "undo "+key, key
			}
			mu.Lock()
			late := undone[key]
			mu.Unlock()
			got := ask(ctx, sim, c)
			mu.Lock()
			defer mu.Unlock()
			if a.undo && strings.HasPrefix(got, "200 ") {
				undone[key] = true
			}
			if !a.undo && late && (strings.HasPrefix(got, "200") || strings.HasPrefix(got, "202")) {
				faults = append(faults, fmt.Sprintf("%s: answered %s after its undo", key, got))
			}
			look()
		})
	}
	all.Wait()
	<-time.After(time.Minute)
	look()
	if !sim.Summary().OK() {
		faults = append(faults, fmt.Sprintf("%+v", sim.Summary()))
	}
	if err := sim.Close(); err != nil {
		t.Error(err)
	}
	return faults
}
