package faults

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	pawl "pawl/client"
	"pawl/internal/simulator"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

// TestProviderThatBreaksTheContract charges an order after its key was undone, or its payment intent canceled. The service
// can't prevent that; the comparison of the books names the order.
func TestProviderThatBreaksTheContract(t *testing.T) {
	build(t)
	t.Parallel()
	for name, executor := range map[string]string{"the simulator": looking, "Stripe": stripeNow} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := openShop(t, executor, callLimit)
			s.faults(simulator.Rule{Fault: simulator.LateAfterVoid, Step: "charge", Delay: longest, OrderPrefix: "late"})
			s.open(1)
			s.order("good")
			s.order("late")
			s.lateCharge()
		})
	}
}

var lateAndLive = regexp.MustCompile(`"late": canceled order, charge of \d+\.\d\d USD: undone in Pawl's books, done at the provider`)

// lateCharge cancels an order that is charged afterwards.
func (s *shop) lateCharge() {
	s.t.Helper()
	t := s.t
	eventually(t, patience, "the order is canceled", func() bool { return s.ask("cancel", "late") })
	s.settle(3 * patience)
	if o := s.outcomes()["late"]; o.Status != "canceled" {
		t.Fatalf("%s\n%s", o, s.trace("late"))
	}
	eventually(t, patience, "it is charged all the same", func() bool { k := s.books()["late"]; return k != nil && k.live["charge"] == 1 })
	code, said := run(t, "verify", "--database-url", s.database.URL, "--provider", s.url)
	if code != 1 || !lateAndLive.MatchString(said) {
		t.Errorf("pawl verify --provider ends with %d:\n%s\n%s", code, said, s.trace("late"))
	}
	assert.True(t, !strings.Contains(said, `"good"`), "the good order is named", said)
	verify(t, s.database.URL) // ours are in order
}

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

// proveBoth has the command prove the books, and compare them with the provider's.
func (s *shop) proveBoth(id string) {
	s.t.Helper()
	if code, said := run(s.t, "verify", "--database-url", s.database.URL, "--provider", s.url); code != 0 {
		s.t.Errorf("pawl verify --provider ends with %d:\n%s\n%s", code, said, s.trace(id))
	}
}

// An order is charged in vain, started again, and canceled while the void of its first key is not answered: nothing of a
// second charge is in the books, and the void goes on until it is answered.
func TestStoppedWhileAVoidIsUnanswered(t *testing.T) {
	build(t)
	t.Parallel()
	s := openShop(t, blind, callLimit)
	s.faults(simulator.Rule{Fault: simulator.Decline, Step: "charge"}, simulator.Rule{Fault: simulator.Error, Step: "charge", Operation: "undo"})
	s.open(2)
	s.order("one")
	s.until("one", "failed", "")
	eventually(t, patience, "it is started again", func() bool { return s.ask("retry", "one") })
	s.until("one", "charging", "retry")
	eventually(t, patience, "it is canceled", func() bool { return s.ask("cancel", "one") })
	s.until("one", "canceled", "")
	for _, view := range []string{"charges", "refunds"} {
		if n := count(t, s.database.URL, `SELECT count(*) FROM books.`+view); n != 0 {
			t.Errorf("%d %s of an order that was never charged\n%s", n, view, s.trace("one"))
		}
	}
	s.faults()
	eventually(t, patience, "the first key is voided", func() bool {
		return count(t, s.database.URL, `SELECT count(*) FROM books.late_undos AS u WHERE u.step = 'charge' AND u.generation = 0 AND u.finished_at IS NOT NULL`) == 1
	})
	s.proveBoth("one")
}

