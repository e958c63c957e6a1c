package httpapi

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"pawl/orders"
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
	ETag string `header:"ETag" doc:"Raised when somebody sets the stock; orders do not change it."`
	Body item
}

func (s *server) getInventory(ctx context.Context, in *getInventoryRequest) (*itemAnswer, error) {
	if !possible(in.Item) {
		return nil, orders.ErrNotFound
	}
	row, err := s.engine.Orders.StockOf(ctx, in.Item)
	if err != nil {
		return nil, err
	}
	return &itemAnswer{ETag: entityTag(row.Version), Body: itemOf(&row)}, nil
}

var setInventoryOperation = failing(huma.Operation{
	OperationID: "setInventory", Method: http.MethodPut, Path: "/api/inventory/{item}", Tags: []string{"inventory"},
	Summary:     "Say how many units of an item are on the shelf",
	Description: "From then on the item is tracked and never oversold. Sold units are gone from the shelf already, so the number is what can be counted there. It can't be less than what is reserved.",
}, "cross_origin", "malformed_json", "request_timeout", "body_too_large", "unsupported_media_type", "invalid_input", "invalid_parameter",
	"stock_too_low", "precondition_failed", "unavailable", "internal")

// setInventoryRequest documents what setInventory reads.
type setInventoryRequest struct {
	Item        string `path:"item" maxLength:"255" doc:"The item, percent-encoded."`
	IfMatch     string `header:"If-Match" doc:"Only if nobody has set the stock since this ETag; with * only if the item is there."`
	IfNoneMatch string `header:"If-None-Match" doc:"Only *: only if the item is not there."`
	Body        setInventoryBody
}

type setInventoryBody struct {
	_      struct{} `additionalProperties:"true"`
	OnHand int64    `json:"onHand" minimum:"0" maximum:"1000000000000"`
}

var stockSchema = schemaOf[setInventoryBody]()

func (s *server) setInventory(w http.ResponseWriter, r *http.Request) error {
	body, err := readBody(w, r, stockSchema, nil)
	if err != nil {
		return err
	}
	name := r.PathValue("item")
	if !possible(name) {
		return invalidParameter("item", "invalid", "must have 1 to 255 characters, without control characters")
	}
	ctx, cancel := context.WithTimeout(r.Context(), readLimit)
	defer cancel()
	version, err := s.wantedVersion(ctx, name, r.Header)
	if err != nil {
		return err
	}
	row, err := s.engine.SetStock(ctx, name, body.integer("onHand"), version)
	if err != nil {
		return err
	}
	w.Header().Set("ETag", entityTag(row.Version))
	return answerJSON(w, itemOf(&row))
}

// wantedVersion is the version of the item to be set that If-Match and If-None-Match ask
// for; nil when any will do. Items are never removed, so whether there is any can be
// looked up beforehand; that there is none is left to the statement that makes it.
func (s *server) wantedVersion(ctx context.Context, name string, header http.Header) (*int64, error) {
	present := header.Get("If-Match")
	absent, err := ifNoneMatch(header.Get("If-None-Match"))
	switch {
	case err != nil:
		return nil, err
	case absent && present != "":
		return nil, orders.ErrPrecondition // nothing is there and is not
	case absent:
		return new(int64(0)), nil // the version of what is not there
	case strings.TrimSpace(present) != "*":
		return ifMatch(present, 64)
	}
	if _, err = s.engine.Orders.StockOf(ctx, name); errors.Is(err, orders.ErrNotFound) {
		err = orders.ErrPrecondition
	}
	return nil, err
}

var listInventoryOperation = failing(huma.Operation{
	OperationID: "listInventory", Method: http.MethodGet, Path: "/api/inventory", Tags: []string{"inventory"},
	Summary:                      "List the stock of all items",
	Description:                  "Every item that was ever reserved or given stock, in the order of the bytes of their names.",
	RejectUnknownQueryParameters: true,
}, "invalid_parameter", "unavailable", "internal")

type listInventoryRequest struct {
	Limit  int32  `query:"limit" minimum:"1" maximum:"200" default:"50" doc:"How many items to answer with at most."`
	Cursor string `query:"cursor" doc:"nextCursor of the page before."`
}

type listInventoryAnswer struct {
	Body struct {
		Items      []item `json:"items" nullable:"false"`
		NextCursor string `json:"nextCursor,omitempty" doc:"Absent on the last page. Opaque; it does not expire."`
	} `nameHint:"ItemPage"`
}

func (s *server) listInventory(ctx context.Context, in *listInventoryRequest) (*listInventoryAnswer, error) {
	after, ok := "", true
	if in.Cursor != "" {
		after, ok = openCursor([]string{"inventory"}, in.Cursor)
		ok = ok && possible(after) // the sum is no secret: anybody can make a cursor
	}
	if !ok {
		return nil, errCursor()
	}
	rows, err := s.engine.Orders.StockList(ctx, after, in.Limit+1)
	if err != nil {
		return nil, err
	}
	out := &listInventoryAnswer{}
	if page := int(in.Limit); len(rows) > page {
		rows = rows[:page]
		out.Body.NextCursor = sealCursor([]string{"inventory"}, rows[page-1].Item)
	}
	out.Body.Items = each(rows, itemOf)
	return out, nil
}
