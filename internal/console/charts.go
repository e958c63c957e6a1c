package console

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"pawl/client"
	"pawl/fsm"
)

// charts draws what this replica did in the last hour.
func charts(points []client.Activity) []chart {
	all := []chart{
		{Title: "Throughput", Help: "orders per second", write: short, mean: true, Lines: []line{
			{Name: "admitted", value: rate(func(a *client.Activity) int64 { return a.Admitted })},
			{Name: "completed", value: rate(func(a *client.Activity) int64 { return ordersOf(a.Ended, "completed") })},
			{Name: "failed or canceled", value: rate(func(a *client.Activity) int64 { return ordersOf(a.Ended, "failed", "canceled") })},
		}},
		{Title: "Time to the end", Help: "from the creation of an order", write: duration, Lines: []line{
			{Name: "half took at most", value: func(a *client.Activity) float64 { return a.MedianSeconds }},
			{Name: "95 % took at most", value: func(a *client.Activity) float64 { return a.SlowSeconds }},
		}},
		{Title: "Waiting orders", Help: "of all replicas, at most 10,000 of each kind", write: wholeNumber, Lines: []line{
			{Name: "for a person", value: waiting("attention", "approval")},
			{Name: "for a retry or a callback", value: waiting("retry", "callback")},
			{Name: "for anything else", value: waiting("queued", "scheduled", "paused")},
		}},
		{Title: "Provider calls", Help: "per second, by outcome", write: short, mean: true, Lines: []line{
			{Name: "done or waiting", value: rate(func(a *client.Activity) int64 { return outcomes(a, "done", "waiting") })},
			{Name: "refused", value: rate(func(a *client.Activity) int64 { return outcomes(a, "refused") })},
			{Name: "unknown, or retried", value: rate(func(a *client.Activity) int64 { return outcomes(a, "unknown", "retry") })},
		}},
		{Title: "Failed calls", Help: "of all calls for a step", write: percent, Lines: ofSteps(failing)},
		{Title: "Circuit breakers", Help: "of the steps", write: breakerState, Lines: ofSteps(breaker)},
	}
	for i := range all {
		all[i].draw(points)
	}
	return all
}

// ofSteps is a line for each step.
func ofSteps(value func(a *client.Activity, step string) float64) (lines []line) {
	for _, step := range fsm.Steps() {
		lines = append(lines, line{Name: string(step), value: func(a *client.Activity) float64 { return value(a, string(step)) }})
	}
	return lines
}

// failing is the share of the calls for a step whose outcome is not known, or that are to be tried again.
func failing(a *client.Activity, step string) float64 {
	var failed, all int64
	for _, c := range a.Calls {
		if string(c.Step) != step {
			continue
		}
		if all += c.Calls; c.Outcome == "unknown" || c.Outcome == "retry" {
			failed += c.Calls
		}
	}
	return float64(failed) / float64(max(all, 1))
}

func wholeNumber(n float64) string { return count(int64(n)) }

func percent(share float64) string { return short(100*share) + " %" }

func breakerState(number float64) string { return breakers[int(number)] }

// breakers are the states of a circuit breaker, by their number in the metrics.
var breakers = []string{"closed", "half open", "open"}

func breaker(a *client.Activity, step string) float64 {
	for _, b := range a.Breakers {
		if string(b.Step) == step {
			return float64(slices.Index(breakers, strings.ReplaceAll(string(b.Breaker), "_", " ")))
		}
	}
	return 0
}

// waiting is how many orders have one of some holds.
func waiting(holds ...string) func(*client.Activity) float64 {
	return func(a *client.Activity) float64 { return float64(ordersOf(a.OnHold, holds...)) }
}

func rate(of func(*client.Activity) int64) func(*client.Activity) float64 {
	return func(a *client.Activity) float64 { return float64(of(a)) / max(a.Seconds, .001) }
}

func ordersOf(counts []client.ActivityCount, names ...string) (n int64) {
	for _, c := range counts {
		if slices.Contains(names, c.Name) {
			n += c.Orders
		}
	}
	return n
}

