package console

import (
	"bytes"
	"fmt"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"pawl/client"
	"pawl/test/assert"
)

func TestParseSearch(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 22, 9, 30, 0, 0, time.UTC)
	day := func(d int) time.Time { return time.Date(2026, 11, d, 0, 0, 0, 0, time.UTC) }
	type filter = client.ListOrdersParams
	for _, c := range []struct {
		text   string
		filter filter
		id     string
		notes  string // words of each, with commas between them
	}{
		{text: ""},
		{text: "status:failed item:widget amount:>100",
			filter: filter{Status: []client.Status{"failed"}, Item: "widget", AmountFrom: "100.0001"}},
		{text: `STATUS:Failed,cancelled customer:"ann smith"`,
			filter: filter{Status: []client.Status{"canceled", "failed"}, CustomerID: "ann smith"}},
		{text: `"order 1"`, id: "order 1"},
		{text: `order-1`, id: "order-1"},
		{text: `"status:failed"`, id: "status:failed"},
		{text: "shop:17", id: "shop:17"},
		{text: `"say ""hi"""`, id: `say "hi"`},
		{text: `"status:""x"`, id: `status:"x`},
		{text: `customer:"""ann"" smith" ""`, filter: filter{CustomerID: `"ann" smith`}},
		{text: `item:"never closed`, filter: filter{Item: "never closed"}},
		{text: "hold:attention reason:retries_exhausted sort:oldest",
			filter: filter{Hold: "attention", HoldReason: "retries_exhausted", Sort: "oldest"}},
		{text: "reason:retry_after", filter: filter{Hold: "attention", HoldReason: "retry_after"}},
		{text: "amount:100..200.50", filter: filter{AmountFrom: "100", AmountTo: "200.50"}},
		{text: "amount:<0.5", filter: filter{AmountTo: "0.4999"}},
		{text: "amount:>=7", filter: filter{AmountFrom: "7"}},
		{text: "amount:7", filter: filter{AmountFrom: "7", AmountTo: "7"}},
		{text: "amount:<0", notes: "below 0"},
		{text: `"`, notes: "is an empty word"},
		{text: "amount:1e3 amount:-1 amount:1,5 amount:1..x", filter: filter{AmountFrom: "1"}, notes: "a number,a number,a number,a number"},
		{text: "from:2026-11-01 to:2026-11-03", filter: filter{CreatedFrom: day(1), CreatedTo: day(4)}},
		{text: "created:yesterday", filter: filter{CreatedFrom: day(21), CreatedTo: day(22)}},
		{text: "created:24h", filter: filter{CreatedFrom: now.AddDate(0, 0, -1)}},
		{text: "state:x", filter: filter{Status: []client.Status{"x"}}, notes: "state:x is not understood"},
		{text: "from:today", filter: filter{CreatedFrom: day(22)}},
		{text: "since:24h", filter: filter{CreatedFrom: now.AddDate(0, 0, -1)}},
		{text: "to:2026-11-01T09:30Z from:soon", notes: "use a day,use a day"},
		{text: "to:2026-11-01T09:30:00+01:00", filter: filter{CreatedTo: day(1).Add(8*time.Hour + 30*time.Minute)}},
		{text: "step:reserve code:out_of_stock", filter: filter{FailureStep: "reserve", FailureCode: "out_of_stock"}},
		{text: "status:done hold:Never step:ship sort:up item:", notes: "use pending,use retry,use charge,use newest,has no value",
			filter: filter{Status: []client.Status{"done"}, Hold: "never", FailureStep: "ship", Sort: "up"}},
	} {
		s := parseSearch(c.text, now)
		s.filter.CreatedFrom, s.filter.CreatedTo = s.filter.CreatedFrom.UTC(), s.filter.CreatedTo.UTC()
		c.filter.Term = c.id
		assert.True(t, s.term == c.id && reflect.DeepEqual(s.filter, c.filter), c.text, s.filter, s.term)
		want := strings.FieldsFunc(c.notes, func(r rune) bool { return r == ',' })
		assert.Require(t, len(s.notes) == len(want), c.text, s.notes)
		for i := range want {
			assert.Contains(t, s.notes[i], want[i], c.text, "lacks")
		}
	}
}

// FuzzParseSearch: nothing that a person types is an error.
func FuzzParseSearch(f *testing.F) {
	for _, text := range []string{`a "b`, "amount:..", "status:,", "from:9999d", "\"\"", "to:0000-01-01", "::"} {
		f.Add(text)
	}
	f.Fuzz(func(_ *testing.T, text string) { parseSearch(text, time.Now()) })
}

// TestReasonsAreThoseOfTheRunbook: of every order that needs a person, the console says what to do.
func TestReasonsAreThoseOfTheRunbook(t *testing.T) {
	t.Parallel()
	known := map[string]bool{}
	for _, r := range append(reasons, approval.words) {
		known[r.Section] = true
		assert.True(t, len(r.Runbook()) >= 100 && r.Meaning != "" && len(r.try) > 0, r, "the runbook says", r.Runbook())
	}
	whole := string(runbook.Whole)
	_, rest, _ := strings.Cut(whole, `<h2 id="attention">`)
	rest, _, _ = strings.Cut(rest, "<h2")
	for _, part := range strings.Split(rest, `<h3 id="`)[1:] {
		id, _, _ := strings.Cut(part, `"`)
		assert.True(t, known[id], "nothing is advised on a part of the runbook", id)
	}
	for _, part := range strings.Split(whole, `href="`)[1:] {
		to, _, _ := strings.Cut(part, `"`)
		name, ok := strings.CutPrefix(to, "/console/runbook#")
		assert.True(t, ok && strings.Contains(whole, ` id="`+name+`"`), "a link of the runbook leads to", to)
	}
	assert.True(t, !strings.Contains(whole, "style=") && !strings.Contains(whole, "<!--"), "the runbook has what a page may not have")
	for words, title := range map[string]string{
		"23505: charges_pkey": "The database refuses its data (23505)", "taken over three times without a move": "Replicas fail on it",
		"something new: of tomorrow": "something new", "": "Without a reason", "retry_after: later": "The provider asks to wait",
	} {
		r := reasonOf("attention", words)
		assert.True(t, r.Title == title && r.Runbook() != "" && strings.HasPrefix(words, r.Key), words, r)
	}
}

