package doctor

import (
	"strings"
	"testing"

	"pawl/db"
	"pawl/test/assert"
)

func TestDurability(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		settings map[string]string
		allowed  bool
		want     []State
	}{
		"all on":                     {map[string]string{"fsync": "on", "synchronous_commit": "on", "synchronous_standby_names": "one"}, false, nil},
		"off":                        {map[string]string{"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off"}, false, []State{Wrong, Wrong, Wrong}},
		"off, and allowed":           {map[string]string{"fsync": "off"}, true, []State{Warning}},
		"warnings that nobody hears": {map[string]string{"client_min_messages": "error"}, true, []State{Wrong}},
	} {
		var report Report
		report.durability(c.settings, c.allowed)
		findings := report.Findings
		if len(findings) != len(c.want) {
			t.Errorf("%s: %+v", name, findings)
			continue
		}
		for i, f := range findings {
			assert.True(t, f.State == c.want[i] && (!c.allowed || !strings.Contains(f.Advice, "--allow-data-loss")), name, f)
		}
	}
}

// TestReplication is what a primary can tell of a set-up in which a standby that takes over may lack what was
// acknowledged.
func TestReplication(t *testing.T) {
	t.Parallel()
	var none, hidden, one, two = db.ServerStandbysRow{}, db.ServerStandbysRow{Connected: 1, Hidden: 1}, db.ServerStandbysRow{Connected: 1, Synchronous: 1},
		db.ServerStandbysRow{Connected: 2, Synchronous: 1}
	for _, c := range []struct {
		names, commit string
		standbys      db.ServerStandbysRow
		want          []string // parts of what is found
	}{
		{"", "on", none, nil},
		{"", "local", none, nil},
		{"", "on", two, []string{"2 standbys are connected and none is synchronous"}},
		{"", "on", hidden, []string{"1 standbys are connected"}},
		{"one", "on", one, nil},
		{"one", "remote_apply", hidden, nil},
		{"one", "local", one, []string{"no commit waits for a standby"}},
		{"one", "remote_write", one, []string{"synchronous_commit is remote_write"}},
		{"one", "on", none, []string{"commits wait for one"}},
		{"one, two", "on", two, nil}, // the first of them that is connected
		{"FIRST 1 (one, two)", "on", two, nil},
		{"2 (one, two)", "on", two, nil},
		{"ANY 1 (one, two)", "on", two, []string{"any 1 of the standbys"}},
		{"any 2 (one, \"two\", three)", "on", two, []string{"any 2 of the standbys"}},
		{"ANY 2 (one, two)", "on", two, nil},
		{"*", "on", one, []string{"any 1 of the standbys"}},
		{"FIRST 1 (\"*\")", "on", two, []string{"any 1 of the standbys"}},
		{"2 (*)", "on", two, nil},
		{"ANY 1 (*)", "local", none, []string{"no commit waits", "commits wait for one", "any 1 of the standbys"}},
	} {
		var report Report
		report.replication(map[string]string{"synchronous_standby_names": c.names, "synchronous_commit": c.commit}, c.standbys)
		found := report.Findings
		if len(found) != len(c.want) {
			t.Errorf("%+v: %+v", c, found)
			continue
		}
		for i, f := range found {
			assert.True(t, strings.Contains(f.Found, c.want[i]) && f.State == Warning && f.Subject == "durability" && f.Advice != "",
				c, f)
		}
	}
}
