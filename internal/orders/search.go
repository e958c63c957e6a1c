package orders

import (
	"cmp"
	"context"
	"encoding/json"
	"math"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/govalues/decimal"

	"pawl/db"
	"pawl/internal/iso4217"
	"pawl/internal/pg"
)

// Match is an order that a search has found.
type Match struct {
	Order   Order
	Matched string // how: one of those below
	Key     string // of the metadata; of a word or part: where it is
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
	MatchedWord        = "word"          // something of the above has the term as a word; of an id, at its end
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

	Missing []string // the words of a term of several that no order has

	// If no index had the term, or one of its words:
	Keys   []string  // the metadata keys whose values were searched
	Looked int32     // how many orders were looked inside, the newest first
	Since  time.Time // when the oldest of them was created
	Next   int64     // the cursor to look inside older ones; 0: there are none
}

// Search finds up to limit orders by one term of up to 255 characters. An order is in the result once, with the first
// thing that matched. If none has the term as it is, in lower or in upper case, Search looks inside the newest orders, or
// inside those before a cursor; words come before other parts. A number also finds the order whose id is that of the newest
// one with this number at its end. If none has the term there, Search does the same with each of the words of a term that is
// no amount. Errors: ErrUnavailable.
func (r *Reader) Search(ctx context.Context, term string, limit int32, before int64) (found Found, err error) {
	var rows []db.OrdersSearchRow
	p := db.OrdersSearchPartsParams{Before: cmp.Or(before, math.MaxInt64), Looks: looksInside, Most: limit + 1}
	words, sought := wordsOf(term), []string(nil)
	if p.Amount, p.Currency = amountOf(term); p.Amount != "" {
		words = nil
	} else if number := strings.TrimPrefix(term, "#"); number != "" && isNumber(number) {
		term, words = number, nil // of an order, and no amount
	}
	for _, terms := range [][]string{{term}, words} {
		if len(rows) > 0 || len(terms) == 0 {
			continue
		}
		found, sought = Found{}, terms
		if rows, found.Missing, err = r.lookUp(ctx, terms, limit+1); err != nil {
			return found, Unavailable("search orders", err)
		}
		if before != 0 {
			rows = nil
		}
		if len(found.Missing) > 0 && len(rows) <= int(limit) {
			inside, err := r.lookInside(ctx, p, &found)
			if err != nil {
				return found, Unavailable("look inside orders", err)
			}
			if rows = append(rows, inside...); len(terms) == 1 && len(rows) > 0 {
				found.Missing = nil // the index had it
			}
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
	asWord := wordIn(sought)
	for _, order := range page {
		m := Match{order, how[order.OrderNo].Matched, how[order.OrderNo].Key}
		if m.Matched == MatchedPart && asWord(&m) {
			m.Matched = MatchedWord
		}
		found.Matches = append(found.Matches, m)
	}
	slices.SortStableFunc(found.Matches, func(a, b Match) int { return cmp.Compare(a.rank(), b.rank()) })
	if found.More = left || cut != 0; found.More && found.Looked > 0 {
		found.Next = cmp.Or(cut, numbers[len(numbers)-1])
	}
	return found, err
}

// wordIn reports whether a match has one of the terms without a letter or digit beside it. An id ends with it.
func wordIn(terms []string) func(*Match) bool {
	var all []string
	for _, term := range terms {
		all = append(all, regexp.QuoteMeta(term))
	}
	word := `(?i)(^|[^\pL\pN])(` + strings.Join(all, "|") + ")$"
	atEnd, anywhere := regexp.MustCompile(word), regexp.MustCompile(strings.TrimSuffix(word, "$")+`($|[^\pL\pN])`)
	return func(m *Match) bool {
		key, ofMetadata := strings.CutPrefix(m.Key, MatchedMetadata+".")
		switch {
		case ofMetadata:
			values := map[string]string{}
			return json.Unmarshal(m.Order.Metadata, &values) == nil && anywhere.MatchString(values[key])
		case m.Key == MatchedCustomer:
			return m.Order.CustomerID != nil && anywhere.MatchString(*m.Order.CustomerID)
		}
		return m.Key == MatchedID && atEnd.MatchString(m.Order.OrderID)
	}
}

// rank is lower for what was more probably meant.
func (m *Match) rank() int {
	switch {
	case m.Matched == MatchedPart:
		return 2
	case m.Matched == MatchedAmount, m.Matched == MatchedWord && m.Key != MatchedID:
		return 1
	}
	return 0
}

// A search looks up mostWords words at most, and looks inside orders for the first mostInside of them: that costs more.
const (
	mostWords  = 50
	mostInside = 4
)

// wordsOf are the words of a term such as "Order #49456, 49457." that may be ids: those with a digit and as long as a part,
// or else the whole, without the punctuation around them. None is left of a term that is so already.
func wordsOf(term string) (words []string) {
	bare := func(text string) string {
		return strings.TrimFunc(text, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) })
	}
	for word := range strings.FieldsFuncSeq(term, separates) {
		word = bare(word)
		if strings.ContainsFunc(word, unicode.IsDigit) && utf8.RuneCountInString(word) >= partLeast && len(words) < mostWords {
			words = append(words, word)
		}
	}
	if whole := bare(term); len(words) == 0 && whole != "" {
		words = []string{whole}
	}
	return slices.DeleteFunc(words, func(word string) bool { return word == term })
}