// TestStory: what happened is told in a row per state, and the numbers in it add up.
func TestStory(t *testing.T) {
	t.Parallel()
	o := &client.Order{OrderID: "o", Amount: "49.90", Currency: "USD", Item: "cup", Quantity: 2}
	at := time.Date(2026, 11, 27, 3, 2, 0, 0, time.UTC)
	var entries []entry
	move := func(from, to client.Status, verb, actor, reason string) {
		at = at.Add(30 * time.Second)
		entries = append(entries, entry{At: at, Move: &client.Transition{At: at, From: from, To: to, Verb: verb, Actor: actor, Reason: reason}})
	}
	call := func(operation client.CallOperation, outcome client.CallOutcome, code, detail string) {
		entries[len(entries)-1].Call = &client.Call{StartedAt: at, FinishedAt: at.Add(30 * time.Second), Step: "charge", Operation: operation, Outcome: outcome, Code: code, Detail: detail, Call: 1}
	}
	move("pending", "charging", "", "system", "")
	call("do", "unknown", "error", "HTTP 503 Service Unavailable: down")
	for range 7 {
		move("charging", "charging", "retry", "system", "error")
		move("charging", "charging", "wake", "system", "")
		move("charging", "charging", "call", "system", "")
		call("lookup", "retry", "unseen", "")
		move("charging", "charging", "call", "system", "")
		call("do", "unknown", "error", "HTTP 503 Service Unavailable: down")
	}
	move("charging", "charging", "retry", "system", "breaker_open")
	move("charging", "charging", "take_over", "system", "")
	move("charging", "charging", "attention", "system", "retries_exhausted: no success in 12m0s, last error")
	move("charging", "charging", "retry", "token:eve", "it works again")
	move("charging", "charging", "call", "system", "")
	call("do", "unknown", "timeout", "no answer in time")
	move("charging", "charging", "call", "system", "")
	call("lookup", "done", "", "")
	move("charging", "reserving", "", "system", "")
	move("reserving", "refunding", "", "system", "out_of_stock")
	move("refunding", "failed", "", "system", "out_of_stock")
	told := func(first, last bool) (text []string) {
		for _, c := range storyOf(o, entries, first, last) {
			text = append(text, strings.TrimSpace(strings.TrimSpace(c.Title+" "+c.By+" "+c.Reason)+": "+strings.Join(c.Said, " ")))
		}
		return text
	}
	assert.Equal(t, strings.Join(told(true, true), "\n"), strings.Join([]string{
		"Charge: It needs a person: no success in 12 min: the provider answered with an error. Put off once, because the provider kept failing. " +
			"Taken over by another replica once. 8 tries: 8 × HTTP 503 Service Unavailable. Asked the provider 7 times, between the tries, what had become of it: 7 × not done.",
		"Retry requested token:eve it works again:",
		"Charge: 49.90 USD charged once: its answer was lost, and Pawl found it by asking the provider. 1 try: no answer in time. " +
			"Asked the provider once what had become of it: done.",
		"Reservation: Refused: out of stock.", "Undo of the charge: Nothing is kept of the charge.", "Failed: Out of stock.",
	}, "\n"))
	assert.Contains(t, told(false, true)[0], "More of it is on another page.")
	rows := rowsOf(entries)
	assert.Equal(t, fmt.Sprint(len(rows), len(entries), len(rows[0].Then), len(rows[1].Before), rows[1].Since, rows[1].Took()), "22 38 1 1 1m30s 30s")
	entries = entries[:4]
	call("do", "done", "", "")
	move("charging", "reserving", "", "system", "")
	assert.Equal(t, strings.Join(told(true, true), "\n"), "Charge: 49.90 USD charged once, at try 2 of 2, all with the same key. 2 tries: 1 × HTTP 503 Service Unavailable, 1 × done."+
		"\nReservation: It is under way.")
	entries = nil
	move("pending", "charging", "", "system", "")
	move("charging", "failed", "", "system", "out_of_stock")
	assert.Equal(t, strings.Join(told(true, true), "\n"), "Reservation: Out of stock, so nothing was charged.\nFailed: Out of stock.")
	entries, o.Hold, o.InDoubt, o.Steps.Reserve = nil, "callback", true, client.StepState{Undone: true, InDoubt: true}
	move("releasing", "refunding", "", "system", "")
	entries = append([]entry{{At: at, Move: &client.Transition{At: at, From: "reserving", To: "releasing", Actor: "system"}}}, entries...)
	assert.Equal(t, strings.Join(told(true, true), "\n"), "Undo of the reservation: Nothing is reserved.\nUndo of the charge: No result yet: a request may still be on its way.")
	entries, o.Hold = nil, ""
	move("", "pending", "approval", "system", "")
	move("pending", "pending", "pause", "token:eve", "")
	move("refunding", "refunding", "step-result", "token:eve", "seen")
	move("refunding", "refunding", "retry", "system", "step_result")
	move("refunding", "refunding", "step-result", "token:eve", "closed")
	move("refunding", "refunding", "attention", "system", "undo_refused: step_result: closed")
	assert.Equal(t, strings.Join(told(true, true), "\n"), "Accepted: It waited 30 s for a person to approve it.\nAsked to pause token:eve:\nUndo of the charge: recorded as not done token:eve seen:\nUndo of the charge:"+
		"\nUndo of the charge: recorded as refused token:eve closed: Refused: closed. It is under way.")
	entries, o.Steps.Charge.Reference = nil, "ch_1"
	move("charging", "charging", "step-result", "token:eve", "seen")
	move("charging", "reserving", "", "system", "")
	assert.Equal(t, (&history{Story: storyOf(o, entries, true, true)}).recorded(verbByName(verbs, "step-result")), "Charge: recorded as done (ch_1). ")
	o.Refunds = []client.Refund{{Refund: 1, State: "done", Amount: "5", CreatedAt: at, Reference: "re_1"}}
	entries = []entry{{At: at, Move: &client.Transition{At: at, From: "completed", To: "completed", Verb: "refund", Actor: "token:eve", Reason: "a dent"}},
		{At: at, Call: &client.Call{Call: -1, Refund: 1, Operation: "refund", Outcome: "done"}},
		{At: at, Call: &client.Call{Call: -2, Step: "charge", Operation: "undo", Outcome: "done"}}}
	assert.Equal(t, strings.Join(told(true, true), "\n"), "Refund 1: 5 USD token:eve a dent: Done.\nUndo of a late charge:")
}

