package httpapi

import (
	"time"

	"github.com/sony/gobreaker/v2"

	"pawl/engine"
	"pawl/fsm"
)

func exampleOverview() any {
	v := engine.Overview{
		At:      exampleTime,
		Waiting: engine.Waiting{Held: map[string]engine.Held{fsm.HoldAttention: {Orders: 2, Longest: 90 * time.Minute}}, Refunds: 1},
		Oldest:  &engine.OldestOrder{OrderID: "order-123", Status: fsm.Charging, Hold: new(fsm.HoldAttention), CreatedAt: exampleTime.Add(-2 * time.Hour)},
	}
	for _, s := range fsm.States() {
		v.Statuses = append(v.Statuses, engine.StatusCount{Status: s})
	}
	v.Statuses[1].Orders, v.Statuses[4] = 2, engine.StatusCount{Status: fsm.Completed, Orders: engine.CountsMost, More: true}
	out := overviewOf(&v, []engine.CallPoolStats{{Policy: 3, Step: fsm.Charge, InFlight: 1, Queued: 4, Breaker: gobreaker.StateOpen}})
	out.Replica = "shop-1:4711"
	out.Replicas = []replica{{out.Replica, 12, exampleTime.Add(-time.Hour)}}
	return out
}

func exampleActivity() any {
	return activityPoints{"shop-1:4711", each([]engine.Activity{{
		At: exampleTime, Seconds: 10, Admitted: 120, Ended: map[fsm.State]int64{fsm.Completed: 118, fsm.Failed: 1},
		Median: 4 * time.Millisecond, Slow: 9 * time.Millisecond, OnHold: map[string]int64{fsm.HoldAttention: 2, fsm.HoldRetry: 1},
		Moves: map[[2]fsm.State]int64{{fsm.Pending, fsm.Charging}: 120, {fsm.Charging, fsm.Failed}: 1},
		Calls: map[fsm.Step]map[string]int64{fsm.Charge: {"done": 118, "unknown": 1}}, Breakers: map[fsm.Step]gobreaker.State{fsm.Charge: gobreaker.StateHalfOpen},
	}}, activityOf)}
}

func exampleErrorGroups() any {
	return errorGroups{Groups: each([]engine.ErrorGroup{
		{Status: fsm.Failed, Step: fsm.Charge, Code: "card_declined", Orders: 17, First: exampleTime.Add(-time.Hour), Last: exampleTime, Example: "order-123", Detail: "the card has expired"},
		{Status: fsm.Charging, Step: fsm.Charge, Code: "retries_exhausted", Orders: 2, First: exampleTime, Last: exampleTime, Example: "order-124", Detail: "retries_exhausted: 37 calls in 15m14s, last timeout"},
	}, errorGroupOf)}
}
