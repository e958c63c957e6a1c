package books_test

import (
	"cmp"
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"pawl/fsm"
	"pawl/internal/books"
	"pawl/test/assert"
)

// keyOf is a key as the service makes them, of less.
func keyOf(orderID string, of fsm.Step, generation int32) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %s %d", orderID, of, generation))
	return "pawl-" + strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:]))
}

// everyKey is of a provider that is asked for everything.
func everyKey(s books.Sent) (key, at string) {
	return keyOf(s.OrderID, s.Step, s.Generation), string(s.Step) + "=there"
}

// line is a key in the books of a provider.
type line struct {
	id        string
	step      fsm.Step
	state     string
	effects   int
	amount    string
	currency  string
	reference string
}

// kept is a line as it is when the books agree.
func kept(id string, of fsm.Step, state string, effects int) line {
	return line{id, of, state, effects, "10.5", "EUR", "ref"}
}

// theirs are the books of a provider of the orders that fillRemote makes.
func theirs() []line {
	return []line{
		kept("sold", fsm.Charge, "live", 1), kept("sold", fsm.Reserve, "live", 1), kept("sold", fsm.Confirm, "live", 1),
		kept("refused", fsm.Charge, "undone", 1), kept("refused", fsm.Reserve, "undone", 1), kept("refused", fsm.Confirm, "refused", 0),
		kept("stopped", fsm.Charge, "voided", 0),
		kept("in doubt", fsm.Charge, "live", 1),
		kept("waiting", fsm.Charge, "live", 1), kept("waiting", fsm.Reserve, "pending", 0),
		kept("told", fsm.Charge, "live", 1),
		kept("voiding", fsm.Charge, "live", 1),
		kept("late", fsm.Charge, "live", 1),
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
		assert.Equal(t, r.URL.Path, "/provider/books", "asked for", r.URL)
		for _, l := range lines {
			fmt.Fprintf(w, `{"key":%q,"orderId":%q,"step":%q,"generation":0,"amount":%q,"currency":%q,"state":%q,"effects":%d,"reference":%q}`+"\n",
				keyOf(l.id, l.step, 0), l.id, l.step, l.amount, l.currency, l.state, l.effects, l.reference)
		}
		fmt.Fprint(w, more)
	}))
	t.Cleanup(server.Close)
	url := server.URL + "/provider/"
	return &books.Provider{URLs: []string{url, url}, Compared: []string{"charge=there", "reserve=there"}, Key: everyKey}
}

