package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/govalues/decimal"

	"pawl/engine"
	"pawl/fsm"
	"pawl/internal/books"
	"pawl/internal/cli/output"
	"pawl/internal/policy"
	"pawl/internal/policy/store"
	"pawl/internal/provider"
	"pawl/internal/simulator"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

// runVerify runs the command on a database and returns what it printed.
func runVerify(t *testing.T, url string, more ...string) (stdout, stderr string, err error) {
	t.Helper()
	return executeBoth(t, append([]string{"verify", "--database-url", url}, more...)...)
}

// completedOrders makes a database of completed orders of 5 EUR, and runs one statement
// more on it.
func completedOrders(t *testing.T, orders int, more string) *dbtest.Database {
	t.Helper()
	database := dbtest.New(t)
	_, err := database.Pool.Exec(t.Context(), `WITH o AS (
		INSERT INTO orders (status, fence, due_at, order_id, currency, item, amount)
		SELECT 'charging', 1, now(), 'order ' || n, 'EUR', 'lamp', 5 FROM generate_series(1, $1::integer) AS n RETURNING order_no
	), c AS (
		INSERT INTO charges (order_no, generation, currency, amount) SELECT order_no, 0, 'EUR', 5 FROM o
	), r AS (
		INSERT INTO reservations (order_no, generation, item, quantity) SELECT order_no, 0, 'lamp', 1 FROM o
	), i AS (
		INSERT INTO inventory (item, sold) VALUES ('lamp', $1::integer)
	)
	INSERT INTO transitions (order_no, seq, from_status, to_status, fence)
	SELECT o.order_no, t.seq, t.a, t.b, 1 FROM o CROSS JOIN (VALUES (1, 'pending', 'charging'),
		(2, 'charging', 'reserving'), (3, 'reserving', 'confirming'), (4, 'confirming', 'completed')) AS t(seq, a, b)`, orders)
	assert.NoError(t, err)
	for _, statement := range []string{
		"UPDATE orders SET status = 'reserving', seq = 2", "UPDATE orders SET status = 'confirming', seq = 3",
		"UPDATE orders SET status = 'completed', ended_as = 'completed', finished_at = created_at, due_at = NULL, seq = 4", more,
	} {
		assert.NoError(t, assert.Err(database.Pool.Exec(t.Context(), statement)))
	}
	return database
}

func TestVerifyCommand(t *testing.T) {
	t.Parallel()

	t.Run("books in order: a line for each check, totals, no error", func(t *testing.T) {
		t.Parallel()
		database := completedOrders(t, 3, "SELECT")
		stdout, stderr, err := runVerify(t, database.URL)
		assert.Require(t, err == nil && stderr == "database: "+masked(database.URL)+"\n", "error", err, "printed", stderr)
		for _, want := range []string{
			`(?m)^ok +completed +3$`, `(?m)^ok +path +12$`, `(?m)^ok +stock +1$`, `(?m)^ok +stuck +0$`,
			`(?m)^ +completed +3$`, `(?m)^ +EUR +3 +15 +0 +0 +0 +15 +0 +0 +0$`, `16 checks in`,
		} {
			assert.True(t, regexp.MustCompile(want).MatchString(stdout), "no", want, "in", stdout)
		}
	})

	t.Run("books that are wrong: the offenders by name, and exit code 1", func(t *testing.T) {
		t.Parallel()
		database := completedOrders(t, 3, "SET LOCAL session_replication_role = replica; DELETE FROM charges")
		stdout, _, err := runVerify(t, database.URL, "--offenders", "2")
		assert.True(t, err != nil && strings.Contains(err.Error(), "2 of 16 checks") && exitCode(err) == exitFailure,
			"error", err, "exit code", exitCode(err))
		for _, want := range []string{
			`(?m)^WRONG +completed +3 +3 wrong$`, `This should hold: Every completed order`, `"order 1": 0 charges stand, not 1`, `and 1 more`,
			`(?m)^WRONG +money `, `"EUR": order_no 1 to 3, placed on 20\d\d-\d\d-\d\d: `,
		} {
			assert.True(t, regexp.MustCompile(want).MatchString(stdout), "no", want, "in", stdout)
		}
	})

	t.Run("identifiers can't speak to the terminal", func(t *testing.T) {
		t.Parallel()
		database := completedOrders(t, 1, "SET LOCAL session_replication_role = replica; DELETE FROM charges")
		for _, statement := range []string{"ALTER TABLE orders DISABLE TRIGGER USER", "UPDATE orders SET order_id = E'\\x1b[2J'"} {
			assert.NoError(t, assert.Err(database.Pool.Exec(t.Context(), statement)))
		}
		stdout, _, _ := runVerify(t, database.URL)
		assert.True(t, !strings.Contains(stdout, "\x1b") && strings.Contains(stdout, `"\x1b[2J"`), "printed", stdout)
	})

	t.Run("JSON is the whole report, also when it is wrong", func(t *testing.T) {
		t.Parallel()
		database := completedOrders(t, 3, "SET LOCAL session_replication_role = replica; DELETE FROM reservations WHERE order_no = 2")
		stdout, _, err := runVerify(t, database.URL, "-o", "json")
		var report books.Report
		jsonErr := json.Unmarshal([]byte(stdout), &report)
		assert.Require(t, jsonErr == nil && err != nil, "error", err, "JSON error", jsonErr)
		assert.True(t, !report.OK() && report.Orders["completed"] == 3 && report.Checks[0].Offenders[0].ID == "order 2",
			"report", report)
	})

	t.Run("a database without tables says what to do", func(t *testing.T) {
		t.Parallel()
		_, _, err := runVerify(t, dbtest.Empty(t))
		assert.True(t, exitCode(err) == exitUnavailable && strings.Contains(fmt.Sprint(err), "pawl migrate up"), "error", err)
	})
}

