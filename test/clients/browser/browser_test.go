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
	{"who am I", "/login", []string{"token:maria"}},
	{"overview", "/console", []string{"need a person", "The machine", "The last hour"}},
	{"needs a person", "/console/attention", []string{"stuck-1", "Retry", "What the runbook says"}},
	{"approvals", "/console/attention?hold=approval", []string{"waits-1", "Approve"}},
	{"runbook", "/console/runbook", []string{"Runbook"}},
	{"orders", "/console/orders?q=item:lamp", []string{"done-1", "With those chosen", "Keep this search"}},
	{"orders found", "/console/orders?q=status:failed+item:declined", []string{"declined-1", "card_declined"}},
	{"no orders found", "/console/orders?q=item:nothing", []string{"No order is found"}},
	{"completed order", "/console/order?id=done-1", []string{"12.50", "one is broken", "Deliveries"}},
	{"failed order", "/console/order?id=declined-1", []string{"the bank says no", "Retry"}},
	{"stuck order", "/console/order?id=stuck-1", []string{"back on Monday"}},
	{"no order", "/console/order?id=none", []string{`There is no order "none".`}},
	{"cancel", "/console/order/cancel?id=waits-1", []string{"What will change", "Reason"}},
	{"step-result", "/console/order/step-result?id=stuck-1", []string{"What became of the charge"}},
	{"refund", "/console/order/refund?id=done-1", []string{"Amount in USD"}},
	{"bulk", "/console/bulk", []string{"Many orders"}},
	{"bulk preview", "/console/bulk?verb=retry&status=failed&item=declined", []string{"declined-1"}},
	{"errors", "/console/errors", []string{"card_declined", "Retry all of these"}},
	{"webhooks", "/console/webhooks", []string{"the warehouse, which is away"}},
	{"webhook", "/console/webhook?id={broken}", []string{"order.completed", "Rotate the secret"}},
	{"delivery", "/console/delivery?endpoint={broken}&delivery=1", []string{"the database is away"}},
	{"rotate", "/console/webhook/rotate?id={broken}", []string{"Give the endpoint another secret?"}},
	{"policies", "/console/policies", []string{"Versions, newest first"}},
	{"policy", "/console/policy?version=1", []string{"Policy 1", "undoUrl"}},
	{"new policy", "/console/policy/new?from=1", []string{"New policy"}},
	{"stock", "/console/stock", []string{"lamp"}},
	{"item", "/console/item?item=lamp", []string{"two are broken", "counted"}},
	{"adjust", "/console/item/adjust?item=lamp", []string{"Add units of lamp"}},
	{"no item", "/console/item?item=none", []string{"Nobody has ordered this item"}},
	{"books", "/console/books", []string{"A proof reads the whole database"}},
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
			if screen.name == "nothing" || screen.name == "no order" {
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
	rules := "undefined"
	if l.scheme == "dark" {
		rules = `["color-contrast"]` // all others found what there is in light
	}
	for _, found := range b.axe(rules) {
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

// widest names what stands out on the right, and can't be scrolled into view by itself.
const widest = `[...document.querySelectorAll("body *")].filter(e => e.getBoundingClientRect().right > 390 && !e.parentElement.closest("table, pre, div.wide, .drawing")).map(e => e.outerHTML.slice(0, 150)).slice(0, 5).join("\n")`

// axe says what axe-core finds by some rules; undefined: by all.
func (b *tab) axe(rules string) (found []string) {
	b.t.Helper()
	if !eval[bool](b, `"axe" in window`) {
		eval[any](b, axe()+";0")
	}
	type violation struct {
		ID    string
		Help  string
		Nodes []struct{ HTML, FailureSummary string }
	}
	for _, v := range eval[[]violation](b, `axe.run(document, {resultTypes: ["violations"], runOnly: `+rules+`}).then(r => r.violations)`) {
		found = append(found, fmt.Sprintf("%s: %s (%d times)\n%s\n%s", v.ID, v.Help, len(v.Nodes), v.Nodes[0].HTML, v.Nodes[0].FailureSummary))
	}
	return found
}
