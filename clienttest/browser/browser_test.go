// Package browser looks at the console as people do: in Chromium, on a service that runs. It needs Chromium, npm and a network.
package browser

import (
	"fmt"
	"strings"
	"testing"
)

// screens are the pages of the console, and those beside it, each with what it must show of what fill has stored.
var screens = []struct {
	name, path string
	shows      []string
}{
	{"problem of the API", "/problems/order_conflict", []string{"409"}},
	{"login", "/login", []string{"token:maria"}},
	{"overview", "/console", []string{"Overview"}},
	{"nothing", "/console/nothing", []string{"There is no such page."}},
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
			b.look(looks[0])
			b.visit(strings.ReplaceAll(screen.path, "{broken}", shared.broken))
			for _, text := range screen.shows {
				b.shows(text)
			}
			for _, l := range looks {
				b.look(l)
				b.hasNoBarrier(l)
			}
			if strings.HasSuffix(screen.path, "nothing") {
				b.forgive("404")
			}
		})
	}
}

// hasNoBarrier fails the test if a page is wider than the screen, or if axe finds something.
func (b *tab) hasNoBarrier(l look) {
	b.t.Helper()
	if wide := eval[float64](b, "document.documentElement.scrollWidth"); wide > float64(l.width) {
		b.t.Errorf("%v: the page is %v wide: %s", l, wide, eval[string](b, widest))
	}
	for _, found := range b.axe() {
		b.t.Errorf("%v: %s", l, found)
	}
}

// TestFirstLoad: the page people begin with takes under 60 kB over the wire, and the next one next to nothing.
func TestFirstLoad(t *testing.T) {
	t.Parallel()
	b := maria(t)
	b.visit("/console")
	b.wait("is live", `document.querySelector(".live")?.dataset.state === "live"`)
	first := b.bytes()
	t.Logf("the first page takes %.1f kB", first/1000)
	if first > 60_000 {
		t.Errorf("the first page takes %.0f bytes: %q", first, b.sent())
	}
	b.visit("/console")
	if second := b.bytes() - first; second > 20_000 {
		t.Errorf("the second page takes %.0f bytes: %q", second, b.sent())
	}
}

func (b *tab) bytes() float64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.received
}

// widest names what stands out on the right.
const widest = `[...document.querySelectorAll("body *")].filter(e => e.getBoundingClientRect().right > innerWidth).map(e => e.outerHTML.slice(0, 120)).slice(0, 3).join("\n")`

// axe says what axe-core finds.
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
