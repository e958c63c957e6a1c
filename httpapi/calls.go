package httpapi

import (
	"context"
	"net/http"

	"pawl/internal/orders"

	"github.com/danielgtaylor/huma/v2"
)

var listCallsOperation = failing(huma.Operation{
	OperationID: "listCalls", Method: http.MethodGet, Path: "/api/orders/{orderId}/calls", Tags: []string{"orders"},
	Summary: "Read the calls made for an order",
	Description: "One row for every call to a provider, by number. A row is stored before its call is made. " +
		"Steps that are done in the database make no calls.",
}, "not_found", "invalid_parameter", "unavailable", "internal")

type listCallsRequest struct {
	OrderID string `path:"orderId" doc:"The id, percent-encoded."`
	After   int32  `query:"after" minimum:"-2147483648" maximum:"2147483647" default:"-2147483648" doc:"Only calls with a larger number."`
	Before  int32  `query:"before" minimum:"-2147483648" maximum:"2147483647" default:"2147483647" doc:"Only calls with a smaller number."`
	Sort    string `query:"sort" enum:"oldest,newest" default:"oldest" doc:"newest: the largest number comes first. Numbers below zero fall with time."`
	Limit   int32  `query:"limit" minimum:"1" maximum:"200" default:"200" doc:"How many rows to answer with at most."`
}

type calls struct {
	Calls []call `json:"calls" nullable:"false"`
}

func (s *server) listCalls(ctx context.Context, in *listCallsRequest) (calls, error) {
	if err := s.readable(ctx, in.OrderID); err != nil {
		return calls{}, err
	}
	rows, err := s.engine.Orders.Calls(ctx, in.OrderID, orders.Span{After: in.After, Before: in.Before, Descending: in.Sort == "newest", Limit: in.Limit})
	return calls{each(rows, callOf)}, err
}
