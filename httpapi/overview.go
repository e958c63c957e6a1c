package httpapi

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"pawl/fsm"
	"pawl/internal/orders"
	"pawl/internal/pg"
)

var getOverviewOperation = failing(huma.Operation{
	OperationID: "getOverview", Method: http.MethodGet, Path: "/api/overview", Tags: []string{"service"},
	Summary: "Get an overview of the service",
	Description: "What is wrong or needs a person, the outages that ended in the last hour, orders by status and by what they wait for, the oldest unfinished order, " +
		"the replicas, and the provider steps that they have called in the last ten minutes. Replicas report every two seconds. " +
		"Counts stop at 10000, or where more says so. They are usually at most a second old; if they take long, at is up to five seconds ago, " +
		"and those of orders that had not been counted for long stop at 1000 of each hold, until all are counted.",
}, "invalid_parameter", "unavailable", "internal")

type overview struct {
	At                           time.Time        `json:"at" doc:"When the numbers were read."`
	Incidents                    []incident       `json:"incidents" nullable:"false" doc:"What is wrong, and what waits for a person. Empty: nothing."`
	Outages                      []endedOutage    `json:"outages" nullable:"false" doc:"Outages of providers that ended in the last hour, of steps that do not fail now, and of replicas whose orders were taken over; the last one first."`
	OrdersPerSecond              float64          `json:"ordersPerSecond" doc:"Orders that the replicas finish per second."`
	Statuses                     []statusCount    `json:"statuses" nullable:"false" doc:"Orders by status."`
	Holds                        []holdCount      `json:"holds" nullable:"false" doc:"Orders by hold."`
	Oldest                       *unfinishedOrder `json:"oldest,omitempty" doc:"The oldest unfinished order. Absent if there is none, or while it is not known to be durable."`
	OverdueSeconds               float64          `json:"overdueSeconds" doc:"How long the most overdue order had not been picked up when this replica last looked; 0 if none."`
	LateUndos                    int64            `json:"lateUndos" doc:"Late effects that are not undone yet."`
	ChargeOperations             int64            `json:"chargeOperations" doc:"Open refunds, captures and voids."`
	Authorizations               int64            `json:"authorizations" doc:"Authorizations that are about to end, or should have ended, and of which something is neither captured nor voided."`
	OldestChargeOperationSeconds float64          `json:"oldestChargeOperationSeconds" doc:"Age of the oldest open refund, capture or void that its provider has not accepted; 0 if there is none."`
	Disputes                     int64            `json:"disputes" doc:"Disputes that were neither won nor lost."`
	Disputed                     []currencyTotal  `json:"disputed,omitempty" nullable:"false" doc:"Their amounts, by currency."`
	Books                        *booksVerdict    `json:"books,omitempty" doc:"What the newest verification of the books found. Absent if there is no report."`
	Replica                      string           `json:"replica" doc:"Name of the replica that answers."`
	Replicas                     []replica        `json:"replicas" nullable:"false" doc:"The replicas connected to the database."`
	Steps                        []providerStep   `json:"providerSteps" nullable:"false" doc:"Steps for which replicas have called providers in the last ten minutes, added up."`
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
	LongestSeconds float64 `json:"longestSeconds" doc:"The longest time since an entry of the history, as since the last attempt, among the 100 oldest orders."`
	Trying         int64   `json:"trying,omitempty" doc:"With retry: orders whose step is being tried again now. They have no hold meanwhile, and are not among orders."`
}

// endedOutage is a time during which a provider failed, or a replica was lost.
type endedOutage struct {
	Replica string `json:"replica,omitempty" doc:"A replica that was lost, before another one started in its place. Absent: a provider failed."`

	Steps  []string  `json:"steps" nullable:"false" doc:"At which steps the provider failed. A route of a charge follows it after a space."`
	Host   string    `json:"host,omitempty" doc:"The host that failed."`
	Detail string    `json:"detail,omitempty" doc:"The code of most failed calls, or why there was no connection."`
	Since  time.Time `json:"since" doc:"When the first of the calls failed that failed in a row until the circuit breaker opened. If calls fail again within ten seconds, before three have worked, it is the same outage. Of a replica: when it reported last."`
	Until  time.Time `json:"until" doc:"When calls worked again at all replicas. Of a replica: when its last order was taken over."`
	Waited outcomes  `json:"waited" doc:"The orders that waited for the steps meanwhile, or were taken over from the replica."`
}

// outcomes counts what became of orders.
type outcomes struct {
	Orders    int64 `json:"orders"`
	More      bool  `json:"more" doc:"There may be more."`
	Completed int64 `json:"completed" doc:"Of orders: those that are completed now."`
	Attention int64 `json:"attention" doc:"Of orders: those that wait for a person now."`
	Failed    int64 `json:"failed" doc:"Of orders: those that have failed."`
	Canceled  int64 `json:"canceled" doc:"Of orders: those that were canceled."`
	Left      int64 `json:"left" doc:"Of orders: the others, which go on by themselves."`
}

