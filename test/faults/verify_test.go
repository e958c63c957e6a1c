package faults

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"pawl/test/dbtest"
)

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

	for name, answer := range map[string]string{
		"a provider that lists its books by pages": `{"data":[],"has_more":true}`,
		"a provider that answers a web page":       `<html>`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			noVerdict(t, launch(t, nil, "verify", "--database-url", database.URL, "--provider", answering(t, answer)))
		})
	}

	t.Run("books that are wrong, and a provider that is away", func(t *testing.T) {
		t.Parallel()
		database := oneCharging(t)
		if _, err := database.Pool.Exec(t.Context(), "SET LOCAL pawl.archive = on; DELETE FROM transitions"); err != nil {
			t.Fatal(err)
		}
		code, said := run(t, "verify", "--database-url", database.URL, "--provider", "http://127.0.0.1:1")
		if code != 1 || !strings.Contains(said, `"order 1": `) || !strings.Contains(said, "provider's books unavailable") || strings.Contains(said, "provider_") {
			t.Errorf("ends with %d and says %q", code, said)
		}
	})
}

// oneCharging is a database whose books are right, with one order in them.
func oneCharging(t *testing.T) *dbtest.Database {
	t.Helper()
	database := dbtest.New(t)
	if _, err := database.Pool.Exec(t.Context(), `WITH o AS (
		INSERT INTO orders (status, fence, due_at, order_id, currency, item, amount)
		VALUES ('charging', 1, now() + interval '1 hour', 'order 1', 'EUR', 'lamp', 5) RETURNING order_no)
		INSERT INTO transitions (order_no, seq, from_status, to_status, fence) SELECT order_no, 1, 'pending', 'charging', 1 FROM o`); err != nil {
		t.Fatal(err)
	}
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
	if code != 69 || !regexp.MustCompile(`^database: .*\npawl: no verdict on the books: .*\n$`).MatchString(said) || p.stdout() != "" {
		t.Errorf("ends with %d, printed %q and says %q", code, p.stdout(), said)
	}
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
			if code != 1 || strings.Contains(said, `"third"`) {
				t.Errorf("ends with %d:\n%s", code, said)
			}
			for _, id := range []string{"first", "second"} {
				for _, step := range []string{"charge", "reserve", "confirm"} {
					if want := fmt.Sprintf("%q: %s of generation 0: ", id, step); strings.Count(said, want) != 1 {
						t.Errorf("not once %s in:\n%s", want, said)
					}
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
		if err != nil || tag.RowsAffected() != 2 {
			s.t.Fatalf("%s: %v, %s", table, err, tag)
		}
	}
}
