package httpapi

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"pawl/internal/orders"
)

var searchOrdersOperation = failing(huma.Operation{
	OperationID: "searchOrders", Method: http.MethodGet, Path: "/api/search", Tags: []string{"orders"},
	Summary: "Find orders by one term",
	Description: "Finds orders by an id, a customer, a provider's reference, metadata or an amount. An order is listed once.\n\n" +
		"- First comes the order with this id, or of a number the one whose id is that of the newest order with this number at its end (#123 " +
		"finds order-123); then, newest first, those whose id begins with the term, and those whose customer, provider's reference or value " +
		"of a searchable metadata key is the term.\n" +
		"- If there are none, the term is tried in lower and in upper case.\n" +
		"- Then it is looked for inside the newest 10,000 orders: a term of 3 characters or more as a part of any of these, whatever the " +
		"case of letters from A to Z (matched is part, or word if no letter or digit is beside it, at the end of an id; of metadata, a value " +
		"with all of its words), and an amount, such as 417, 417.00, 417,00, $417 or 417 EUR (in this currency). nextCursor looks inside older orders.\n" +
		"- If there are still none, and the term is no amount, all this is done with each word of it that has 3 characters and a digit, " +
		"or else with the whole term, without the punctuation around them: \"order #49456, 49457.\" finds both.\n\n" +
		"If others have some of the words, notFound has those that no order has.",
}, "invalid_parameter", "unavailable", "internal")

type searchOrdersRequest struct {
	Term  string `query:"term" required:"true" maxLength:"255" doc:"What to look for."`
	Limit int32  `query:"limit" minimum:"1" maximum:"200" default:"50" doc:"Maximum number of orders."`

	Cursor string `query:"cursor" doc:"nextCursor of the previous response, with the same term: looks only inside older orders."`
}

type searchResult struct {
	Matches []searchMatch `json:"matches" nullable:"false"`
	More    bool          `json:"more" doc:"Other orders match, too. A longer term finds fewer; the filters of listOrders have pages."`

	NotFound []string `json:"notFound,omitempty" nullable:"false" doc:"The words of the term that no order has, if others have some of them."`

	Keys        []string  `json:"metadataKeys" nullable:"false" doc:"If no order has the term as it is: the metadata keys whose values were searched, as pawl migrate search-keys set them."`
	Looked      int32     `json:"looked,omitempty" doc:"Number of orders that were looked inside, newest first. Absent if an order has the term as it is."`
	LookedSince time.Time `json:"lookedSince,omitzero" doc:"When the oldest of them was created."`
	NextCursor  string    `json:"nextCursor,omitempty" doc:"Looks inside older orders. Absent if there are none."`
}

type searchMatch struct {
	Matched string `json:"matched" enum:"orderId,orderIdPrefix,customerId,chargeReference,reservationReference,refundReference,disputeReference,disputeCharge,metadata,amount,word,part" doc:"What matched."`
	Key     string `json:"key,omitempty" doc:"With metadata: the key of the value that matched. With word and part: what the term is a part of, such as customerId, chargeReference or metadata.email."`
	Order   order  `json:"order"`
}

func (s *server) searchOrders(ctx context.Context, in *searchOrdersRequest) (out searchResult, err error) {
	if !possible(in.Term) {
		return out, invalidParameter("term", "invalid", "must have 1 to 255 characters, without control characters, or blanks at either end")
	}
	binding := []string{"search", in.Term}
	before, err := openNumber(binding, in.Cursor)
	if err != nil {
		return out, err
	}
	found, err := s.engine.Orders.Search(ctx, in.Term, in.Limit, before)
	out = searchResult{Matches: each(found.Matches, s.searchMatchOf), More: found.More, Keys: append([]string{}, found.Keys...),
		Looked: found.Looked, LookedSince: found.Since}
	if len(found.Matches) > 0 {
		out.NotFound = found.Missing
	}
	if found.Next != 0 {
		out.NextCursor = sealCursor(binding, decimalText(found.Next))
	}
	return out, err
}

func (s *server) searchMatchOf(m *orders.Match) searchMatch {
	return searchMatch{Matched: m.Matched, Key: m.Key, Order: s.orderOf(&m.Order)}
}
