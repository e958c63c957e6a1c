package books_test

import (
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pawl/books"
	"pawl/fsm"
)

// keyOf is a key as the service makes them, of less.
func keyOf(orderID string, of fsm.Step, generation int32) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %s %d", orderID, of, generation))
	return "pawl-" + strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:]))
}

// everyKey is of a provider that is asked for everything.
func everyKey(s books.Sent) (string, bool) { return keyOf(s.OrderID, s.Step, s.Generation), true }

// line is a key in the books of a provider.
type line struct {
	id       string
	step     fsm.Step
	state    string
	effects  int
	amount   string
	currency string
}

// theirs are the books of a provider of the orders that fillOutside makes.
func theirs() []line {
	return []line{
		{"sold", fsm.Charge, "live", 1, "10.5", "EUR"}, {"sold", fsm.Reserve, "live", 1, "10.5", "EUR"}, {"sold", fsm.Confirm, "live", 1, "10.5", "EUR"},
		{"refused", fsm.Charge, "undone", 1, "10.5", "EUR"}, {"refused", fsm.Reserve, "undone", 1, "10.5", "EUR"}, {"refused", fsm.Confirm, "refused", 0, "10.5", "EUR"},
		{"stopped", fsm.Charge, "voided", 0, "10.5", "EUR"},
		{"in doubt", fsm.Charge, "live", 1, "10.5", "EUR"},
		{"waiting", fsm.Charge, "live", 1, "10.5", "EUR"}, {"waiting", fsm.Reserve, "pending", 0, "10.5", "EUR"},
		{"told", fsm.Charge, "live", 1, "10.5", "EUR"},
		{"voiding", fsm.Charge, "live", 1, "10.5", "EUR"},
		{"late", fsm.Charge, "live", 1, "10.5", "EUR"},
	}
}

// change finds a line and changes it.
func change(id string, of fsm.Step, how func(*line)) func([]line) []line {
	return func(lines []line) []line {
		i := slices.IndexFunc(lines, func(l line) bool { return l.id == id && l.step == of })
		how(&lines[i])
		return lines
	}
}

func forget(id string, of fsm.Step) func([]line) []line {
	return func(lines []line) []line {
		return slices.DeleteFunc(lines, func(l line) bool { return l.id == id && l.step == of })
	}
}

func serve(t *testing.T, lines []line, more string) *books.Provider {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/provider/books" {
			t.Errorf("asked for %s", r.URL)
		}
		for _, l := range lines {
			fmt.Fprintf(w, `{"key":%q,"orderId":%q,"step":%q,"generation":0,"amount":%q,"currency":%q,"state":%q,"effects":%d,"reference":"x"}`+"\n",
				keyOf(l.id, l.step, 0), l.id, l.step, l.amount, l.currency, l.state, l.effects)
		}
		fmt.Fprint(w, more)
	}))
	t.Cleanup(server.Close)
	return &books.Provider{URL: server.URL + "/provider/", Key: everyKey}
}

func TestEveryDifferenceToTheProviderIsFound(t *testing.T) {
	t.Parallel()
	waiting := []string{"in doubt", "waiting", "told", "voiding", "late"}
	for _, difference := range []struct {
		name   string
		change func([]line) []line
		more   string
		want   found
	}{
		{"none", nil, "", nil},
		{"keys of others", nil, `{"key":"shop-1","orderId":"sold","step":"charge","amount":"1","currency":"EUR","state":"live","effects":3}` + "\n", nil},
		{"of orders that have not ended", forget("waiting", fsm.Charge), "", nil},
		{"a charge that stands gone", forget("sold", fsm.Charge), "",
			found{"provider_standing": {"sold"}}},
		{"a reservation that stands undone", change("sold", fsm.Reserve, func(l *line) { l.state = "undone" }), "",
			found{"provider_standing": {"sold"}}},
		{"a confirmation refused", change("sold", fsm.Confirm, func(l *line) { l.state, l.effects = "refused", 0 }), "",
			found{"provider_standing": {"sold"}}},
		{"a charge that was refunded live", change("refused", fsm.Charge, func(l *line) { l.state = "live" }), "",
			found{"provider_live": {"refused"}}},
		{"a charge in doubt that was undone live", change("stopped", fsm.Charge, func(l *line) { l.state, l.effects = "live", 1 }), "",
			found{"provider_live": {"stopped"}}},
		{"a confirmation that was refused live", change("refused", fsm.Confirm, func(l *line) { l.state, l.effects = "live", 1 }), "",
			found{"provider_live": {"refused"}}},
		{"what was undone may still come", change("refused", fsm.Reserve, func(l *line) { l.state, l.effects = "pending", 0 }), "",
			found{"provider_live": {"refused"}}},
		{"another amount", change("sold", fsm.Charge, func(l *line) { l.amount = "10.51" }), "",
			found{"provider_amounts": {"sold"}}},
		{"another amount of an order that has not ended", change("in doubt", fsm.Charge, func(l *line) { l.amount = "105" }), "",
			found{"provider_amounts": {"in doubt"}}},
		{"the same amount, written otherwise", change("sold", fsm.Charge, func(l *line) { l.amount = "10.5000" }), "", nil},
		{"another currency", change("sold", fsm.Charge, func(l *line) { l.currency = "USD" }), "",
			found{"provider_amounts": {"sold"}}},
		{"done twice", change("sold", fsm.Charge, func(l *line) { l.effects = 2 }), "",
			found{"provider_once": {"sold"}}},
		{"a key in their books twice", func(lines []line) []line { return append(lines, lines[0]) }, "",
			found{"provider_once": {"sold"}}},
		{"an order of nobody", func(lines []line) []line { return append(lines, line{"stranger", fsm.Charge, "live", 1, "1", "EUR"}) }, "",
			found{"provider_known": {"stranger"}}},
		{"a step that was never sent", func(lines []line) []line { return append(lines, line{"told", fsm.Confirm, "refused", 0, "1", "EUR"}) }, "",
			found{"provider_known": {"told"}}},
	} {
		t.Run(difference.name, func(t *testing.T) {
			t.Parallel()
			s := newShop(t)
			s.fill()
			s.fillOutside()
			lines := theirs()
			if difference.change != nil {
				lines = difference.change(lines)
			}
			report := s.verify(books.Options{Provider: serve(t, lines, difference.more), RangeSize: 3})
			got := offenders(report)
			if !reflect.DeepEqual(got["provider_unsettled"], waiting) {
				t.Errorf("not settled: %q, want %q", got["provider_unsettled"], waiting)
			}
			delete(got, "provider_unsettled")
			if len(got)+len(difference.want) > 0 && !reflect.DeepEqual(got, difference.want) {
				t.Errorf("found %v, want %v", got, difference.want)
			}
			if report.OK() != (difference.want == nil) {
				t.Errorf("OK() = %v", report.OK())
			}
		})
	}
}

