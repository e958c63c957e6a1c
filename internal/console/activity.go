package console

import (
	"slices"

	"pawl/client"
	"pawl/fsm"
)

// charts are those of the last hour.
func charts(points []client.Activity) []chart {
	all := []chart{
		{Title: "Throughput", Help: "orders a second", write: perSecond, mean: true, Lines: []line{
			{Name: "admitted", value: rate(func(a *client.Activity) int64 { return a.Admitted })},
			{Name: "completed", value: rate(func(a *client.Activity) int64 { return named(a.Ended, "completed") })},
			{Name: "failed or canceled", value: rate(func(a *client.Activity) int64 { return named(a.Ended, "failed", "canceled") })},
		}},
		{Title: "Time to the end", Help: "of the orders that ended, from their creation on", write: duration, Lines: []line{
			{Name: "half took at most", value: func(a *client.Activity) float64 { return a.MedianSeconds }},
			{Name: "95 % took at most", value: func(a *client.Activity) float64 { return a.SlowSeconds }},
		}},
		{Title: "Orders that wait", Help: "of all replicas, 10,000 of each kind at most", write: wholeOrders, Lines: []line{
			{Name: "for a person", value: waiting("attention", "approval")},
			{Name: "for a retry or a callback", value: waiting("retry", "callback")},
			{Name: "for anything else", value: waiting("queued", "scheduled", "paused")},
		}},
		{Title: "Provider calls", Help: "a second, by outcome", write: perSecond, mean: true, Lines: []line{
			{Name: "done or waiting", value: rate(func(a *client.Activity) int64 { return outcomes(a, "done", "waiting") })},
			{Name: "refused", value: rate(func(a *client.Activity) int64 { return outcomes(a, "refused") })},
			{Name: "not known, or to be tried again", value: rate(func(a *client.Activity) int64 { return outcomes(a, "unknown", "retry") })},
		}},
		{Title: "Calls that failed", Help: "of all calls for a step", write: percent, Lines: ofSteps(failing)},
		{Title: "Circuit breakers", Help: "of the steps", write: breakerName, Lines: ofSteps(breaker)},
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

// breaker is the state of the breaker of a step as the metrics have it.
func breaker(a *client.Activity, step string) float64 {
	for _, b := range a.Breakers {
		switch {
		case string(b.Step) != step:
		case b.Breaker == "open":
			return 2
		default:
			return 1
		}
	}
	return 0
}

func breakerName(state float64) string { return []string{"closed", "half open", "open"}[int(state)] }

func percent(share float64) string { return perSecond(100*share) + " %" }

// waiting is how many orders wait for one of some things.
func waiting(holds ...string) func(*client.Activity) float64 {
	return func(a *client.Activity) float64 { return float64(named(a.OnHold, holds...)) }
}

func wholeOrders(n float64) string { return count(int64(n)) }

func rate(of func(*client.Activity) int64) func(*client.Activity) float64 {
	return func(a *client.Activity) float64 { return float64(of(a)) / max(a.Seconds, .001) }
}

func named(counts []client.ActivityCount, names ...string) (n int64) {
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

func perSecond(n float64) string {
	if n == 0 {
		return "0"
	}
	return short(n)
}
