package console

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"pawl/client"
)

func TestParseSearch(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 22, 9, 30, 0, 0, time.UTC)
	day := func(d int) time.Time { return time.Date(2026, 11, d, 0, 0, 0, 0, time.UTC) }
	for _, c := range []struct {
		text   string
		filter client.ListOrdersParams
		id     string
		notes  string // words of each, with commas between them
	}{
		{text: ""},
		{text: "status:failed item:widget amount:>100", filter: client.ListOrdersParams{Status: []client.Status{"failed"}, Item: "widget", AmountFrom: "100.0001"}},
		{text: `STATUS:Failed,cancelled customer:"ann smith"`, filter: client.ListOrdersParams{Status: []client.Status{"canceled", "failed"}, CustomerID: "ann smith"}},
		{text: `"order 1"`, id: "order 1"},
		{text: `order-1`, id: "order-1"},
		{text: `"status:failed"`, id: "status:failed"},
		{text: "shop:17", id: "shop:17"},
		{text: `"say ""hi"""`, id: `say "hi"`},
		{text: `"status:""x"`, id: `status:"x`},
		{text: `customer:"""ann"" smith" ""`, filter: client.ListOrdersParams{CustomerID: `"ann" smith`}},
		{text: `item:"never closed`, filter: client.ListOrdersParams{Item: "never closed"}},
		{text: "hold:attention reason:retries_exhausted sort:oldest", filter: client.ListOrdersParams{Hold: "attention", HoldReason: "retries_exhausted", Sort: "oldest"}},
		{text: "reason:retry_after", filter: client.ListOrdersParams{Hold: "attention", HoldReason: "retry_after"}},
		{text: "amount:100..200.50", filter: client.ListOrdersParams{AmountFrom: "100", AmountTo: "200.50"}},
		{text: "amount:<0.5", filter: client.ListOrdersParams{AmountTo: "0.4999"}},
		{text: "amount:>=7", filter: client.ListOrdersParams{AmountFrom: "7"}},
		{text: "amount:7", filter: client.ListOrdersParams{AmountFrom: "7", AmountTo: "7"}},
		{text: "amount:<0", notes: "below zero"},
		{text: "amount:1e3 amount:-1 amount:1,5 amount:1..x", filter: client.ListOrdersParams{AmountFrom: "1"}, notes: "takes a number,takes a number,takes a number,takes a number"},
		{text: "from:2026-11-01 to:2026-11-03", filter: client.ListOrdersParams{CreatedFrom: day(1), CreatedTo: day(4)}},
		{text: "from:today", filter: client.ListOrdersParams{CreatedFrom: day(22)}},
		{text: "since:24h", filter: client.ListOrdersParams{CreatedFrom: now.AddDate(0, 0, -1)}},
		{text: "to:2026-11-01T09:30Z from:soon", notes: "takes a day,takes a day"},
		{text: "to:2026-11-01T09:30:00+01:00", filter: client.ListOrdersParams{CreatedTo: day(1).Add(8*time.Hour + 30*time.Minute)}},
		{text: "step:reserve code:out_of_stock", filter: client.ListOrdersParams{FailureStep: "reserve", FailureCode: "out_of_stock"}},
		{text: "status:done hold:never step:ship sort:up item:", notes: "completed,attention,reserve,oldest,says nothing"},
	} {
		t.Run(c.text, func(t *testing.T) {
			t.Parallel()
			s := parseSearch(c.text, now)
			if s.id != c.id || !reflect.DeepEqual(normal(s.filter), normal(c.filter)) {
				t.Errorf("%+v, id %q", s.filter, s.id)
			}
			var want []string
			if c.notes != "" {
				want = strings.Split(c.notes, ",")
			}
			if len(s.notes) != len(want) {
				t.Fatalf("notes %q", s.notes)
			}
			for i := range want {
				if !strings.Contains(s.notes[i], want[i]) {
					t.Errorf("%q lacks %q", s.notes[i], want[i])
				}
			}
		})
	}
}

// normal has the times of a filter in one zone.
func normal(f client.ListOrdersParams) client.ListOrdersParams {
	f.CreatedFrom, f.CreatedTo = f.CreatedFrom.UTC(), f.CreatedTo.UTC()
	return f
}

// FuzzParseSearch: whatever a person types is no error.
func FuzzParseSearch(f *testing.F) {
	for _, text := range []string{`a "b`, "amount:..", "status:,", "from:9999d", "\"\"", "to:0000-01-01", "::"} {
		f.Add(text)
	}
	f.Fuzz(func(_ *testing.T, text string) { parseSearch(text, time.Now()) })
}

// TestReasonsAreThoseOfTheRunbook: whoever finds an order held for a person sees what to do.
func TestReasonsAreThoseOfTheRunbook(t *testing.T) {
	t.Parallel()
	known := map[string]bool{}
	for _, r := range append(reasons, approval) {
		known[r.Section] = true
		if len(r.Runbook()) < 100 || r.Meaning == "" || len(r.try) == 0 {
			t.Errorf("%+v: the runbook says %q", r, r.Runbook())
		}
	}
	whole := string(runbook.whole)
	_, rest, _ := strings.Cut(whole, `<h2 id="attention">`)
	rest, _, _ = strings.Cut(rest, "<h2")
	for _, part := range strings.Split(rest, `<h3 id="`)[1:] {
		if id, _, _ := strings.Cut(part, `"`); !known[id] {
			t.Errorf("nothing is advised on %q of the runbook", id)
		}
	}
	for _, part := range strings.Split(whole, `href="`)[1:] {
		to, _, _ := strings.Cut(part, `"`)
		if name, ok := strings.CutPrefix(to, "/console/runbook#"); !ok || !strings.Contains(whole, ` id="`+name+`"`) {
			t.Errorf("a link of the runbook leads to %q", to)
		}
	}
	if strings.Contains(whole, "style=") || strings.Contains(whole, "<!--") {
		t.Error("the runbook has what a page may not have")
	}
	for words, title := range map[string]string{
		"23505: charges_pkey": "The database refuses its data (23505)", "taken over three times without a move": "Replicas fail on it",
		"something new: of tomorrow": "something new", "": "Without a reason", "retry_after: later": "The provider asks to wait",
	} {
		if r := reasonOf("attention", words); r.Title != title || r.Runbook() == "" || !strings.HasPrefix(words, r.Key) {
			t.Errorf("%q: %+v", words, r)
		}
	}
}
