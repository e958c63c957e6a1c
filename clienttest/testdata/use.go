// The program uses the client that oapi-codegen generates, as somebody would whose language is Go. It panics where the
// service is not as its description says.
package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"time"
)

var (
	ctx = context.Background()
	api *ClientWithResponses
)

func main() {
	client, err := NewClientWithResponses(os.Args[1])
	must(err == nil, err)
	api = client
	money()
	stock()
	refunds()
	verbs()
	bulk()
}

// money reads back what was sent, to the last digit.
func money() {
	for i, sent := range []string{"16777217.25", "999999999999999.99", "99.90"} {
		id := fmt.Sprint("go-money-", i)
		var amount ProcessBody_Amount
		must(amount.FromDecimal(sent) == nil)
		done, err := api.ProcessOrderWithResponse(ctx, nil, ProcessBody{OrderId: id, Amount: amount, Item: "gold"})
		must(err == nil && done.JSON200 != nil, err, done)
		read, err := api.GetOrderWithResponse(ctx, id, nil)
		must(err == nil && read.JSON200 != nil, err, read)
		page, err := api.ListOrdersWithResponse(ctx, &ListOrdersParams{Limit: new(int32(1))})
		must(err == nil && page.JSON200 != nil, err, page)
		for _, order := range []Order{*done.JSON200, *read.JSON200, page.JSON200.Orders[0]} {
			must(order.OrderId == id && order.Amount == sent && order.Status == "completed", order, sent)
		}
	}
	var amount ProcessBody_Amount
	must(amount.FromNumber(16777217.25) == nil)
	done, err := api.ProcessOrderWithResponse(ctx, nil, ProcessBody{OrderId: "go-number", Amount: amount, Item: "gold"})
	must(err == nil && done.JSON200 != nil && done.JSON200.Amount == "16777217.25", err, done)
	must(amount.FromNumber(1) == nil)
	again, err := api.ProcessOrderWithResponse(ctx, nil, ProcessBody{OrderId: "go-number", Amount: amount, Item: "gold"})
	must(err == nil && again.ApplicationproblemJSON409 != nil && again.ApplicationproblemJSON409.Code == "order_conflict", err, again)
}

// stock sells what there is, and starts the order again that got none.
func stock() {
	set, err := api.SetInventoryWithResponse(ctx, "go-boat", &SetInventoryParams{IfNoneMatch: new("*")}, SetInventoryBody{OnHand: 0, Reason: new("count")})
	must(err == nil && set.JSON200 != nil, err, set)
	blind, err := api.SetInventoryWithResponse(ctx, "go-boat", nil, SetInventoryBody{OnHand: 5})
	must(err == nil && blind.ApplicationproblemJSON428 != nil, err, blind)
	failed := process("go-none", "go-boat", nil)
	must(failed.Status == "failed" && failed.Failure.Code == "out_of_stock" && failed.Steps.Charge.Undone != nil, failed)
	set, err = api.SetInventoryWithResponse(ctx, "go-boat", &SetInventoryParams{IfMatch: new(set.HTTPResponse.Header.Get("ETag"))}, SetInventoryBody{OnHand: 1})
	must(err == nil && set.JSON200 != nil, err, set)
	retried, err := api.RetryOrderWithResponse(ctx, "go-none", &RetryOrderParams{IdempotencyKey: new("go-retry")}, RetryBody{OnBehalfOf: new("ann")})
	must(err == nil && retried.JSON200 != nil && retried.JSON200.Status == "completed", err, retried)
	for range 2 {
		found, err := api.AdjustInventoryWithResponse(ctx, "go-boat", &AdjustInventoryParams{IdempotencyKey: new("go-found")}, AdjustInventoryBody{Change: 2, Reason: "found"})
		must(err == nil && found.JSON200 != nil && found.JSON200.OnHand == 2, err, found)
	}
	item, err := api.GetInventoryWithResponse(ctx, "go-boat")
	must(err == nil && item.JSON200 != nil && item.JSON200.OnHand == 2, err, item)
	moved, err := api.ListStockMovementsWithResponse(ctx, "go-boat", &ListStockMovementsParams{Limit: new(int32(9))})
	must(err == nil && moved.JSON200 != nil && len(moved.JSON200.Movements) == 3 && moved.JSON200.Movements[2].Change == 2, err, moved)
	history, err := api.ListTransitionsWithResponse(ctx, "go-none", nil)
	must(err == nil && history.JSON200 != nil && len(history.JSON200.Transitions) > 5, err, history)
	calls, err := api.ListCallsWithResponse(ctx, "go-none", nil)
	must(err == nil && calls.JSON200 != nil && len(calls.JSON200.Calls) == 0, err, calls)
}

