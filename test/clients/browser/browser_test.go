// Package browser looks at the console as people do: in Chromium, on a running service. It has what only a browser can see; what
// pages say and what forms do is tested in internal/console. It needs Chromium, npm and a network.
package browser

import (
	"fmt"
	"strings"
	"testing"
)

// screens are the pages of the console, and those beside it, with what each must show of what fill has stored.
var screens = []struct {
	name, path string
	shows      []string
}{
	{"problem of the API", "/problems/order_conflict", []string{"409"}},
	{"who am I", "/login", []string{"token:maria"}},
	{"overview", "/console", []string{"To approve", "Orders by state", "What orders wait for"}},
	{"needs a person", "/console/attention", []string{"stuck-1", "Retry", "What the runbook says"}},
	{"approvals", "/console/attention?hold=approval", []string{"waits-1", "Approve"}},
	{"runbook", "/console/runbook", []string{"Runbook"}},
	{"orders", "/console/orders?q=item:lamp", []string{"done-1", "Action for selected orders", "Keep this search"}},
	{"orders found", "/console/orders?q=status:failed+item:declined", []string{"declined-1", "the card was declined"}},
	{"no orders found", "/console/orders?q=item:nothing", []string{"No orders found"}},
	{"completed order", "/console/order?id=done-1", []string{"12.50", "one is broken", "Deliveries"}},
	{"failed order", "/console/order?id=declined-1", []string{"the bank says no", "Retry"}},
	{"stuck order", "/console/order?id=stuck-1", []string{"Why it needs a person"}},
	{"every move", "/console/order?id=stuck-1&every=yes", []string{"As a story", "2 moves"}},
	{"no order", "/console/order?id=none", []string{`There is no order "none".`}},
	{"cancel", "/console/order/cancel?id=waits-1", []string{"What will change", "Reason"}},
	{"step-result", "/console/order/step-result?id=stuck-1", []string{"What happened to the charge"}},
	{"refund", "/console/order/refund?id=done-1", []string{"Amount in USD"}},
	{"refund preview", "/console/order/refund?id=done-1&amount=1&preview=yes", []string{"1.00 USD goes back to the customer"}},
	{"bulk", "/console/bulk", []string{"Many orders"}},
	{"bulk preview", "/console/bulk?verb=retry&q=status:failed+item:declined", []string{"declined-1"}},
	{"errors", "/console/errors", []string{"the card was declined", "The provider asks to wait"}},
	{"webhooks", "/console/webhooks", []string{"the warehouse, which is away"}},
	{"webhook", "/console/webhook?id={broken}&state=", []string{"order.completed", "Rotate the secret"}},
	{"delivery", "/console/delivery?endpoint={broken}&delivery=1", []string{"the database is away"}},
	{"rotate", "/console/webhook/rotate?id={broken}", []string{"Rotate the secret?"}},
	{"policies", "/console/policies", []string{"Versions, newest first"}},
	{"policy", "/console/policy?version=1", []string{"Policy 1", "undoUrl"}},
	{"new policy", "/console/policy/new?from=1", []string{"New policy"}},
	{"stock", "/console/stock", []string{"lamp"}},
	{"item", "/console/item?item=lamp", []string{"two are broken", "counted"}},
	{"adjust", "/console/item/adjust?item=lamp", []string{"Add or remove units of lamp"}},
	{"no item", "/console/item?item=none", []string{"This item was never reserved or stocked"}},
	{"books", "/console/books", []string{"Verify the books now"}},
	{"nothing", "/console/nothing", []string{"There is no such page."}},
}

// looks are how every screen is looked at.
var looks = []look{{"light", 1280}, {"dark", 1280}, {"light", 390}}

// TestScreens looks at every screen in light, in dark and on a telephone. axe must find nothing on it.
func TestScreens(t *testing.T) { //nolint:tparallel // see below
	t.Parallel()
	b := maria(t)
	b.look(looks[0])
	for _, screen := range screens { //nolint:paralleltest // all have one window: to open it takes longer than to look at one
		t.Run(screen.name, func(t *testing.T) {
			b.t = t
			b.visit(strings.ReplaceAll(screen.path, "{broken}", shared.broken))
			for _, text := range screen.shows {
				b.shows(text)
			}
			b.hasNoBarriers()
			if screen.name == "nothing" || screen.name == "no order" {
				b.forgive("404")
			}
		})
	}
	b.t = t
}

// hasNoBarriers fails the test if a page is wider than the screen, or if axe finds something, in any look.
func (b *tab) hasNoBarriers() {
	b.t.Helper()
	for _, l := range looks {
		b.look(l)
		if wide := eval[float64](b, "document.documentElement.scrollWidth"); wide > float64(l.width) {
			b.t.Errorf("%v: the page is %v wide: %s", l, wide, eval[string](b, widest))
		}
		rules := "undefined"
		if l.scheme == "dark" {
			rules = `["color-contrast"]` // only colors differ from light
		}
		for _, found := range b.axe(rules) {
			b.t.Errorf("%v: %s", l, found)
		}
	}
	b.look(looks[0])
}

// TestFirstLoad: the page people begin with takes under 40 kB over the wire, and the next one next to nothing.
func TestFirstLoad(t *testing.T) {
	t.Parallel()
	b := maria(t)
	b.visit("/console")
	b.wait("is live", `document.querySelector(".live")?.dataset.state === "live"`)
	first := b.bytes()
	t.Logf("the first page takes %.1f kB", first/1000)
	if first > 40_000 {
		t.Errorf("the first page takes %.0f bytes: %q", first, b.sent())
	}
	b.visit("/console")
	if second := b.bytes() - first; second > 20_000 {
		t.Errorf("the second page takes %.0f bytes: %q", second, b.sent())
	}
}

// widest names what is cut off on the right and can't be scrolled into view by itself.
const widest = `[...document.querySelectorAll("body *")]
	.filter(e => e.getBoundingClientRect().right > 390 && !e.parentElement.closest("table, pre, div.wide, .drawing"))
	.map(e => e.outerHTML.slice(0, 150)).slice(0, 5).join("\n")`

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
		node := v.Nodes[0]
		found = append(found, fmt.Sprintf("%s: %s (%d times)\n%s\n%s", v.ID, v.Help, len(v.Nodes), node.HTML, node.FailureSummary))
	}
	return found
}
