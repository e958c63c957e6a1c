package httpapi

import (
	"context"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"pawl/engine"
	"pawl/internal/orders"
)

var getInventoryOperation = failing(huma.Operation{
	OperationID: "getInventory", Method: http.MethodGet, Path: "/api/inventory/{item}", Tags: []string{"inventory"},
	Summary:     "Get the stock of an item",
	Description: "Units on hand, units reserved by orders, and units available to sell.",
}, "not_found", "invalid_parameter", "unavailable", "internal")

type getInventoryRequest struct {
	Item string `path:"item" doc:"The item, percent-encoded."`
}

type itemAnswer struct {
	ETag string `header:"ETag" doc:"Changes with every stock change and every sale."`
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
	Summary:     "List stock",
	Description: "Every item that ever had stock or a reservation, in byte order of the names.",
}, "invalid_parameter", "unavailable", "internal")

type listInventoryRequest struct {
	Limit  int32  `query:"limit" minimum:"1" maximum:"200" default:"50" doc:"Maximum number of items."`
	Cursor string `query:"cursor" doc:"nextCursor of the previous page."`
}

type itemPage struct {
	Items      []item `json:"items" nullable:"false"`
	NextCursor string `json:"nextCursor,omitempty" doc:"Absent on the last page. It does not expire."`
}

