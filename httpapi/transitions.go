package httpapi

import (
	"context"
	"net/http"

	"pawl/internal/orders"

	"github.com/danielgtaylor/huma/v2"
)

var listTransitionsOperation = failing(huma.Operation{
	OperationID: "listTransitions", Method: http.MethodGet, Path: "/api/orders/{orderId}/transitions", Tags: []string{"orders"},
	Summary:     "Read the history of an order",
	Description: "One row for every write to the order, oldest first, without gaps. A long history is read from its end with sort=newest, and on with before.",
}, "not_found", "invalid_parameter", "unavailable", "internal")

type listTransitionsRequest struct {
	OrderID string `path:"orderId" doc:"The id, percent-encoded."`
	After   int32  `query:"after" minimum:"0" maximum:"2147483647" doc:"Only rows with a larger seq."`
	Before  int32  `query:"before" minimum:"0" maximum:"2147483647" default:"2147483647" doc:"Only rows with a smaller seq."`
	Sort    string `query:"sort" enum:"oldest,newest" default:"oldest" doc:"Which row comes first."`
	Limit   int32  `query:"limit" minimum:"1" maximum:"200" default:"200" doc:"How many rows to answer with at most."`
}

type history struct {
	Transitions []transition `json:"transitions" nullable:"false"`
}

func (s *server) listTransitions(ctx context.Context, in *listTransitionsRequest) (history, error) {
	if err := s.readable(ctx, in.OrderID); err != nil {
		return history{}, err
	}
	rows, err := s.engine.Orders.Transitions(ctx, in.OrderID, orders.Span{After: in.After, Before: in.Before, Descending: in.Sort == "newest", Limit: in.Limit})
	return history{each(rows, transitionOf)}, err
}
