package clients

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"slices"
	"testing"
	"time"

	"pawl/client"
	"pawl/test/assert"
)

// runGo makes the calls of a case with the Go client, and returns what they returned.
func runGo(t *testing.T, address string, c clientCase) []byte {
	t.Helper()
	api, err := client.New(address, client.Options{
		Token:    c.Client.Token,
		Timeout:  time.Duration(c.Client.TimeoutSeconds) * time.Second,
		RetryFor: time.Duration(c.Client.RetryForSeconds) * time.Second,
	})
	assert.NoError(t, err)
	returned := []any{}
	for _, call := range c.Calls {
		text, err := json.Marshal(call)
		assert.NoError(t, err)
		returned = append(returned, callGo(t.Context(), api, text))
	}
	text, err := json.Marshal(returned)
	assert.NoError(t, err)
	return text
}

// arguments are those of all calls together.
type arguments struct {
	Call, OrderID, Item string
	Term, RequestID     string
	Source              string          // of a policy, for orders from now on
	Body                json.RawMessage // a text of a webhook
	ForSeconds, Count   int
	Secrets             []string
	Headers             map[string]string
	Order               client.ProcessBody
	Orders              []client.ProcessBody
	Filter              struct {
		CustomerID, Order, After string
		Limit                    int
	}
}

func callGo(ctx context.Context, api *client.Client, call []byte) any {
	var args arguments
	if err := json.Unmarshal(call, &args); err != nil {
		return map[string]any{"lost": err.Error()}
	}
	switch args.Call {
	case "process":
		return outcome(api.Process(ctx, args.Order))
	case "processAndWait":
		if args.ForSeconds > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, time.Duration(args.ForSeconds)*time.Second)
			defer cancel()
		}
		order, err := api.ProcessAndWait(ctx, args.Order)
		if ctx.Err() != nil {
			return map[string]any{"ended": order}
		}
		return outcome(order, err)
	case "processAll":
		return processAllGo(ctx, api, args.Orders)
	case "getOrder":
		return outcome(api.GetOrder(ctx, args.OrderID))
	case "refund":
		return outcome(api.RefundOrder(ctx, args.OrderID, decoded[client.RefundBody](args.Body)))
	case "capture":
		return outcome(api.CaptureOrder(ctx, args.OrderID, decoded[client.CaptureBody](args.Body)))
	case "void":
		return outcome(api.VoidOrder(ctx, args.OrderID, decoded[client.VoidBody](args.Body)))
	case "policy":
		stored, err := api.StorePolicy(ctx, client.StorePolicyBody{Source: args.Source})
		if err != nil {
			return outcome(stored, err)
		}
		return outcome(api.ActivatePolicy(ctx, stored.Version, client.ActivatePolicyBody{}))
	case "cancel":
		return outcome(api.CancelOrder(ctx, args.OrderID, decoded[client.VerbBody](args.Body)))
	case "retry":
		return outcome(api.RetryOrder(ctx, args.OrderID, decoded[client.RetryBody](args.Body)))
	case "setInventory":
		return outcome(api.SetInventory(ctx, args.Item, decoded[client.SetInventoryBody](args.Body), client.SetInventoryParams{IfNoneMatch: "*"}))
	case "adjustInventory":
		return outcome(api.AdjustInventory(ctx, args.Item, decoded[client.AdjustInventoryBody](args.Body)))
	case "dispute":
		return outcome(api.RecordDispute(ctx, args.OrderID, decoded[client.DisputeBody](args.Body)))
	case "erase":
		return outcome(api.CreateErasure(ctx, decoded[client.ErasureBody](args.Body)))
	case "bulkRefund":
		return outcome(api.ApplyBulkVerb(ctx, client.BulkVerbRefund, decoded[client.BulkBody](args.Body)))
	case "request":
		return outcome(api.GetRequest(ctx, args.RequestID))
	case "search":
		return outcome(api.ListOrders(ctx, client.ListOrdersParams{Term: args.Term}))
	case "orders":
		return collected(api.Orders(ctx, client.ListOrdersParams{CustomerID: args.Filter.CustomerID, Limit: args.Filter.Limit}))
	case "events":
		return some(args.Count, api.Events(ctx, client.ListEventsParams{Order: args.Filter.Order, After: args.Filter.After, Limit: args.Filter.Limit}))
	case "transitions":
		return collected(api.Transitions(ctx, args.OrderID, 0))
	case "verifyWebhook":
		header := http.Header{}
		for name, value := range args.Headers {
			header.Set(name, value)
		}
		event, err := client.VerifyWebhook(args.Secrets, header, []byte(decoded[string](args.Body)), time.Now())
		return map[string]any{"verified": err == nil, "event": event}
	}
	return map[string]any{"lost": fmt.Sprintf("no such call: %q", args.Call)}
}

// processAllGo returns what became of the orders, in their order.
func processAllGo(ctx context.Context, api *client.Client, orders []client.ProcessBody) any {
	all := make([]map[string]any, len(orders))
	for p, err := range api.ProcessAll(ctx, slices.Values(orders)) {
		if err != nil {
			return outcome[client.Order](nil, err)
		}
		all[p.Index] = map[string]any{"index": p.Index, "order": p.Order}
		if p.Problem != nil {
			all[p.Index] = map[string]any{"index": p.Index, "problem": p.Problem.ProblemBody}
		}
	}
	return all
}

// decoded is a body, which may be missing.
func decoded[T any](text json.RawMessage) (body T) {
	_ = json.Unmarshal(text, &body)
	return body
}

// outcome is what a call returned.
func outcome[T any](answer *T, err error) any {
	var problem *client.Problem
	switch {
	case errors.As(err, &problem):
		return map[string]any{"problem": problem.ProblemBody, "message": err.Error()}
	case err != nil:
		return map[string]any{"lost": err.Error()}
	}
	return answer
}

func collected[T any](rows iter.Seq2[T, error]) any { return some(0, rows) }

// some collects the first rows of an iterator; 0: all.
func some[T any](most int, rows iter.Seq2[T, error]) any {
	all := []T{}
	for row, err := range rows {
		if err != nil {
			return outcome[T](nil, err)
		}
		if all = append(all, row); len(all) == most {
			break
		}
	}
	return all
}