// Right books that can't be printed are no verdict; wrong books are wrong in any case.
func TestReportThatCanNotBePrinted(t *testing.T) {
	t.Parallel()
	for faults, code := range map[int64]int{0: exitUnavailable, 1: exitFailure} {
		for _, format := range []output.Format{output.JSON, output.Table} {
			report := books.Report{Checks: []books.VerificationCheck{{Name: "path", Violations: faults}}}
			reader, closed, err := os.Pipe()
			assert.NoError(t, err)
			reader.Close()
			closed.Close()
			err = printReport(closed, report, format)
			assert.Equal(t, exitCode(err), code, faults, "faults", format, "error", err, "exit code")
		}
	}
}

func TestVerifyCommandWithAProvider(t *testing.T) {
	t.Parallel()

	t.Run("a provider that knows more than the books: the order by name, and exit code 1", func(t *testing.T) {
		t.Parallel()
		database := completedOrders(t, 1, "SELECT")
		key := (&provider.Call{OrderID: "order 9", Step: fsm.Charge}).Key(provider.Do)
		provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintf(w, `{"key":%q,"orderId":"order 9","step":"charge","amount":"5","currency":"EUR","state":"live","effects":1}`, key)
		}))
		t.Cleanup(provider.Close)
		stdout, _, err := runVerify(t, database.URL, "--provider", provider.URL)
		assert.True(t, err != nil && exitCode(err) == exitFailure, "error", err, "exit code", exitCode(err))
		for _, want := range []string{`(?m)^WRONG +provider_known +1 +1 wrong$`,
			`"order 9": charge of 5 EUR, done at the provider: key "` + key, `28 checks in`} {
			assert.True(t, regexp.MustCompile(want).MatchString(stdout), "no", want, "in", stdout)
		}
	})

	t.Run("a difference stays until a newer comparison finds none", func(t *testing.T) {
		t.Parallel()
		database := completedOrders(t, 1, "SELECT")
		differs, key := true, (&provider.Call{OrderID: "order 9", Step: fsm.Reserve}).Key(provider.Do)
		provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if differs {
				fmt.Fprintf(w, `{"key":%q,"orderId":"order 9","step":"reserve","amount":"5","currency":"EUR","state":"live","effects":1}`, key)
			}
		}))
		t.Cleanup(provider.Close)
		newest := func() (found string) {
			t.Helper()
			assert.NoError(t, database.Pool.QueryRow(t.Context(), `SELECT string_agg(concat_ws(' ', v.number, v.differ, c.providers), ', ' ORDER BY v.number)
				FROM verifications AS v JOIN newest_comparisons AS c ON c.number = v.number WHERE v.started_by LIKE 'shell:_%'`).Scan(&found))
			return strings.ReplaceAll(found, provider.URL, "URL")
		}
		verify := func(more ...string) { _, _, _ = runVerify(t, database.URL, append(more, "--store")...) } // whether it finds any
		verify("--provider", "reserve="+provider.URL, "--provider", "charge/cards="+provider.URL)
		verify()
		assert.NoError(t, assert.Err(database.Pool.Exec(t.Context(), `SELECT setval(pg_get_serial_sequence('verifications', 'number'), 200)`)))
		verify()
		assert.Equal(t, newest(), "1 {reserve=URL} {charge/cards=URL,reserve=URL}")
		differs = false
		verify("--provider", "charge="+provider.URL)
		assert.Equal(t, newest(), "1 {reserve=URL} {reserve=URL}, 202 {} {charge=URL}")
		verify("--provider", provider.URL)
		assert.Equal(t, newest(), "203 {} {charge=URL,confirm=URL,reserve=URL}")
	})
}

