package console

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"pawl/client"
)

// hour is an hour of points: ten orders a second at first, and none in the second half.
func hour() (points []client.Activity) {
	began := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	for i := range 361 {
		p := client.Activity{At: began.Add(time.Duration(i) * 10 * time.Second), Seconds: 10}
		if i <= 180 {
			p.Admitted, p.MedianSeconds, p.SlowSeconds = 100, .004, 2.5
			p.Ended = []client.ActivityCount{{Name: "completed", Orders: 90}, {Name: "failed", Orders: 10}}
			p.Moves = []client.ActivityMove{{From: "pending", To: "charging", Orders: 100}}
		} else {
			p.OnHold = []client.ActivityCount{{Name: "attention", Orders: 1500}, {Name: "approval", Orders: 3}, {Name: "retry", Orders: 40}}
			p.Calls = []client.ActivityCalls{{Step: "charge", Outcome: "done", Calls: 3}, {Step: "charge", Outcome: "unknown", Calls: 1}, {Step: "reserve", Outcome: "refused", Calls: 2}}
			p.Breakers = []client.ActivityBreakers{{Step: "charge", Breaker: "open"}, {Step: "confirm", Breaker: "half_open"}}
		}
		points = append(points, p)
	}
	return points
}

func TestCharts(t *testing.T) {
	t.Parallel()
	all := charts(hour())
	throughput, took, holds := all[0], all[1], all[2]
	if got := throughput.Lines[0].Path; got != "M0 0L240 0L241 120L480 120" || throughput.Top != "10" {
		t.Errorf("up to %s: %s", throughput.Top, got)
	}
	if got := throughput.Lines[2].Path; got != "M0 108L240 108L241 120L480 120" {
		t.Error(got)
	}
	if took.Top != "5.0 s" || took.Rows[0].Values[0] != "4.0 ms" || took.Rows[0].Values[1] != "2.5 s" {
		t.Errorf("up to %s: %v", took.Top, took.Rows[0])
	}
	if n := len(throughput.Rows); n != 31 || strings.Join(throughput.Rows[5].Values, " ") != "10 9.0 1.0" {
		t.Errorf("%d rows, %v", n, throughput.Rows[5])
	}
	for _, c := range []struct {
		chart      chart
		title, top string
		rows, path string // of the newest minute, and of the first line
	}{
		{holds, "Orders that wait", "2,000", "1,503 40 0", "M0 120L240 120L241 30L480 30"},
		{all[4], "Calls that failed", "50 %", "25 % 0 % 0 %", "M0 120L240 120L241 60L480 60"},
		{all[5], "Circuit breakers", "open", "open closed half open", "M0 120L240 120L241 0L480 0"},
	} {
		if rows := strings.Join(c.chart.Rows[0].Values, " "); c.chart.Title != c.title || c.chart.Top != c.top || rows != c.rows || c.chart.Lines[0].Path != c.path || len(c.chart.Rows) != 30 {
			t.Errorf("%s up to %s, %d rows, %s, %s", c.chart.Title, c.chart.Top, len(c.chart.Rows), rows, c.chart.Lines[0].Path)
		}
	}
	if !strings.HasPrefix(throughput.Latest, "admitted 0, completed 0") {
		t.Error(throughput.Latest)
	}
	for _, c := range charts(nil) {
		if len(c.Rows) != 0 || c.Lines[0].Path != "" {
			t.Errorf("of nothing: %+v", c)
		}
	}
}

// TestChartsOfAFewMinutes: from the second point on there is a line, as wide as the chart, and words say how long it is.
func TestChartsOfAFewMinutes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		points      int
		since, path string // of the orders that were admitted
	}{
		{1, "12:00 UTC", "M480 0"}, // which shows nothing
		{2, "12:00 UTC", "M0 0L480 0"},
		{182, "12:00 UTC", "M0 0L477 0L480 120"},
		{360, "", "M1 0L241 0L243 120L480 120"}, // as many as are kept
	} {
		if throughput := charts(hour()[:c.points])[0]; throughput.Since != c.since || throughput.Lines[0].Path != c.path {
			t.Errorf("of %d points, since %q: %s", c.points, throughput.Since, throughput.Lines[0].Path)
		}
	}
}

func TestRatesOfMoves(t *testing.T) {
	t.Parallel()
	points := hour()
	if rates := edgeRates(points[:181]); len(rates) != 1 || rates[0].Rate != "10" || rates[0].Event != "start" {
		t.Errorf("%+v", rates)
	}
	if rates := edgeRates(points[:184]); len(rates) != 1 || rates[0].Rate != "5.0" {
		t.Errorf("%+v", rates)
	}
	if rates := edgeRates(points); rates != nil {
		t.Errorf("%+v", rates)
	}
}

