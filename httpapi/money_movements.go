package httpapi

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"pawl/internal/orders"
)

var listMoneyMovementsOperation = failing(huma.Operation{
	OperationID: "listMoneyMovements", Method: http.MethodGet, Path: "/api/money-movements", Tags: []string{"orders"},
	Summary: "List movements of money",
	Description: "Each charge, capture, undo, refund and lost dispute, for bookkeeping: those of a month add up to what a report of the books has for it. " +
		"An authorization moves nothing, nor does a charge that was undone without knowing whether it had happened. Those of the newest orders come first, and those of forgotten orders are missing. " +
		"A page examines up to 10,000 orders, so it may be empty and still have a nextCursor. " +
		"With format=csv, or Accept: text/csv, the page is a table, and the header Link leads to the next one.",
}, "invalid_parameter", "unavailable", "internal")

type listMoneyMovementsRequest struct {
	From     time.Time `query:"from" doc:"Only what moved at this time or later (RFC 3339)."`
	To       time.Time `query:"to" doc:"Only what moved before this time (RFC 3339)."`
	Currency string    `query:"currency" doc:"Only movements in this currency (ISO 4217)."`
	Kind     []string  `query:"kind" nullable:"false" enum:"charge,capture,undo,refund,dispute_lost" doc:"Only movements of these kinds, separated by commas."`
	Cursor   string    `query:"cursor" doc:"nextCursor of the previous page, with the same filters."`
	Format   csvFormat `query:"format" doc:"Format of the response; JSON by default."`
}

type moneyMovementPage struct {
	Movements  []moneyMovement `json:"movements" nullable:"false"`
	NextCursor string          `json:"nextCursor,omitempty" doc:"Absent on the last page. It does not expire."`
}

// moneyMovement is money that moved.
type moneyMovement struct {
	At        time.Time `json:"at" doc:"When it moved. A dispute counts from when it was lost."`
	OrderID   string    `json:"orderId"`
	Kind      string    `json:"kind" enum:"charge,capture,undo,refund,dispute_lost" doc:"charge: of a charge that was captured as a whole. capture: a part of an authorization. undo: a charge was given back, because the order did not complete. refund: on request."`
	Amount    string    `json:"amount" doc:"Negative if it went back."`
	Currency  string    `json:"currency"`
	Reference string    `json:"reference,omitempty" doc:"The provider's name for it, or for the dispute."`
}

func (s *server) listMoneyMovements(ctx context.Context, in *listMoneyMovementsRequest) (page moneyMovementPage, err error) {
	if in.Currency != "" && !storable(in.Currency) {
		return page, invalidParameter("currency", "invalid", "must be an ISO 4217 code")
	}
	span, binding := orders.MovementSpan{From: in.From, To: in.To, Currency: in.Currency, Kinds: in.Kind},
		append([]string{"money-movements", in.From.UTC().String(), in.To.UTC().String(), in.Currency}, in.Kind...)
	if span.Before, err = openNumber(binding, in.Cursor); err != nil {
		return page, err
	}
	rows, next, err := s.engine.Orders.MoneyMovements(ctx, span)
	if next > 0 {
		page.NextCursor = sealCursor(binding, decimalText(next))
	}
	page.Movements = each(rows, func(m *orders.MoneyMovement) moneyMovement {
		return moneyMovement{m.At.UTC(), m.OrderID, m.Kind, m.Amount, m.Currency, m.Reference}
	})
	return page, err
}
