package campaign

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"pawl/test/assert"
)

// check compares what the database, the provider, the callers and the people have. It returns what the documents say
// can't be.
func (f *field) check(ctx context.Context) (broken []string) {
	books := f.readBooks()
	broken = append(broken, f.checkOrders(books)...)
	broken = append(broken, f.checkProvider(books)...)
	broken = append(broken, f.checkRefunds()...)
	broken = append(broken, f.checkAnswers(books)...)
	broken = append(broken, f.checkVerbs(books)...)
	broken = append(broken, f.checkStock()...)
	broken = append(broken, f.checkCallbacks(ctx)...)
	broken = append(broken, f.checkEvents(ctx)...)
	broken = append(broken, f.people.doubts...)
	if f.row.prove != nil {
		broken = append(broken, f.row.prove(f)...)
	}
	return append(broken, f.verify(ctx)...)
}

// booked is an order as the schema books has it.
type booked struct {
	ID, Status          string
	Generation, Seq     int
	Policy              int
	Charges, Standing   int // charges, and those that were not refunded
	Reservations, Stand int
	Rows, First, Last   int // of the history
	StandingRemote      int // charges that a provider has made
	ReservedRemote      int
	CreatedAt           time.Time
}

// move is a row of a history.
type move struct {
	OrderID string
	Seq     int
	Status  string
	At      int64 // in microseconds
}

func (f *field) history() []move {
	return rows[move](f, "SELECT order_id, seq, to_status, (extract(epoch FROM at) * 1000000)::bigint FROM books.transitions")
}

func (f *field) readBooks() map[string]booked {
	list := rows[booked](f, `
		SELECT o.order_id, o.status, o.generation, o.seq, coalesce(o.policy, 0),
			coalesce(c.n, 0), coalesce(c.standing, 0), coalesce(r.n, 0), coalesce(r.standing, 0),
			coalesce(t.n, 0), coalesce(t.first, 0), coalesce(t.last, 0), coalesce(c.remote, 0), coalesce(r.remote, 0), o.created_at
		FROM books.orders AS o
		LEFT JOIN (SELECT order_id, count(*) AS n, count(*) FILTER (WHERE refunded_at IS NULL) AS standing,
			count(*) FILTER (WHERE refunded_at IS NULL AND executor <> 'ledger') AS remote FROM books.charges GROUP BY 1) AS c USING (order_id)
		LEFT JOIN (SELECT order_id, count(*) AS n, count(*) FILTER (WHERE released_at IS NULL) AS standing,
			count(*) FILTER (WHERE released_at IS NULL AND executor <> 'ledger') AS remote FROM books.reservations GROUP BY 1) AS r USING (order_id)
		LEFT JOIN (SELECT order_id, count(*) AS n, min(seq) AS first, max(seq) AS last FROM books.transitions GROUP BY 1) AS t USING (order_id)`)
	books := map[string]booked{}
	for _, o := range list {
		books[o.ID] = o
	}
	return books
}

// checkOrders: a completed order has one of each, another one nothing, and the history has no gaps.
func (f *field) checkOrders(books map[string]booked) (broken []string) {
	for id, o := range books {
		want := 0
		if o.Status == "completed" {
			want = 1
		}
		if o.Standing != want || o.Stand != want {
			broken = append(broken, fmt.Sprintf("order %s: %s with %d charges and %d reservations", id, o.Status, o.Standing, o.Stand))
		}
		if o.First != 1 || o.Last != o.Seq || o.Rows != o.Seq {
			broken = append(broken, fmt.Sprintf("order %s: seq is %d, and its history has %d rows from %d to %d", id, o.Seq, o.Rows, o.First, o.Last))
		}
	}
	for _, o := range f.callers.orders {
		if _, there := books[o.id]; !there && o.stored {
			broken = append(broken, "order "+o.id+": the service has said that it is stored, and it is not")
		}
	}
	return broken
}

