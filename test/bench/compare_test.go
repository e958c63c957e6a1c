package main

import (
	"slices"
	"strings"
	"testing"
)

func TestOptionsChooseTargets(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"":                               "baseline,pawl",
		"--remote":                       "pawl",
		"--ledger-policy":                "pawl,ledger-policy",
		"--token":                        "pawl,token",
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
