package browser

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"pawl/client"
)

// actions are what people do in the console, from a page to what comes of it. A step is "press" with a text on the page,
// "shows" with one that must be there, "comes" with one that comes when the page is loaded again, or a field with its value.
// {order} is a new order of the item. In the end it has the status or the hold that becomes says.
var actions = []struct {
	name, item, becomes, path string
	steps                     []string
}{
	{"approve", "yacht", "completed", "/console/order?id={order}", []string{"press Approve", "shows What will change", "press Approve", "shows The order is approved."}},
	{"reject", "yacht", "canceled", "/console/order?id={order}", []string{"press Reject", "reason = too big", "press Reject", "shows The order is rejected.", "shows too big"}},
	{"retry", "once-stuck", "completed", "/console/order?id={order}", []string{"press Retry", "press Show what would change", "press Retry", "shows The order tries again."}},
	{"step-result", "stuck", "completed", "/console/order?id={order}", []string{"press Say what became of the step", "outcome = done", "reference = ch_by_hand", "press Show what would change",
		"shows What became of the charge: It happened (done)", "shows 9.99 USD for 1 × stuck", "reason = seen at the provider", "press Say what became of the step", "shows What became of the step is recorded.", "shows ch_by_hand"}},
	{"pause, resume", "yacht", "approval", "/console/order?id={order}", []string{"press Pause", "press Pause", "shows The order will pause.", "press Resume", "press Resume", "shows The order goes on."}},
	{"cancel", "stuck", "canceled", "/console/order?id={order}", []string{"press Cancel", "reason = not wanted", "press Cancel the order", "shows The order is being canceled."}},
	{"refund", "widget", "completed", "/console/order?id={order}", []string{"press Refund", "amount = 1.50", "press Show what would change", "reason = broken", "press Refund", "shows The refund is requested.", "shows 1.50"}},
	{"policy", "", "", "/console/policies", []string{"press Write a new version", "source = {policy}", "press Check", "shows No mistakes", "press Store", "press Activate…", "reason = it is the same",
		"press Activate policy 2", "shows it is the same"}},
	{"bad policy", "", "", "/console/policy/new", []string{"source = charge: {executor: nobody}", "press Check", "shows Line 1"}},
	{"books", "", "", "/console/books", []string{"press Prove the books now", "comes The books are right"}},
	{"set stock", "", "", "/console/item?item=by-hand", []string{"press Set after a count", "onHand = 7", "reason = counted", "press Show what will change",
		"shows What will change", "press Set the stock", "shows left to sell", "shows counted"}},
	{"adjust stock", "", "", "/console/item?item=arrives", []string{"press Add or take away", "change = 12", "reason = a delivery came", "press Show what will change",
		"shows What will change", "press Change the stock", "shows +12", "shows a delivery came"}},
	{"endpoint", "", "", "/console/webhooks", []string{"press New endpoint", "url = {shop}/hook?browser", "description = made by hand", "press Make it", "shows whsec_", "press Go on",
		"press Send a test event", "press Send it", "shows The test event was taken", "press Go on",
		"press Rotate the secret", "press Rotate the secret", "shows whsec_", "press Go on",
		"press Disable", "press Disable it", "shows disabled", "press Enable", "press Enable it",
		"press Change", "description = changed by hand", "press Show what will change", "shows What will change", "press Change it", "shows changed by hand",
		"press Delete", "press Delete it", "shows Endpoints"}},
}

// TestActions does what people do, in a browser that runs no scripts.
func TestActions(t *testing.T) {
	t.Parallel()
	for _, action := range actions {
		t.Run(action.name, func(t *testing.T) {
			t.Parallel()
			b := maria(t)
			order := ""
			if action.item != "" {
				order = process(t, client.ProcessBody{Item: action.item}).OrderID
			}
			replace := strings.NewReplacer("{shop}", "http://"+shared.shop.address(), "{order}", order, "{policy}", shared.shop.policy()+"# the same once more\n")
			b.withoutScript()
			b.visit(replace.Replace(action.path))
			for _, step := range action.steps {
				b.take(replace.Replace(step))
			}
			if action.name == "bad policy" {
				b.forgive("422")
			}
			if order != "" {
				becomes(t, order, action.becomes)
			}
		})
	}
}

// becomes waits until the API says of an order that it has a status, or is on hold for something.
func becomes(t *testing.T, id, want string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	var params client.GetOrderParams
	for {
		order, err := shared.api.GetOrder(ctx, id, &params)
		switch {
		case errors.Is(err, client.ErrNotModified):
		case err != nil:
			t.Fatalf("order %s is not %s: %v", id, want, err)
		case want == string(order.Hold) || want == string(order.Status):
			return
		default:
			params = client.GetOrderParams{Wait: "10s", IfNoneMatch: order.ETag()}
		}
	}
}

// take takes a step.
func (b *tab) take(step string) {
	b.t.Helper()
	if text, ok := strings.CutPrefix(step, "press "); ok {
		b.press(text)
	} else if id, ok := strings.CutPrefix(step, "choose "); ok {
		b.choose(id)
	} else if text, ok := strings.CutPrefix(step, "shows "); ok {
		b.shows(text)
	} else if text, ok := strings.CutPrefix(step, "comes "); ok {
		b.wait("shows "+text, fmt.Sprintf(arrived+`(document.body.innerText.includes(%s) || void (window.left = true, location.reload()))`, quoted(text)))
	} else if name, value, ok := strings.Cut(step, " = "); ok {
		b.fill(name, value)
	} else {
		b.t.Fatal("not a step: ", step)
	}
}
