package simulator_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"pawl/simulator"
)

// ask is a request without a network, in the time of a bubble. What is not answered
// whole is "".
func ask(ctx context.Context, sim *simulator.Simulator, c call) (answer string) {
	w := httptest.NewRecorder()
	defer func() {
		if recover() != nil {
			answer = ""
		}
	}()
	sim.ServeHTTP(w, c.request(ctx, "http://provider"))
	answer, _ = line(w.Result())
	return answer
}

func TestTime(t *testing.T) {
	t.Parallel()
	t.Run("a slow do holds its key, and is done when its caller has left", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			sim := simulator.New()
			began := time.Now()
			ctx, leave := context.WithTimeout(t.Context(), time.Second)
			defer leave()
			var done time.Duration
			go func() {
				ask(ctx, sim, call{item: "slow:5s"})
				done = time.Since(began)
			}()
			synctest.Wait()
			if got := ask(t.Context(), sim, call{item: "slow:5s"}); got != "409 in_progress" {
				t.Errorf("answered %s", got)
			}
			if _, err := sim.Await(t.Context(), func(r simulator.Request) bool { return r.Outcome == "done" }); err != nil {
				t.Error(err)
			}
			synctest.Wait()
			if done != 5*time.Second || len(sim.Books("")) != 1 {
				t.Errorf("after %s: %v", done, sim.Books(""))
			}
			if err := sim.Close(); err != nil {
				t.Error(err)
			}
		})
	})
	t.Run("latency is of each that is not a repetition", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			sim, err := simulator.Open(simulator.Config{Latency: 50 * time.Millisecond})
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range []struct {
				call
				took time.Duration
			}{{call{}, 50 * time.Millisecond}, {call{}, 0}, {call{key: "undo", undo: "key"}, 50 * time.Millisecond}} {
				began := time.Now()
				ask(t.Context(), sim, c.call)
				if took := time.Since(began); took != c.took {
					t.Errorf("%+v took %s", c.call, took)
				}
			}
			if err := sim.Close(); err != nil {
				t.Error(err)
			}
		})
	})
	t.Run("a callback comes when it was promised, and tells of an undo", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			sim := simulator.New()
			began := time.Now()
			told := map[time.Duration]string{}
			sim.CallbackTo(func(r *http.Request) (*http.Response, error) {
				body, _ := io.ReadAll(r.Body)
				told[time.Since(began)] = string(body)
				return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
			})
			for key, item := range map[string]string{"1": "async:10s", "2": "callback-late:20s", "3": "async:30s"} {
				ask(t.Context(), sim, call{key: key, order: key, item: item, callback: "http://caller/"})
			}
			ask(t.Context(), sim, call{key: "undo", undo: "3", order: "3", item: "async:30s", callback: "http://caller/"})
			<-time.After(time.Minute)
			synctest.Wait()
			if len(told) != 3 || !strings.Contains(told[10*time.Second], "done") || !strings.Contains(told[20*time.Second], "done") || told[30*time.Second] != chargeVoid {
				t.Errorf("told %v", told)
			}
			if err := sim.Close(); err != nil {
				t.Error(err)
			}
		})
	})
	t.Run("a callback nobody takes is given up", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			sim := simulator.New()
			calls := 0
			sim.CallbackTo(func(*http.Request) (*http.Response, error) {
				calls++
				return &http.Response{StatusCode: http.StatusServiceUnavailable, Body: http.NoBody}, nil
			})
			ask(t.Context(), sim, call{item: "answer-twice", callback: "http://caller/"})
			<-time.After(time.Minute)
			synctest.Wait()
			if calls != 5 {
				t.Errorf("called %d times", calls)
			}
			if err := sim.Close(); err != nil {
				t.Error(err)
			}
		})
	})
}

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