func separates(r rune) bool { return unicode.IsSpace(r) || strings.ContainsRune(",;:#", r) }

// likely escapes a text in a pattern of LIKE.
var likely = strings.NewReplacer(`\`, `\\`, `%`, `\%`, `_`, `\_`)

// lookUp finds the orders that have one of the terms as it is, in lower or in upper case. missing are the others, and a
// single number that is no id: other ids may end with it.
func (r *Reader) lookUp(ctx context.Context, terms []string, most int32) (all []db.OrdersSearchRow, missing []string, err error) {
	for _, term := range terms {
		before := len(all)
		if isNumber(term) {
			if all, err = r.appendNumbered(ctx, all, term); err != nil {
				return nil, nil, err
			}
		}
		for i, typed := range []string{term, strings.ToLower(term), strings.ToUpper(term)} {
			if i > 0 && typed == term {
				continue
			}
			rows, err := Read(ctx, r, r.query.OrdersSearch, db.OrdersSearchParams{Term: typed, Most: most})
			if err != nil {
				return nil, nil, err
			}
			if all = append(all, rows...); len(rows) > 0 {
				break
			}
		}
		known := func(row db.OrdersSearchRow) bool {
			return len(terms) > 1 || !isNumber(term) || row.Matched == MatchedID
		}
		if !slices.ContainsFunc(all[before:], known) {
			missing = append(missing, term)
		}
	}
	return all, missing, nil
}

// appendNumbered appends the order whose id is that of the newest order with another number at its end. No index has the ends of ids.
func (r *Reader) appendNumbered(ctx context.Context, all []db.OrdersSearchRow, number string) ([]db.OrdersSearchRow, error) {
	newest, _, err := r.ListIDs(ctx, Filter{Limit: 1})
	if err != nil || len(newest) == 0 {
		return all, err
	}
	prefix := strings.TrimRight(newest[0], "0123456789")
	rows, err := Read(ctx, r, r.query.OrdersSearch, db.OrdersSearchParams{Term: prefix + number, Most: 1})
	for _, row := range rows {
		if row.Matched == MatchedID && prefix != "" {
			all = append(all, db.OrdersSearchRow{OrderNo: row.OrderNo, Matched: MatchedWord, Key: MatchedID})
		}
	}
	return all, err
}

// lookInside looks for orders with one of the missing terms inside, with all words of one inside the same value of metadata, or with
// this amount, the newest first. What it finds is not missing any more.
func (r *Reader) lookInside(ctx context.Context, p db.OrdersSearchPartsParams, found *Found) (rows []db.OrdersSearchRow, err error) {
	terms := found.Missing
	found.Missing = nil
	if found.Keys, err = pg.Repeat(ctx, r.life, r.query.SearchKeys); err != nil {
		return nil, err
	}
	p.Keys = found.Keys
	for at, term := range terms {
		if at >= mostInside || utf8.RuneCountInString(term) < partLeast {
			found.Missing = append(found.Missing, term)
			continue
		}
		if p.Term = term; p.Amount != "" && !isNumber(term) {
			p.Term, p.Keys = "", nil // no part of a name
		} else if p.Words = strings.FieldsFunc(likely.Replace(term), separates); len(p.Words) == 0 {
			p.Words = []string{likely.Replace(term)}
		}
		inside, err := Read(ctx, r, r.query.OrdersSearchParts, p)
		if err != nil {
			return nil, err
		}
		if found.Looked, found.Since = inside.Looked, inside.Since; inside.Looked == looksInside {
			found.Next = inside.Last
		}
		if len(inside.Found) == 0 {
			found.Missing = append(found.Missing, term)
		}
		for i, number := range inside.Found {
			row := db.OrdersSearchRow{OrderNo: number, Matched: MatchedPart, Key: inside.Places[i]}
			if row.Key == MatchedAmount {
				row.Matched, row.Key = MatchedAmount, ""
			}
			rows = append(rows, row)
		}
	}
	slices.SortStableFunc(rows, func(a, b db.OrdersSearchRow) int { return cmp.Compare(b.OrderNo, a.OrderNo) })
	return rows, nil
}

var anAmount = regexp.MustCompile(`^(?:\p{Sc}|([A-Za-z]{3}))? ?([0-9]{1,19}|[0-9]{1,3}(?:,[0-9]{3}){1,5})(?:\.([0-9]{1,4})|,([0-9]{1,2}))? ?(?:\p{Sc}|([A-Za-z]{3}))?$`)

// isNumber reports whether a term may be a part of a name, as well as an amount.
func isNumber(term string) bool { return strings.Trim(term, "0123456789") == "" }

// amountOf is the amount that a term may be, such as 417, 417,00, $1,417.00 or 417 EUR, and its currency, if it has the code
// of one; otherwise empty.
func amountOf(term string) (amount, currency string) {
	parts := anAmount.FindStringSubmatch(term)
	if parts == nil {
		return "", ""
	}
	currency = strings.ToUpper(parts[1] + parts[5])
	sum, err := decimal.Parse(strings.ReplaceAll(parts[2], ",", "") + "." + cmp.Or(parts[3], parts[4], "0"))
	if err != nil || sum.Cmp(largest) > 0 || currency != "" && !iso4217.Known(currency) {
		return "", ""
	}
	return sum.String(), currency
}
