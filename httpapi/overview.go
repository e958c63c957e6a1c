package httpapi

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"pawl/engine"
	"pawl/fsm"
	"pawl/internal/pg"
)

var getOverviewOperation = failing(huma.Operation{
	OperationID: "getOverview", Method: http.MethodGet, Path: "/api/overview", Tags: []string{"service"},
	Summary: "See how the service stands",
	Description: "How many orders are in each state and wait for what, the oldest of them, the replicas, and what keeps the provider steps of the answering one busy. " +
		"Numbers go up to 10000: that many or more. They are at most a second old, or longer where counting them takes long.",
}, "invalid_parameter", "unavailable", "internal")

type overview struct {
	At                  time.Time        `json:"at" doc:"When it was looked up."`
	Statuses            []statusCount    `json:"statuses" nullable:"false" doc:"Of each state."`
	Holds               []holdCount      `json:"holds" nullable:"false" doc:"Of each hold."`
	Oldest              *unfinishedOrder `json:"oldest,omitempty" doc:"The oldest order that has not ended. Absent: there is none."`
	OverdueSeconds      float64          `json:"overdueSeconds" doc:"How long an order was due without anybody taking it up, at the last look of this replica. 0: none was."`
	LateUndos           int64            `json:"lateUndos" doc:"Effects that were reported too late and are not undone yet."`
	Refunds             int64            `json:"refunds" doc:"Refunds that were asked for and are neither done nor failed."`
	OldestRefundSeconds float64          `json:"oldestRefundSeconds" doc:"The age of the oldest of these that its provider has not accepted. 0: there is none."`
	Replica             string           `json:"replica" doc:"The name of the replica that answers." example:"shop-1:4711"`
	Replicas            []replica        `json:"replicas" nullable:"false" doc:"The services that are connected to the database."`
	Steps               []providerStep   `json:"providerSteps" nullable:"false" doc:"Steps that the answering replica has called providers for."`
}

type statusCount struct {
	Status state `json:"status"`
	Orders int64 `json:"orders"`
	More   bool  `json:"more" doc:"There may be more."`
}

type holdCount struct {
	Hold           string  `json:"hold" enum:"retry,callback,scheduled,queued,approval,paused,attention"`
	Orders         int64   `json:"orders"`
	More           bool    `json:"more" doc:"There may be more."`
	LongestSeconds float64 `json:"longestSeconds" doc:"How long the longest wait of the 1000 oldest orders has lasted."`
}

type unfinishedOrder struct {
	OrderID   string    `json:"orderId" example:"order-123"`
	Status    state     `json:"status"`
	Hold      *string   `json:"hold,omitempty" enum:"retry,callback,scheduled,queued,approval,paused,attention" doc:"What it waits for. Absent: a replica drives it."`
	CreatedAt time.Time `json:"createdAt"`
}

type replica struct {
	Name        string    `json:"name" doc:"Its machine and the number of its process, and what its connections are called in the URL of the database." example:"shop-1:4711"`
	Connections int64     `json:"connections" doc:"To the database."`
	Since       time.Time `json:"since" doc:"Since when it has had one of these at least."`
}

type providerStep struct {
	Policy   int32  `json:"policy" doc:"The version of the policy."`
	Step     string `json:"step" enum:"charge,reserve,confirm"`
	Breaker  string `json:"breaker" enum:"closed,half_open,open" doc:"closed: calls are made. half_open: one is tried. open: the provider is left alone."`
	InFlight int    `json:"inFlight" doc:"Calls under way."`
	Queued   int    `json:"queued" doc:"Orders that wait for a call."`
}

func (s *server) getOverview(ctx context.Context, _ *struct{}) (overview, error) {
	v, err := s.engine.Overview(ctx)
	if err != nil {
		return overview{}, err
	}
	return overviewOf(&v, s.engine.CallPools()), nil
}

func overviewOf(v *engine.Overview, pools []engine.CallPoolStats) overview {
	out := overview{
		At: v.At, Replica: pg.ReplicaName(),
		OverdueSeconds: v.Overdue.Seconds(), LateUndos: v.LateUndos, Refunds: v.Refunds, OldestRefundSeconds: v.Refund.Seconds(),
		Statuses: each(v.Statuses, func(c *engine.StatusCount) statusCount { return statusCount{state(c.Status), c.Orders, c.More} }),
		Replicas: each(v.Replicas, func(r *engine.Replica) replica { return replica{r.Name, r.Connections, r.Since} }),
		Steps: each(pools, func(p *engine.CallPoolStats) providerStep {
			return providerStep{p.Policy, string(p.Step), breakerWord(p.Breaker.String()), p.InFlight, p.Queued}
		}),
	}
	for _, hold := range fsm.Holds() {
		held := v.Held[hold]
		out.Holds = append(out.Holds, holdCount{hold, held.Orders, held.Orders >= engine.CountsMost, held.Longest.Seconds()})
	}
	if o := v.Oldest; o != nil {
		out.Oldest = &unfinishedOrder{o.OrderID, state(o.Status), o.Hold, o.CreatedAt}
	}
	return out
}

// breakerWord is the state of a breaker in the words of the API.
func breakerWord(name string) string { return strings.ReplaceAll(name, "-", "_") }

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

var listErrorGroupsOperation = failing(huma.Operation{
	OperationID: "listErrorGroups", Method: http.MethodGet, Path: "/api/error-groups", Tags: []string{"orders"},
	Summary: "See what goes wrong, over many orders",
	Description: "Orders that failed, and those that are held for attention, put together by where they stand and why; the largest group first, 200 at most. " +
		"The newest 10000 orders of each kind are looked at. Groups are at most a second old, or longer where finding them takes long.",
}, "invalid_parameter", "unavailable", "internal")

type errorGroups struct {
	Groups []errorGroup `json:"groups" nullable:"false"`
	More   bool         `json:"more" doc:"Older orders, or smaller groups, were left out."`
}

type errorGroup struct {
	Status  state      `json:"status" doc:"failed, or where the orders are held."`
	Hold    string     `json:"hold,omitempty" enum:"attention" doc:"Absent: the orders failed."`
	Step    string     `json:"step,omitempty" enum:"charge,reserve,confirm" doc:"The step that failed, or is held."`
	Code    string     `json:"code" doc:"The code of the failure, or the reason of the hold up to a colon, as the list of orders takes it." example:"card_declined"`
	Orders  int64      `json:"orders"`
	FirstAt time.Time  `json:"firstAt" doc:"When the first of them failed; when the oldest order was held."`
	LastAt  time.Time  `json:"lastAt" doc:"When the last of them failed; when the newest order was held."`
	Example orderError `json:"example" doc:"The newest order."`
}

type orderError struct {
	OrderID string `json:"orderId" example:"order-123"`
	Detail  string `json:"detail,omitempty" doc:"What is said of its failure, or the reason of its hold."`
}

func (s *server) listErrorGroups(ctx context.Context, _ *struct{}) (errorGroups, error) {
	found, err := s.engine.ErrorGroups(ctx)
	return errorGroups{each(found.Groups, errorGroupOf), found.More}, err
}

func errorGroupOf(g *engine.ErrorGroup) errorGroup {
	group := errorGroup{state(g.Status), "", string(g.Step), g.Code, g.Orders, g.First, g.Last, orderError{g.Example, g.Detail}}
	if !g.Status.Final() {
		group.Hold = "attention"
	}
	return group
}
