package console

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"pawl/client"
)

// changesOf are the differences between an order as it is and as it would be.
func changesOf(is, would *client.Order) []change {
	changes := different([]change{
		{"Status", string(is.Status), string(would.Status)},
		{"Generation", strconv.Itoa(is.Generation), strconv.Itoa(would.Generation)},
		{"Policy", version(is.Policy), version(would.Policy)},
		{"Waits for", string(is.Hold), string(would.Hold)},
		{"Reason for waiting", is.HoldReason, would.HoldReason},
		{"Asked to stop", string(is.StopRequested), string(would.StopRequested)},
		{"Failure", is.Failure.Code, would.Failure.Code},
		{"Given back", is.Refunded, would.Refunded},
		{"Refunds", refundsText(is), refundsText(would)},
		{"Can be asked", strings.Join(is.AllowedActions, ", "), strings.Join(would.AllowedActions, ", ")},
	}...)
	for i, c := range changes {
		changes[i] = change{c.What, cmp.Or(c.Before, "–"), cmp.Or(c.After, "–")}
	}
	return changes
}

func version(policy int) string {
	if policy == 0 {
		return "none"
	}
	return strconv.Itoa(policy)
}

func refundsText(o *client.Order) string {
	var all []string
	for _, r := range o.Refunds {
		text := fmt.Sprintf("%s %s: %s", r.Amount, o.Currency, strings.ReplaceAll(string(r.State), "_", " "))
		if r.Restock > 0 {
			text += fmt.Sprintf(", %d back in stock", r.Restock)
		}
		all = append(all, text)
	}
	return strings.Join(all, "; ")
}

// refusal says why a verb was not done, and what has happened since the person looked.
type refusal struct {
	*client.Problem
	Order   *client.Order
	Again   string // URL of the page where it can be asked again; empty: it would be refused
	Happens []client.Transition
}

// faultsOf says what is wrong with a form; nil: the error has another cause.
func faultsOf(err error) (faults []string) {
	if problem := refusedInput(err); problem != nil && problem.Code == "invalid_input" {
		for _, e := range problem.Errors {
			faults = append(faults, strings.TrimPrefix(e.Pointer, "/")+" "+e.Detail)
		}
	}
	return faults
}

// refused shows why a verb was not done. Where the form is to blame, it is shown again.
func (v *visit) refused(q *request, err error) error {
	problem, ok := errors.AsType[*client.Problem](err)
	switch {
	case !ok:
		return err
	case faultsOf(err) != nil && q.decisions() != nil:
		return v.showForm(q, q.decisions(), faultsOf(err))
	case problem.Status != http.StatusConflict && problem.Status != http.StatusPreconditionFailed && problem.Code != "own_order":
		return err
	}
	r := refusal{Problem: problem}
	if r.Order, err = v.api.GetOrder(v.r.Context(), q.order.OrderID, nil); err != nil {
		return err
	}
	if v.applies(q.verb, r.Order) && problem.Status == http.StatusPreconditionFailed {
		r.Again = actionURL(q.Name, q.order.OrderID)
	}
	moves, err := v.api.ListTransitions(v.r.Context(), q.order.OrderID, &client.ListTransitionsParams{After: q.order.Seq, Limit: 20})
	if err != nil {
		return err
	}
	r.Happens = moves.Transitions
	return v.showAs(int(problem.Status), "refused", page{Title: "Not done", Data: r})
}