// TestWaits: of each hold the page says what the order waits for, since when, what is next, whether money moved, and
// whether somebody must act.
func TestWaits(t *testing.T) {
	t.Parallel()
	tags := regexp.MustCompile(`<[^>]*>`)
	now := time.Now()
	past, soon, far := now.Add(-7*time.Minute-time.Second), now.Add(5*time.Minute), now.Add(25*time.Hour+time.Minute)
	minute := func(at time.Time) string { return at.UTC().Format("15:04 UTC") }
	for _, c := range []struct {
		o    client.Order
		move client.Transition
		call client.Call
		want string
	}{
		{client.Order{Status: "charging", Hold: "retry", HoldReason: "breaker_open", ResumesAt: soon, InDoubt: true, Retry: client.Retries{Failed: 2, Left: 7, Until: soon.Add(1)}}, client.Transition{From: "pending"},
			client.Call{Outcome: "unknown", Code: "error", Detail: "HTTP 503: down"},
			"Waits to try the charge again|One try has failed, 7 min ago: HTTP 503: down. The provider keeps failing.|The next try is in 5 min (" + soon.UTC().Format("15:04:05 UTC") +
				"), by itself. Pawl tries at least 7 more times and until " + soon.UTC().Format("15:04:05 UTC") + " (in 5 min); then the order needs a person. Tries that can’t reach the provider do not count.|Nobody needs to do anything.|The customer may have been charged 8 USD, but not twice: all tries have the same key."},
		{client.Order{Status: "charging", Hold: "retry", HoldReason: "breaker_open", ResumesAt: far, CompleteBy: soon}, client.Transition{Verb: "retry"}, client.Call{},
			"Waits for the provider of the charge|Put off once, without a call. The provider keeps failing.|The next try is in 25 h (" + far.UTC().Format("Mon 2 Jan 15:04 UTC") +
				"), by itself. Tries that can’t reach the provider do not count. At its deadline, in 5 min (" + soon.UTC().Format("15:04:05 UTC") +
				"), what was done is undone.|Nobody needs to do anything.|The customer was not charged."},
		{client.Order{Status: "confirming", Hold: "callback", ResumesAt: far}, client.Transition{Verb: "callback"}, client.Call{},
			"Waits for the provider’s answer to the confirmation|The provider has accepted the request, and will report the result. It has waited since " + minute(past) + " (7 min ago).|" +
				"The order goes on with the provider’s report. Without one, Pawl asks the provider in 25 h (" + far.UTC().Format("Mon 2 Jan 15:04 UTC") + ").|Nobody needs to do anything.|The customer was charged 8 USD."},
		{client.Order{Status: "charging", Hold: "callback", ResumesAt: soon, Action: map[string]any{"type": "use_stripe_sdk"}}, client.Transition{Verb: "callback"}, client.Call{},
			"Waits for the customer, who must confirm the payment|As a rule, they do that with their bank (3-D Secure). It has waited since " + minute(past) + " (7 min ago).|The order goes on by itself once they have. If not, Pawl asks the provider in 5 min (" +
				soon.UTC().Format("15:04:05 UTC") + ").|Only the customer can do something: confirm the payment.|Until then nothing is charged."},
		{client.Order{Status: "pending", Hold: "scheduled", ResumesAt: soon, CreatedAt: past}, client.Transition{}, client.Call{},
			"Waits for the time it was ordered for|It was placed 7 min ago.|It starts by itself in 5 min (" + soon.UTC().Format("15:04:05 UTC") + ").|Nobody needs to do anything.|The customer was not charged."},
		{client.Order{Status: "pending", Hold: "queued"}, client.Transition{Verb: "queued"}, client.Call{},
			"Waits for its turn|Other orders of its kind, such as of the same customer, are under way, and only so many may be. It has waited since " + minute(past) +
				" (7 min ago).|It starts by itself when one of them has ended.|Nobody needs to do anything.|The customer was not charged."},
		{client.Order{Status: "reserving", Hold: "paused", CompleteBy: soon}, client.Transition{Verb: "pause", Actor: "token:eve", Reason: "no address <b>"}, client.Call{},
			"Paused|token:eve paused it 7 min ago: no address &lt;b&gt;.| At its deadline, in 5 min (" + soon.UTC().Format("15:04:05 UTC") + "), what was done is undone.|It stays so until somebody resumes it.|The customer was charged 8 USD."},
		{client.Order{Status: "pending", Hold: "approval", ApprovalUntil: soon, ApprovalOnTimeout: "cancel", CompleteBy: far}, client.Transition{Verb: "approval"}, client.Call{},
			"Waits for a person to approve it|A rule of the policy asks for that before anything is charged. It has waited since " + minute(past) + " (7 min ago).|If nobody decides, it is canceled in 5 min (" +
				soon.UTC().Format("15:04:05 UTC") + ").|Somebody with the role approve must approve or reject it.|The customer was not charged."},
		{client.Order{Status: "reserving", Hold: "attention", HoldReason: "retry_after: later"}, client.Transition{Verb: "retry", Actor: "token:eve"}, client.Call{Step: "reserve", Operation: "do", Outcome: "retry", Detail: "HTTP 503"},
			"Needs a person: The provider asks to wait|It asks for a longer pause than the policy allows. The last answer of the provider, 7 min ago: HTTP 503.||The retry failed at " +
				past.UTC().Format("15:04 UTC") + " (HTTP 503): the provider has to work first. Somebody must decide.|The customer was charged 8 USD."},
		{client.Order{Status: "confirming", Hold: "attention", HoldReason: "retries_exhausted: 9 calls", InDoubt: true, CompleteBy: past, AllowedActions: []string{"retry"}}, client.Transition{Verb: "attention"}, client.Call{Step: "confirm", Operation: "lookup", Outcome: "retry", Detail: "back on Monday"},
			"Needs a person: Retries are used up|No try of the confirmation has succeeded (0 tries, 1 look-up), but one without a clear answer may have been done. It has waited since " + minute(past) +
				" (7 min ago). The last answer of the provider, 7 min ago: back on Monday.| Its deadline, " + past.UTC().Format("2 Jan 15:04 UTC") + ", does not undo it: it may be confirmed already.|Somebody must decide: Retry tries the confirmation again.|The customer was charged 8 USD."},
	} {
		o := c.o
		o.Amount, o.Currency = "8", "USD"
		o.Steps.Charge.Completed = o.Status == "reserving" || o.Status == "confirming"
		c.move.At, c.call.StartedAt = past, past
		var calls []client.Call
		if c.call.Outcome != "" {
			calls = []client.Call{c.call}
		}
		w := waitsFor(&o, []client.Transition{c.move}, calls)
		said := tags.ReplaceAllString(strings.Join([]string{w.Title, string(w.Why), string(w.Next), w.Act, w.Money}, "|"), "")
		assert.Equal(t, said, c.want, o.Hold)
		text := render(t, "order", client.Caller{}, &orderPage{Order: &o, Wait: w, History: &history{}})
		assert.Contains(t, text, string(w.Why), "the page lacks")
	}
	failed := orderPage{History: &history{}, Order: &client.Order{Amount: "8", Currency: "USD", Status: "failed", StartAt: soon, FinishedAt: now, Failure: client.Failure{Step: "charge", Code: "card_declined", Detail: "Your card was declined."}}}
	assert.Equal(t, tags.ReplaceAllString(string(failed.Ends()), "")+failed.Paid(),
		" It failed at the charge: the card was declined (Your card was declined).The customer pays nothing: nothing was charged.")
	failed.Order.Generation, failed.Moves = 1, []client.Transition{{From: "failed", To: "pending"}, {From: "refunding", To: "failed"}, {From: "charging", To: "reserving"}}
	failed.History.Entries = []entry{{Call: &client.Call{Step: "charge", Operation: "do", Outcome: "done", Reference: "ch_461"}},
		{Call: &client.Call{Step: "charge", Operation: "undo", Outcome: "done", Reference: "rf_468"}}}
	assert.Equal(t, failed.Paid(), "The customer pays nothing: nothing was charged this time. Before it was started again, 8 USD was charged, and went back.")
	assert.Contains(t, render(t, "order", client.Caller{}, &failed), `<bdi>ch_461</bdi></a>, undone by <a class="reference" href="/console/orders?q=%22rf_468%22">`)
	again := ofOrder{visit: &visit{}, verb: verbByName(verbs, "retry"), order: failed.Order}
	assert.Contains(t, strings.Join(again.retried(nil), " "), "Last time the charge was refused (the card was declined: Your card was declined).")
	failed.Failure.Code, failed.Failure.Detail, failed.Order.Item = "out_of_stock", "", "lamp"
	assert.Equal(t, tags.ReplaceAllString(string(failed.Ends()), ""), " It failed before the charge: out of stock (lamp).")
	assert.Contains(t, strings.Join(again.retried(nil), " "), "Last time nothing was charged (out of stock")
	assert.Equal(t, changesOf(&client.Order{}, &client.Order{Refunded: "1145.29"}), []change{{"Refunded", "–", "1,145.29"}})
	declined := errorGroup{Rows: []errorRow{{ErrorGroup: client.ErrorGroup{Step: "charge", Code: "stolen_card", Orders: 1, Status: "failed"}}}}
	assert.True(t, declined.Declined() && retriesOf(declined.Rows) == nil && declined.Rows[0].Label() == "List the order", declined)
	declined.Rows = append(declined.Rows, errorRow{ErrorGroup: client.ErrorGroup{Step: "confirm", Code: "stolen_card", Orders: 2, Status: "failed"}})
	assert.Equal(t, retriesOf(declined.Rows), []errorAction{{"Try 2 orders again from the start, with a new charge",
		"/console/bulk?q=status%3Afailed+step%3Aconfirm+code%3A%22stolen_card%22&verb=retry", "", ""}})
	held := func(status client.Status, step client.ErrorGroupStep, away string) errorRow {
		return errorRow{ErrorGroup: client.ErrorGroup{Status: status, Step: step, Hold: "attention", Code: "retries_exhausted", Orders: 2, Example: client.OrderError{OrderID: "o"}}, Away: away}
	}
	assert.Equal(t, retriesOf([]errorRow{held("confirming", "confirm", "It fails."+oneFirst), held("charging", "charge", ""), held("refunding", "charge", "")}), []errorAction{
		{"Retry 2 orders at confirm", "/console/bulk?q=status%3Aconfirming+hold%3Aattention+reason%3A%22retries_exhausted%22&verb=retry", "It fails." + oneFirst, "/console/order/retry?id=o"},
		{"Retry 4 orders at charge, the undo of the charge", "/console/bulk?q=status%3Acharging%2Crefunding+hold%3Aattention+reason%3A%22retries_exhausted%22&verb=retry", "", ""},
	})
	assert.True(t, !strings.Contains(render(t, "order", client.Caller{}, &failed), "Starts at"), "an order that has ended starts")
}