// checkProvider: what the provider has is what the books say, and it was never asked for what it should not have been.
func (f *field) checkProvider(books map[string]booked) (broken []string) {
	remote := map[int]bool{} // version of a policy → the provider confirms
	for _, o := range books {
		if _, known := remote[o.Policy]; known || o.Policy == 0 {
			continue
		}
		text, err := f.command(f.t.Context(), "policy", "show", strconv.Itoa(o.Policy), "--database-url", f.server.url()).Output()
		assert.True(f.t, err == nil, "pawl policy show", err)
		remote[o.Policy] = strings.Contains(string(text), "confirm:")
	}
	type step struct {
		OrderID, Step string
		Generation    int
	}
	recorded := map[step]bool{}
	for _, s := range rows[step](f, "SELECT DISTINCT order_id, step, generation FROM books.step_calls WHERE operation = 'do'") {
		recorded[s] = true
	}
	p := f.provider
	p.mu.Lock()
	defer p.mu.Unlock()
	live := map[string]map[string]int{} // order → step → effects that stand
	for _, e := range p.order {
		if e.happened > 1 {
			broken = append(broken, fmt.Sprintf("order %s: key %s had its effect %d times", e.ask.OrderID, e.key, e.happened))
		}
		if e.ask.Step != refundStep && !recorded[step{e.ask.OrderID, e.ask.Step, e.ask.Generation}] {
			broken = append(broken, fmt.Sprintf("order %s: %s of generation %d was called, and there is no record of it", e.ask.OrderID, e.ask.Step, e.ask.Generation))
		}
		if e.state != "live" {
			continue
		}
		if live[e.ask.OrderID] == nil {
			live[e.ask.OrderID] = map[string]int{}
		}
		live[e.ask.OrderID][e.ask.Step]++
		if o := books[e.ask.OrderID]; o.Generation != e.ask.Generation {
			broken = append(broken, fmt.Sprintf("order %s: %s of generation %d stands, and the order is at %d", o.ID, e.ask.Step, e.ask.Generation, o.Generation))
		}
	}
	for id := range live {
		if _, there := books[id]; !there {
			broken = append(broken, fmt.Sprintf("order %s: the provider has %v, and the books have no such order", id, live[id]))
		}
	}
	for id, o := range books {
		confirmed := 0
		if o.Status == "completed" && remote[o.Policy] {
			confirmed = 1
		}
		has := live[id]
		if has["charge"] != o.StandingRemote || has["reserve"] != o.ReservedRemote || has["confirm"] != confirmed {
			broken = append(broken, fmt.Sprintf("order %s: %s, and the provider has %v: want %d charges, %d reservations, %d confirmations",
				id, o.Status, has, o.StandingRemote, o.ReservedRemote, confirmed))
		}
	}
	return append(broken, p.complains...)
}

// checkAnswers: what was answered once is true for ever, and was true then.
func (f *field) checkAnswers(books map[string]booked) (broken []string) {
	moves := map[move]bool{}
	for _, m := range f.history() {
		moves[move{OrderID: m.OrderID, Seq: m.Seq, Status: m.Status}] = true
	}
	for i := range f.callers.answers {
		a := &f.callers.answers[i]
		o, there := books[a.orderID]
		if a.order.Seq > 0 && (a.order.OrderID != a.orderID || !a.order.CreatedAt.Equal(o.CreatedAt) ||
			!moves[move{OrderID: a.orderID, Seq: a.order.Seq, Status: a.order.Status}]) {
			broken = append(broken, fmt.Sprintf("order %s: answered %d %+v, and there never was such a one", a.orderID, a.status, a.order))
		}
		switch {
		case a.orderID == "":
		case a.asked == "other amount" && a.status < 300 && a.status > 0:
			broken = append(broken, fmt.Sprintf("order %s: another amount was answered %d", a.orderID, a.status))
		case a.asked == "other amount":
		case (a.asked == "order" || a.asked == "order again") && a.status >= 400 && a.status < 500:
			broken = append(broken, fmt.Sprintf("order %s: the same body was answered %s", a.orderID, a.code))
		case a.status == http.StatusNotFound:
			broken = append(broken, fmt.Sprintf("order %s: it was stored, and %s was answered 404", a.orderID, a.asked))
		case a.status >= 300 || a.status == 0 || !a.order.final():
		case !there:
			broken = append(broken, fmt.Sprintf("order %s: answered %s, and it is not there", a.orderID, a.order.Status))
		case a.order.Generation == o.Generation && a.order.Status != o.Status,
			a.order.Generation < o.Generation && a.order.Status != "failed",
			a.order.Generation > o.Generation, a.order.Seq > o.Seq:
			broken = append(broken, fmt.Sprintf("order %s: answered %s of generation %d at seq %d, and it is %s of %d at %d", a.orderID,
				a.order.Status, a.order.Generation, a.order.Seq, o.Status, o.Generation, o.Seq))
		}
	}
	return append(broken, f.checkMemory()...)
}