// A shop may have its money at one provider and its goods at another. Each step is looked for in the books that are
// given for it.
func TestVerifyWithAProviderForEachStep(t *testing.T) {
	t.Parallel()
	w := watch(t)
	bank, warehouse := simulator.New(), simulator.New()
	serve := func(sim *simulator.Simulator) string {
		server := httptest.NewServer(sim)
		t.Cleanup(func() { server.Close(); _ = sim.Close() })
		return server.URL
	}
	bankURL, warehouseURL := serve(bank), serve(warehouse)
	text := "charge: {executor: simulator, url: " + bankURL + "}\nreserve: {executor: simulator, url: " + warehouseURL + "}"
	used, err := store.Use(t.Context(), w.query, []byte(text), "test")
	if err == nil {
		err = store.Activate(t.Context(), w.query, store.Activation{Version: used.Version, Actor: "test"})
	}
	assert.NoError(t, err)
	w.start(t, text)
	for _, id := range []string{"one", "two"} {
		if o, err := w.orders.Process(t.Context(), engine.Input{OrderID: id, Amount: decimal.MustParse("10.00"),
			Item: "i"}); err != nil || o.Status != fsm.Completed {
			t.Fatal(o.Status, err)
		}
	}
	for _, c := range []struct {
		providers string
		right     bool
	}{
		{"charge=" + bankURL + " reserve=" + warehouseURL, true}, {bankURL + " " + warehouseURL,
			true}, {"charge=" + bankURL, true}, {"reserve=" + warehouseURL, true},
		{warehouseURL + " charge=" + bankURL, true},
		{bankURL, false}, {warehouseURL, false}, {"charge=" + warehouseURL, false}, {"charge=" + bankURL + " reserve=" + bankURL, false},
	} {
		var args []string
		for url := range strings.FieldsSeq(c.providers) {
			args = append(args, "--provider", url)
		}
		stdout, _, err := runVerify(t, w.URL, args...)
		assert.True(t, c.right == (err == nil) && exitCode(err) <= exitFailure, c.providers, err, stdout)
	}
	// With a provider that is away, the report has the verification of our books, and the comparison with the others.
	away := httptest.NewServer(nil)
	away.Close()
	for others, compared := range map[string]string{"charge=" + bankURL: "charge", "reserve=" + bankURL: ""} {
		args := []string{"--store", "--provider", others, "--provider", "reserve=" + away.URL}
		stdout, _, err := runVerify(t, w.URL, args...)
		assert.True(t, exitCode(err) == exitUnavailable && stdout == "" && fmt.Sprint(err) == "not all was compared: Pawl's own books agree, but the provider's books could not be read: "+
			strings.TrimPrefix(away.URL, "http://")+" could not be reached: connection refused",
			others, "and one that is away", err, stdout)
		var stored string
		assert.NoError(t, w.Pool.QueryRow(t.Context(), `SELECT concat_ws(' ', split_part(array_to_string(compared, ','), '=', 1), wrong)
			FROM verifications WHERE report IS NOT NULL AND failure LIKE '%refused' ORDER BY number DESC LIMIT 1`).Scan(&stored))
		assert.Equal(t, strings.TrimSpace(stored), compared, "compared and wrong")
	}
	for _, wrong := range []string{"127.0.0.1:1", "chrge=" + bankURL, "charge=", "refund=" + bankURL} {
		_, _, err := runVerify(t, w.URL, "--provider", wrong)
		assert.True(t, exitCode(err) == exitConfig && strings.Contains(fmt.Sprint(err), "reserve=URL"), wrong, err)
	}
}

// Books for all routes of a charge have those at their host; those of an export, if all routes are at one provider.
func TestBooksOfRoutes(t *testing.T) {
	t.Parallel()
	versions := map[int32]*policy.Policy{}
	for version, hosts := range map[int32][]any{1: {"one.example", "two.example"}, 2: {"one.example", "one.example"}} {
		p, err := policy.Parse(fmt.Appendf(nil, "charge:\n"+
			"  - {name: cards, currency: EUR, executor: http, url: https://%s/charge, undoUrl: https://%[1]s/undo}\n"+
			"  - {name: wallet, executor: http, url: https://%s/pay, undoUrl: https://%[2]s/undo}", hosts...))
		assert.NoError(t, err)
		versions[version] = p
	}
	for address, want := range map[string]string{
		"charge=https://one.example": "1 cards, 2 cards, 2 wallet", "https://two.example/api": "1 wallet, 2 cards, 2 wallet",
		"https://export.example": "2 cards, 2 wallet", "charge/wallet=https://export.example": "1 wallet, 2 wallet, 3 wallet", "reserve=https://one.example": "",
	} {
		places, err := parseProviders([]string{address})
		assert.NoError(t, err)
		var compared []string
		for version := int32(1); version < 4; version++ {
			for _, route := range []string{"cards", "wallet"} {
				if _, at := places.provider(uuid.Nil, versions).Key(books.Sent{Step: fsm.Charge, Policy: version, Route: route}); at != "" {
					compared = append(compared, fmt.Sprint(version, " ", route))
				}
			}
		}
		assert.Equal(t, strings.Join(compared, ", "), want, address)
	}
}

// TestBookBarMoves is about a bar that showed 0 % until the end. Within the bubble no time passes but at the select.
func TestBookBarMoves(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		show := moving(output.NewBar(-1, "books", &out))
		for _, done := range []int64{0, 50} {
			show(done, 100)
			<-time.After(time.Second)
		}
		assert.Contains(t, out.String(), "50%", "drawn")
	})
}