func TestNumbers(t *testing.T) {
	t.Parallel()
	for got, want := range map[string]string{
		count(7): "7", count(999): "999", count(int64(10_000)): "10,000", count(1_234_567): "1,234,567",
		upTo(9_999): "9,999", upTo(countedTo): "10,000+", atLeast(5_000, true): "5,000+",
		short(1234.5): "1234", short(9.96): "10", short(9.94): "9.9", short(.1): "0.1", short(.02): "0.02",
		duration(0): "0 s", duration(.004): "0.004 s", duration(2.5): "2.5 s", duration(90): "90 s", duration(600): "10 min", duration(7200): "2 h",
	} {
		assert.Equal(t, got, want)
	}
}

// TestOverviewOfALot: everything that an overview has is on the page, and none of it is markup.
func TestOverviewOfALot(t *testing.T) {
	t.Parallel()
	trick := `"><script>alert(1)</script>`
	found := &client.Overview{
		Replica:  "shop-1:7 " + trick,
		Replicas: []client.Replica{{Name: "shop-1:7 " + trick}, {Name: "shop-2:8", Connections: 1, Since: time.Now().Add(-time.Hour)}},
		Statuses: []client.StatusCount{{Status: "charging", Orders: 7, More: true}, {Status: "completed", Orders: countedTo, More: true}},
		Holds:    []client.HoldCount{{Hold: "attention", Orders: 1234, LongestSeconds: 5400}},
		Oldest:   client.UnfinishedOrder{OrderID: trick, Status: "charging", Hold: "attention", CreatedAt: time.Now()},
		ProviderSteps: []client.ProviderStep{{Policy: 3, Step: "charge", Breaker: "half_open", InFlight: 5, Queued: 6},
			{Policy: 4, Step: "charge", Breaker: "open", Retrying: 416}, {Policy: 4, Step: "reserve", Breaker: "closed", FailingSince: time.Now(), FailedAt: time.Now()},
			{Policy: 4, Step: "confirm", Route: "another", Breaker: "closed", Failure: "HTTP 503", FailedAt: time.Now()}},
		ChargeOperations: 2, OldestChargeOperationSeconds: 60, LateUndos: 3, OrdersPerSecond: 12.7,
	}
	usd := []client.CurrencyTotal{{Currency: "USD", Orders: 416, Amount: "98400.00"}}
	until := time.Date(2026, 11, 27, 3, 9, 0, 0, time.UTC)
	data := overviewPage{Overview: found, Orders: true, Machine: machineOf(found)}
	found.Incidents = []client.Incident{
		{Kind: "provider_failing", Step: "charge", Since: time.Now().Add(-time.Hour), Orders: 416, Trying: 378, Totals: usd, Host: "pay.example", Detail: "connection refused", Policy: 4, NeedsPersonAt: time.Date(2126, 11, 27, 3, 24, 0, 0, time.UTC)},
		{Kind: "provider_failing", Step: "reserve", Since: time.Now().Add(-time.Minute), Orders: 4, Host: "pay.example"},
		{Kind: "provider_failing", Step: "reserve", Host: "idle.example", FailedAt: until}, {Kind: "overdue", Since: time.Now().Add(-time.Minute)},
		{Kind: "attention", Reason: "retries_exhausted", Orders: 1, Totals: usd}, {Kind: "attention", Reason: trick, Orders: countedTo, More: true},
		{Kind: "approval", Orders: 25}, {Kind: "webhook_failing", EndpointID: "whe_2", Detail: trick, Until: time.Now().Add(time.Minute)},
		{Kind: "operations_waiting", Operation: "refund", Orders: 12, Totals: usd, Since: until, Until: until, Detail: "timeout"}, {Kind: "operations_waiting", Operation: "void", Reason: "outcome_unknown", Orders: 1, Since: until},
		{Kind: "webhook_disabled", EndpointID: "whe_3", Detail: "gone", Description: "the shop's till"}, {Kind: "replica_lost", Replica: "gone:7", Since: until, TakenOver: client.Outcomes{Orders: 6, Completed: 5, Left: 1}},
		{Kind: "books_differ", Detail: "charge=https://pay.example", Since: time.Now()},
	}
	found.Outages = []client.EndedOutage{{Steps: []string{"charge", "reserve"}, Host: "stock.example", Detail: "HTTP 503", Since: until.Add(-7 * time.Minute), Until: until,
		Waited: client.Outcomes{Orders: 416, Completed: 400, Attention: 14, Left: 2}}, {Steps: []string{"confirm"}, Host: "pay.example", Detail: "timeout", Since: until.Add(-5 * time.Minute), Until: until},
		{Replica: "b:8", Since: until, Waited: client.Outcomes{Orders: 2, Completed: 2}}, {Steps: []string{"reserve"}, Since: until.Add(-8 * time.Minute), Until: until}}
	data.Money = &booksPage{Verification: &client.Verification{Comparisons: []client.Comparison{{Wrong: []client.VerificationCheck{
		{Name: "provider_live", Money: map[string]string{"USD": "34.50"}}, {Name: "provider_others", Warning: true, Money: map[string]string{"USD": "12.00"}}}}}}}
	data.judge(func(string) bool { return true })
	text := render(t, "overview", client.Caller{Open: true}, data)
	for _, want := range []string{
		"The service is open.", ">7&#43;<", ">10,000&#43;<", `href="/console/orders?q=status%3Acharging"`, "<bdi>shop-2:8</bdi>, started <time", "(shows this page)", "<strong>6</strong> were taken over: 5 completed, 1 still on the way", "<bdi>gone:7</bdi>, <strong>lost</strong>: its last report was <time", ">416 for the next try<", "<strong>The last call failed</strong> <time",
		"<strong><bdi>pay.example</bdi></strong>\n<span>has failed at charge, reserve <time", ">for 1 h</time>: <bdi>connection refused</bdi>", "policy 4", "<strong>420</strong> orders (98,400.00 USD) wait, and go on by themselves if it works again by <time",
		`href="/console/orders?q=status%3Acharging%2Crefunding%2Creserving%2Creleasing&#43;hold%3Aretry"`, `href="/console/runbook#a-provider-is-away"`, "an order has been due",
		"<strong><bdi>confirm</bdi> works again</strong> <span>since 03:09 UTC; <bdi>pay.example</bdi> failed for 5 min: <bdi>the provider did not answer in time</bdi></span>",
		`<strong><bdi>charge</bdi> works again</strong> <span>since 03:09 UTC; <bdi>stock.example</bdi> failed at <bdi>charge</bdi>, <bdi>reserve</bdi> for 7 min`, `class="past"><div><strong><bdi>reserve</bdi> failed before</strong> <span>for 8 min until 03:09 UTC`, "<strong>Replica <bdi>b:8</bdi></strong>\n<span>was lost at 03:09 UTC; another one has started in its place</span>\n<span><strong>2</strong> of its orders were taken over: 2 completed</span>", "no order waits for its next try; the last call failed <time", `href="/console/attention">Orders to retry<`, "failing</span>\n<time", "; 378 of them are being tried now",
		"<strong>416</strong> orders waited: 400 completed, 14 need a person, 2 still on the way",
		"<strong>Needs you</strong>\n<span>Retries are used up</span> <span><strong>1</strong> order (98,400.00 USD)</span>", `href="/console/attention?hold=attention&amp;reason=retries_exhausted"`,
		"<strong>10,000&#43;</strong> orders", "<strong>To approve</strong>", "<strong>Endpoint whe_2</strong>", "the next try is", `href="/console/webhook?id=whe_2"`,
		"<strong>Refunds</strong>\n<span><strong>12</strong> (98,400.00 USD) wait, the oldest since 03:09 UTC: the provider did not answer in time at the last try; the next is <time data-due", `href="/console/orders?q=refund%3Aopen&#43;sort%3Aoldest"`,
		"<strong>1</strong> waits, the oldest since 03:09 UTC: whether the money has moved is unknown.", "#pawlchargeoperationsopen",
		"books: 34.50 USD", "for no order of Pawl&#39;s: 12.00 USD", "was disabled", "<bdi>the shop&#39;s till</bdi>", `href="/console/runbook#pawlwebhookendpointdisabled"`, "<strong>Replica gone:7</strong>", "lost: its last report was <time",
		"<bdi>replica gone:7</bdi>. The books need you.", "<strong>10,026&#43;</strong> orders (98,400.00 USD) need you.", "Orders are accepted, and none is lost.", `<span class="badge open">open</span>`, `<strong>13</strong> orders finished per second`,
	} {
		assert.Contains(t, text, want, "the page lacks")
	}
	assert.True(t, runbook.sections["a-provider-is-away"] != "", "the runbook does not say what to do about a breaker")
	assert.True(t, !strings.Contains(text, "<script>") && !strings.Contains(text, " style="), "the page has markup of others, or a style")
}