// checkMemory: an order that was answered as final is not answered as anything else later, but for a new generation.
func (f *field) checkMemory() (broken []string) {
	finals := map[string][]*answer{}
	for i := range f.callers.answers {
		a := &f.callers.answers[i]
		if a.status == 0 || a.order.Status == "" {
			continue
		}
		for _, before := range finals[a.orderID] {
			if a.sent.After(before.at) && (a.order.Generation < before.order.Generation ||
				a.order.Generation == before.order.Generation && a.order.Status != before.order.Status) {
				broken = append(broken, fmt.Sprintf("order %s: answered %s of generation %d, and then %s of %d", a.orderID,
					before.order.Status, before.order.Generation, a.order.Status, a.order.Generation))
			}
		}
		if a.order.final() && a.status == http.StatusOK && len(finals[a.orderID]) < 20 {
			finals[a.orderID] = append(finals[a.orderID], a)
		}
	}
	return broken
}

// checkVerbs: what people were told is done is in the history, under the name of their request.
func (f *field) checkVerbs(books map[string]booked) (broken []string) {
	type request struct{ ID, Order, Verb string }
	seen := map[request]bool{}
	for _, r := range rows[request](f, `SELECT request_id, order_id, verb FROM books.transitions WHERE request_id IS NOT NULL`) {
		if seen[r] {
			broken = append(broken, fmt.Sprintf("order %s: %s was done twice by %s", r.Order, r.Verb, r.ID))
		}
		seen[r] = true
	}
	for i := range f.callers.answers {
		a := &f.callers.answers[i]
		if a.requestID == "" || a.status != http.StatusOK && a.status != http.StatusAccepted || seen[request{a.requestID, a.orderID, a.asked}] {
			continue
		}
		if a.asked == "cancel" && books[a.orderID].Status == "canceled" {
			continue // a cancellation of an order that is being canceled waits with the first
		}
		broken = append(broken, fmt.Sprintf("order %s: %s %s was answered %d, and is not in the history", a.orderID, a.asked, a.requestID, a.status))
	}
	return broken
}

// checkStock: what was sold is what is missing, nothing is oversold, and the stock is as it was last set.
func (f *field) checkStock() (broken []string) {
	type item struct {
		Name                 string
		OnHand, Reserved     int
		Tracked              bool
		Sold, Held, Released int
	}
	for _, i := range rows[item](f, `
		SELECT i.item, i.on_hand, i.reserved, i.tracked, coalesce(r.sold, 0), coalesce(r.held, 0), coalesce(r.released, 0)
		FROM books.inventory AS i
		LEFT JOIN (SELECT item, sum(quantity) FILTER (WHERE state = 'sold') AS sold, sum(quantity) FILTER (WHERE state = 'held') AS held,
			sum(quantity) FILTER (WHERE state = 'released') AS released FROM books.reservations WHERE executor = 'ledger' GROUP BY 1) AS r USING (item)`) {
		if i.Reserved != i.Held || i.Reserved < 0 {
			broken = append(broken, fmt.Sprintf("item %s: %d reserved, and orders hold %d", i.Name, i.Reserved, i.Held))
		}
		if strings.HasPrefix(i.Name, "scarce-") && (!i.Tracked || i.OnHand != scarceStock-i.Sold || i.OnHand < 0) {
			broken = append(broken, fmt.Sprintf("item %s: there were %d, %d were sold, and %d are left", i.Name, scarceStock, i.Sold, i.OnHand))
		}
		var shelf int
		if n, _ := fmt.Sscanf(i.Name, "shelf-%d", &shelf); n == 1 {
			if s := f.people.shelves[shelf]; i.OnHand < s.answered || i.OnHand > s.sent {
				broken = append(broken, fmt.Sprintf("item %s: set to %d and answered, and there are %d", i.Name, s.answered, i.OnHand))
			}
		}
	}
	return broken
}

