package simulator_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pawl/internal/simulator"
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
}

func TestTimeOfCallbacks(t *testing.T) {
	t.Parallel()
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
