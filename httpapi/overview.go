package httpapi

import (
	"context"
	"net/http"
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
