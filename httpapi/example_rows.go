package httpapi

import (
	"encoding/json"
	"time"

	"github.com/govalues/decimal"

	"pawl/db"
	"pawl/fsm"
	"pawl/internal/access"
	"pawl/internal/events"
	"pawl/internal/orders"
)

func exampleRow(change func(*orders.Order)) orders.Order {
	o := orders.Order{
		OrderID: "order-123", Status: fsm.Charging, Amount: decimal.MustParse("99.99"), Currency: "USD", Item: "widget", Quantity: 1,
		CreatedAt: exampleTime, Seq: 4,
	}
	change(&o)
	return o
}

func exampleOrder(change func(*orders.Order)) order {
	o := exampleRow(change)
	return orderOf(&o)
}

func completed(o *orders.Order) {
	o.Status, o.ChargedAt, o.ReservedAt, o.FinishedAt = fsm.Completed, &exampleStep, &exampleStep, &exampleStep
}

func canceled(o *orders.Order) {
	o.Status, o.ChargedAt, o.RefundedAt, o.FinishedAt = fsm.Canceled, &exampleStep, &exampleStep, &exampleStep
}

func waiting(o *orders.Order) {
	o.Hold, o.Policy, o.Calls = new(fsm.HoldCallback), new(int32(1)), new(int32(1))
	o.DueAt, o.InDoubtSince = new(exampleTime.Add(time.Hour)), &exampleTime
}

func paused(o *orders.Order) { o.Hold = new(fsm.HoldPaused) }

func stuck(o *orders.Order) {
	waiting(o)
	o.Hold, o.HoldReason, o.DueAt = new(fsm.HoldAttention), new("retries_exhausted: 37 calls in 15m14s, last timeout"), nil
}

func refunded(o *orders.Order) {
	completed(o)
	o.Seq, o.Refunds, o.RefundList = 5, new(int32(1)), exampleRefund(orders.RefundDone, &exampleStep)
}

func refundOwed(o *orders.Order) {
	completed(o)
	o.Seq, o.Refunds, o.RefundList = 6, new(int32(1)), exampleRefund(orders.RefundAccepted, nil)
}

func exampleRefund(state string, finished *time.Time) []byte {
	list, err := json.Marshal([]orders.AskedRefund{{
		Number: 1, State: state, Amount: decimal.MustParse("12.50"), Reason: "one is broken", RequestID: "ticket-4712",
		CreatedAt: exampleTime, FinishedAt: finished, Reference: "re_7",
	}})
	if err != nil {
		panic("httpapi: example: " + err.Error()) // all of it is known at start
	}
	return list
}

func exampleMovements() any {
	return stockMovements{each([]db.StockMovement{
		{Version: 1, Kind: "set", Change: 15, OnHand: 15, At: exampleTime, RequestID: "count-1",
			Actor: "token:warehouse", OnBehalfOf: new("maria@shop.example"), Reason: new("the first count")},
		{Version: 3, Kind: "adjustment", Change: -2, OnHand: 12, At: exampleStep, RequestID: "claim-17",
			Actor: "token:warehouse", Reason: new("broken in transit")},
	}, movementOf)}
}

func exampleDryRun() any {
	dry := exampleBulk
	dry.DryRun = true
	return dry
}

func exampleHistory() any {
	return history{each([]db.Transition{
		{Seq: 1, FromStatus: new(fsm.Pending), ToStatus: fsm.Charging, At: exampleTime, Fence: 1},
		{Seq: 2, FromStatus: new(fsm.Charging), ToStatus: fsm.Reserving, At: exampleStep, Fence: 1},
		{Seq: 3, FromStatus: new(fsm.Reserving), ToStatus: fsm.Reserving, At: exampleStep, Fence: 1,
			Verb: new(string(orders.Cancel)), Actor: new("token:support"), OnBehalfOf: new("maria@shop.example"), Reason: new("the customer called")},
	}, transitionOf)}
}

func exampleCalls() any {
	return calls{each([]db.CallsOfRow{{
		Call: 1, Step: string(fsm.Charge), Operation: "do", Policy: new(int32(1)), Fence: 1, StartedAt: exampleTime, FinishedAt: &exampleStep,
		Outcome: new("done"), Reference: new("ch_77"),
	}}, callOf)}
}

func exampleEvents() any {
	event := events.Event{
		ID: "evt_1042_4_660e29dbaab52", Cursor: "29411432.17", Type: "order.completed", Timestamp: exampleStep,
		Data: events.EventData{OrderID: "order-123", Seq: 4, From: string(fsm.Confirming), Status: string(fsm.Completed), Amount: "99.99", Currency: "USD", Item: "widget", Quantity: 1},
	}
	return eventPage{Events: []wireEvent{wireEventOf(&event)}, NextCursor: event.Cursor}
}

func exampleCaller() any {
	support := access.Principal{Name: "token:support", Roles: access.Roles{access.Approve}}
	return callerOf(&support, false, []string{"approveOrder", "rejectOrder", "approveOrders", "rejectOrders"}).Body
}