func TestEveryDifferenceToTheProviderIsFound(t *testing.T) { //nolint:tparallel // they share a database: filling one costs more than all proofs of it
	t.Parallel()
	filled := newShop(t)
	filled.fill()
	filled.fillRemote()
	filled.sql("UPDATE charges SET capture = 'later', captured_at = NULL WHERE" + of("sold"))
	waiting := []string{"in doubt", "waiting", "told", "voiding", "late"}
	for _, difference := range []struct { //nolint:paralleltest // as above
		name   string
		change func([]line) []line
		more   string
		want   found
	}{
		{"none", nil, "", nil},
		{"keys of others", nil, `{"key":"shop-1","orderId":"the\u0000irs","step":"charge","amount":"1","currency":"EUR","state":"live","effects":3}` + "\n",
			found{"provider_others": {"theirs"}}},
		{"charged again by others", nil, `{"key":"shop-1","orderId":"sold","step":"charge","amount":"1","currency":"EUR","state":"live"}` +
			`{"key":"shop-2","orderId":"sold","step":"refund","state":"live"}`, found{"provider_again": {"sold", "sold"}}},
		{"an authorization that has ended", nil, fmt.Sprintf(`{"key":%q,"amount":"10.5","currency":"EUR","state":"live","voided":"0.01"}`, keyOf("sold", fsm.Charge, 0)),
			found{"provider_ended": {"sold"}}},
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
		{"a charge in doubt that was done and undone", change("stopped", fsm.Charge, func(l *line) { l.state, l.effects = "undone", 1 }), "",
			found{"provider_uncounted": {"stopped"}}},
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
		{"another reference", change("sold", fsm.Charge, func(l *line) { l.reference = "ref2" }), "",
			found{"provider_references": {"sold"}}},
		{"another reference of a reservation", change("sold", fsm.Reserve, func(l *line) { l.reference = "re" }), "",
			found{"provider_references": {"sold"}}},
		{"another reference of a confirmation", change("sold", fsm.Confirm, func(l *line) { l.reference = "REF" }), "",
			found{"provider_references": {"sold"}}},
		{"another reference of what was undone", change("refused", fsm.Charge, func(l *line) { l.reference = strings.Repeat("ref", 1<<15) }), "",
			found{"provider_references": {"refused"}}},
		{"another reference of an order that has not ended", change("waiting", fsm.Charge, func(l *line) { l.reference = "ref2" }), "",
			found{"provider_references": {"waiting"}}},
		{"a reference that the provider does not tell", change("sold", fsm.Charge, func(l *line) { l.reference = "" }), "", nil},
		{"a reference that the books don't have", change("in doubt", fsm.Charge, func(l *line) { l.reference = "ref2" }), "", nil},
		{"another reference of what was done twice", change("sold", fsm.Charge, func(l *line) { l.reference, l.effects = "ref2", 2 }), "",
			found{"provider_once": {"sold"}}},
		{"done twice", change("sold", fsm.Charge, func(l *line) { l.effects = 2 }), "",
			found{"provider_once": {"sold"}}},
		{"a key in their books twice", func(lines []line) []line { return append(lines, lines[0]) }, "",
			found{"provider_once": {"sold"}}},
		{"a key without an order", func(lines []line) []line { return append(lines, kept("stranger", fsm.Charge, "live", 1)) }, "",
			found{"provider_known": {"stranger"}}},
		{"a step that was never sent", func(lines []line) []line { return append(lines, kept("told", fsm.Confirm, "refused", 0)) }, "",
			found{"provider_known": {"told"}}},
	} {
		t.Run(difference.name, func(t *testing.T) {
			lines := theirs()
			if difference.change != nil {
				lines = difference.change(lines)
			}
			report := filled.in(t).verify(books.Options{Provider: serve(t, lines, difference.more), RangeSize: 3})
			got := offenders(report)
			assert.Equal(t, got["provider_unsettled"], waiting, "not settled")
			delete(got, "provider_unsettled")
			assert.Equal(t, got, difference.want, "found")
			if difference.want["provider_uncounted"] != nil {
				assert.Equal(t, report.Steps[len(report.Steps)-2], books.VerificationStep{Step: "undo", Provider: "charge=there",
					Money: books.Sums{"EUR": "21.0"}, Here: books.Sums{"EUR": "10.50"}}, "of both undos")
			}
			reconcile(t, report)
			warnings := len(difference.want["provider_others"]) + len(difference.want["provider_uncounted"])
			assert.Equal(t, report.OK(), len(difference.want) == warnings, "OK() =")
		})
	}
}

// reconcile: what the provider has more in all figures is what the findings say.
func reconcile(t *testing.T, report books.Report) {
	t.Helper()
	left := map[string]*big.Rat{}
	add := func(sums books.Sums, sign int64) {
		for currency, text := range sums {
			amount, _ := new(big.Rat).SetString(text)
			left[currency] = amount.Add(amount.Mul(amount, big.NewRat(sign, 1)), cmp.Or(left[currency], new(big.Rat)))
		}
	}
	signs := map[string]int64{"charge": 1, "undo": -1, "void": -1, "refund": -1, "provider_again": 1, "provider_others": 1, "provider_known": 1}
	for _, s := range report.Steps {
		if s.Provider != "" {
			add(s.Money, signs[s.Step])
			add(s.Here, -signs[s.Step])
		}
	}
	for _, check := range report.Checks {
		add(check.Money, -1)
	}
	for currency, amount := range left {
		assert.Equal(t, amount.Sign(), 0, currency, amount, "is in no finding, or in two")
	}
}

