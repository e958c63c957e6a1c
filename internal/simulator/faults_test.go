package simulator_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pawl/internal/simulator"
	"pawl/test/assert"
)

// outcomes are what a caller sees that is no answer.
const (
	cut     = "cut in the middle"
	dropped = "closed without an answer"
	never   = "never answered"
)

// TestFaults sends one charge again and again. What it says of callbacks is in TestCallbacks.
func TestFaults(t *testing.T) {
	t.Parallel()
	seen := slices.Clone(callbackFaults)
	for _, c := range []struct {
		rule  string
		wants []string
		books string // after the first request
	}{
		{"approve", []string{"200 ch_1", "200 ch_1 again"}, "live 1"},
		{"decline", []string{"402 refused card_declined", "402 refused card_declined again"}, "refused 0"},
		{"decline1:stolen_card", []string{"402 refused stolen_card", "402 refused stolen_card again"}, "refused 0"},
		{"forget-declines", []string{"402 refused card_declined", "200 ch_1", "200 ch_1 again"}, ""},
		{"slow:1ms", []string{"200 ch_1", "200 ch_1 again"}, "live 1"},
		{"slow:1ms,code=late", []string{"402 refused late", "402 refused late again"}, "refused 0"},
		{"hang1", []string{never, "200 ch_1"}, ""},
		{"refuse-connection2", []string{dropped, dropped, "200 ch_1"}, ""},
		{"timeout-before1", []string{never, "200 ch_1"}, ""},
		{"timeout-after1", []string{never, "200 ch_1 again"}, "live 1"},
		{"timeout-after", []string{never, never, never}, "live 1"},
		{"timeout-after1,code=no", []string{never, "402 refused no again"}, "refused 0"},
		{"cut-after1", []string{cut, "200 ch_1 again"}, "live 1"},
		{"error3:503", []string{"503 error", "503 error", "503 error", "200 ch_1"}, ""},
		{"error-after1", []string{"500 error", "200 ch_1 again"}, "live 1"},
		{"not-done1", []string{"503 not_done not_done", "200 ch_1"}, ""},
		{"rate-limit1:1500ms", []string{"429 not_done rate_limit", "200 ch_1"}, ""},
		{"late-after-void", []string{"200 ch_1", "200 ch_1 again"}, "live 1"},
	} {
		t.Run(c.rule, func(t *testing.T) {
			t.Parallel()
			p := start(t, simulator.Config{})
			p.faults(c.rule)
			for i, want := range c.wants {
				p.sees(call{}, want)
				if i == 0 {
					p.stands("key", c.books)
				}
			}
			if !p.Summary().OK() {
				t.Errorf("%+v", p.Summary())
			}
		})
		rule, err := simulator.ParseRule(c.rule)
		assert.NoError(t, err)
		seen = append(seen, rule.Fault)
	}
	for _, fault := range simulator.Every {
		if !slices.Contains(seen, fault) {
			t.Errorf("%s is not tested", fault)
		}
	}
}

// sees sends a request and leaves when the simulator says that it will never answer.
func (p *provider) sees(c call, want string) {
	p.t.Helper()
	ctx, leave := context.WithCancel(p.t.Context())
	defer leave()
	number := p.Summary().Requests + 1
	if want == never {
		go func() {
			_, _ = p.Await(p.t.Context(), func(r simulator.Request) bool {
				hangs := r.Outcome == "running" && r.Fault == simulator.Hang
				return r.Number == number && (hangs || r.Outcome != "" && r.Outcome != "running" && !r.Answered)
			})
			leave()
		}()
	}
	got, err := p.sendUntil(ctx, c)
	switch {
	case errors.Is(err, context.Canceled):
		got = never
	case errors.Is(err, io.ErrUnexpectedEOF):
		got = cut
	case errors.Is(err, io.EOF):
		got = dropped
	case err != nil:
		got = err.Error()
	}
	assert.Equal(p.t, got, want, "request", number)
	// A request that hangs holds its key until the server has noticed that the caller left.
	_, err = p.Await(p.t.Context(), func(r simulator.Request) bool { return r.Number == number && r.Outcome != "" && r.Outcome != "running" })
	if err != nil {
		p.t.Error(err)
	}
}