func outcomesOf(o *orders.Outcomes) outcomes {
	return outcomes{o.Waited, o.Waited >= orders.CountsMost, o.Completed, o.Held, o.Failed, o.Canceled,
		o.Waited - o.Completed - o.Held - o.Failed - o.Canceled}
}

type unfinishedOrder struct {
	OrderID   string    `json:"orderId"`
	Status    state     `json:"status"`
	Hold      *string   `json:"hold,omitempty" enum:"retry,callback,scheduled,queued,approval,paused,attention" doc:"What it is waiting for. Absent if it is in progress."`
	CreatedAt time.Time `json:"createdAt"`
}

type replica struct {
	Name        string     `json:"name" doc:"Host name and process id, and the application name of its connections if the database URL sets one."`
	Connections int64      `json:"connections" doc:"Number of connections to the database. 0: it has none, but reported a few seconds ago."`
	Since       *time.Time `json:"since,omitempty" doc:"When it first reported, at its start. Absent until then."`
}

type providerStep struct {
	Policy   int32  `json:"policy" doc:"The version of the policy."`
	Step     string `json:"step" enum:"charge,reserve,confirm"`
	Route    string `json:"route,omitempty" doc:"Of a charge with several routes."`
	Breaker  string `json:"breaker" enum:"closed,half_open,open" doc:"The worst of the replicas. closed: the steps of orders are called. half_open: one call is tried. open: orders wait. Refunds, captures and voids are always called."`
	InFlight int    `json:"inFlight" doc:"Calls in progress."`
	Queued   int    `json:"queued" doc:"Orders waiting for a call."`
	Retrying int64  `json:"retrying" doc:"Orders at this step whose last call failed, and that are retried. With several policies, they are counted at the first one whose calls fail, or else at the first one."`

	FailingSince *time.Time `json:"failingSince,omitempty" doc:"When the first of the calls failed that have failed in a row. Absent unless several have. With few calls, the breaker may still be closed."`
	Host         string     `json:"host,omitempty" doc:"The host that is called."`
	FailedAt     *time.Time `json:"failedAt,omitempty" doc:"When the last call failed. Absent if a call was answered since. Without failingSince, it is the only one in a row."`
	WorkedAt     *time.Time `json:"workedAt,omitempty" doc:"When the last call worked. Absent if none has since failedAt, or in the last ten minutes."`
	Failure      string     `json:"failure,omitempty" doc:"With failedAt: the code of the last call, or why there was no connection; after the one of most failed calls since failingSince, if it is another."`
}

func (s *server) getOverview(ctx context.Context, _ *struct{}) (overview, error) {
	v, err := s.engine.Orders.Overview(ctx, s.engine.Backlog())
	if err != nil {
		return overview{}, err
	}
	out := overviewOf(&v)
	if out.Books, err = s.verdict(ctx); err != nil {
		return out, err
	}
	out.Incidents, err = s.incidents(ctx, &v, out.Books)
	return out, err
}

// retrying counts the orders that are retried at a step, at the first policy whose calls fail, or the first one.
func retrying(v *orders.Overview, of *orders.ProviderStep) (n int64) {
	same := func(s orders.ProviderStep) bool { return s.Step == of.Step && s.Route == of.Route }
	at := slices.IndexFunc(v.Steps, func(s orders.ProviderStep) bool { return same(s) && s.FailedAt != nil })
	if at < 0 {
		at = slices.IndexFunc(v.Steps, same)
	}
	for i := range v.Groups {
		if group := &v.Groups[i]; v.Steps[at].Policy == of.Policy && group.RetriedAt(of.Step, of.Route) {
			n += group.Orders
		}
	}
	return n
}

