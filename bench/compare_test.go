package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"
)

func TestReportComparesMediansOfVersions(t *testing.T) {
	t.Parallel()
	var r report
	for target, all := range map[string][]float64{"pawl": {90, 96, 500}, "earlier": {100, 10, 101, 100}} {
		for _, perSecond := range all {
			r.Results = append(r.Results, result{setup: setup{Target: target, Callers: 64, Items: 1},
				OrdersPerSec: perSecond, ServiceCPU: 0.1, Orders: 1})
		}
	}
	var out bytes.Buffer
	r.printComparisons(&out)
	want := "pawl, 64 callers, hot, against earlier: 0.960 of the orders/s (96, 90 to 500 against 100, 10 to 101), " +
		"CPU service 1.000, CPU PostgreSQL not measured"
	if got := strings.TrimSpace(out.String()); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestOptionsChooseTargets(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"":                               "baseline,pawl",
		"--remote":                       "pawl",
		"--ledger-policy":                "pawl,ledger-policy",
		"--against /old --ledger-policy": "pawl,earlier,ledger-policy",
		"--against /old --only earlier":  "earlier",
		"--only earlier":                 "",
		"--remote --rate 0":              "",
		"--remote --stored 5":            "",
		"--remote --only baseline":       "",
	} {
		o, err := parseOptions(strings.Fields(args))
		if want == "" {
			if err == nil {
				t.Errorf("%q is accepted", args)
			}
		} else if err != nil || !slices.Equal(o.only, strings.Split(want, ",")) {
			t.Errorf("%q: targets %v, %v, want %s", args, o.only, err, want)
		}
	}
}

func TestTargetsTakeTurns(t *testing.T) {
	t.Parallel()
	names := []string{"a", "b"}
	if got := slices.Concat(inTurn(names, 0), inTurn(names, 1), inTurn(names, 2)); !slices.Equal(got, []string{"a", "b", "b", "a", "a", "b"}) {
		t.Error(got)
	}
}

func TestLedgerPolicyIsServed(t *testing.T) {
	t.Parallel()
	d := testDatabase(t)
	serveTarget(t, testTarget(t, "ledger-policy"), d)
	var source string
	if err := d.conn.QueryRow(t.Context(), "SELECT source FROM policies").Scan(&source); err != nil || source != "{}\n" {
		t.Errorf("stored %q, %v", source, err)
	}
}
