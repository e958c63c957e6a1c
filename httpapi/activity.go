package httpapi

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"pawl/engine"
	"pawl/fsm"
	"pawl/internal/pg"
)

var getActivityOperation = failing(huma.Operation{
	OperationID: "getActivity", Method: http.MethodGet, Path: "/api/overview/activity", Tags: []string{"service"},
	Summary: "See what this replica did in the last hour",
	Description: "A point for each ten seconds, the oldest first. They are kept in memory: a replica that was started later has fewer, and others have points of their own. " +
		"What did not happen is left out.",
}, "invalid_parameter", "internal")

type activityPoints struct {
	Replica string     `json:"replica" doc:"The name of the replica that answers." example:"shop-1:4711"`
	Points  []activity `json:"points" nullable:"false"`
}

type activity struct {
	At            time.Time          `json:"at" doc:"The end of its ten seconds."`
	Seconds       float64            `json:"seconds" doc:"How long they were: no clock is exact."`
	Admitted      int64              `json:"admitted,omitempty" doc:"Orders that were new."`
	Ended         []activityCount    `json:"ended,omitempty" nullable:"false" doc:"Orders that ended, by their status."`
	MedianSeconds float64            `json:"medianSeconds,omitempty" doc:"What half of those took at most, from their creation on."`
	SlowSeconds   float64            `json:"slowSeconds,omitempty" doc:"What 95 % of those took at most."`
	OnHold        []activityCount    `json:"onHold,omitempty" nullable:"false" doc:"How many orders of all replicas wait, by what for, up to 10000. They are counted about once a minute, and left out if that fails."`
	Moves         []activityMove     `json:"moves,omitempty" nullable:"false" doc:"Moves of orders."`
	Calls         []activityCalls    `json:"calls,omitempty" nullable:"false" doc:"Calls to providers that ended."`
	Breakers      []activityBreakers `json:"breakers,omitempty" nullable:"false" doc:"Circuit breakers that were not closed at the end."`
}

type activityCount struct {
	Name   string `json:"name" example:"completed"`
	Orders int64  `json:"orders"`
}

type activityMove struct {
	From   state `json:"from"`
	To     state `json:"to"`
	Orders int64 `json:"orders"`
}

type activityCalls struct {
	Step    string `json:"step" enum:"charge,reserve,confirm"`
	Outcome string `json:"outcome" enum:"done,refused,waiting,retry,unknown"`
	Calls   int64  `json:"calls"`
}

type activityBreakers struct {
	Step    string `json:"step" enum:"charge,reserve,confirm"`
	Breaker string `json:"breaker" enum:"half_open,open" doc:"The worst of all policies."`
}

func (s *server) getActivity(context.Context, *struct{}) (activityPoints, error) {
	return activityPoints{pg.ReplicaName(), each(s.engine.Activity(), activityOf)}, nil
}

func activityOf(a *engine.Activity) activity {
	out := activity{At: a.At, Seconds: a.Seconds, Admitted: a.Admitted, MedianSeconds: a.Median.Seconds(), SlowSeconds: a.Slow.Seconds()}
	for _, status := range slices.Sorted(maps.Keys(a.Ended)) {
		out.Ended = append(out.Ended, activityCount{string(status), a.Ended[status]})
	}
	for _, hold := range slices.Sorted(maps.Keys(a.OnHold)) {
		out.OnHold = append(out.OnHold, activityCount{hold, a.OnHold[hold]})
	}
	for _, edge := range fsm.Edges() {
		if n := a.Moves[[2]fsm.State{edge.From, edge.To}]; n > 0 {
			out.Moves = append(out.Moves, activityMove{state(edge.From), state(edge.To), n})
		}
	}
	for _, step := range fsm.Steps() {
		for _, outcome := range slices.Sorted(maps.Keys(a.Calls[step])) {
			out.Calls = append(out.Calls, activityCalls{string(step), outcome, a.Calls[step][outcome]})
		}
		if breaker, troubled := a.Breakers[step]; troubled {
			out.Breakers = append(out.Breakers, activityBreakers{string(step), breakerWord(breaker.String())})
		}
	}
	return out
}
