package httpapi

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"pawl/engine"
	"pawl/internal/orders"
)

// bulkLimit bounds the work on one bulk request. What is not done by then was not begun.
const bulkLimit = time.Minute

// bulkVerbs are those that can be asked of many orders at once: all but refund, whose amount is that of one order.
var bulkVerbs = slices.DeleteFunc(slices.Clone(orders.Verbs), func(v orders.Verb) bool { return v == orders.Refund })

func bulkOperation(verb orders.Verb) huma.Operation {
	return withBody(huma.Operation{
		OperationID: operationName(verb) + "Orders", Method: http.MethodPost, Path: "/api/bulk/" + string(verb), Tags: []string{"orders"},
		Summary: "The verb " + string(verb) + " for many orders",
		Description: "Asks the verb of up to 1,000 orders, by their ids or by a filter, and says of each what came of it. " +
			"It does not wait for the ends of the orders. With the same requestId nothing is done twice to an order. " +
			"Sent again with a filter, it answers for the orders to which it was done before, and then for those that the filter chooses now, up to limit in all.",
	}, "invalid_idempotency_key", "stopping", "unavailable", "internal")
}

// bulk answers requests for one verb of many orders.
func (s *server) bulk(verb orders.Verb) formHandler {
	return func(w http.ResponseWriter, r *http.Request, got fields) error {
		b := bulkOf(got, verb)
		b.Request.HTTPRequestID = w.Header().Get("X-Request-Id")
		if err := readHead(w, r, &b.Request); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(r.Context(), bulkLimit)
		defer cancel()
		results, err := s.engine.DoAll(ctx, b)
		if err != nil && (results == nil || r.Context().Err() != nil) {
			return err
		}
		out := bulkOutcome{Matched: len(results), Results: make([]bulkResult, len(results)), DryRun: b.Request.DryRun, IgnoredFields: got.ignored()}
		for i := range results {
			out.Results[i] = s.bulkResultOf(&results[i], w.Header().Get("X-Request-Id"))
			if out.Results[i].Applied {
				out.Applied++
			}
		}
		return answerJSON(w, &out)
	}
}

func (s *server) bulkResultOf(r *engine.BulkResult, requestID string) bulkResult {
	out, order := bulkResult{OrderID: r.OrderID, Applied: r.Err == nil}, &r.Order
	if refusal, ok := errors.AsType[*orders.NotApplicable](r.Err); ok {
		order = &refusal.Order
	}
	if out.Status = state(order.Status); order.OrderID != "" {
		out.Amount, out.Currency, out.Item, out.Quantity = new(amount(order.Amount)), order.Currency, order.Item, order.Quantity
	}
	if r.Err == nil {
		return out
	}
	p := problemOf(r.Err)
	s.logFault(requestID, p, r.Err)
	out.Code, out.Detail = p.Code, cmp.Or(p.Detail, p.Title)
	return out
}
