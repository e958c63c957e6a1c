package browser

import (
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"

	"pawl/client"
	"pawl/test/assert"
)

// isCompleted is true of the page of an order that is. (The picture of the machine always has the word.)
const isCompleted = `document.querySelector("h1").innerText.includes("completed")`

// TestLive: a page shows what has happened since it was loaded, without being loaded anew, and keeps what its reader has opened.
func TestLive(t *testing.T) {
	t.Parallel()
	b := maria(t)
	order := process(t, client.ProcessBody{Item: "yacht"})
	b.visit("/console/order?id=" + order.OrderID)
	b.shows("approval")
	b.wait("is live", isLive)
	eval[any](b, `window.sameDocument = true; document.querySelector("main > details > summary").click()`) // the JSON, which stays
	approve(t, order)
	b.wait("is completed", isCompleted)
	assert.True(t, eval[bool](b, `window.sameDocument && document.querySelector("main > details").open`),
		"the page was loaded anew, or closed what was open")
}

// TestNothingIsAskedFor: whether a page is paused or hidden, it sends nothing, whatever happens to what it shows. That it
// would have had something to show is known from another window.
func TestNothingIsAskedFor(t *testing.T) {
	t.Parallel()
	for name, leave := range map[string]struct{ away, back func(*tab) }{
		"paused": {func(b *tab) { b.press("Live") }, func(b *tab) { b.press("Paused") }},
		"hidden": {(*tab).hide, func(b *tab) { call(b, page.BringToFront, struct{}{}) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			order := process(t, client.ProcessBody{Item: "yacht"})
			path := "/console/order?id=" + order.OrderID
			b, other := maria(t), maria(t)
			for _, window := range []*tab{b, other} {
				window.visit(path)
				window.wait("is live", isLive)
			}
			leave.away(b)
			before := b.sent()
			approve(t, order)
			other.wait("is completed", isCompleted)
			if after := b.sent(); len(after) != len(before) {
				t.Errorf("asked for %q", after[len(before):])
			}
			leave.back(b)
			b.wait("is completed", isCompleted)
			if documents := slices.DeleteFunc(b.sent(), func(sent string) bool { return sent != "GET "+path }); len(documents) < 2 {
				t.Errorf("sent %q", b.sent())
			}
		})
	}
}

// TestWritingIsNotDisturbed: while somebody writes, the page stays as it is, and says that something has changed. So it does if
// somebody begins to write while the page is on its way.
func TestWritingIsNotDisturbed(t *testing.T) {
	t.Parallel()
	b := maria(t)
	b.visit("/console/orders")
	b.wait("is live", isLive)
	b.fill("q", "item:wid")
	process(t, client.ProcessBody{OrderID: "while-writing", Item: "widget"})
	b.wait("says that it has changed", `document.querySelector(".live").dataset.state === "stale"`)
	assert.Equal(t, eval[string](b, `document.querySelector("[name=q]").value`), "item:wid", "what was written is gone")
	b.fill("q", "")
	b.wait("is live again", isLive)
	b.shows("while-writing")

	eval[any](b, `{ const ask = fetch; window.fetch = (...all) => new Promise((go) => window.answer = go).then(() => ask(...all)) }`)
	process(t, client.ProcessBody{Item: "widget"})
	b.wait("has asked for the page", "window.answer")
	b.fill("q", "item:wid")
	eval[any](b, "window.answer()")
	b.wait("says that it has changed", `document.querySelector(".live").dataset.state === "stale"`)
	assert.Equal(t, eval[string](b, `document.querySelector("[name=q]").value`), "item:wid",
		"what was written while the page was on its way is gone")
}

// TestMoreHappensMeanwhile: what happens while a page is on its way is shown, too.
func TestMoreHappensMeanwhile(t *testing.T) {
	t.Parallel()
	b := maria(t)
	order := process(t, client.ProcessBody{Item: "yacht"})
	b.visit("/console/order?id=" + order.OrderID)
	b.wait("is live", isLive)
	eval[any](b, `{ const ask = fetch; window.fetch = async (...all) => {
		const answer = await ask(...all);
		window.fetch = ask;
		await new Promise((go) => window.deliver = go);
		return answer;
	} }`)
	assert.NoError(t, assert.Err(shared.api.PauseOrder(t.Context(), order.OrderID, client.VerbBody{})))
	b.wait("has its page on the way", "window.deliver")
	assert.NoError(t, assert.Err(shared.api.ResumeOrder(t.Context(), order.OrderID, client.VerbBody{})))
	b.wait("has heard of it", `document.querySelector(".live").dataset.state === "stale"`)
	eval[any](b, "window.deliver()")
	b.wait("is live", isLive)
	b.press("Pause") // which a paused order does not have
}

// TestFocusStays: where a row that has the focus goes away, the next one has it.
func TestFocusStays(t *testing.T) {
	t.Parallel()
	b := maria(t)
	first := process(t, client.ProcessBody{Item: "yacht", CustomerID: "focus"})
	second := process(t, client.ProcessBody{Item: "yacht", CustomerID: "focus"})
	b.visit("/console/orders?q=customer:focus+hold:approval+sort:oldest")
	b.wait("is live", isLive)
	b.keys("j")
	b.focused("the first order", first.OrderID)
	approve(t, first)
	b.focused("the second order", second.OrderID)
}

// TestSessionThatEnds: a page whose session has ended says that it is not live any more.
func TestSessionThatEnds(t *testing.T) {
	t.Parallel()
	b := maria(t)
	b.visit("/console")
	b.wait("is live", isLive)
	b.signOut()
	process(t, client.ProcessBody{Item: "widget"})
	b.wait("says that it is not live", `document.querySelector(".live").dataset.state === "lost"`)
	b.wait("says since when", `document.querySelector("main.lost .as-of").innerText.startsWith("Signed out since")`)
	b.forgive("401")
}

// hide opens another tab in front of this one.
func (b *tab) hide() {
	b.t.Helper()
	front := &tab{t: b.t, address: b.address}
	front.start(chromedp.WithExistingBrowserContext(chromedp.FromContext(b.ctx).BrowserContextID), chromedp.WithNewWindow(false))
	b.wait("is hidden", "document.hidden")
}

func process(t *testing.T, body client.ProcessBody) *client.Order {
	t.Helper()
	began(t)
	if body.Amount == "" {
		body.Amount = "9.99"
	}
	order, err := shared.api.Process(t.Context(), body)
	assert.NoError(t, err)
	return order
}

func approve(t *testing.T, order *client.Order) {
	t.Helper()
	_, err := shared.api.ApproveOrder(t.Context(), order.OrderID, client.VerbBody{Reason: "fine"})
	assert.Require(t, err == nil || strings.Contains(err.Error(), "202"), err)
}