// refunds gives back a part of an order, and then the rest.
func refunds() {
	process("go-broken", "gold", nil)
	var part RefundBody_Amount
	must(part.FromDecimal("0.40") == nil)
	for range 2 {
		body := RefundBody{Amount: &part, Reason: "scratched", RequestId: new("go-first")}
		once, err := api.RefundOrderWithResponse(ctx, "go-broken", nil, body)
		must(err == nil && once.JSON200 != nil && *once.JSON200.Refunded == "0.40" && len(*once.JSON200.Refunds) == 1, err, once)
	}
	rest, err := api.RefundOrderWithResponse(ctx, "go-broken", &RefundOrderParams{IdempotencyKey: new("go-second")}, RefundBody{Reason: "broken"})
	must(err == nil && rest.JSON200 != nil && *rest.JSON200.Refunded == "1.50" && rest.JSON200.Status == "completed", err, rest)
	second := (*rest.JSON200.Refunds)[1]
	must(second.Amount == "1.10" && second.State == "done", second)
	more, err := api.RefundOrderWithResponse(ctx, "go-broken", nil, RefundBody{Amount: &part, Reason: "more", RequestId: new("go-third")})
	must(err == nil && more.ApplicationproblemJSON409 != nil && more.ApplicationproblemJSON409.Code == "refund_too_large", err, more)
}

// verbs asks each verb but retry of an order that waits, with every parameter that it has.
func verbs() {
	later := time.Now().Add(time.Hour)
	waits := process("go-waits", "car", &later)
	must(waits.Hold != nil && *waits.Hold == "scheduled" && waits.Amount == "1.50", waits)
	dry, err := api.PauseOrderWithResponse(ctx, "go-waits", &PauseOrderParams{DryRun: new(true)}, VerbBody{})
	must(err == nil && dry.JSON200 != nil && *dry.JSON200.Hold == "scheduled", err, dry)
	stale, err := api.PauseOrderWithResponse(ctx, "go-waits", &PauseOrderParams{IfMatch: new(`"77"`)}, VerbBody{})
	must(err == nil && stale.ApplicationproblemJSON412 != nil, err, stale)
	paused, err := api.PauseOrderWithResponse(ctx, "go-waits", &PauseOrderParams{Prefer: new("respond-async")}, VerbBody{})
	must(err == nil && paused.JSON202 != nil && *paused.JSON202.Hold == "paused", err, paused)
	resumed, err := api.ResumeOrderWithResponse(ctx, "go-waits", &ResumeOrderParams{Prefer: new("wait=1")}, VerbBody{})
	must(err == nil && resumed.JSON202 != nil, err, resumed)
	for range 2 {
		canceled, err := api.CancelOrderWithResponse(ctx, "go-waits", &CancelOrderParams{IdempotencyKey: new("go-cancel")}, VerbBody{Reason: new("too late")})
		must(err == nil && canceled.JSON200 != nil && canceled.JSON200.Status == "canceled", err, canceled)
	}
	settled, err := api.SettleStepOfOrderWithResponse(ctx, "go-waits", nil, StepResultBody{Step: "charge", Outcome: "done", Reason: "seen"})
	must(err == nil && settled.ApplicationproblemJSON409 != nil && settled.ApplicationproblemJSON409.Order.Status == "canceled", err, settled)

	process("go-large", "yacht", nil)
	approved, err := api.ApproveOrderWithResponse(ctx, "go-large", nil, VerbBody{OnBehalfOf: new("ann")})
	must(err == nil && approved.JSON200 != nil && approved.JSON200.Status == "completed", err, approved)
	process("go-larger", "yacht", nil)
	rejected, err := api.RejectOrderWithResponse(ctx, "go-larger", nil, VerbBody{OnBehalfOf: new("ann")})
	must(err == nil && rejected.JSON200 != nil && rejected.JSON200.Failure.Code == "rejected", err, rejected)
}

func bulk() {
	process("go-many", "yacht", nil)
	out, err := api.RejectOrdersWithResponse(ctx, nil, BulkBody{Ids: &[]string{"go-many", "go-nobody"}, OnBehalfOf: new("ann")})
	must(err == nil && out.JSON200 != nil && out.JSON200.Applied == 1 && *out.JSON200.Results[1].Code == "not_found", err, out)
	health, err := api.HealthWithResponse(ctx)
	must(err == nil && health.StatusCode() == http.StatusOK, err, health)
}

// process sends an order and returns it as it is answered, final or not.
func process(id, item string, startAt *time.Time) Order {
	var amount ProcessBody_Amount
	must(amount.FromDecimal("1.50") == nil)
	out, err := api.ProcessOrderWithResponse(ctx, &ProcessOrderParams{Prefer: new("wait=20")}, ProcessBody{OrderId: id, Amount: amount, Item: item, StartAt: startAt})
	must(err == nil, err)
	if out.JSON202 != nil {
		return *out.JSON202
	}
	must(out.JSON200 != nil, string(out.Body))
	return *out.JSON200
}

func must(ok bool, saw ...any) {
	if !ok {
		panic(fmt.Sprintf("%+v", saw))
	}
}