// checkCallbacks sends those that were answered again: they must be known, and have the same answer, but where a person has
// settled the step after it (a confirmation that was refused while an earlier call of it was in doubt).
func (f *field) checkCallbacks(ctx context.Context) (broken []string) {
	settled := map[string]bool{}
	for _, a := range f.callers.answers {
		settled[a.orderID] = settled[a.orderID] || a.asked == "step-result" && a.settled() && a.status < 300
	}
	for _, c := range f.provider.told {
		a := f.people.repeat(ctx, call{method: http.MethodPost, path: "/" + c.url, body: c.body})
		if accepted := strings.Contains(string(a.body), `"accepted":true`); a.status != http.StatusOK || accepted != c.accepted && !settled[c.orderID] {
			broken = append(broken, fmt.Sprintf("order %s: a callback was answered accepted %v, and again: %d %s", c.orderID, c.accepted, a.status, a.body))
		}
	}
	return broken
}

// verify lets the program prove its own books, and compare them with the provider's. Orders that were lost with their commits may
// be missed there, and nothing else. On a busy machine it may have no verdict, and ends with 69: then it is run again.
func (f *field) verify(ctx context.Context) (broken []string) {
	var said []byte
	var err error
	await(ctx, settleLimit, func() bool {
		verify := f.command(ctx, "verify", "--database-url", f.server.url(), "--provider", f.provider.server.URL)
		said, err = verify.CombinedOutput()
		return err == nil || verify.ProcessState.ExitCode() != 69
	})
	missed := f.witness.lost != nil && strings.Count(string(said), "WRONG ") == 1 && strings.Contains(string(said), "WRONG  numbers ")
	if err != nil && !missed {
		broken = append(broken, fmt.Sprintf("pawl verify: %v\n%s", err, said))
	}
	return broken
}