// TestFailingEndpoint: the page of an endpoint says first what is wrong, what waits, and what to do.
func TestFailingEndpoint(t *testing.T) {
	t.Parallel()
	failing := &client.WebhookEndpoint{ID: "whe_1", State: "enabled", Failures: 3, DisablesAt: time.Now().Add(120*time.Hour - time.Minute), Undelivered: 5}
	failing.PausedUntil = time.Now().Add(time.Hour + time.Minute)
	text := render(t, "webhook", client.Caller{}, endpointPage{WebhookEndpoint: failing, Tasks: []*task{{Name: "test"}}, Exhausted: true, Deliveries: []client.Delivery{{State: "pending", DueAt: time.Now()}}})
	assert.Equal(t, strings.Count(text, ">in 1 h<"), 1, "it says when the next attempt is, of one of them")
	assert.Contains(t, text, "waits for the endpoint")
	for _, want := range []string{"> does not accept events", `class="button primary"`, "<strong>5</strong> events wait", ">in 5 days<", "state=exhausted", "#pawlwebhookendpointfailing"} {
		assert.Contains(t, text, want, "the page lacks")
	}
	disabled := &client.WebhookEndpoint{ID: "whe_1", State: "disabled", DisabledAt: time.Now(), DisabledReason: "gone", Undelivered: 1}
	text = render(t, "webhook", client.Caller{}, endpointPage{WebhookEndpoint: disabled})
	assert.Contains(t, text, "<bdi>gone</bdi>. <strong>1</strong> event waits.", "the page lacks")
}

