package httpapi

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"pawl/internal/orders"
)

var listMovementsOperation = failing(huma.Operation{
	OperationID: "listStockMovements", Method: http.MethodGet, Path: "/api/inventory/{item}/movements", Tags: []string{"inventory"},
	Summary:     "Read the stock movements of an item",
	Description: "One row for every change of the stock but sales, oldest first. The last ones are read with sort=newest, and those before them with before. onHand is the sum of the changes, less what was sold since the first of them.",
}, "not_found", "invalid_parameter", "unavailable", "internal")

type listMovementsRequest struct {
	Item   string `path:"item" doc:"The item, percent-encoded."`
	After  int64  `query:"after" minimum:"0" doc:"Only rows with a larger version."`
	Before int64  `query:"before" minimum:"1" doc:"Only rows with a smaller version."`
	Sort   string `query:"sort" enum:"oldest,newest" default:"oldest" doc:"Which row comes first."`
	Limit  int32  `query:"limit" minimum:"1" maximum:"200" default:"200" doc:"How many rows to answer with at most."`
}

type stockMovements struct {
	Movements []movement `json:"movements" nullable:"false"`
}

func (s *server) listMovements(ctx context.Context, in *listMovementsRequest) (stockMovements, error) {
	if !possible(in.Item) {
		return stockMovements{}, &orders.NotFound{What: "item"}
	}
	rows, err := s.engine.Orders.StockMovements(ctx, in.Item, orders.StockSpan{After: in.After, Before: in.Before, Descending: in.Sort == "newest", Limit: in.Limit})
	return stockMovements{each(rows, movementOf)}, err
}