func (s *server) listInventory(ctx context.Context, in *listInventoryRequest) (page itemPage, err error) {
	after, ok := openCursor([]string{"inventory"}, in.Cursor)
	if in.Cursor != "" && (!ok || !possible(after)) { // the checksum is no secret: any caller can forge a cursor
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

var setInventoryOperation = withBody(huma.Operation{
	OperationID: "setInventory", Method: http.MethodPut, Path: "/api/inventory/{item}", Tags: []string{"inventory"},
	Summary: "Set the stock of an item",
	Description: "From then on the item is tracked and never oversold. onHand is what can be counted on the shelf; " +
		"sold units are no longer part of it. " +
		"It cannot be less than the units reserved. It is set only if nothing was sold or changed since the ETag in If-Match, " +
		"or, with If-None-Match: *, if the item does not exist. " +
		"A repeated request with the same requestId has no further effect.",
}, "stock_too_low", "invalid_idempotency_key", "idempotency_key_reused", "precondition_failed", "precondition_required", "unavailable", "internal")

// setInventoryRequest documents what setInventory reads.
type setInventoryRequest struct {
	Item        string `path:"item" maxLength:"255" doc:"The item, percent-encoded."`
	IfMatch     string `header:"If-Match" doc:"Only if the item still has this ETag. Either this or If-None-Match is required."`
	IfNoneMatch string `header:"If-None-Match" doc:"Must be *: only if the item does not exist."`
	Keyed[setInventoryBody]
}

type setInventoryBody struct {
	OnHand int64 `json:"onHand" minimum:"0" maximum:"1000000000000"`
	VerbBody
}

func (s *server) setInventory(w http.ResponseWriter, r *sent[setInventoryBody]) error {
	q, err := readStockChange(w, r.Request, r.body.asks())
	if err != nil {
		return err
	}
	q.Kind, q.Units = engine.StockSet, r.body.OnHand
	if q.IfVersion, err = wantedVersion(r.Header); err != nil {
		return err
	}
	return s.changeStock(w, r.Request, q, r.ignored)
}

var adjustInventoryOperation = withBody(huma.Operation{
	OperationID: "adjustInventory", Method: http.MethodPost, Path: "/api/inventory/{item}/adjustments", Tags: []string{"inventory"},
	Summary: "Add or remove units of an item",
	Description: "For goods that arrive, break or are returned. It does not depend on sales in the meantime. From then " +
		"on the item is tracked; an item that was not starts at 0. " +
		"A repeated request with the same requestId has no further effect.",
}, "stock_too_low", "stock_too_high", "invalid_idempotency_key", "idempotency_key_reused", "unavailable", "internal")

// adjustInventoryRequest documents what adjustInventory reads.
type adjustInventoryRequest struct {
	Item string `path:"item" maxLength:"255" doc:"The item, percent-encoded."`
	Keyed[adjustInventoryBody]
}

type adjustInventoryBody struct {
	Change    int64  `json:"change" minimum:"-1000000000000" maximum:"1000000000000" doc:"Units to add, or if negative to remove; not 0."`
	Reason    string `json:"reason" minLength:"1" maxLength:"1000" doc:"Why; recorded with the movement."`
	RequestID string `json:"requestId,omitempty" minLength:"1" maxLength:"255" doc:"A name for this request, so that it is done once. Required, here or as Idempotency-Key."`
	VerbBody
}

func (b adjustInventoryBody) asks() VerbBody {
	return VerbBody{OnBehalfOf: b.OnBehalfOf, Reason: b.Reason, RequestID: b.RequestID}
}

func (s *server) adjustInventory(w http.ResponseWriter, r *sent[adjustInventoryBody]) error {
	q, err := readStockChange(w, r.Request, r.body.asks())
	if err != nil {
		return err
	}
	if q.RequestID == "" {
		return newProblem("invalid_input", "", fieldError{Pointer: "/requestId", Code: "required", Detail: "is required if there is no Idempotency-Key"})
	}
	q.Kind, q.Units = engine.StockAdjustment, r.body.Change
	return s.changeStock(w, r.Request, q, r.ignored)
}

func checkAdjustment(d *decoder, body *adjustInventoryBody) {
	if d.has("change") && body.Change == 0 && len(d.faults) == 0 {
		d.fault("/change", "zero", "must not be 0")
	}
}

// readStockChange reads the common part of all changes of stock.
func readStockChange(w http.ResponseWriter, r *http.Request, asks VerbBody) (q engine.StockChange, err error) {
	q = engine.StockChange{Item: r.PathValue("item"), OnBehalfOf: asks.OnBehalfOf, Reason: asks.Reason}
	if !possible(q.Item) {
		return q, invalidParameter("item", "invalid", "must be 1 to 255 visible characters, without white space at either end")
	}
	if q.Actor, err = actorOf(w, q.OnBehalfOf); err == nil {
		q.RequestID, err = requestIDOf(r, asks.RequestID)
	}
	return q, err
}

func (s *server) changeStock(w http.ResponseWriter, r *http.Request, q engine.StockChange, ignored []string) error {
	ctx, cancel := context.WithTimeout(r.Context(), readLimit)
	defer cancel()
	row, err := s.engine.ChangeStock(ctx, q)
	if err != nil {
		return err
	}
	w.Header().Set("ETag", entityTag(row.Version))
	out := itemOf(&row)
	out.IgnoredFields = ignored
	return answerJSON(w, out)
}

// wantedVersion is the expected version of the item, 0 if it must not exist. Without one, units that were sold since
// the count could reappear.
func wantedVersion(header http.Header) (*int64, error) {
	present := strings.TrimSpace(header.Get("If-Match"))
	absent, err := ifNoneMatch(header.Get("If-None-Match"))
	switch {
	case err != nil:
		return nil, err
	case absent && present != "":
		return nil, orders.ErrPrecondition // it cannot both exist and not exist
	case absent:
		return new(int64(0)), nil
	case present == "":
		return nil, newProblem("precondition_required", "",
			missingHeader("If-Match", "must be the ETag of the item; to create an item, send If-None-Match: * instead"))
	case present == "*":
		return nil, invalidHeader("If-Match", "must be the ETag of the item")
	}
	return ifMatch[int64](present)
}

var listMovementsOperation = failing(huma.Operation{
	OperationID: "listStockMovements", Method: http.MethodGet, Path: "/api/inventory/{item}/movements", Tags: []string{"inventory"},
	Summary: "List the stock movements of an item",
	Description: "One row for each change of the stock except sales, oldest first. To page backward, use sort=newest " +
		"and before. onHand is the sum of the changes, less what was sold since the first one.",
}, "not_found", "invalid_parameter", "unavailable", "internal")

type listMovementsRequest struct {
	Item   string `path:"item" doc:"The item, percent-encoded."`
	After  int64  `query:"after" minimum:"0" doc:"Only rows with a larger version."`
	Before int64  `query:"before" minimum:"1" doc:"Only rows with a smaller version."`
	Sort   string `query:"sort" enum:"oldest,newest" default:"oldest" doc:"Which row comes first."`
	Limit  int32  `query:"limit" minimum:"1" maximum:"200" default:"200" doc:"Maximum number of rows."`
}

type stockMovements struct {
	Movements []movement `json:"movements" nullable:"false"`
}

func (s *server) listMovements(ctx context.Context, in *listMovementsRequest) (stockMovements, error) {
	if !possible(in.Item) {
		return stockMovements{}, &orders.NotFound{What: "item"}
	}
	rows, err := s.engine.Orders.StockMovements(ctx, in.Item,
		orders.StockSpan{After: in.After, Before: in.Before, Descending: in.Sort == "newest", Limit: in.Limit})
	return stockMovements{each(rows, movementOf)}, err
}
