package dbtest

import (
	"flag"
	"strconv"
	"testing"

	"pgregory.net/rapid"
)

// Check is rapid.Check for properties whose rounds ask a database: one round for every five that -rapid.checks
// asks for, 20 by default. Where one fails, it looks for a shorter way there as rapid.Check does.
func Check(t *testing.T, property func(*rapid.T)) {
	t.Helper()
	asked, err := strconv.Atoi(flag.Lookup("rapid.checks").Value.String())
	require(t, err)
	rounds, failed := 0, false
	rapid.Check(t, func(rt *rapid.T) {
		if rounds >= max(asked/5, 1) && !failed {
			return
		}
		rounds++
		defer func() { failed = failed || rt.Failed() }()
		property(rt)
	})
	t.Logf("%d rounds", rounds)
}