// checksFindWhatIsWrong runs orders without any fault, which must be in order, and then breaks one thing after the other: a
// check that can't fail is none.
func checksFindWhatIsWrong(t *testing.T, yard *yard, template *postgres) {
	t.Helper()
	f := &field{t: t, yard: yard, row: &row{name: "none", people: true, disturb: nothing}, seed: 1, dice: newDice(1, 1),
		template: template, limit: 2 * time.Second, crowd: usualCrowd}
	f.prepare(t.Context())
	f.fight(t.Context())
	wrong := f.settle(t.Context(), settleLimit)
	wrong = append(wrong, f.check(t.Context())...)
	assert.Require(t, len(wrong) == 0, "without faults", wrong)
	o := f.anyCompleted(t)
	f.people.act(t.Context(), o, nil, "refund")
	wrong = f.settle(t.Context(), settleLimit)
	wrong = append(wrong, f.check(t.Context())...)
	assert.Require(t, len(wrong) == 0, "after a refund", wrong)
	live := f.liveEntry(o)
	for _, c := range []struct {
		name  string
		spoil func()
		found func() []string
	}{
		{"an effect that the provider does not have", func() { live.state = "undone" }, func() []string { return f.checkProvider(f.readBooks()) }},
		{"two effects under one key", func() { live.happened++ }, func() []string { return f.checkProvider(f.readBooks()) }},
		{"a second key for a step", func() {
			again := live.ask
			f.provider.do("another key", nil, &again, "")
		}, func() []string { return f.checkProvider(f.readBooks()) }},
		{"a refund that the provider does not have", func() { f.refundOf(o).state = "refused" }, f.checkRefunds},
		{"an answer that is not true any more", func() {
			f.spoilAnswer(&answer{asked: "order", orderID: o, status: http.StatusOK, order: shown{Status: "canceled"}})
		}, func() []string { return f.checkAnswers(f.readBooks()) }},
		{"an answer about an order that was lost, and stored again", func() {
			f.spoilAnswer(&answer{asked: "read", orderID: o, status: http.StatusOK, order: shown{OrderID: o, Status: "charging", Seq: 1}})
		}, func() []string { return f.checkAnswers(f.readBooks()) }},
		{"an answer about a step that was lost", func() {
			f.spoilAnswer(&answer{asked: "read", orderID: o, status: http.StatusOK,
				order: shown{OrderID: o, Status: "confirming", Seq: 99, CreatedAt: f.readBooks()[o].CreatedAt}})
		}, func() []string { return f.checkAnswers(f.readBooks()) }},
		{"an event that is another one now", func() { f.witness.events["1.1"] = "another" }, func() []string { return f.checkEvents(t.Context()) }},
		{"a webhook about nothing", func() { f.witness.messages["evt_1"] = "nothing" }, func() []string { return f.checkEvents(t.Context()) }},
		{"an order that was lost", func() { f.callers.orders = append(f.callers.orders, &order{id: "lost", stored: true}) },
			func() []string { return f.checkOrders(f.readBooks()) }},
		{"a verb that was lost", func() {
			f.spoilAnswer(&answer{asked: "pause", orderID: o, requestID: "lost", status: http.StatusOK})
		}, func() []string { return f.checkVerbs(f.readBooks()) }},
		{"stock that was lost", func() { f.people.shelves[0] = shelf{1000, 1000} }, f.checkStock},
		{"a callback that was lost", func() { f.provider.told = append(f.provider.told, callback{url: "api/callbacks/none", accepted: true}) },
			func() []string { return f.checkCallbacks(t.Context()) }},
		{"stock that was sold twice", func() { f.server.exec("UPDATE inventory SET on_hand = on_hand + 1 WHERE item = 'scarce-0'") }, f.checkStock},
		{"a call without a record", func() {
			f.server.exec("SET LOCAL session_replication_role = replica; DELETE FROM step_calls AS c USING orders AS o WHERE o.order_no = c.order_no AND o.order_id = '" + o + "'")
		}, func() []string { return f.checkProvider(f.readBooks()) }},
		{"a gap in a history", func() {
			f.server.exec("SET LOCAL session_replication_role = replica; DELETE FROM transitions AS t USING orders AS o WHERE o.order_no = t.order_no AND t.seq = 2 AND o.order_id = '" + o + "'")
		}, func() []string { return f.checkOrders(f.readBooks()) }},
		{"a charge that is gone", func() {
			f.server.exec("SET LOCAL session_replication_role = replica; DELETE FROM charges AS c USING orders AS o WHERE o.order_no = c.order_no AND o.order_id = '" + o + "'")
		}, func() []string { return f.checkOrders(f.readBooks()) }},
	} {
		before := c.found()
		c.spoil()
		assert.True(t, slices.ContainsFunc(c.found(), func(v string) bool { return !slices.Contains(before, v) }),
			c.name, "not found")
	}
	assert.True(t, f.verify(t.Context()) != nil, "pawl verify finds nothing of all that")
}

// anyCompleted is a completed order with a charge of the provider's.
func (f *field) anyCompleted(t *testing.T) string {
	t.Helper()
	for id, o := range f.readBooks() {
		if o.Status == "completed" && o.StandingRemote == 1 {
			return id
		}
	}
	t.Fatal("no order was completed with the provider")
	return ""
}

func (f *field) liveEntry(orderID string) *entry {
	entries := f.provider.steps[orderID+"/charge"]
	return entries[slices.IndexFunc(entries, func(e *entry) bool { return e.state == "live" })]
}

// refundOf is a refund of an order at the provider.
func (f *field) refundOf(orderID string) *entry {
	return f.provider.order[slices.IndexFunc(f.provider.order, func(e *entry) bool {
		return e.ask.OrderID == orderID && e.ask.Step == refundStep && e.state == "live"
	})]
}

