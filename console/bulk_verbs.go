package console

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"time"

	"pawl/client"
)

// bulkVerb is a verb for many orders.
type bulkVerb struct {
	Verb, Label, Done string // as the API, a button and a result name it
	Does              string
	Danger            bool
	operation         string
	ask               func(ctx context.Context, api *client.Client, dryRun bool, b client.BulkBody) (*client.BulkOutcome, error)
}

// bulkVerbs are in the order in which one should think of them.
var bulkVerbs = []bulkVerb{
	{Verb: "retry", Label: "Retry", Done: "retried", operation: "retryOrders",
		Does: "Held orders try their step again at once. Failed ones start anew.",
		ask: func(ctx context.Context, api *client.Client, dryRun bool, b client.BulkBody) (*client.BulkOutcome, error) {
			return api.RetryOrders(ctx, &client.RetryOrdersParams{DryRun: dryRun}, b)
		}},
	{Verb: "approve", Label: "Approve", Done: "approved", operation: "approveOrders",
		Does: "Orders that wait for an approval start.",
		ask: func(ctx context.Context, api *client.Client, dryRun bool, b client.BulkBody) (*client.BulkOutcome, error) {
			return api.ApproveOrders(ctx, &client.ApproveOrdersParams{DryRun: dryRun}, b)
		}},
	{Verb: "reject", Label: "Reject", Done: "rejected", operation: "rejectOrders", Danger: true,
		Does: "Orders that wait for an approval are canceled.",
		ask: func(ctx context.Context, api *client.Client, dryRun bool, b client.BulkBody) (*client.BulkOutcome, error) {
			return api.RejectOrders(ctx, &client.RejectOrdersParams{DryRun: dryRun}, b)
		}},
	{Verb: "pause", Label: "Pause", Done: "paused", operation: "pauseOrders",
		Does: "The step under way is finished; then the orders wait until somebody resumes them.",
		ask: func(ctx context.Context, api *client.Client, dryRun bool, b client.BulkBody) (*client.BulkOutcome, error) {
			return api.PauseOrders(ctx, &client.PauseOrdersParams{DryRun: dryRun}, b)
		}},
	{Verb: "resume", Label: "Resume", Done: "resumed", operation: "resumeOrders",
		Does: "Paused orders go on where they were.",
		ask: func(ctx context.Context, api *client.Client, dryRun bool, b client.BulkBody) (*client.BulkOutcome, error) {
			return api.ResumeOrders(ctx, &client.ResumeOrdersParams{DryRun: dryRun}, b)
		}},
	{Verb: "cancel", Label: "Cancel", Done: "canceled", operation: "cancelOrders", Danger: true,
		Does: "The orders stop, and all that was done is undone.",
		ask: func(ctx context.Context, api *client.Client, dryRun bool, b client.BulkBody) (*client.BulkOutcome, error) {
			return api.CancelOrders(ctx, &client.CancelOrdersParams{DryRun: dryRun}, b)
		}},
	{Verb: "step-result", Label: "Settle a step of", Done: "settled", operation: "settleStepOfOrders", Danger: true,
		Does: "You have looked at the provider, and say what became of a step. The orders go on as if the provider had said so.",
		ask: func(ctx context.Context, api *client.Client, dryRun bool, b client.BulkBody) (*client.BulkOutcome, error) {
			return api.SettleStepOfOrders(ctx, &client.SettleStepOfOrdersParams{DryRun: dryRun}, b)
		}},
}

// fields are what a person can say beside the verb.
func (b *bulkVerb) fields(body client.BulkBody) (all []field) {
	settles := b.Verb == "step-result"
	switch {
	case settles:
		all = []field{
			{Name: "step", Label: "Step", Type: "select", Options: []string{"", "charge", "reserve", "confirm"}, Value: string(body.Step), Required: true,
				Help: "The step that the orders do now, or undo."},
			{Name: "outcome", Label: "What became of it", Type: "select", Options: []string{"", "done", "refused", "not_done"}, Value: string(body.Outcome), Required: true,
				Help: "not_done: it certainly did not happen, and is tried again. refused: it did not happen, and the orders fail."},
			{Name: "code", Label: "Code of the refusal", Value: body.Code},
			{Name: "detail", Label: "Why it was refused", Value: body.Detail},
		}
	case b.Verb == "retry":
		all = []field{{Name: "policy", Label: "Policy", Type: "select", Options: []string{"pinned", "active"}, Value: string(body.Policy),
			Help: "pinned: each order goes on with its own. active: with the one that new orders start with."}}
	}
	return append(all, field{Name: "reason", Label: "Reason", Value: body.Reason, Required: settles, Help: "Kept in the history of each order."})
}

// Asks reports whether the answer of a dry run depends on the fields.
func (b *bulkVerb) Asks() bool { return b.Verb == "step-result" || b.Verb == "retry" }

// errFilter is the error of a link that says less than was meant: all orders are never meant.
var errFilter = &client.Problem{ProblemBody: client.ProblemBody{
	Status: http.StatusUnprocessableEntity, Title: "The link does not say which orders are meant.", Detail: "It has a filter that nobody knows, or none.",
}}

// bulkFilter reads the filter of a link: the parameters of listOrders, by their names.
func bulkFilter(q url.Values) (f client.ListOrdersParams, given bool, err error) {
	for name := range q {
		value := q.Get(name)
		switch name {
		case "verb", "id", "ids":
			continue
		case "status":
			for status := range strings.SplitSeq(value, ",") {
				f.Status = append(f.Status, client.Status(status))
			}
		case "customerId":
			f.CustomerID = value
		case "item":
			f.Item = value
		case "hold":
			f.Hold = client.ListOrdersParamsHold(value)
		case "holdReason":
			f.HoldReason = value
		case "failureStep":
			f.FailureStep = client.ListOrdersParamsFailureStep(value)
		case "failureCode":
			f.FailureCode = value
		case "amountFrom":
			f.AmountFrom = value
		case "amountTo":
			f.AmountTo = value
		case "createdFrom":
			f.CreatedFrom, err = time.Parse(time.RFC3339, value)
		case "createdTo":
			f.CreatedTo, err = time.Parse(time.RFC3339, value)
		case "sort":
			f.Sort = client.ListOrdersParamsSort(value)
			continue
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