func overviewOf(v *orders.Overview) overview {
	out := overview{
		At: v.At, Replica: pg.ReplicaName(), OrdersPerSecond: v.OrdersPerSecond,
		OverdueSeconds: v.Overdue.Seconds(), LateUndos: v.LateUndos, Authorizations: v.Authorizations,
		ChargeOperations: v.ChargeOperations, OldestChargeOperationSeconds: v.OldestChargeOperation.Seconds(),
		Outages: each(v.Ended, func(o *orders.Outage) endedOutage {
			return endedOutage{o.Replica, o.Steps, o.Host, o.Failure, o.Since.UTC(), o.Until.UTC(), outcomesOf(&o.Outcomes)}
		}),
		Statuses: each(v.Statuses, func(c *orders.StatusCount) statusCount { return statusCount{state(c.Status), c.Orders, c.More} }),
		Replicas: each(v.Replicas, func(r *orders.Replica) replica { return replica{r.Name, r.Connections, utc(r.Since)} }),
		Steps: each(v.Steps, func(p *orders.ProviderStep) providerStep {
			return providerStep{p.Policy, string(p.Step), p.Route, p.Breaker, p.InFlight, p.Queued, retrying(v, p), utc(p.FailingSince), p.Host, utc(p.FailedAt), utc(p.WorkedAt), p.Failure}
		}),
	}
	for _, d := range v.Disputes {
		out.Disputes, out.Disputed = out.Disputes+d.Disputes, append(out.Disputed, currencyTotal{d.Currency, int(d.Disputes), d.Amount})
	}
	for _, hold := range fsm.Holds() {
		held := v.Held[hold]
		count := holdCount{Hold: hold, Orders: held.Orders, More: held.Orders >= orders.CountsMost, LongestSeconds: held.Longest.Seconds()}
		for _, group := range v.Groups {
			if group.Trying && group.Hold == hold {
				count.Trying += group.Orders
			}
		}
		out.Holds = append(out.Holds, count)
	}
	if o := v.Oldest; o != nil {
		out.Oldest = &unfinishedOrder{o.OrderID, state(o.Status), o.Hold, o.CreatedAt}
	}
	return out
}

var listErrorGroupsOperation = failing(huma.Operation{
	OperationID: "listErrorGroups", Method: http.MethodGet, Path: "/api/error-groups", Tags: []string{"orders"},
	Summary: "List groups of failed and held orders",
	Description: "Orders that failed or are held for attention, grouped by step and cause, orders that are retried, grouped by step, and orders whose last refund, capture or void has failed, grouped by its code; the one with the last error first, up to 200. " +
		"Covers the newest 10000 orders of each kind. Groups are usually at most a second old; if they take long, up to five seconds, " +
		"and those that had not been read for long cover the newest 1000 orders, until all are read.",
}, "invalid_parameter", "unavailable", "internal")

type errorGroups struct {
	Groups []errorGroup `json:"groups" nullable:"false"`
	More   bool         `json:"more" doc:"Older orders or smaller groups were omitted."`
}

type errorGroup struct {
	Status  state      `json:"status" doc:"failed, or the status in which the orders are held. completed: their last refund, capture or void has failed."`
	Hold    string     `json:"hold,omitempty" enum:"attention,retry" doc:"Absent if something failed."`
	Step    string     `json:"step,omitempty" enum:"charge,reserve,confirm,refund,capture,void" doc:"The step that failed or is held."`
	Route   string     `json:"route,omitempty" doc:"Of orders that are held at a charge with several routes."`
	Code    string     `json:"code" doc:"The failure code, or the hold reason up to a colon; usable as a filter for orders. With retry, the most frequent reason."`
	Orders  int64      `json:"orders"`
	Trying  int64      `json:"trying,omitempty" doc:"Of orders: those whose step is being tried again now, so that they have no hold."`
	More    bool       `json:"more" doc:"More orders may be in the group."`
	FirstAt time.Time  `json:"firstAt" doc:"When the first of them failed or was held, since a person retried it last. Of retries: when the tries began."`
	LastAt  time.Time  `json:"lastAt" doc:"When the last of them failed or was held. Of holds, the 50 oldest and the 50 newest orders are looked at."`
	Example orderError `json:"example" doc:"The order that failed or was held last. With retry, the newest order."`

	Totals []currencyTotal `json:"totals" nullable:"false" doc:"These orders, by currency: their amounts, or those of what has failed of completed ones."`
}

type orderError struct {
	OrderID string `json:"orderId"`
	Detail  string `json:"detail,omitempty" doc:"Detail of its failure, or the reason of its hold."`
}

func (s *server) listErrorGroups(ctx context.Context, _ *struct{}) (errorGroups, error) {
	found, err := s.engine.Orders.ErrorGroups(ctx)
	out := errorGroups{Groups: []errorGroup{}, More: found.More}
	for i := range found.Groups {
		of := &found.Groups[i]
		foundOr(&out.Groups, errorGroup{Status: state(of.Status), Hold: of.Hold, Step: string(of.Step), Route: of.Route, Code: of.Code,
			FirstAt: of.First, LastAt: of.Last, Example: orderError{of.Example, of.Detail}}, func(g, fresh *errorGroup) bool {
			return g.Status == fresh.Status && g.Hold == fresh.Hold && g.Step == fresh.Step && g.Route == fresh.Route && (g.Code == fresh.Code || g.Hold == fsm.HoldRetry)
		}).add(of)
	}
	return out, err
}

// add adds the orders of a currency. Those with the newest error come first.
func (g *errorGroup) add(of *orders.ErrorGroup) {
	g.Orders, g.Trying, g.More = g.Orders+of.Orders, g.Trying+of.Trying, g.More || of.More
	if of.First.Before(g.FirstAt) {
		g.FirstAt = of.First
	}
	g.Totals = addAmount(g.Totals, currencyTotal{of.Currency, int(of.Orders), of.Amount})
}
