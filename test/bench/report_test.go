package main

import (
	"bytes"
	"os"
	"slices"
	"strings"
	"testing"

	"pawl/test/assert"
)

func TestReportComparesLikeWithLike(t *testing.T) {
	t.Parallel()
	load := func(target string, callers int, perSecond float64) result {
		return result{setup: setup{Target: target, Callers: callers, Items: 1}, OrdersPerSec: perSecond, Orders: 1, Seconds: 90}
	}
	full := load("pawl", 64, 900)
	full.Stored, full.WALPerOrder = 5_000_000, 4000
	r := report{Results: []result{
		load("baseline", 64, 90), load("baseline", 64, 200), load("baseline", 64, 100), load("baseline", 1, 1),
		load("pawl", 64, 1000), full,
	}}
	for i, want := range []string{"", "", "", "", "10.00×", ""} {
		assert.Equal(t, r.ratio(r.Results[i]), want, "ratio of row", i)
	}
	var out bytes.Buffer
	r.print(&out)
	want := "64 callers with 5000000 orders stored: 0.900 of the orders/s from empty (900, 900 to 900 against 1000, 1000 to 1000)"
	assert.Contains(t, out.String(), want, "no", "in")
}

func TestReportShowsWhatWentWrong(t *testing.T) {
	t.Parallel()
	r := report{Results: []result{{setup: setup{Target: "pawl", Callers: 2, Items: 1}, Errors: 1, FirstError: "status 500", BooksMismatch: "3 charges"}}}
	var out bytes.Buffer
	r.print(&out)
	for _, want := range []string{"first error: status 500", "books: 3 charges"} {
		assert.Contains(t, out.String(), "pawl, 2 callers, hot: "+want, want)
	}
	assert.True(t, r.failed(), "not failed")
}

func TestOptionsChooseTargets(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"":                              "baseline,pawl",
		"--remote":                      "provider,baseline,pawl",
		"--only pawl,token":             "pawl,token",
		"--against /old":                "pawl,earlier",
		"--against /old --only earlier": "earlier",
		"--only earlier":                "",
		"--remote --rate 0":             "",
		"--remote --stored 5":           "",
		"--remote --only baseline":      "",
	} {
		o, err := parseOptions(strings.Fields(args))
		if want == "" {
			assert.True(t, err != nil, args, "is accepted")
		} else if err != nil || !slices.Equal(o.only, strings.Split(want, ",")) {
			t.Errorf("%q: targets %v, %v, want %s", args, o.only, err, want)
		}
	}
}

// Two versions of the service are compared by the medians of their rounds: one round is noise.
func Example() {
	var r report
	for target, all := range map[string][]float64{"pawl": {90, 96, 500}, "earlier": {100, 10, 101, 100}} {
		for _, perSecond := range all {
			r.Results = append(r.Results, result{setup: setup{Target: target, Callers: 64, Items: 1},
				OrdersPerSec: perSecond, ServiceCPU: 0.1, Orders: 1})
		}
	}
	r.printComparisons(os.Stdout)
	// Output: pawl, 64 callers, hot, against earlier: 0.960 of the orders/s (96, 90 to 500 against 100, 10 to 101), CPU service 1.000, CPU PostgreSQL not measured, CPU of all 1.000
}
