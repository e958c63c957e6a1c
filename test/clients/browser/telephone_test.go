package browser

import (
	"testing"

	"github.com/chromedp/chromedp/kb"

	"pawl/client"
)

// TestTelephone: on a telephone, somebody finds the order of a customer, refunds a part of it, and goes on by the menu.
func TestTelephone(t *testing.T) {
	t.Parallel()
	process(t, client.ProcessBody{OrderID: "by-thumb", Lines: []client.LineInput{{Item: "lamp", Quantity: new(2), Amount: "20"}}, Amount: "20", CustomerID: "thumb"})
	b := maria(t)
	b.look(look{"light", 390})
	b.visit("/console")
	if top := eval[float64](b, `document.querySelector("main").getBoundingClientRect().top`); top > 150 {
		t.Errorf("the page begins %v px below the top", top)
	}
	eval[any](b, `document.querySelector("header input[name=q]").focus()`)
	b.keys("thumb" + kb.Enter)
	b.shows("Order by-thumb")
	b.press("Refund")
	b.press("+")
	b.fill("amount", "2,50")
	b.press("Show what will change")
	b.shows("What will change")
	b.fill("reason", "a dent")
	b.wait("all that is pressed is large enough", `[...document.querySelectorAll("main button, main input:not([type=hidden]), main .button")]
		.every(e => e.getBoundingClientRect().height >= 44)`)
	eval[any](b, `document.querySelector("main form button").click()`)
	b.shows("Order by-thumb")
	order, err := shared.api.GetOrder(t.Context(), "by-thumb")
	if err != nil || len(order.Refunds) != 1 || order.Refunds[0].Amount != "2.50" || order.Refunds[0].Lines[0].Quantity != 1 {
		t.Errorf("%+v, %v", order, err)
	}
	b.press("Menu")
	b.press("Webhooks")
	b.shows("Endpoints that get events")
}
