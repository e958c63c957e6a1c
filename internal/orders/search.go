package orders

import (
	"cmp"
	"context"
	"math"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/govalues/decimal"

	"pawl/db"
	"pawl/internal/pg"
)

// Match is an order that a search has found.
type Match struct {
	Order   Order
	Matched string // how: one of those below
	Key     string // of the metadata; of a part: where it is
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
	MatchedAmount      = "amount"        // like a part, of the newest orders only
	MatchedPart        = "part"          // something of the above has the term inside
)

// looksInside is how many of the newest orders a search looks inside, which takes some 20 ms: no index has parts.
const looksInside = 10_000

// partLeast is the number of characters of the shortest part that is looked for.
const partLeast = 3

// Found is the result of a search.
type Found struct {
	Matches []Match
	More    bool // others were left out; Next may lead to them

	// If no index had the term:
	Keys   []string  // the metadata keys whose values were searched
	Looked int32     // how many orders were looked inside, the newest first
	Since  time.Time // when the oldest of them was created
	Next   int64     // the cursor to look inside older ones; 0: there are none
}

// Search finds up to limit orders by one term of up to 255 characters. An order is in the result once, with the first
// thing that matched. If none has the term as it is, in lower or in upper case, Search looks inside the newest orders, or
// inside those before a cursor. Errors: ErrUnavailable.
func (r *Reader) Search(ctx context.Context, term string, limit int32, before int64) (found Found, err error) {
	var rows []db.OrdersSearchRow
	for i, typed := range []string{term, strings.ToLower(term), strings.ToUpper(term)} {
		if before != 0 || len(rows) > 0 || i > 0 && typed == term {
			continue
		}
		rows, err = Read(ctx, r, r.query.OrdersSearch, db.OrdersSearchParams{Term: typed, Most: limit + 1})
		if err != nil {
			return found, Unavailable("search orders", err)
		}
	}
	if len(rows) == 0 {
		p := db.OrdersSearchPartsParams{Term: term, Amount: amountOf(term), Before: cmp.Or(before, math.MaxInt64), Looks: looksInside, Most: limit + 1}
		if rows, err = r.lookInside(ctx, p, &found); err != nil {
			return found, Unavailable("look inside orders", err)
		}
	}
	how := map[int64]db.OrdersSearchRow{}
	var numbers []int64
	for _, row := range rows {
		if _, again := how[row.OrderNo]; !again {
			how[row.OrderNo] = row
			numbers = append(numbers, row.OrderNo)
		}
	}
	left := len(numbers) > int(limit)
	numbers = numbers[:min(len(numbers), int(limit))]
	page, cut, err := r.readPage(ctx, numbers)
	for _, order := range page {
		found.Matches = append(found.Matches, Match{order, how[order.OrderNo].Matched, how[order.OrderNo].Key})
	}
	if found.More = left || cut != 0; found.More && found.Looked > 0 {
		found.Next = cmp.Or(cut, numbers[len(numbers)-1])
	}
	return found, err
}

// lookInside looks for orders with the term inside, or with this amount.
func (r *Reader) lookInside(ctx context.Context, p db.OrdersSearchPartsParams, found *Found) (rows []db.OrdersSearchRow, err error) {
	if found.Keys, err = pg.Repeat(ctx, r.life, r.query.SearchKeys); err != nil || utf8.RuneCountInString(p.Term) < partLeast {
		return nil, err
	}
	p.Keys = found.Keys
	inside, err := Read(ctx, r, r.query.OrdersSearchParts, p)
	if err != nil {
		return nil, err
	}
	if found.Looked, found.Since = inside.Looked, inside.Since; inside.Looked == looksInside {
		found.Next = inside.Last
	}
	for i, number := range inside.Found {
		row := db.OrdersSearchRow{OrderNo: number, Matched: MatchedPart, Key: inside.Places[i]}
		if row.Key == MatchedAmount {
			row.Matched, row.Key = MatchedAmount, ""
		}
		rows = append(rows, row)
	}
	return rows, nil
}

var anAmount = regexp.MustCompile(`^([0-9][0-9,]{0,18}?)(?:\.([0-9]{1,4})|,([0-9]{1,2}))?$`)

// amountOf is the amount that a term may be, such as 417, 417,00 or 1,417.00; otherwise empty.
func amountOf(term string) string {
	parts := anAmount.FindStringSubmatch(term)
	if parts == nil {
		return ""
	}
	amount, err := decimal.Parse(strings.ReplaceAll(parts[1], ",", "") + "." + cmp.Or(parts[2], parts[3], "0"))
	if err != nil || amount.Cmp(largest) > 0 {
		return ""
	}
	return amount.String()
}