func (f *field) spoilAnswer(a *answer) {
	a.sent = time.Now()
	a.at = a.sent
	f.callers.answers = append(f.callers.answers, *a)
}

// report is the table of a run.
type report struct {
	seed, seconds int
	mu            sync.Mutex
	lines         []string
}

// result is what came of one campaign.
type result struct {
	*field
	began, ended time.Time // of the fault
	violations   []string
}

// figures are what is measured of the answers while the fault went on.
type figures struct {
	requests, answers, refused, failed int
	gap                                time.Duration
	codes                              map[string]int
}

// measure looks at callers alone: people are few, and ask slow things.
func (r *result) measure() figures {
	f := figures{codes: map[string]int{}}
	last := r.began
	for _, a := range slices.SortedFunc(slices.Values(r.callers.answers), func(a, b answer) int { return a.at.Compare(b.at) }) {
		if a.at.Before(r.began) || a.at.After(r.ended) {
			continue
		}
		f.requests++
		if !a.settled() {
			f.failed++
			f.codes[a.code]++
			if a.status == 503 {
				f.refused++
			}
			continue
		}
		f.answers++
		f.gap, last = max(f.gap, a.at.Sub(last)), a.at
	}
	f.gap = max(f.gap, r.ended.Sub(last))
	return f
}

func (t *report) skipped(name, reason string) {
	t.line("| %s | NOT TESTED: %s | | | | | |", name, strings.TrimSpace(reason))
}

func (t *report) line(format string, arguments ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lines = append(t.lines, fmt.Sprintf(format, arguments...))
}

// add prints a line, and fails the test for what must not be. What is above a limit is marked; on demand it fails the
// test, too.
func (t *report) add(r *result, strict bool) {
	f := r.measure()
	percent := func(n int) float64 { return 100 * float64(n) / float64(max(f.requests, 1)) }
	errors := fmt.Sprintf("%.2f %%", percent(f.failed))
	var parts []string
	for _, code := range slices.SortedFunc(maps.Keys(f.codes), func(a, b string) int { return f.codes[b] - f.codes[a] }) {
		parts = append(parts, fmt.Sprintf("%s %.2f", code, percent(f.codes[code])))
	}
	if len(parts) > 0 {
		errors += ": " + strings.Join(parts, ", ")
	}
	gap := f.gap.Round(10 * time.Millisecond).String()
	excess := func(broken bool, format string, arguments ...any) string {
		if !broken {
			return ""
		}
		if strict {
			r.t.Errorf(format, arguments...)
		}
		return " (!)"
	}
	if r.row.refused > 0 {
		errors += excess(percent(f.refused) >= r.row.refused, "%.2f %% were refused, at most %.0f %%", percent(f.refused), r.row.refused)
	}
	if r.row.gap != nil {
		limit := r.row.gap(r.field)
		gap += excess(f.gap > limit, "no caller was answered for %s, at most %s", f.gap, limit)
	}
	if r.outage > 0 {
		gap += fmt.Sprintf("; away %s", r.outage.Round(10*time.Millisecond))
	}
	for i, v := range r.violations {
		assert.True(r.t, i >= 20, v)
	}
	assert.True(r.t, r.bit.Load() != 0 || r.row.quiet, "the fault has never bitten")
	t.line("| %s | %d %s in %.0f s | %d | %d | %s | %s | %d |", r.row.name, r.bit.Load(), r.what,
		r.ended.Sub(r.began).Seconds(), len(r.callers.orders), f.answers, errors, gap, len(r.violations))
}

// print writes the table.
func (t *report) print(w io.Writer) {
	fmt.Fprintf(w, "\nPAWL_FAULT_SEED=%d PAWL_FAULT_SECONDS=%d\n\n", t.seed, t.seconds)
	fmt.Fprintln(w, "| campaign | faults that bit | orders | answers | errors | longest without an answer | violations |")
	fmt.Fprintln(w, "|---|---|--:|--:|---|---|--:|")
	for _, line := range t.lines {
		fmt.Fprintln(w, line)
	}
	fmt.Fprintln(w, "\n(!): more than the documents say")
}
