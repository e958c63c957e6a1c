package httpapi

import (
	"context"
	"encoding/json"
	"time"

	"pawl/internal/access"
	"pawl/internal/orders"
)

// aboutTerm is what the document says about searches.
const aboutTerm = "\n\nWith term, it finds orders by an id, a customer, a provider's reference, metadata or an amount, and says in matched what has the term. " +
	"The other filters apply, too.\n\n" +
	"- First come, by id, the orders whose id begins with the term, and of a number the one whose id is that of the newest order with " +
	"this number at its end (#123 finds order-123); then, newest first, those whose customer, provider's reference or value " +
	"of a searchable metadata key is the term. It is tried as it is, in lower and in upper case.\n" +
	"- If there are none, it is looked for inside the newest 10,000 orders: a term of 3 characters or more as a part of any of these, whatever the " +
	"case of letters from A to Z (matched is part, or word if no letter or digit is beside it, at the end of an id; of metadata, a value " +
	"with all of its words), and an amount, such as 417, 417.00, 417,00, $417 or 417 EUR (in this currency). nextCursor then looks inside older orders, too.\n" +
	"- If there are still none, and the term is no amount, all this is done with each word of it that has 3 characters and a digit, " +
	"or else with the whole term, without the punctuation around them: \"order #49456, 49457.\" finds both, and notFound has those that no order has."

// OrderSearch is what a list by a term has besides orders. It is exported because huma skips unexported embedded types.
type OrderSearch struct {
	NotFound []string `json:"notFound,omitempty" nullable:"false" doc:"With term: the words of it that no order has, if others have some of them."`

	Keys        []string  `json:"metadataKeys,omitempty" nullable:"false" doc:"With term, if no order has it as it is: the metadata keys whose values were searched, as pawl migrate search-keys set them."`
	Looked      int32     `json:"looked,omitempty" doc:"With term: number of orders that were looked inside, newest first. Absent if an order has the term as it is."`
	LookedSince time.Time `json:"lookedSince,omitzero" doc:"When the oldest of them was created."`
}

// match says how a search found an order.
type match struct {
	By   string   `json:"by" enum:"orderId,orderIdPrefix,customerId,chargeReference,reservationReference,refundReference,disputeReference,disputeCharge,metadata,amount,word,part" doc:"What has the term."`
	Keys []string `json:"keys,omitempty" nullable:"false" doc:"With metadata: the keys of the values. With word and part: what the term is a part of, such as customerId, chargeReference or metadata.email."`
}

// search is listOrders by a term.
func (s *server) search(ctx context.Context, in *listOrdersRequest, filter orders.Filter) (page orderPage, rows []orders.Order, err error) {
	var at orders.Position
	position, ok := openCursor(in.binding(), in.Cursor)
	switch {
	case !possible(in.Term):
		return page, nil, invalidParameter("term", "invalid", "must have 1 to 255 characters, without control characters, or blanks at either end")
	case in.Sort == oldestFirst:
		return page, nil, invalidParameter("sort", "invalid", "must be newest with term")
	case in.Cursor != "" && (!ok || json.Unmarshal([]byte(position), &at) != nil):
		return page, nil, errCursor()
	}
	if p := principalOf(writerOf(ctx)); !p.Has(access.Read) {
		return page, nil, &forbidden{principal: p, roles: access.Roles{access.Read}}
	}
	found, err := s.engine.Orders.Search(ctx, orders.Sought{Term: in.Term, Among: filter, Counts: in.Count}, at)
	page = orderPage{Total: found.Total, More: found.More, OrderSearch: OrderSearch{Keys: found.Keys, Looked: found.Looked, LookedSince: found.Since}}
	for _, m := range found.Matches {
		o := s.orderOf(&m.Order)
		o.Matched = &match{m.Matched, m.Keys}
		page.Orders, rows = append(page.Orders, o), append(rows, m.Order)
	}
	if page.Orders = append([]order{}, page.Orders...); len(rows) > 0 {
		page.NotFound = found.Missing
	}
	if found.Next != nil {
		next, _ := json.Marshal(found.Next) // a struct of texts and numbers
		page.NextCursor = sealCursor(in.binding(), string(next))
	}
	return page, rows, err
}
