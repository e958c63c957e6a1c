package faults

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"pawl/internal/simulator"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

// TestPausedInACall stops a replica in the middle of calls to its provider, lets another one finish the orders, and wakes
// it up: the answers it finds then are too late. They are kept, counted, and move nothing.
func TestPausedInACall(t *testing.T) {
	build(t)
	t.Parallel()
	for round := range rounds(t, 1) {
		t.Run(fmt.Sprint("round ", round), func(t *testing.T) {
			t.Parallel()
			pausedInACall(t)
		})
	}
}

func pausedInACall(t *testing.T) {
	t.Helper()
	const late = `SELECT count(*) FROM books.step_calls AS a WHERE a.order_id = $1 AND a.step = $2 AND a.fence = 1 AND a.fenced`
	s := openShop(t, looking, 10*time.Second)
	steps := []string{"charge", "reserve", "confirm"}
	var rules []simulator.Rule
	for _, step := range steps {
		rules = append(rules, simulator.Rule{Fault: simulator.Slow, Delay: overlong, Times: 1, Step: step, OrderPrefix: "paused-" + step})
	}
	s.faults(rules...)
	sleeps := s.open(1)
	for _, step := range steps {
		s.order("paused-" + step)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for _, step := range steps {
		_, err := s.provider.Await(ctx, func(r simulator.Request) bool { return r.OrderID == "paused-"+step && r.Step == step })
		assert.NoError(t, err)
	}
	sleeps.all[0].signal(syscall.SIGSTOP)
	s.open(1)
	took := s.settle(3 * patience)
	sleeps.all[0].signal(syscall.SIGCONT)
	for _, step := range steps {
		eventually(t, patience, "the late answer is kept", func() bool { return count(t, s.database.URL, late, "paused-"+step, step) == 1 })
		for _, o := range s.provider.Books("paused-" + step) {
			if o.Effects != 1 {
				t.Errorf("%s happened %d times\n%s", o.Step, o.Effects, s.trace(o.OrderID))
			}
		}
	}
	assert.Equal(t, metric(t, sleeps.addresses()[0], "pawl_step_answers_fenced_total"), int64(len(steps)),
		"answers were fenced", len(steps))
	for id, o := range s.outcomes() {
		if o.Status != "completed" {
			t.Errorf("order %s: %s\n%s", id, o, s.trace(id))
		}
	}
	s.prove()
	t.Logf("taken over and finished in %s; late answers: %v", took, query[string](t, s.database.URL,
		`SELECT format('%s %s %s', a.order_id, a.outcome, a.code) FROM books.step_calls AS a WHERE a.fenced`))
}

// until waits until an order is as the books are to have it.
func (s *shop) until(id, status, hold string) {
	s.t.Helper()
	eventually(s.t, patience, id+" is "+status+" "+hold, func() bool {
		o := s.outcomes()[id]
		return o.Status == status && o.Hold == hold
	})
}

// TestVerifyThatCanNotFindOut: verify ends with 1 only where the books are wrong,
// and with 69 where it could not find out.
func TestVerifyThatCanNotFindOut(t *testing.T) {
	build(t)
	t.Parallel()
	database := oneCharging(t)
	for _, statement := range []string{"InstallationID", "VerifyExtent", "VerifyNextNumber", "VerifyPath", "VerifyMoney", "VerifyStock", "VerifyStuck", "ProviderClock", "ProviderKeys"} {
		t.Run(statement, func(t *testing.T) {
			t.Parallel()
			proxy := dbtest.NewProxy(t, database.URL)
			proxy.On(func(now string) dbtest.Fate {
				if now == statement {
					return dbtest.LoseReply
				}
				return dbtest.Passes
			})
			noVerdict(t, launch(t, nil, "verify", "--database-url", proxy.URL, "--provider", answering(t, "")))
		})
	}

	t.Run("interrupted", func(t *testing.T) {
		t.Parallel()
		proxy, reached := dbtest.NewProxy(t, database.URL), make(chan struct{})
		released := make(chan struct{})
		defer close(released)
		proxy.On(func(now string) dbtest.Fate {
			if now == "VerifyStock" {
				close(reached)
				<-released
			}
			return dbtest.Passes
		})
		p := launch(t, nil, "verify", "--database-url", proxy.URL)
		<-reached
		p.signal(syscall.SIGINT)
		noVerdict(t, p)
	})

	t.Run("books that are wrong, and a provider that is away", func(t *testing.T) {
		t.Parallel()
		database := oneCharging(t)
		_, err := database.Pool.Exec(t.Context(), "SET LOCAL session_replication_role = replica; DELETE FROM transitions")
		assert.NoError(t, err)
		code, said := run(t, "verify", "--database-url", database.URL, "--provider", "http://127.0.0.1:1")
		if code != 1 || !strings.Contains(said, `"order 1": `) || !strings.Contains(said, "the provider's books could not be read") || strings.Contains(said, "provider_") {
			t.Errorf("ends with %d and says %q", code, said)
		}
	})
}

// oneCharging is a database whose books are right, with one order in them.
func oneCharging(t *testing.T) *dbtest.Database {
	t.Helper()
	database := dbtest.New(t)
	_, err := database.Pool.Exec(t.Context(), `WITH o AS (
		INSERT INTO orders (status, fence, due_at, order_id, currency, item, amount)
		VALUES ('charging', 1, now() + interval '1 hour', 'order 1', 'EUR', 'lamp', 5) RETURNING order_no)
		INSERT INTO transitions (order_no, seq, from_status, to_status, fence) SELECT order_no, 1, 'pending', 'charging', 1 FROM o`)
	assert.NoError(t, err)
	return database
}

// answering is a provider whose books are a text.
func answering(t *testing.T, text string) (url string) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, text) }))
	t.Cleanup(server.Close)
	return server.URL
}

func noVerdict(t *testing.T, p *process) {
	t.Helper()
	code, said := p.exitCode(), p.stderr()
	assert.True(t, code == 69 && regexp.MustCompile(`^database: .*\npawl: no verdict on the books: .*\n$`).MatchString(said) && p.stdout() == "",
		"ends with", code, "printed", p.stdout(), "and says", said)
}
