package httpapi

import (
	"testing"
	"time"
)

func TestPreference(t *testing.T) {
	t.Parallel()
	const fallback = 30 * time.Second
	for _, c := range []struct {
		header         []string
		atMost         time.Duration
		final, pending string // Preference-Applied of a 200 and of a 202
	}{
		{nil, fallback, "", ""},
		{[]string{"wait=5"}, 5 * time.Second, "wait=5", "wait=5"},
		{[]string{"wait=0"}, 0, "wait=0", "wait=0"},
		{[]string{"WAIT = \"7\""}, 7 * time.Second, "wait=7", "wait=7"},
		{[]string{"wait=60"}, time.Minute, "wait=60", "wait=60"},
		{[]string{"wait=61"}, time.Minute, "wait=60", "wait=60"},
		{[]string{"wait=2000000000"}, time.Minute, "wait=60", "wait=60"},
		{[]string{"wait=5, wait=9"}, 5 * time.Second, "wait=5", "wait=5"},
		{[]string{"respond-async"}, 0, "", "respond-async"},
		{[]string{"Respond-Async; foo=1"}, 0, "", "respond-async"},
		{[]string{"respond-async, wait=5"}, 5 * time.Second, "wait=5", "respond-async, wait=5"},
		{[]string{"wait=5", "respond-async"}, 5 * time.Second, "wait=5", "respond-async, wait=5"},
		{[]string{"return=minimal"}, fallback, "", ""},
		{[]string{"wait"}, fallback, "", ""},
		{[]string{"wait=-1", "wait=x", "wait=1.5", "wait=99999999999999999999", ",;=,"}, fallback, "", ""},
	} {
		p := preferenceOf(c.header, fallback)
		if p.atMost != c.atMost || p.applied(true) != c.final || p.applied(false) != c.pending {
			t.Errorf("%q: waits %s, applied %q and %q", c.header, p.atMost, p.applied(true), p.applied(false))
		}
	}
}

func TestCursor(t *testing.T) {
	t.Parallel()
	binding := []string{"orders", "completed", ""}
	cursor := sealCursor(binding, "4711")
	if position, ok := openCursor(binding, cursor); !ok || position != "4711" {
		t.Errorf("%q %v", position, ok)
	}
	for i := range cursor {
		changed := []byte(cursor)
		changed[i] ^= 1
		if _, ok := openCursor(binding, string(changed)); ok {
			t.Errorf("taken with another character at %d", i)
		}
	}
	for _, other := range [][]string{nil, {"orders", "completed"}, {"orders", "", "completed"}, {"orders", "completed", "", ""}} {
		if _, ok := openCursor(other, cursor); ok {
			t.Errorf("taken for %q", other)
		}
	}
}
