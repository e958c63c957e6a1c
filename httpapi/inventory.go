package httpapi

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"pawl/internal/orders"
)

var getInventoryOperation = failing(huma.Operation{
	OperationID: "getInventory", Method: http.MethodGet, Path: "/api/inventory/{item}", Tags: []string{"inventory"},
	Summary:     "Read the stock of an item",
	Description: "What is on the shelf, what orders have reserved of it, and what is left to sell.",
}, "not_found", "invalid_parameter", "unavailable", "internal")

type getInventoryRequest struct {
	Item string `path:"item" doc:"The item, percent-encoded."`
}

type itemAnswer struct {
	ETag string `header:"ETag" doc:"Raised by every change of the stock and by every sale."`
	Body item
}

func (s *server) getInventory(ctx context.Context, in *getInventoryRequest) (*itemAnswer, error) {
	if !possible(in.Item) {
		return nil, &orders.NotFound{What: "item"}
	}
	row, err := s.engine.Orders.StockOf(ctx, in.Item)
	if err != nil {
		return nil, err
	}
	return &itemAnswer{ETag: entityTag(row.Version), Body: itemOf(&row)}, nil
}

var listInventoryOperation = failing(huma.Operation{
	OperationID: "listInventory", Method: http.MethodGet, Path: "/api/inventory", Tags: []string{"inventory"},
	Summary:     "List the stock of all items",
	Description: "Every item that was ever reserved or given stock, in the order of the bytes of their names.",
}, "invalid_parameter", "unavailable", "internal")

type listInventoryRequest struct {
	Limit  int32  `query:"limit" minimum:"1" maximum:"200" default:"50" doc:"How many items to answer with at most."`
	Cursor string `query:"cursor" doc:"nextCursor of the page before."`
}

type itemPage struct {
	Items      []item `json:"items" nullable:"false"`
	NextCursor string `json:"nextCursor,omitempty" doc:"Absent on the last page. Opaque; it does not expire."`
}

func (s *server) listInventory(ctx context.Context, in *listInventoryRequest) (page itemPage, err error) {
	after, ok := "", true
	if in.Cursor != "" {
		after, ok = openCursor([]string{"inventory"}, in.Cursor)
		ok = ok && possible(after) // the sum is no secret: anybody can make a cursor
	}
	if !ok {
		return page, errCursor()
	}
	rows, err := s.engine.Orders.StockList(ctx, after, in.Limit+1)
	if limit := int(in.Limit); len(rows) > limit {
		rows = rows[:limit]
		page.NextCursor = sealCursor([]string{"inventory"}, rows[limit-1].Item)
	}
	page.Items = each(rows, itemOf)
	return page, err
}
