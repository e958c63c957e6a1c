package browser

import (
	"testing"

	"github.com/chromedp/chromedp/kb"

	"pawl/client"
	"pawl/test/assert"
)

// TestTelephone: on a telephone, somebody finds the order of a customer, refunds a part of it, and goes on by the menu.
func TestTelephone(t *testing.T) {
	t.Parallel()
	process(t, client.ProcessBody{OrderID: "by-thumb", Lines: []client.LineInput{{Item: "lamp", Quantity: new(2), Amount: "20"},
		{Item: "VAT", Amount: "4", Kind: client.LineInputKindTax}}, Amount: "24", CustomerID: "thumb"})
	b := maria(t)
	b.look(look{"light", 390})
	b.visit("/console")
	top := eval[float64](b, `document.querySelector("main").getBoundingClientRect().top`)
	assert.True(t, top <= 150, "the page begins", top, "px below the top")
	eval[any](b, `document.querySelector("header input[name=q]").focus()`)
	b.keys("thumb" + kb.Enter)
	b.shows("Order by-thumb")
	b.press("Refund")
	b.hasNoBarriers()
	b.look(look{"light", 390})
	b.press("+")
	b.shows("Total: 12.00 USD")
	b.fill("amount", "2,50")
	b.press("Show what will change")
	b.shows("What will change")
	b.fill("reason", "a dent")
	b.wait("all that is pressed is large enough", `[...document.querySelectorAll("main button, main input:not([type=hidden]), main .button")]
		.every(e => e.getBoundingClientRect().height >= 44)`)
	eval[any](b, `document.querySelector("main form button").click()`)
	b.shows("Order by-thumb")
	order, err := shared.api.GetOrder(t.Context(), "by-thumb")
	assert.True(t, err == nil && len(order.Refunds) == 1 && order.Refunds[0].Amount == "2.50" && order.Refunds[0].Lines[0].Quantity == 1,
		order, err)
	b.press("Menu")
	b.press("Webhooks")
	b.shows("Endpoints that get events")
}
