package httpapi

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"pawl/fsm"
	"pawl/internal/books"
	"pawl/internal/orders"
	"pawl/internal/webhooks"
)

// incident is something that is wrong, or that waits for a person.
type incident struct {
	Kind       string     `json:"kind" enum:"provider_failing,overdue,attention,approval,operations_waiting,replica_lost,webhook_failing,webhook_disabled,books_wrong,books_differ" doc:"provider_failing: the calls of a step fail, until one works, or none was made for an hour; its orders are retried by themselves, as long as their retries and their budget last. overdue: no replica has taken an order for longer than a lease. attention, approval: orders wait for a person. operations_waiting: refunds, captures or voids are open after three calls or more; they are retried, except with the reason outcome_unknown: a person has to look. replica_lost: a replica has ended or lost the database without saying so, and has orders that others take over, or none has started in its place within an hour. webhook_failing: the last three attempts failed. webhook_disabled: Pawl disabled the endpoint. books_wrong: the newest verification found errors in the books. books_differ: the newest comparison with a provider found differences."`
	Step       string     `json:"step,omitempty" enum:"charge,reserve,confirm" doc:"With provider_failing; with attention, at which the orders are held."`
	Status     state      `json:"status,omitempty" doc:"With attention and approval: of the orders. It says whether they are held at their step or at its undo (releasing, refunding)."`
	Route      string     `json:"route,omitempty" doc:"With provider_failing: of a charge with several routes."`
	Policy     int32      `json:"policy,omitempty" doc:"With provider_failing: the policy under which it began to fail first."`
	Host       string     `json:"host,omitempty" doc:"With provider_failing: the host that fails. Several are separated by commas."`
	Reason     string     `json:"reason,omitempty" doc:"With attention: the holdReason, up to a colon. With operations_waiting: outcome_unknown, or absent."`
	Operation  string     `json:"operation,omitempty" enum:"refund,capture,void" doc:"With operations_waiting: the kind of them."`
	EndpointID string     `json:"endpointId,omitempty" doc:"Of a webhook endpoint."`
	Replica    string     `json:"replica,omitempty" doc:"With replica_lost: its name."`
	Detail     string     `json:"detail,omitempty" doc:"With provider_failing, the code of most failed calls, or why there was no connection; and that of the last one, if it is another. With operations_waiting, the most frequent code. Of a webhook endpoint, its last failure, or why it is disabled. With books_wrong, the checks that failed; with books_differ, the providers."`
	Since      *time.Time `json:"since,omitempty" doc:"When it began; with attention and approval, when the oldest order was created; with operations_waiting, when the oldest was requested; with replica_lost, when it reported or admitted an order last; with books_wrong and books_differ, when that was found last."`
	Until      *time.Time `json:"until,omitempty" doc:"With webhook_failing: nothing is sent before this time. With operations_waiting: when the next one is tried. With replica_lost and orders: when the lease of the last one ends, so that others take over all of them."`
	Orders     int64      `json:"orders" doc:"How many orders wait, with operations_waiting how many operations, or with replica_lost how many of its orders no other replica has taken over. 0 with overdue, for webhook endpoints and the books."`
	Trying     int64      `json:"trying,omitempty" doc:"With provider_failing, of orders: those whose step is being tried again now, so that they have no hold."`
	More       bool       `json:"more" doc:"More orders or events may wait."`

	FailedAt    *time.Time `json:"failedAt,omitempty" doc:"With provider_failing: when the last call failed."`
	NeedsPerson *time.Time `json:"needsPersonAt,omitempty" doc:"With provider_failing: when the retry budget of the first order ends. An order whose try fails after that needs a person, if its retries are used up. Absent if nothing has counted as a retry."`
	Description string     `json:"description,omitempty" doc:"Of a webhook endpoint."`

	Totals []currencyTotal `json:"totals" nullable:"false" doc:"These orders, by currency."`

	TakenOver *outcomes `json:"takenOver,omitempty" doc:"With replica_lost: its orders that others have taken over. Absent if none."`

	budget time.Duration // of retries at a step: the shortest of all policies
}

// failingAttempts is how many attempts in a row make a webhook endpoint an incident.
const failingAttempts = 3

// incidents lists what is wrong, the worst first.
func (s *server) incidents(ctx context.Context, v *orders.Overview, of *booksVerdict) ([]incident, error) {
	all := failingProviders(v)
	if v.Overdue > s.engine.Lease() {
		all = append(all, incident{Kind: "overdue", Since: new(v.At.Add(-v.Overdue).UTC())})
	}
	all = append(all, waitingForPeople(v, fsm.HoldAttention)...)
	all = append(all, waitingForPeople(v, fsm.HoldApproval)...)
	all = append(all, waitingOperations(v.Operations)...)
	for _, lost := range v.Lost {
		one := incident{Kind: "replica_lost", Replica: lost.Name, Since: new(lost.At.UTC()), Orders: lost.Orders, More: lost.Orders >= orders.FirstMost}
		if lost.Orders > 0 {
			one.Until = new(lost.Until.UTC())
		}
		if lost.TakenOver.Waited > 0 {
			one.TakenOver = new(outcomesOf(&lost.TakenOver))
		}
		all = append(all, one)
	}
	failing, err := s.failingEndpoints(ctx)
	all = append(append(all, failing...), of.incidents()...)
	for i := range all {
		all[i].Totals = append([]currencyTotal{}, all[i].Totals...)
	}
	return append([]incident{}, all...), err
}