func TestTwoLiveChargesOfOneOrderAtTheProvider(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.fillOutside()
	s.redrive("refused")
	s.sql("UPDATE orders SET status = 'charging', seq = seq + 1 WHERE order_id = 'refused'; " +
		"INSERT INTO transitions (order_no, seq, from_status, to_status, fence) SELECT order_no, seq, 'pending', 'charging', fence FROM orders WHERE order_id = 'refused'")
	s.call("refused")
	lines := change("refused", fsm.Charge, func(l *line) { l.state = "live" })(theirs())
	second := fmt.Sprintf(`{"key":%q,"orderId":"refused","step":"charge","generation":1,"amount":"10.5","currency":"EUR","state":"live","effects":1}`,
		keyOf("refused", fsm.Charge, 1))
	report := s.verify(books.Options{Provider: serve(t, lines, second)})
	if got := offenders(report)["provider_single"]; !reflect.DeepEqual(got, []string{"refused"}) || report.OK() {
		t.Errorf("found %v", offenders(report))
	}
}

// An order that waited for its provider went on under another policy, whose charge and reservation are the ledger's.
func TestWhatTheLedgerDidAfterAllIsNotLookedForAtTheProvider(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.fillOutside()
	s.sql("UPDATE step_attempts SET outcome = 'retry', reference = NULL WHERE step IN ('charge', 'reserve') AND order_no = (SELECT order_no FROM orders WHERE order_id = 'sold'); " +
		"UPDATE charges SET executor = NULL, reference = NULL, data = NULL, capture = NULL, captured_at = NULL WHERE order_no = (SELECT order_no FROM orders WHERE order_id = 'sold'); " +
		"UPDATE reservations SET executor = NULL, reference = NULL WHERE order_no = (SELECT order_no FROM orders WHERE order_id = 'sold')")
	lines := slices.DeleteFunc(theirs(), func(l line) bool { return l.id == "sold" && l.step != fsm.Confirm })
	if got := offenders(s.verify(books.Options{Provider: serve(t, lines, "")})); got["provider_standing"] != nil || got["provider_live"] != nil {
		t.Errorf("found %v", got)
	}
	if got := offenders(s.verify(books.Options{Provider: serve(t, theirs(), "")}))["provider_live"]; !reflect.DeepEqual(got, []string{"sold", "sold"}) {
		t.Errorf("charged and reserved there as well: found %v", got)
	}
}

func TestStepsOfOtherProvidersAreNotLookedFor(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.fillOutside()
	lines := slices.DeleteFunc(theirs(), func(l line) bool { return l.step != fsm.Reserve })
	provider := serve(t, lines, "")
	provider.Key = func(s books.Sent) (string, bool) {
		key, _ := everyKey(s)
		return key, s.Policy == 1 && s.Step == fsm.Reserve && s.Amount.String() == "10.50"
	}
	report := s.verify(books.Options{Provider: provider})
	want := found{"provider_unsettled": {"waiting", "voiding"}}
	if got := offenders(report); !reflect.DeepEqual(got, want) || !report.OK() {
		t.Errorf("found %v, want %v", got, want)
	}
}

func TestProviderWhoseBooksCanNotBeRead(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		answer http.HandlerFunc
	}{
		{"an error", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) }},
		{"a page", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>") }},
		{"a state nobody knows", func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintf(w, `{"key":%q,"amount":"1","currency":"EUR","state":"gone"}`, keyOf("x", fsm.Charge, 0))
		}},
		{"an amount that is none", func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintf(w, `{"key":%q,"amount":"much","currency":"EUR","state":"live"}`, keyOf("x", fsm.Charge, 0))
		}},
		{"an end in the middle", func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintln(w, `{"key":"shop-1"}`)
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(test.answer)
			t.Cleanup(server.Close)
			s := newShop(t)
			_, err := books.Verify(s.ctx, s.pool, books.Options{Provider: &books.Provider{URL: server.URL, Key: everyKey}})
			if !errors.Is(err, books.ErrProvider) {
				t.Errorf("error %v", err)
			}
		})
	}
}