// Two orders of which each has what belongs to the other are both named, whatever the sums are.
func TestWhatTwoOrdersExchangedIsFound(t *testing.T) { //nolint:tparallel // they share a database: filling one costs more than all proofs of it
	t.Parallel()
	sold := newShop(t)
	sold.twoSold()
	for _, exchange := range []struct { //nolint:paralleltest // as above
		name, plant string
		want        found
	}{
		{"references of charges", "UPDATE charges SET reference = 'ch_' || 3 - right(reference, 1)::integer",
			found{"provider_references": {"one", "two"}}},
		{"amounts", noGuards + "UPDATE orders SET amount = 30 - amount; UPDATE charges SET amount = 30 - amount",
			found{"provider_amounts": {"one", "one", "one", "two", "two", "two"}}},
		{"currencies", noGuards + "UPDATE orders SET currency = CASE currency WHEN 'EUR' THEN 'USD' ELSE 'EUR' END; " +
			"UPDATE charges SET currency = CASE currency WHEN 'EUR' THEN 'USD' ELSE 'EUR' END",
			found{"provider_amounts": {"one", "one", "one", "two", "two", "two"}}},
	} {
		t.Run(exchange.name, func(t *testing.T) {
			s := sold.in(t)
			lines := []line{}
			for _, of := range []fsm.Step{fsm.Charge, fsm.Reserve, fsm.Confirm} {
				lines = append(lines, line{"one", of, "live", 1, "10", "EUR", ""}, line{"two", of, "live", 1, "20", "USD", ""})
			}
			lines[0].reference, lines[1].reference = "ch_1", "ch_2"
			provider := serve(t, lines, "")
			report := s.verify(books.Options{Provider: provider})
			assert.Require(t, report.OK(), "before", offenders(report))
			assert.Equal(t, offenders(s.verifyWith(exchange.plant, books.Options{Provider: provider})), exchange.want, "found")
		})
	}
}

// twoSold are two orders that differ in everything a provider has of them.
func (s *shop) twoSold() {
	s.Helper()
	for _, id := range []string{"one", "two"} {
		s.admitRemote(id, "boat")
	}
	s.sql(noGuards + "UPDATE orders SET amount = 10 WHERE order_id = 'one'; " +
		"UPDATE orders SET amount = 20, currency = 'USD' WHERE order_id = 'two'; ALTER TABLE orders ENABLE TRIGGER orders_guard_input")
	for _, id := range []string{"one", "two"} {
		s.done(id, fsm.Charging, fsm.Reserving, fsm.Confirming)
	}
	s.sql("UPDATE charges SET reference = 'ch_' || (amount / 10)::integer")
}

// Keys that were never sent are wrong also when the provider can't say a second time whose they are.
func TestKeysThatAreNotReadTwice(t *testing.T) {
	t.Parallel()
	key := keyOf("stranger", fsm.Charge, 0)
	for name, second := range map[string]string{"gone": "", "unreadable": "<html>"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var readings atomic.Int32
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				if readings.Add(1) == 1 {
					fmt.Fprintf(w, `{"key":%q,"orderId":"stranger","step":"charge","amount":"1","currency":"EUR","state":"live","effects":1}`, key)
					return
				}
				fmt.Fprint(w, second)
			}))
			t.Cleanup(server.Close)
			report := newShop(t).verify(books.Options{Provider: &books.Provider{URLs: []string{server.URL}, Key: everyKey}})
			got := offenders(report)["provider_known"]
			if len(got) != 1 || len(got[0]) < 25 || !strings.HasPrefix(key, strings.TrimSuffix(got[0], "…")) || report.OK() {
				t.Errorf("found %v, want the beginning of %s", offenders(report), key)
			}
		})
	}
}

func TestTwoLiveChargesOfOneOrderAtTheProvider(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.fillRemote()
	s.sql("INSERT INTO disputes (order_no, reference, state, amount, currency, at) SELECT order_no, 'dp', 'lost', 5.00, 'EUR', now() FROM orders WHERE order_id IN ('sold', 'refused'); " +
		"UPDATE orders SET disputes = 1 WHERE order_id IN ('sold', 'refused')")
	s.redrive("refused")
	s.sql("UPDATE orders SET status = 'charging', seq = seq + 1 WHERE order_id = 'refused'; " +
		"INSERT INTO transitions (order_no, seq, from_status, to_status, fence) SELECT order_no, seq, 'pending', 'charging', fence FROM orders WHERE order_id = 'refused'")
	s.call("refused")
	lines := change("refused", fsm.Charge, func(l *line) { l.state = "live" })(theirs())
	second := fmt.Sprintf(`{"key":%q,"orderId":"refused","step":"charge","generation":1,"amount":"10.5","currency":"EUR","state":"live","effects":1}`,
		keyOf("refused", fsm.Charge, 1))
	report := s.verify(books.Options{Provider: serve(t, lines, second)})
	assert.Equal(t, offenders(report)["provider_single"], []string{"refused"}, "OK:", report.OK())
	lost := report.Steps[slices.IndexFunc(report.Steps, func(s books.VerificationStep) bool { return s.Step == "dispute_lost" })]
	assert.Equal(t, lost, books.VerificationStep{Step: "dispute_lost", Provider: "charge=there", Money: books.Sums{}, Here: books.Sums{"EUR": "5.00"}})
}