// An order that its provider certainly did nothing for goes on under a policy whose steps are the ledger's: the provider's
// books lack what was never asked of it, and that is no difference.
func TestTheLedgerAfterAProvider(t *testing.T) {
	build(t)
	t.Parallel()
	s := openShop(t, looking, callLimit)
	s.faults(simulator.Rule{Fault: simulator.NotDone, Step: "charge"})
	s.open(1)
	s.order("one")
	s.until("one", "charging", "retry")
	policy := filepath.Join(t.TempDir(), "ledger.yaml")
	write(t, policy, "charge: {executor: ledger}\nreserve: {executor: ledger}\nconfirm: {executor: ledger}\n")
	newest := s.open(1, "--policy", policy).addresses()[0] // the other one may not have heard yet which policy is active
	eventually(t, patience, "it goes on under the other policy", func() bool {
		_, err := s.api(newest).RetryOrder(t.Context(), "one", pawl.RetryBody{OnBehalfOf: "test", Policy: "active"}, pawl.RetryOrderParams{Prefer: "respond-async"})
		return err == nil
	})
	s.until("one", "completed", "")
	s.proveBoth("one")
}

// TestVerifyThatCanNotFindOut: verify ends with 1 only where the books are wrong,
// and with 69 where it could not find out.
func TestVerifyThatCanNotFindOut(t *testing.T) {
	build(t)
	t.Parallel()
	database := oneCharging(t)
	for _, statement := range []string{"InstallationID", "VerifyExtent", "VerifyNextNumber", "VerifyPath", "VerifyMoney", "VerifyStock", "VerifyStuck", "ProviderClock", "ProviderKeys"} {
		for _, fate := range []dbtest.Fate{dbtest.LoseRequest, dbtest.LoseReply} {
			t.Run(fmt.Sprintf("%s: %s", statement, fate), func(t *testing.T) {
				t.Parallel()
				proxy := dbtest.NewProxy(t, database.URL)
				proxy.On(func(now string) dbtest.Fate {
					if now == statement {
						return fate
					}
					return dbtest.Passes
				})
				noVerdict(t, launch(t, nil, "verify", "--database-url", proxy.URL, "--provider", answering(t, "")))
			})
		}
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

// TestVerifyNamesOrdersWhoseReferencesWereSwapped: the undo of such an order would take back what was done for the other.
func TestVerifyNamesOrdersWhoseReferencesWereSwapped(t *testing.T) {
	build(t)
	t.Parallel()
	for name, executor := range map[string]string{"the simulator": looking, "an endpoint": blind, "Stripe, captured later": stripeLater} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := openShop(t, executor, callLimit)
			s.open(1)
			for _, id := range []string{"first", "second", "third"} {
				s.order(id)
			}
			s.settle(patience)
			if code, said := run(t, "verify", "--database-url", s.database.URL, "--provider", s.url); code != 0 {
				t.Fatalf("before: ends with %d:\n%s", code, said)
			}
			s.swap("charges", "reservations", "confirmations")
			code, said := run(t, "verify", "--database-url", s.database.URL, "--provider", s.url)
			assert.True(t, code == 1 && !strings.Contains(said, `"third"`), "ends with", code, said)
			for _, id := range []string{"first", "second"} {
				for _, step := range []string{"charge", "reserve", "confirm"} {
					want := fmt.Sprintf("%q: %s: ", id, step)
					assert.Equal(t, strings.Count(said, want), 1, "not once", want, "in", said)
				}
			}
		})
	}
}

// swap exchanges the references of the orders first and second.
func (s *shop) swap(tables ...string) {
	s.t.Helper()
	for _, table := range tables {
		tag, err := s.database.Pool.Exec(s.t.Context(), `UPDATE `+table+` AS a SET reference = b.reference FROM `+table+` AS b
			JOIN orders AS p ON p.order_no = b.order_no, orders AS o
			WHERE o.order_no = a.order_no AND (o.order_id, p.order_id) IN (('first', 'second'), ('second', 'first')) AND a.reference <> b.reference`)
		assert.Require(s.t, err == nil && tag.RowsAffected() == 2, table, err, tag)
	}
}
