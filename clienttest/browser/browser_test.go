// Package browser looks at the console as people do: in Chromium, on a service that runs. It needs Chromium, npm and a network.
package browser

import (
	"fmt"
	"testing"
)

// screens are all pages of the console, each with what it must show.
var screens = []struct{ name, path, shows string }{
	{"docs", "/docs", "Pawl"},
	{"login", "/login", "maria"},
}

// looks are those in which every screen is looked at. The colors of the first two differ, the shape of the last.
var looks = []look{{"light", 1280}, {"dark", 1280}, {"light", 390}}

// TestScreens looks at every screen in light, in dark and on a telephone. axe must find nothing on it.
func TestScreens(t *testing.T) {
	t.Parallel()
	for _, screen := range screens {
		t.Run(screen.name, func(t *testing.T) {
			t.Parallel()
			b := maria(t)
			for i, l := range looks {
				b.look(l)
				if i == 0 {
					b.visit(screen.path)
					b.shows(screen.shows)
				}
				if wide := eval[float64](b, "document.documentElement.scrollWidth"); wide > float64(l.width) {
					t.Errorf("%v: the page is %v wide", l, wide)
				}
				for _, found := range b.axe() {
					t.Errorf("%v: %s", l, found)
				}
			}
		})
	}
}

// axe says what axe-core finds, all rules but experimental ones.
func (b *tab) axe() (found []string) {
	b.t.Helper()
	if !eval[bool](b, `"axe" in window`) {
		eval[any](b, axe()+";0")
	}
	type violation struct {
		ID    string
		Help  string
		Nodes []struct{ HTML, FailureSummary string }
	}
	for _, v := range eval[[]violation](b, `axe.run(document, {resultTypes: ["violations"]}).then(r => r.violations)`) {
		found = append(found, fmt.Sprintf("%s: %s (%d times)\n%s\n%s", v.ID, v.Help, len(v.Nodes), v.Nodes[0].HTML, v.Nodes[0].FailureSummary))
	}
	return found
}