// waitingForPeople has an incident for each status and reason of a hold.
func waitingForPeople(v *orders.Overview, hold string) (all []incident) {
	for _, group := range v.Groups {
		if group.Hold != hold {
			continue
		}
		merged(&all, incident{Kind: hold, Step: string(group.Status.Step()), Status: state(group.Status), Reason: group.Reason, More: v.MoreThanGrouped(hold)}).add(&group)
	}
	return all
}

// waitingOperations has an incident for each kind of operation, and one for those with an unknown outcome.
func waitingOperations(rows []orders.WaitingOperations) (all []incident) {
	for _, row := range rows {
		fresh := incident{Kind: "operations_waiting", Operation: row.Kind, Detail: row.Code, Until: utc(&row.Next)}
		if row.Unknown {
			fresh.Reason, fresh.Until = orders.RefusedUnknown, nil
		}
		i := merged(&all, fresh)
		i.add(&orders.HeldGroup{Currency: row.Currency, Orders: row.Operations, Amount: row.Amount, Oldest: row.Since})
		i.More = i.Orders >= orders.CountsMost
		if fresh.Until != nil && row.Next.Before(*i.Until) {
			i.Until = fresh.Until
		}
	}
	return all
}

// failingProviders has an incident for each step and route, under all policies, until a call works.
func failingProviders(v *orders.Overview) (all []incident) {
	for _, step := range v.Steps {
		if step.FailingSince == nil {
			continue
		}
		i := merged(&all, incident{Kind: "provider_failing", Step: string(step.Step), Route: step.Route, Host: step.Host,
			More: v.MoreThanGrouped(fsm.HoldRetry), budget: step.Budget})
		if i.budget = min(i.budget, step.Budget); !slices.Contains(strings.Split(i.Host, ", "), step.Host) {
			i.Host += ", " + step.Host
		}
		if i.FailedAt == nil || step.FailedAt.After(*i.FailedAt) {
			i.FailedAt = utc(step.FailedAt)
		}
		if i.Since == nil || step.FailingSince.Before(*i.Since) {
			i.Since, i.Policy, i.Detail = utc(step.FailingSince), step.Policy, step.Failure
		}
	}
	for at := range all {
		all[at].addRetried(v.Groups)
	}
	return all
}

// merged returns the incident that is about the same as a fresh one, which is added if there is none.
func merged(all *[]incident, fresh incident) *incident {
	return foundOr(all, fresh, func(i, fresh *incident) bool {
		return i.Step == fresh.Step && i.Route == fresh.Route && i.Status == fresh.Status && i.Operation == fresh.Operation && i.Reason == fresh.Reason
	})
}

// foundOr returns the first element that is like a fresh one, which is appended if there is none.
func foundOr[T any](all *[]T, fresh T, like func(known, fresh *T) bool) *T {
	for i := range *all {
		if like(&(*all)[i], &fresh) {
			return &(*all)[i]
		}
	}
	*all = append(*all, fresh)
	return &(*all)[len(*all)-1]
}

// addRetried adds the orders that are retried at the step. It began when the step did.
func (i *incident) addRetried(groups []orders.HeldGroup) {
	began := i.Since
	for _, group := range groups {
		if group.RetriedAt(fsm.Step(i.Step), i.Route) {
			i.add(&group)
			if end := group.TriedSince.Add(i.budget).UTC(); !group.TriedSince.IsZero() && (i.NeedsPerson == nil || end.Before(*i.NeedsPerson)) {
				i.NeedsPerson = &end
			}
		}
	}
	i.Since = began
}

// add adds orders to the incident.
func (i *incident) add(group *orders.HeldGroup) {
	i.Orders += group.Orders
	if group.Trying {
		i.Trying += group.Orders
	}
	if at := group.Oldest.UTC(); i.Since == nil || at.Before(*i.Since) {
		i.Since = &at
	}
	i.Totals = addAmount(i.Totals, currencyTotal{group.Currency, int(group.Orders), group.Amount})
}

// addAmount adds orders to the total of their currency.
func addAmount(totals []currencyTotal, of currencyTotal) []currencyTotal {
	at := slices.IndexFunc(totals, func(t currencyTotal) bool { return t.Currency == of.Currency })
	if at < 0 {
		return append(totals, of)
	}
	totals[at].Orders += of.Orders
	totals[at].Amount = books.Plus(totals[at].Amount, of.Amount)
	return totals
}

// failingEndpoints does not count what is undelivered, because that takes long.
func (s *server) failingEndpoints(ctx context.Context) (all []incident, err error) {
	rows, err := s.Webhooks.List(ctx)
	for i := range rows {
		if wrong := endpointIncident(new(webhookEndpointOf(&rows[i]))); wrong != nil {
			all = append(all, *wrong)
		}
	}
	return all, err
}

// endpointIncident is what is wrong with an endpoint, if anything.
func endpointIncident(e *webhookEndpoint) *incident {
	i := incident{EndpointID: e.ID, Detail: e.DisabledReason, Description: e.Description}
	switch {
	case e.State == webhooks.Disabled && !strings.HasPrefix(i.Detail, webhooks.ByPerson):
		i.Kind, i.Since = "webhook_disabled", e.DisabledAt
	case e.State == webhooks.Enabled && e.Failures >= failingAttempts:
		i.Kind, i.Since, i.Until = "webhook_failing", e.FailingSince, e.PausedUntil
		if last := e.LastFailure; last != nil {
			i.Detail = cmp.Or(last.Error, fmt.Sprintf("HTTP %d", last.Status))
		}
	default:
		return nil
	}
	return &i
}