func TestFaultsOfUndo(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		rule  string
		wants []string
		books string // after the first request
	}{
		{"decline1:too_late@charge/undo", []string{"402 refused too_late", "200 refunded rf_2"}, "live 1"},
		{"slow:1ms@charge/undo", []string{"200 refunded rf_2", "200 refunded rf_2 again"}, "undone 1"},
		{"hang1@charge/undo", []string{never, "200 refunded rf_2"}, "live 1"},
		{"refuse-connection1@charge/undo", []string{dropped, "200 refunded rf_2"}, "live 1"},
		{"timeout-before1@charge/undo", []string{never, "200 refunded rf_2"}, "live 1"},
		{"timeout-after1@charge/undo", []string{never, "200 refunded rf_2 again"}, "undone 1"},
		{"cut-after1@charge/undo", []string{cut, "200 refunded rf_2 again"}, "undone 1"},
		{"error2@charge/undo", []string{"500 error", "500 error", "200 refunded rf_2"}, "live 1"},
		{"error-after1@charge/undo", []string{"500 error", "200 refunded rf_2 again"}, "undone 1"},
		{"not-done1@charge/undo", []string{"503 not_done not_done", "200 refunded rf_2"}, "live 1"},
		{"rate-limit1@charge/undo", []string{"429 not_done rate_limit", "200 refunded rf_2"}, "live 1"},
	} {
		t.Run(c.rule, func(t *testing.T) {
			t.Parallel()
			p := start(t, simulator.Config{})
			p.faults(c.rule)
			p.answers(call{}, "200 ch_1") // the rule is not about it
			for i, want := range c.wants {
				p.sees(call{key: "undo", undo: "key"}, want)
				if i == 0 {
					p.stands("key", c.books)
				}
			}
			p.answers(call{}, "402 refused voided again")
			p.stands("key", "undone 1")
		})
	}
}

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	p := start(t, simulator.Config{})
	response, err := p.client.Do(call{item: "rate-limit:1500ms"}.request(t.Context(), p.url))
	assert.NoError(t, err)
	defer response.Body.Close()
	assert.Equal(t, response.Header.Get("Retry-After"), "2", "Retry-After")
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
				ask(sim, call{item: "slow:5s"}.request(ctx, "http://provider"))
				done = time.Since(began)
			}()
			synctest.Wait()
			assert.Equal(t, ask(sim, call{item: "slow:5s"}.request(t.Context(), "http://provider")), "409 in_progress",
				"answered")
			if _, err := sim.Await(t.Context(), func(r simulator.Request) bool { return r.Outcome == "done" }); err != nil {
				t.Error(err)
			}
			synctest.Wait()
			if done != 5*time.Second || len(sim.Books("")) != 1 {
				t.Errorf("after %s: %v", done, sim.Books(""))
			}
			assert.NoError(t, sim.Close())
		})
	})
	t.Run("latency is of each that is not a repetition", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			sim, err := simulator.Open(simulator.Config{Latency: 50 * time.Millisecond})
			assert.NoError(t, err)
			for _, c := range []struct {
				call
				took time.Duration
			}{{call{}, 50 * time.Millisecond}, {call{}, 0}, {call{key: "undo", undo: "key"}, 50 * time.Millisecond}} {
				began := time.Now()
				ask(sim, c.call.request(t.Context(), "http://provider"))
				if took := time.Since(began); took != c.took {
					t.Errorf("%+v took %s", c.call, took)
				}
			}
			assert.NoError(t, sim.Close())
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
				ask(sim, call{key: key, order: key, item: item, callback: "http://caller/"}.request(t.Context(), "http://provider"))
			}
			ask(sim, call{key: "undo", undo: "3", order: "3", item: "async:30s", callback: "http://caller/"}.request(t.Context(), "http://provider"))
			<-time.After(time.Minute)
			synctest.Wait()
			if len(told) != 3 || !strings.Contains(told[10*time.Second], "done") || !strings.Contains(told[20*time.Second], "done") ||
				told[30*time.Second] != chargeVoid {
				t.Errorf("told %v", told)
			}
			assert.NoError(t, sim.Close())
		})
	})
	t.Run("a callback that is not accepted is given up", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			sim := simulator.New()
			calls := 0
			sim.CallbackTo(func(*http.Request) (*http.Response, error) {
				calls++
				return &http.Response{StatusCode: http.StatusServiceUnavailable, Body: http.NoBody}, nil
			})
			ask(sim, call{item: "answer-twice", callback: "http://caller/"}.request(t.Context(), "http://provider"))
			<-time.After(time.Minute)
			synctest.Wait()
			assert.Equal(t, calls, 5, "called times")
			assert.NoError(t, sim.Close())
		})
	})
}