// An order that waited for its provider went on under another policy, whose charge and reservation are the ledger's.
func TestWhatTheLedgerDidAfterAllIsNotLookedForAtTheProvider(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.fillRemote()
	s.sql("UPDATE step_calls SET outcome = 'retry', reference = NULL WHERE step IN ('charge', 'reserve') AND order_no = (SELECT order_no FROM orders WHERE order_id = 'sold'); " +
		"UPDATE charges SET executor = NULL, reference = NULL, data = NULL, capture = NULL, captured_at = NULL WHERE order_no = (SELECT order_no FROM orders WHERE order_id = 'sold'); " +
		"UPDATE reservations SET executor = NULL, reference = NULL WHERE order_no = (SELECT order_no FROM orders WHERE order_id = 'sold')")
	lines := slices.DeleteFunc(theirs(), func(l line) bool { return l.id == "sold" && l.step != fsm.Confirm })
	got := offenders(s.verify(books.Options{Provider: serve(t, lines, "")}))
	assert.True(t, got["provider_standing"] == nil && got["provider_live"] == nil, "found", got)
	got = offenders(s.verify(books.Options{Provider: serve(t, theirs(), "")}))
	assert.Equal(t, got["provider_live"], []string{"sold", "sold"}, "charged and reserved there as well: found")
}

func TestStepsOfOtherProvidersAreNotLookedFor(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.fillRemote()
	lines := slices.DeleteFunc(theirs(), func(l line) bool { return l.step != fsm.Reserve })
	provider := serve(t, lines, "")
	provider.Key = func(s books.Sent) (key, at string) {
		if key, at = everyKey(s); s.Policy != 1 || s.Step != fsm.Reserve || s.Amount.String() != "10.50" {
			at = ""
		}
		return key, at
	}
	report := s.verify(books.Options{Provider: provider})
	assert.Equal(t, report.Steps[0], books.VerificationStep{Step: "charge", NotCompared: 8, Money: books.Sums{}, Here: books.Sums{"EUR": "52.50"}}, "of charges")
	want := found{"provider_unsettled": {"waiting", "voiding"}}
	assert.Equal(t, offenders(report), want, "OK:", report.OK())
}

func TestProviderWhoseBooksCanNotBeRead(t *testing.T) { //nolint:tparallel // they share a database: filling one costs more than all proofs of it
	t.Parallel()
	empty := newShop(t)
	for _, test := range []struct { //nolint:paralleltest // as above
		name   string
		answer http.HandlerFunc
	}{
		{"an error", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) }},
		{"a page", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>") }},
		{"an unknown state", func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintf(w, `{"key":%q,"amount":"1","currency":"EUR","state":"gone"}`, keyOf("x", fsm.Charge, 0))
		}},
		{"an amount that is none", func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintf(w, `{"key":%q,"amount":"much","currency":"EUR","state":"live"}`, keyOf("x", fsm.Charge, 0))
		}},
		{"a list that may have more pages", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"data":[],"has_more":true}`) }},
		{"a report of an error", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"error":"try later"}`) }},
		{"the first page", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Link", `</books?page=1>; rel="prev", </books?page=2>; rel="next"`)
			fmt.Fprintln(w, `{"key":"shop-1"}`)
		}},
		{"a part", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusPartialContent)
			fmt.Fprintln(w, `{"key":"shop-1"}`)
		}},
		{"an end that can't be told from a cut", func(w http.ResponseWriter, _ *http.Request) {
			conn, buffered, err := http.NewResponseController(w).Hijack()
			if err == nil {
				fmt.Fprint(buffered, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n", `{"key":"shop-1"}`, "\n")
				_ = buffered.Flush()
				conn.Close()
			}
		}},
		{"an end in the middle", func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintln(w, `{"key":"shop-1"}`)
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			server := httptest.NewServer(test.answer)
			t.Cleanup(server.Close)
			s := empty.in(t)
			report, err := books.Verify(s.ctx, s.pool, books.Options{Provider: &books.Provider{URLs: []string{server.URL}, Key: everyKey}})
			assert.ErrorIs(t, err, books.ErrProvider, "error")
			assert.True(t, len(report.Checks) == 16 && report.OK(), "of our own books", report.Checks)
		})
	}
}
