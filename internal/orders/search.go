package orders

import (
	"context"

	"pawl/db"
	"pawl/internal/pg"
)

// Match is an order that a search has found.
type Match struct {
	Order   Order
	Matched string // what is equal to the term: one of those below
	Key     string // of the metadata
}

// What a search can match, in the order of its results.
const (
	MatchedID          = "orderId"
	MatchedIDPrefix    = "orderIdPrefix" // the id begins with the term
	MatchedCustomer    = "customerId"
	MatchedCharge      = "chargeReference" // the provider's
	MatchedReservation = "reservationReference"
	MatchedRefund      = "refundReference"
	MatchedDispute     = "disputeReference"
	MatchedDisputed    = "disputeCharge" // the provider's name for the charge, as a dispute had it
	MatchedMetadata    = "metadata"      // under one of the keys that the owner has chosen
)

// Search finds up to limit orders by one term of up to 255 characters. An order is in the result once, with the first
// thing that matched. more: others were left out. Errors: ErrUnavailable.
func (r *Reader) Search(ctx context.Context, term string, limit int32) (matches []Match, more bool, err error) {
	found, err := Read(ctx, r, r.query.OrdersSearch, db.OrdersSearchParams{Term: term, Most: limit + 1})
	if err != nil {
		return nil, false, Unavailable("search orders", err)
	}
	how := map[int64]db.OrdersSearchRow{}
	var numbers []int64
	for _, row := range found {
		if _, again := how[row.OrderNo]; !again {
			how[row.OrderNo] = row
			numbers = append(numbers, row.OrderNo)
		}
	}
	more = len(numbers) > int(limit)
	numbers = numbers[:min(len(numbers), int(limit))]
	page, cut, err := r.readPage(ctx, numbers)
	for _, order := range page {
		matches = append(matches, Match{order, how[order.OrderNo].Matched, how[order.OrderNo].Key})
	}
	return matches, more || cut != 0, err
}

// SearchKeys are the metadata keys whose values Search finds. Errors: ErrUnavailable.
func (r *Reader) SearchKeys(ctx context.Context) ([]string, error) {
	keys, err := pg.Repeat(ctx, r.life, r.query.SearchKeys)
	return keys, Unavailable("read the searchable keys", err)
}