func TestNumbers(t *testing.T) {
	t.Parallel()
	for n, want := range map[float64]string{1234.5: "1234", 10: "10", 9.96: "10", 9.94: "9.9", .1: "0.1", .02: "0.02"} {
		if got := short(n); got != want {
			t.Errorf("%v is written %s, want %s", n, got, want)
		}
	}
	for seconds, want := range map[float64]string{0: "0", .004: "4.0 ms", .05: "50 ms", 2.5: "2.5 s", 90: "90 s", 600: "10 min", 7200: "2.0 h"} {
		if got := duration(seconds); got != want {
			t.Errorf("%v s are written %s, want %s", seconds, got, want)
		}
	}
	for n, want := range map[float64]float64{0: 1, .3: .5, 1: 1, 7: 10, 110: 200} {
		if got := roundUp(n); got != want {
			t.Errorf("%v is rounded to %v, want %v", n, got, want)
		}
	}
}

// TestOverviewOfALot: whatever an overview has, all of it is on the page, and none of it is taken for markup.
func TestOverviewOfALot(t *testing.T) {
	t.Parallel()
	trick := `"><script>alert(1)</script>`
	found := &client.Overview{
		Replica:       "shop-1:7 " + trick,
		Replicas:      []client.Replica{{Name: "shop-1:7 " + trick, Connections: 12}, {Name: "shop-2:8", Connections: 3}},
		Statuses:      []client.StatusCount{{Status: "charging", Orders: 7, More: true}, {Status: "completed", Orders: countedTo, More: true}},
		Holds:         []client.HoldCount{{Hold: "attention", Orders: 1234, LongestSeconds: 5400}},
		Oldest:        client.UnfinishedOrder{OrderID: trick, Status: "charging", Hold: "attention", CreatedAt: time.Now()},
		ProviderSteps: []client.ProviderStep{{Policy: 3, Step: "charge", Breaker: "half_open", InFlight: 5, Queued: 6}, {Policy: 4, Step: "charge", Breaker: "open"}, {Policy: 4, Step: "reserve", Breaker: "closed"}},
		Refunds:       2, OldestRefundSeconds: 60, LateUndos: 3, OverdueSeconds: 90,
	}
	points := hour()[:181]
	rates := edgeRates(points)
	data := overviewPage{Overview: found, Orders: true, Persons: 1234, Moves: rates, Charts: charts(points), Points: len(points), Since: points[0].At, Machine: machineOf(found, rates)}
	var text bytes.Buffer
	f := frame{page: page{Data: data}, Me: &client.Caller{Open: true}, Asset: func(string) string { return "" }, May: func(string) bool { return true }}
	if err := templates["overview"].ExecuteTemplate(&text, "layout", f); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"The service is open.", "1,234</strong> need a person", `href="/console/order?id=%22%3E%3Cscript`, ">7&#43;<", ">10,000&#43;<", `href="/console/orders?q=status%3Acharging"`,
		">10/s<", "90 min", "shop-2:8", "(this one)", "90 s</strong> overdue", `<path class="line line-0" d="M0 0L480 0"/>`, ">since 12:00 UTC<", "only since 12:00 UTC (", "Throughput as a table",
		`<a href="/console/runbook#a-provider-is-away"><strong class="bad">charge</strong> is not called`, `<span class="badge open">open</span>, policy 4`,
		`<strong class="bad">charge</strong> is tried with one call`, `<span class="badge half_open">half open</span>, policy 3`,
	} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	if strings.Contains(text.String(), `<strong class="bad">reserve`) {
		t.Error("a breaker that is closed is news")
	}
	if runbook.sections["a-provider-is-away"] == "" {
		t.Error("the runbook does not say what to do about a breaker")
	}
	if strings.Contains(text.String(), "<script>") || strings.Contains(text.String(), " style=") {
		t.Error("the page has markup of others, or a style")
	}
	if t.Failed() {
		t.Log(text.String())
	}
}

// TestNoneOnThisPage: a page without orders says that none waits only where none can be on the next one.
func TestNoneOnThisPage(t *testing.T) {
	t.Parallel()
	for next, want := range map[string]string{"": "No order waits for this any more", "/console/attention?cursor=c": "None was found among the 10,000"} {
		var text bytes.Buffer
		p := page{Data: attentionPage{Chosen: &waitingGroup{reason: reasons[0]}, Next: next}}
		f := frame{page: p, Me: &client.Caller{}, Asset: func(string) string { return "" }, May: func(string) bool { return true }}
		if err := templates["attention"].ExecuteTemplate(&text, "layout", f); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(text.String(), want) || strings.Contains(text.String(), "Look further") != (next != "") {
			t.Error(text.String())
		}
	}
}
