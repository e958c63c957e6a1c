package httpapi

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"pawl/engine"
)

var listErrorGroupsOperation = failing(huma.Operation{
	OperationID: "listErrorGroups", Method: http.MethodGet, Path: "/api/error-groups", Tags: []string{"orders"},
	Summary: "See what goes wrong, over many orders",
	Description: "Orders that failed, and those that are held for attention, put together by where they stand and why; the largest group first, 200 at most. " +
		"The newest 10000 orders of each kind are looked at. Groups are at most a second old, or longer where finding them takes long.",
}, "invalid_parameter", "unavailable", "internal")

type errorGroups struct {
	Groups []errorGroup `json:"groups" nullable:"false"`
	More   bool         `json:"more" doc:"Older orders, or smaller groups, were left out."`
}

type errorGroup struct {
	Status  state      `json:"status" doc:"failed, or where the orders are held."`
	Hold    string     `json:"hold,omitempty" enum:"attention" doc:"Absent: the orders failed."`
	Step    string     `json:"step,omitempty" enum:"charge,reserve,confirm" doc:"The step that failed, or is held."`
	Code    string     `json:"code" doc:"The code of the failure, or the reason of the hold up to a colon, as the list of orders takes it." example:"card_declined"`
	Orders  int64      `json:"orders"`
	FirstAt time.Time  `json:"firstAt" doc:"When the first of them failed; when the oldest order was held."`
	LastAt  time.Time  `json:"lastAt" doc:"When the last of them failed; when the newest order was held."`
	Example orderError `json:"example" doc:"The newest order."`
}

type orderError struct {
	OrderID string `json:"orderId" example:"order-123"`
	Detail  string `json:"detail,omitempty" doc:"What is said of its failure, or the reason of its hold."`
}

func (s *server) listErrorGroups(ctx context.Context, _ *struct{}) (errorGroups, error) {
	found, err := s.engine.ErrorGroups(ctx)
	return errorGroups{each(found.Groups, errorGroupOf), found.More}, err
}

func errorGroupOf(g *engine.ErrorGroup) errorGroup {
	group := errorGroup{state(g.Status), "", string(g.Step), g.Code, g.Orders, g.First, g.Last, orderError{g.Example, g.Detail}}
	if !g.Status.Final() {
		group.Hold = "attention"
	}
	return group
}
