package httpapi

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"pawl/internal/orders"
)

var searchOrdersOperation = failing(huma.Operation{
	OperationID: "searchOrders", Method: http.MethodGet, Path: "/api/search", Tags: []string{"orders"},
	Summary: "Find orders by one term",
	Description: "Finds the order with this id; then those whose id begins with the term, and those whose customer, provider's reference, " +
		"or value of a searchable metadata key is the term, newest first. Case matters. An order is listed once.",
}, "invalid_parameter", "unavailable", "internal")

type searchOrdersRequest struct {
	Term  string `query:"term" required:"true" maxLength:"255" doc:"What to look for." example:"ch_3P8xZq"`
	Limit int32  `query:"limit" minimum:"1" maximum:"200" default:"50" doc:"Maximum number of orders."`
}

type searchResult struct {
	Matches []searchMatch `json:"matches" nullable:"false"`
	More    bool          `json:"more" doc:"Other orders match, too. A longer term finds fewer; the filters of listOrders have pages."`
	Keys    []string      `json:"metadataKeys" nullable:"false" doc:"The metadata keys whose values are searched, as pawl migrate search-keys set them." example:"[\"email\"]"`
}

type searchMatch struct {
	Matched string `json:"matched" enum:"orderId,orderIdPrefix,customerId,chargeReference,reservationReference,refundReference,disputeReference,disputeCharge,metadata" doc:"What matched." example:"chargeReference"`
	Key     string `json:"key,omitempty" doc:"With metadata: the key of the value that matched." example:"email"`
	Order   order  `json:"order"`
}

func (s *server) searchOrders(ctx context.Context, in *searchOrdersRequest) (out searchResult, err error) {
	if !possible(in.Term) {
		return out, invalidParameter("term", "invalid", "must have 1 to 255 characters, without control characters, or blanks at either end")
	}
	matches, more, err := s.engine.Orders.Search(ctx, in.Term, in.Limit)
	if err != nil {
		return out, err
	}
	out.Matches, out.More = each(matches, s.searchMatchOf), more
	keys, err := s.engine.Orders.SearchKeys(ctx)
	out.Keys = append([]string{}, keys...)
	return out, err
}

func (s *server) searchMatchOf(m *orders.Match) searchMatch {
	return searchMatch{Matched: m.Matched, Key: m.Key, Order: s.orderOf(&m.Order)}
}
