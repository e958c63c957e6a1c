package httpapi

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"pawl/engine"
	"pawl/internal/orders"
)

// bulkLimit bounds the work on one bulk request. What is not done by then was not begun.
const bulkLimit = time.Minute

// bulkVerbs are those that can be asked of many orders at once: all but refund, whose amount is that of one order.
var bulkVerbs = slices.DeleteFunc(slices.Clone(orders.Verbs), func(v orders.Verb) bool { return v == orders.Refund })

// bulkPath is where a verb for many orders is asked for. The document has one operation for all of them.
const bulkPath = "/api/bulk/"

var bulkOperation = withBody(huma.Operation{
	OperationID: "applyBulkVerb", Method: http.MethodPost, Path: bulkPath + "{verb}", Tags: []string{"orders"},
	Summary: "Apply a verb to many orders",
	Description: "Applies the verb to up to 1,000 orders, given by their ids or by a filter, and reports the result for each. " +
		"It does not wait for the orders to end. Each verb requires the role that it requires for one order. " +
		"With the same requestId, the verb is applied to an order only once. " +
		"If a request with a filter is repeated, the answer starts with the orders that the verb was applied to before, and continues with those that match now, up to limit in all.",
}, "invalid_idempotency_key", "stopping", "unavailable", "internal")

// bulk applies a verb to many orders.
func (s *server) bulk(w http.ResponseWriter, r *http.Request) error {
	verb := orders.Verb(strings.TrimPrefix(r.URL.Path, bulkPath))
	got, err := formOf[bulkRequest](checkBulk(verb)).read(w, r)
	if err != nil {
		return err
	}
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