// TestNoneOnThisPage: a page without orders says that no order waits only if there is no next page.
func TestNoneOnThisPage(t *testing.T) {
	t.Parallel()
	for next, want := range map[string]string{"": "No order waits for this any more",
		"/console/attention?cursor=c": "None was found among the last 10,000"} {
		text := render(t, "errors", client.Caller{}, errorsPage{Groups: []errorGroup{{Waits: true}}}) + render(t, "attention", client.Caller{}, &attentionPage{Chosen: &waitingGroup{reason: reason{words: reasons[0]}}, Next: next})
		assert.True(t, strings.Contains(text, want) && strings.Contains(text, "no order waits for it") && strings.Contains(text, "Search further") == (next != ""), text)
	}
}

// render makes a page for a person who may do everything.
func render(t *testing.T, name string, me client.Caller, data any) string {
	t.Helper()
	var text bytes.Buffer
	f := frame{page: page{Data: data}, Me: &me, Asset: func(string) string { return "" }, May: func(string) bool { return true },
		Query: func(string) string { return "" }}
	assert.NoError(t, templates[name].ExecuteTemplate(&text, "layout", f))
	return text.String()
}

// TestHeaderNamesThePerson by the address that people know; the title says what the history calls them.
func TestHeaderNamesThePerson(t *testing.T) {
	t.Parallel()
	for want, me := range map[string]client.Caller{
		`<span title="Your roles: read"><bdi>token:maria</bdi></span>`: {Name: "token:maria", Roles: []string{"read"}},
		`<span title="oidc:https://id.example.com#u-17. Your roles: read"><bdi>maria@example.com</bdi></span>`: {
			Name: "oidc:https://id.example.com#u-17", Email: "maria@example.com", Roles: []string{"read"}},
	} {
		assert.Contains(t, render(t, "problem", me, problemPage{Problem: &client.Problem{}}), want)
	}
}

