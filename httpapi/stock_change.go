package httpapi

import (
	"context"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"pawl/engine"
	"pawl/internal/orders"
)

var setInventoryOperation = withBody(huma.Operation{
	OperationID: "setInventory", Method: http.MethodPut, Path: "/api/inventory/{item}", Tags: []string{"inventory"},
	Summary: "Say how many units of an item are on the shelf",
	Description: "From then on the item is tracked and never oversold. Sold units are gone from the shelf already, so the number is what can be counted there. " +
		"It can't be less than what is reserved. It is set only if nothing was sold or changed since the ETag in If-Match, or, with If-None-Match: *, if the item is not there. " +
		"A request that comes again with the same requestId is answered and not done again.",
}, "stock_too_low", "invalid_idempotency_key", "idempotency_key_reused", "precondition_failed", "precondition_required", "unavailable", "internal")

// setInventoryRequest documents what setInventory reads.
type setInventoryRequest struct {
	Item        string `path:"item" maxLength:"255" doc:"The item, percent-encoded."`
	IfMatch     string `header:"If-Match" doc:"Only if the item is still at this ETag. This or If-None-Match must be given."`
	IfNoneMatch string `header:"If-None-Match" doc:"Only *: only if the item is not there." example:"*"`
	Keyed[setInventoryBody]
}

type setInventoryBody struct {
	OnHand     int64  `json:"onHand" minimum:"0" maximum:"1000000000000" example:"12"`
	OnBehalfOf string `json:"onBehalfOf,omitempty" minLength:"1" maxLength:"255" doc:"For whom the caller asks; kept with the movement beside the caller, which a token names. Needs the role delegate."`
	Reason     string `json:"reason,omitempty" minLength:"1" maxLength:"1000" doc:"Why; kept with the movement."`
	RequestID  string `json:"requestId,omitempty" minLength:"1" maxLength:"255" doc:"A name for this request, so that it is done once."`
}

func (s *server) setInventory(w http.ResponseWriter, r *http.Request, got fields) error {
	q, err := readStockChange(w, r, got)
	if err != nil {
		return err
	}
	q.Kind, q.Units = engine.StockSet, got.integer("onHand")
	if q.IfVersion, err = wantedVersion(r.Header); err != nil {
		return err
	}
	return s.changeStock(w, r, q, got.ignored())
}

var adjustInventoryOperation = withBody(huma.Operation{
	OperationID: "adjustInventory", Method: http.MethodPost, Path: "/api/inventory/{item}/adjustments", Tags: []string{"inventory"},
	Summary: "Add units of an item to the shelf, or take some away",
	Description: "For goods that arrive, break or come back. It is right however much is sold meanwhile. From then on the item is tracked; one that was not has nothing on the shelf before. " +
		"A request that comes again with the same requestId is answered and not done again.",
}, "stock_too_low", "stock_too_high", "invalid_idempotency_key", "idempotency_key_reused", "unavailable", "internal")

// adjustInventoryRequest documents what adjustInventory reads.
type adjustInventoryRequest struct {
	Item string `path:"item" maxLength:"255" doc:"The item, percent-encoded."`
	Keyed[adjustInventoryBody]
}

type adjustInventoryBody struct {
	Change     int64  `json:"change" minimum:"-1000000000000" maximum:"1000000000000" doc:"How many units more, or fewer; not 0." example:"-2"`
	OnBehalfOf string `json:"onBehalfOf,omitempty" minLength:"1" maxLength:"255" doc:"For whom the caller asks; kept with the movement beside the caller, which a token names. Needs the role delegate."`
	Reason     string `json:"reason" minLength:"1" maxLength:"1000" doc:"Why; kept with the movement." example:"broken in transit"`
	RequestID  string `json:"requestId,omitempty" minLength:"1" maxLength:"255" doc:"A name for this request, so that it is done once. It must be given, here or as Idempotency-Key." example:"claim-17"`
}

func (s *server) adjustInventory(w http.ResponseWriter, r *http.Request, got fields) error {
	q, err := readStockChange(w, r, got)
	if err != nil {
		return err
	}
	if q.RequestID == "" {
		return newProblem("invalid_input", "", fieldError{Pointer: "/requestId", Code: "required", Detail: "is required if there is no Idempotency-Key"})
	}
	q.Kind, q.Units = engine.StockAdjustment, got.integer("change")
	return s.changeStock(w, r, q, got.ignored())
}

func checkAdjustment(d *decoder, got fields) {
	if got.has("change") && got.integer("change") == 0 && len(d.faults) == 0 {
		d.fault("/change", "zero", "must not be 0")
	}
}

// readStockChange reads what every change of the stock can say.
func readStockChange(w http.ResponseWriter, r *http.Request, got fields) (q engine.StockChange, err error) {
	q = engine.StockChange{Item: r.PathValue("item"), OnBehalfOf: got.text("onBehalfOf"), Reason: got.text("reason")}
	if !possible(q.Item) {
		return q, invalidParameter("item", "invalid", "must be 1 to 255 visible characters, without white space at either end")
	}
	if q.Actor, err = actorOf(w, q.OnBehalfOf); err == nil {
		q.RequestID, err = requestIDOf(r, got.text("requestId"))
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

// wantedVersion is the version of the item to be set, 0 for one that is not there. Who names none might bring back
// units that were sold since he counted.
func wantedVersion(header http.Header) (*int64, error) {
	present := strings.TrimSpace(header.Get("If-Match"))
	absent, err := ifNoneMatch(header.Get("If-None-Match"))
	switch {
	case err != nil:
		return nil, err
	case absent && present != "":
		return nil, orders.ErrPrecondition // nothing is there and is not
	case absent:
		return new(int64(0)), nil
	case present == "":
		return nil, newProblem("precondition_required", "", missingHeader("If-Match", "must be the ETag of the item; to create an item, send If-None-Match: * instead"))
	case present == "*":
		return nil, invalidHeader("If-Match", "must be the ETag of the item")
	}
	return ifMatch[int64](present)
}
