package doctor

import (
	"strings"
	"testing"
)

func TestDurability(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		settings map[string]string
		allowed  bool
		want     []State
	}{
		"all on":                        {map[string]string{"fsync": "on", "synchronous_commit": "on", "synchronous_standby_names": "one"}, false, nil},
		"off":                           {map[string]string{"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off"}, false, []State{Wrong, Wrong, Wrong}},
		"off, and allowed":              {map[string]string{"fsync": "off"}, true, []State{Warning}},
		"warnings that nobody hears":    {map[string]string{"client_min_messages": "error"}, true, []State{Wrong}},
		"a standby that is not awaited": {map[string]string{"synchronous_commit": "local", "synchronous_standby_names": "one"}, false, []State{Warning}},
		"no standby":                    {map[string]string{"synchronous_commit": "local", "synchronous_standby_names": ""}, false, nil},
	} {
		findings := durability(c.settings, c.allowed)
		if len(findings) != len(c.want) {
			t.Errorf("%s: %+v", name, findings)
			continue
		}
		for i, f := range findings {
			if f.State != c.want[i] || c.allowed && strings.Contains(f.Advice, "--allow-data-loss") {
				t.Errorf("%s: %+v", name, f)
			}
		}
	}
}