// TestDoubtIsTold: what was undone in doubt is not called charged, and no provider is blamed for orders of another route,
// nor named otherwise while its breaker is open.
func TestDoubtIsTold(t *testing.T) {
	t.Parallel()
	o := client.Order{Amount: "8", Currency: "USD", Steps: client.Steps{Charge: client.StepState{Undone: true, InDoubt: true}}}
	undo := []entry{{Call: &client.Call{Step: "charge", Operation: "undo", Outcome: "done"}}}
	p := orderPage{Order: &o, History: &history{Entries: undo}}
	assert.Equal(t, p.Paid(), "The customer pays nothing: if 8 USD was charged, it went back.")
	assert.True(t, p.Balance() == nil, "a balance of what is in doubt")
	o.Steps.Charge.InDoubt = false
	assert.Equal(t, p.Paid()+" "+p.Balance().Line, "The customer pays nothing: 8 USD was charged, and went back. Charged 8 − undone 8")
	o.Authorized = "8"
	assert.Equal(t, p.Paid(), "The customer pays nothing: 8 USD was authorized, and is not any more.")
	o.Authorized = ""
	o.Steps.Reserve = client.StepState{Undone: true, InDoubt: true}
	assert.Equal(t, p.Goods(), "not reserved")
	o.Status, o.InDoubt, o.Steps.Reserve = client.StatusReserving, true, client.StepState{}
	assert.Equal(t, p.Goods(), "perhaps reserved")
	lookup := []client.Call{{Operation: "lookup", Outcome: "retry", Code: "unseen"}}
	assert.Equal(t, meaningOf(&o, reason{words: reasons[0]}, lookup), "No try of the reservation has succeeded, but one without a clear answer may have been done. Asked last, the provider said that it was not done, but the request may still be on its way.")
	found := &client.Overview{ProviderSteps: []client.ProviderStep{{Step: "charge", Route: "eu", Host: "eu.example"}, {Step: "charge", Route: "us", Host: "us.example"}}}
	group := client.ErrorGroup{Step: "charge", Route: "eu", Hold: client.ErrorGroupHoldRetry, Code: "timeout"}
	closed := groupOf(found, &group)
	found.Incidents = []client.Incident{{Kind: "provider_failing", Step: "charge", Route: "us", Host: "us.example"}, {Kind: "provider_failing", Step: "charge", Route: "eu", Host: "eu.example"}}
	open := groupOf(found, &group)
	group.Hold, group.Code = client.ErrorGroupHoldAttention, "retries_exhausted"
	assert.Equal(t, closed.Title+", "+open.Title+", "+groupOf(found, &group).Title, "eu.example, eu.example, Retries are used up")
	assert.Equal(t, open.key, closed.key, "the group, whatever the breaker does")
	found.ProviderSteps[0].FailingSince = time.Date(2026, 11, 27, 3, 9, 0, 0, time.UTC)
	failing := func(a *verb, status client.Status) string {
		return strings.Join(failingAt(found, a, []client.Order{{OrderID: "o", Status: status}}), "")
	}
	assert.Equal(t, failing(verbByName(verbs, "approve"), "pending"), "eu.example has failed at charge since 03:09 UTC, and the next call tries whether it works again. If not, approved orders wait to be charged.")
	assert.Equal(t, verbByName(verbs, "step-result").doneTo(&client.Order{HoldReason: "undo_refused: out_of_stock"}), "Then the undo was tried, and refused: out of stock.")
	assert.Contains(t, verbByName(verbs, "step-result").doneTo(&client.Order{HoldReason: "undo_refused: step_result: lost"}), "Nothing was sent. The order still needs a person")
	held := heldBy(&client.Order{Hold: "attention"}, []client.Transition{{Seq: 4, Verb: "attention"}, {Seq: 3, Verb: "step-result"}, {Seq: 2, Verb: "attention"}, {Seq: 1, Verb: "call"}})
	assert.Equal(t, held.Seq, 2, "a recorded refusal does not begin the wait anew")
	away, _ := away(found, []waitingOrder{{Order: client.Order{Status: "charging", Hold: "attention", Route: "eu"}}})
	assert.Equal(t, failing(verbByName(verbs, "retry"), "charging"), away, "the advice on all screens")
	many := []client.Order{{OrderID: "o", Status: "charging", Route: "eu"}, {OrderID: "p", Status: "confirming", Steps: client.Steps{Charge: client.StepState{Completed: true}}}, {OrderID: "q", Status: "charging", Route: "eu"}}
	assert.Equal(t, failingAt(found, verbByName(verbs, "retry"), many)[0], "2 of them (o, q): "+away+oneFirst)
	found.Incidents = append(found.Incidents, client.Incident{Kind: "attention", Status: "refunding", Step: "charge", Reason: "retries_exhausted", Orders: 1})
	assert.Equal(t, len(failingAt(&client.Overview{ProviderSteps: []client.ProviderStep{{Step: "confirm", FailingSince: time.Now()}}}, verbByName(verbs, "cancel"), many)), 0)
	undos := []client.Order{{Status: "refunding"}, {Status: "refunding"}}
	assert.Equal(t, failedUndos(found, verbByName(verbs, "retry"), undos), []string{"The undo of the charge has failed, and may fail again." + oneFirst})
	assert.Equal(t, failedUndos(found, verbByName(verbs, "cancel"), many), []string{"1 of them (p): the undo of the charge has failed, so 1 order needs a person: a canceled order may need one, too."}, "what undoes, and not the step itself")
	found.ProviderSteps[0].Breaker = "open"
	assert.Contains(t, failing(verbByName(verbs, "refund"), "completed"), "UTC: a refund may not succeed at once; Pawl then tries again by itself.")
	refunded := client.Order{Currency: "USD", Refunds: []client.Refund{{State: "done", Amount: "5", Reason: "late", FinishedAt: found.ProviderSteps[0].FailingSince}, {State: "failed", Amount: "7"}}}
	text := render(t, "orders", client.Caller{}, &ordersPage{Filter: client.ListOrdersParams{Refund: "done"}, Orders: []client.Order{refunded}})
	assert.Contains(t, text, `<th scope="col">Refunded<`, `data-label="Refunded:"><div><time datetime="2026-11-27T03:09:00Z"`, "<div><bdi>late</bdi></div>", "<div>5 USD</div>")
	of := client.Order{Amount: "14", Status: "completed", Refunded: "5", Lines: []client.Line{{Item: "cup", Quantity: 3, Amount: "12"}, {Item: "VAT", Kind: "tax", Quantity: 1, Amount: "2"}},
		Refunds: []client.Refund{{State: "done", Amount: "5", Lines: []client.RefundLine{{Line: 1, Quantity: 1, Amount: "4"}}}, {State: "pending", Amount: "1", Lines: []client.RefundLine{{Line: 2, Amount: "1"}}}, {State: "failed", Amount: "7"}}}
	text = regexp.MustCompile(`\s*<[^>]*>`).ReplaceAllString(render(t, "order", client.Caller{}, &orderPage{Order: &of, History: &history{}}), "|")
	assert.Contains(t, text, "|3|12|4 for 1||8 for 2|", "tax||1|2|||1|1|", "|Of no line|||1||−1|", "|Sum|||14|5|1|8|")
	assert.Equal(t, searchOf(&client.ErrorGroup{Status: "charging", Route: "eu", Hold: client.ErrorGroupHoldRetry}), `status:charging hold:retry route:"eu"`)
}