func outcomes(a *client.Activity, names ...client.ActivityCallsOutcome) (n int64) {
	for _, c := range a.Calls {
		if slices.Contains(names, c.Outcome) {
			n += c.Calls
		}
	}
	return n
}

// The size of a chart. Its lines are an hour long, or as long as the replica has run.
const (
	chartWidth, chartHeight = 480, 120
	chartSpan               = time.Hour
)

// spanOf is how long the lines are, and when they begin: a zero time for about an hour ago.
func spanOf(points []client.Activity) (span time.Duration, since time.Time) {
	if len(points) == 0 {
		return chartSpan, since
	}
	span = points[len(points)-1].At.Sub(points[0].At)
	if span > chartSpan-time.Minute {
		return chartSpan, since
	}
	return max(span, time.Second), points[0].At // of one point there is no line
}

// chart has some lines over time, and the numbers behind them.
type chart struct {
	Title  string
	Help   string
	Top    string // the value at its top
	Since  string // the time at its left, if less than an hour ago
	Lines  []line
	Rows   []chartRow // of the table, one per minute, the newest first
	Latest string     // in words

	write func(float64) string // of a value
	mean  bool                 // a minute is the mean of its points, and not the maximum
}

// line is one of the quantities of a chart.
type line struct {
	Name  string
	Path  string // of the SVG
	value func(*client.Activity) float64
}

type chartRow struct {
	At     time.Time
	Values []string
}

func (c *chart) draw(points []client.Activity) {
	span, since := spanOf(points)
	top := 0.0
	for _, l := range c.Lines {
		for i := range points {
			top = max(top, l.value(&points[i]))
		}
	}
	top = roundUp(top)
	var latest []string
	for i := range c.Lines {
		l := &c.Lines[i]
		l.Path = pathOf(points, l.value, top, span)
		if n := len(points); n > 0 {
			latest = append(latest, l.Name+" "+c.write(l.value(&points[n-1])))
		}
	}
	c.Top, c.Since, c.Latest = c.write(top), clock(since), strings.Join(latest, ", ")
	c.Rows = c.rows(points)
}

// roundUp is the next number that is 1, 2 or 5 with zeros.
func roundUp(n float64) float64 {
	if n <= 0 {
		return 1
	}
	power := math.Pow(10, math.Floor(math.Log10(n)))
	for _, digit := range []float64{1, 2, 5} {
		if n <= digit*power {
			return digit * power
		}
	}
	return 10 * power
}

// pathOf goes from point to point. Points between two of the same height are left out.
func pathOf(points []client.Activity, value func(*client.Activity) float64, top float64, span time.Duration) string {
	var b strings.Builder
	height := func(i int) int { return chartHeight - int(math.Round(value(&points[i])/top*chartHeight)) }
	for i := range points {
		y := height(i)
		if i > 0 && i < len(points)-1 && height(i-1) == y && height(i+1) == y {
			continue
		}
		x := chartWidth - int(math.Round(points[len(points)-1].At.Sub(points[i].At).Seconds()/span.Seconds()*chartWidth))
		command := 'L'
		if i == 0 {
			command = 'M'
		}
		fmt.Fprintf(&b, "%c%d %d", command, max(x, 0), y)
	}
	return b.String()
}

// rows are the minutes in which anything happened, the newest first.
func (c *chart) rows(points []client.Activity) (rows []chartRow) {
	for end := len(points); end > 0; end -= 6 {
		minute := points[max(0, end-6):end]
		row, happened := chartRow{At: minute[len(minute)-1].At}, false
		for _, l := range c.Lines {
			sum, most := 0.0, 0.0
			for i := range minute {
				n := l.value(&minute[i])
				sum, most = sum+n, max(most, n)
			}
			if c.mean {
				most = sum / float64(len(minute))
			}
			happened = happened || most > 0
			row.Values = append(row.Values, c.write(most))
		}
		if happened {
			rows = append(rows, row)
		}
	}
	return rows
}
