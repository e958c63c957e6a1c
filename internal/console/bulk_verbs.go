package console

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"time"

	"pawl/client"
)

// askMany asks the verb of many orders.
func (a *verb) askMany(ctx context.Context, api *client.Client, dryRun bool, body client.BulkBody) (*client.BulkOutcome, error) {
	to := client.CancelOrdersParams{DryRun: dryRun}
	switch a.Name {
	case "approve":
		return api.ApproveOrders(ctx, (*client.ApproveOrdersParams)(&to), body)
	case "reject":
		return api.RejectOrders(ctx, (*client.RejectOrdersParams)(&to), body)
	case "retry":
		return api.RetryOrders(ctx, (*client.RetryOrdersParams)(&to), body)
	case "resume":
		return api.ResumeOrders(ctx, (*client.ResumeOrdersParams)(&to), body)
	case "pause":
		return api.PauseOrders(ctx, (*client.PauseOrdersParams)(&to), body)
	case "cancel":
		return api.CancelOrders(ctx, &to, body)
	}
	return api.SettleStepOfOrders(ctx, (*client.SettleStepOfOrdersParams)(&to), body)
}

// fieldsOfMany are what a person can say beside the verb.
func (a *verb) fieldsOfMany(body client.BulkBody) (all []field) {
	settles := a.Name == "step-result"
	switch {
	case settles:
		all = []field{
			{Name: "step", Label: "Step", Type: "select", Options: []string{"", "charge", "reserve", "confirm"}, Value: string(body.Step), Required: true,
				Help: "The step that the orders do now, or undo."},
			{Name: "outcome", Label: "What became of it", Type: "select", Options: []string{"", "done", "refused", "not_done"}, Words: outcomeWords, Value: string(body.Outcome), Required: true,
				Help: "Of all these orders, at the provider. If it was refused, they fail."},
			{Name: "code", Label: notDoneCode, Help: notDoneHelp, Value: body.Code},
			{Name: "detail", Label: notDoneWhy, Value: body.Detail},
		}
	case a.Name == "retry":
		all = []field{{Name: "policy", Label: "Policy", Type: "select", Options: []string{"pinned", "active"}, Value: string(body.Policy), Words: policyWords}}
	}
	return append(all, field{Name: "reason", Label: "Reason", Value: body.Reason, Required: settles, Help: "Kept in the history of each order."})
}

// Asks reports whether what a dry run of many orders says depends on the fields.
func (a *verb) Asks() bool { return a.Name == "step-result" || a.Name == "retry" }

// errFilter is the error of a link that says less than was meant: all orders are never meant.
var errFilter = newProblem(http.StatusUnprocessableEntity, "The link does not say which orders are meant.", "It has a filter that nobody knows, or none.")

// bulkFilter reads the filter of a link: the parameters of listOrders, by their names. given: it chooses among the orders.
func bulkFilter(q url.Values) (f client.ListOrdersParams, given bool, err error) {
	texts := map[string]*string{
		"customerId": &f.CustomerID, "item": &f.Item, "hold": (*string)(&f.Hold), "holdReason": &f.HoldReason,
		"failureStep": (*string)(&f.FailureStep), "failureCode": &f.FailureCode, "amountFrom": &f.AmountFrom, "amountTo": &f.AmountTo,
	}
	times := map[string]*time.Time{"createdFrom": &f.CreatedFrom, "createdTo": &f.CreatedTo}
	for name := range q {
		value := q.Get(name)
		switch {
		case name == "verb" || name == "id" || name == "ids":
			continue
		case name == "sort":
			f.Sort = client.ListOrdersParamsSort(value)
			continue
		case name == "status":
			for status := range strings.SplitSeq(value, ",") {
				f.Status = append(f.Status, client.Status(status))
			}
		case times[name] != nil:
			*times[name], err = time.Parse(time.RFC3339, value)
		case texts[name] != nil:
			*texts[name] = value
		default:
			return f, false, errFilter
		}
		if given = true; value == "" || err != nil {
			return f, false, errFilter
		}
	}
	if !given && f.Sort != "" {
		err = errFilter
	}
	return f, given, err
}