// TestPlaces: the steps of two routes at one place are one, and both sides end with what is kept.
func TestPlaces(t *testing.T) {
	t.Parallel()
	usd := func(amount string) map[string]string { return map[string]string{"USD": amount} }
	places := placesOf([]string{"charge/a=u", "charge/b=u"}, []client.VerificationStep{
		{Step: "charge", Provider: "charge/a=u", Compared: 19, Here: usd("9.00"), Money: usd("9.00")},
		{Step: "dispute_lost", Provider: "charge/a=u", Here: usd("2.50")},
		{Step: "charge", Provider: "charge/b=u", Compared: 4, Wrong: 1, Here: usd("1.00"), Money: usd("1.50")},
		{Step: "refund", Provider: "charge/b=u", Compared: 3},
	})
	assert.Equal(t, places[0].Steps(), "23 charges checked, 1 differs; 3 refunds checked")
	var rows []string
	for _, row := range places[0].Money() {
		rows = append(rows, fmt.Sprint(row.Figure, " ", row.Here, " ", row.There, map[bool]string{true: " not known"}[row.OursOnly]))
	}
	assert.Equal(t, strings.Join(rows, "; "), "Charged or authorized 10.00 10.50; = Still charged or authorized 10.00 10.50; "+
		"Lost in disputes, as Pawl's books say -2.50 -2.50 not known; = Kept 7.50 8.00")
}

// A provider works again for an order unless its own calls have failed since.
func TestAway(t *testing.T) {
	t.Parallel()
	until := time.Date(2026, 7, 1, 20, 50, 0, 0, time.UTC)
	overview := &client.Overview{Outages: []client.EndedOutage{{Steps: []string{"charge"}, Host: "pay.example", Until: until}}}
	one := waitingOrder{Order: client.Order{Status: client.StatusCharging, Hold: client.OrderHoldAttention}}
	for call, want := range map[*client.Call]string{
		{StartedAt: until.Add(-time.Minute), Operation: "do", Outcome: "unknown"}:  "pay.example works again at charge since 20:50 UTC: a retry can succeed.",
		{StartedAt: until.Add(time.Minute), Operation: "lookup", Outcome: "retry"}: "pay.example works again at charge since 20:50 UTC: a retry can succeed.",
		{StartedAt: until.Add(time.Minute), Operation: "do", Outcome: "unknown"}:   "",
	} {
		one.Made = []client.Call{*call}
		_, again := away(overview, []waitingOrder{one})
		assert.Equal(t, again, want)
	}
	one.Made = []client.Call{{StartedAt: until.Add(time.Minute), Operation: "do", Outcome: "unknown"}}
	overview.ProviderSteps = []client.ProviderStep{{Step: "charge", WorkedAt: until.Add(2 * time.Minute)}}
	_, again := away(overview, []waitingOrder{one})
	assert.Equal(t, again, "Another order succeeded at charge at 20:52 UTC, after the last failure here: a retry can succeed.")
	one.Status, one.Made = client.StatusRefunding, []client.Call{{StartedAt: until.Add(-time.Minute), Step: "charge", Operation: "undo", Outcome: "retry", Detail: "HTTP 503"}}
	last, _ := away(overview, []waitingOrder{one, {Order: one.Order}})
	assert.Equal(t, last, "The undo of the charge last failed at 20:49 UTC (HTTP 503)."+oneFirst)
}
