package browser

import (
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"pawl/client"
)

// TestKeys goes through orders with keys, and turns them off.
func TestKeys(t *testing.T) {
	t.Parallel()
	b := maria(t)
	b.visit("/console/orders?q=item:declined")
	b.shows("declined-1")
	b.wait("has keys", isLive)
	rows := eval[[]string](b, `[...document.querySelectorAll("tbody th a")].map(a => a.innerText)`)
	b.keys("jj")
	b.focused("the second order", rows[1])
	b.keys("k")
	b.focused("the first order", rows[0])
	b.keys("x")
	b.wait("the row is chosen", `document.activeElement.closest("tr").querySelector("input").checked`)
	b.keys("?")
	b.wait("help is shown", `document.querySelector("dialog[open]")?.innerText.includes("the next row")`)
	for _, found := range b.axe("undefined") {
		t.Error(found)
	}
	b.keys(kb.Escape + "/")
	b.wait("the search has the focus", `document.activeElement.id === "q" && !document.querySelector("dialog")`)
	b.keys("/j") // are letters in a field
	b.wait("letters are written", `document.activeElement.value.includes("/j")`)
	b.keys(kb.Escape + "j" + kb.Enter)
	b.shows("Order " + rows[0])
	b.keys("/") // leads to the search from anywhere
	b.wait("the search has the focus", `document.activeElement.matches("header input[name=q]")`)
	b.keys(kb.Escape)
	b.press("Keys")
	b.press("Keys are on")
	b.press("Close")
	b.wait("help is gone", `!document.querySelector("dialog")`)
	b.keys("j/")
	b.wait("keys do nothing", `!document.activeElement.matches("input, tbody a")`)
	b.visit("/console/orders?q=item:declined") // chosen rows are sent
	b.fill("verb", "retry")
	eval[any](b, `document.querySelectorAll("main input[value=declined-1], main input[value=declined-2]").forEach(e => e.click())`)
	b.press("Preview for 2 orders")
	b.shows("Retry 2 orders?")
	b.wait("the money of both", `document.querySelector("[data-sum] strong").innerText === "349.00 USD"`)
	eval[any](b, `document.querySelector("main input[value=declined-1]").click()`)
	b.wait("the button and the money follow", `document.querySelector("[name=confirm]").innerText === "Retry 1 order" &&
		document.querySelector("[data-sum] strong").innerText === "99.00 USD"`)
}

// TestKeyboardAlone approves an order with Tab and Enter alone, and always sees the focus.
func TestKeyboardAlone(t *testing.T) {
	t.Parallel()
	order := process(t, client.ProcessBody{Item: "yacht"})
	b := maria(t)
	b.visit("/console/order?id=" + order.OrderID)
	b.keys(kb.Tab)
	b.focused("the way around the navigation", "Skip to the page")
	for _, page := range []string{"Waits for a person to approve it", "What will change"} {
		b.shows(page)
		for range 60 {
			if eval[string](b, `document.activeElement.innerText ?? ""`) == "Approve" {
				break
			}
			b.keys(kb.Tab)
			if !eval[bool](b, `document.activeElement === document.body || document.activeElement.closest("svg") ||
				getComputedStyle(document.activeElement).outlineStyle !== "none"`) {
				t.Errorf("the focus can't be seen on %s", eval[string](b, "document.activeElement.outerHTML.slice(0, 200)"))
			}
		}
		eval[any](b, "window.left = true")
		b.keys(kb.Enter)
	}
	b.shows("The order is approved.")
}

func (b *tab) keys(keys string) {
	b.t.Helper()
	run(b, chromedp.KeyEvent(keys))
}

func (b *tab) focused(what, text string) {
	b.t.Helper()
	b.wait(what+" has the focus", "document.activeElement.innerText === "+quoted(text))
}
