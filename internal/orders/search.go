package orders

import (
	"cmp"
	"context"
	"encoding/json"
	"math"
	"reflect"
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
	Matched string   // how: one of those below
	Keys    []string // of the metadata; of a word or part: where it is
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

// Sought is what a search looks for.
type Sought struct {
	Term   string
	Among  Filter // which orders, newest first
	Counts bool   // it asks for Total
}

// Found is a page of what a search finds.
type Found struct {
	Matches []Match
	Next    *Position // where the next page begins; nil: this is the last one
	More    bool      // more match than Total, or without it than those on this page

	Total   *int64   // of all pages, if it was asked for and all are found by an index
	Missing []string // the terms that were not found

	// If no index had one of the terms:
	Keys   []string  // the metadata keys whose values were searched
	Looked int32     // how many orders were looked inside, the newest first
	Since  time.Time // when the oldest of them was created
}

// Position is where a page of a search begins. The zero value is the first page.
type Position struct {
	Words  bool   `json:",omitempty"` // the words of the term are looked for
	After  string `json:",omitempty"` // the last id on the page before, or what follows the ids
	Before int64  `json:",omitempty"` // then: the number of the last order
}

// What follows the ids, which sort before these.
const (
	afterIDs     = "\U0010ffff"        // the other orders that an index has
	afterIndexes = afterIDs + afterIDs // those that were looked inside
)

// before bounds the numbers of the orders that follow an id.
func (at Position) before(after string) int64 {
	if at.After == after {
		return at.Before
	}
	return math.MaxInt64
}

// Search finds a page of the orders that have a term of up to 255 characters, which match a filter. First come those whose id
// begins with it, by id; then, newest first, those that have it as something else. A number also finds the order whose id is
// that of the newest one with this number at its end. If no index has the term as it is, in lower or in upper case, or a number
// only so, Search looks inside the newest orders. If none has it there, Search does the same with the words of a term that is
// no amount. Errors: ErrUnavailable.
func (r *Reader) Search(ctx context.Context, q Sought, at Position) (found Found, err error) {
	s := search{Sought: q, reader: r, ctx: ctx, looks: countAtMost}
	conditions := q.Among
	conditions.Limit = 0
	if s.filtered = !reflect.ValueOf(conditions).IsZero(); s.filtered {
		s.looks = looksAtMost
	}
	term, words := q.Term, wordsOf(q.Term)
	s.amount, s.currency = amountOf(term)
	switch number := strings.TrimPrefix(term, "#"); {
	case aNumber.MatchString(number):
		term, words = number, nil
	case s.amount != "":
		words = nil
	}
	if !at.Words {
		found, err = s.page([]string{term}, at)
	}
	if at.Words || err == nil && at == (Position{}) && len(found.Missing) > 0 && len(words) > 0 {
		at.Words = true
		found, err = s.page(words, at)
	}
	return found, Unavailable("search orders", err)
}

// search is a search that is under way.
type search struct {
	Sought
	reader           *Reader
	ctx              context.Context
	filtered         bool  // Among has conditions
	looks            int32 // how many orders are examined for a page
	amount, currency string
}

// page finds a page of those that have one of the terms. What an index has is not shown again with what was looked inside.
func (s *search) page(terms []string, at Position) (found Found, err error) {
	first, err := s.indexed(terms, Position{})
	if err != nil {
		return found, err
	}
	unknown := slices.DeleteFunc(slices.Clone(terms), func(term string) bool { // others may end with a single number that is no id
		return len(first) > int(s.looks) || slices.ContainsFunc(first, func(row db.OrdersSearchRow) bool {
			return row.Term == term && (row.Matched == MatchedID || len(terms) > 1 || !aNumber.MatchString(term))
		})
	})
	if s.Counts && len(unknown) == 0 {
		numbers, err := s.matching(first[:min(len(first), int(s.looks))])
		if err != nil {
			return found, err
		}
		found.Total, found.More = new(int64(len(numbers))), len(first) > int(s.looks)
	}
	rows := slices.Clip(first)
	if at.After != "" {
		rows, err = s.indexed(terms, at)
	}
	if err == nil && len(unknown) > 0 {
		var inside []db.OrdersSearchRow
		inside, err = s.lookInside(unknown, at, &found)
		for _, row := range inside {
			row.Earlier = slices.ContainsFunc(first, func(known db.OrdersSearchRow) bool { return known.OrderNo == row.OrderNo })
			rows = append(rows, row)
		}
		first = append(first, inside...)
	}
	found.Missing = slices.DeleteFunc(unknown, func(term string) bool {
		return slices.ContainsFunc(first, func(row db.OrdersSearchRow) bool { return row.Term == term })
	})
	if err != nil {
		return found, err
	}
	return found, s.read(rows, at.Words, &found)
}

// indexed finds the orders that an index has with one of the terms, from a position on.
func (s *search) indexed(terms []string, at Position) ([]db.OrdersSearchRow, error) {
	p := db.OrdersSearchParams{Terms: terms, AfterID: at.After, Before: at.before(afterIDs), Most: s.looks + 1}
	return Read(s.ctx, s.reader, s.reader.query.OrdersSearch, p)
}

// matching are the numbers of the rows whose orders match the filter, each once.
func (s *search) matching(rows []db.OrdersSearchRow) (numbers []int64, err error) {
	for _, row := range rows {
		if !row.Earlier {
			numbers = append(numbers, row.OrderNo)
		}
	}
	numbers = slices.Compact(numbers)
	if !s.filtered || len(numbers) == 0 {
		return numbers, nil
	}
	q := s.Among.query(0, 0)
	q.By, q.Holds, q.OrderNos, q.Looks = "these", nil, numbers, int32(len(numbers))
	found, err := Read(s.ctx, s.reader, s.reader.query.OrdersFind, q)
	left := map[int64]bool{}
	for _, number := range found.Found {
		left[number] = true
	}
	return slices.DeleteFunc(numbers, func(number int64) bool { return !left[number] }), err
}

// read reads the orders of a page of rows.
func (s *search) read(rows []db.OrdersSearchRow, words bool, found *Found) error {
	how := map[int64][]db.OrdersSearchRow{}
	for _, row := range rows {
		how[row.OrderNo] = append(how[row.OrderNo], row)
	}
	more := func(after db.OrdersSearchRow) {
		found.Next = &Position{Words: words, After: after.OrderID, Before: after.OrderNo}
		found.More = found.More || found.Total == nil
	}
	if len(rows) > int(s.looks) {
		rows = rows[:s.looks]
		more(rows[s.looks-1])
	}
	numbers, err := s.matching(rows)
	if err != nil || len(numbers) == 0 {
		return err
	}
	if len(numbers) > int(s.Among.Limit) {
		numbers = numbers[:s.Among.Limit]
		more(how[numbers[s.Among.Limit-1]][0])
	}
	page, cut, err := s.reader.readPage(s.ctx, numbers)
	if cut != 0 {
		more(how[cut][0])
	}
	for _, order := range page {
		found.Matches = append(found.Matches, matchOf(order, how[order.OrderNo]))
	}
	slices.SortStableFunc(found.Matches, func(a, b Match) int { return a.rank() - b.rank() })
	return err
}

// rank is lower for what was more probably meant: an id with the word at its end comes first, and a part of something last.
func (m *Match) rank() int {
	switch {
	case m.Matched == MatchedPart:
		return 2
	case m.Matched == MatchedWord && slices.Contains(m.Keys, MatchedID):
		return 0
	}
	return 1
}

// matchOf is an order with what matched in it: if a part of something is a word of it, only that.
func matchOf(order Order, rows []db.OrdersSearchRow) Match {
	m := Match{Order: order, Matched: rows[0].Matched}
	var words []string
	for _, row := range rows {
		if row.Matched != m.Matched {
			continue
		}
		for _, place := range strings.FieldsFunc(row.Key, func(r rune) bool { return r == placeEnd }) {
			if m.Keys = append(m.Keys, place); m.Matched == MatchedPart && isWord(&order, place, row.Term) {
				words = append(words, place)
			}
		}
	}
	if len(words) > 0 {
		m.Matched, m.Keys = MatchedWord, words
	}
	slices.Sort(m.Keys)
	m.Keys = slices.Compact(m.Keys)
	return m
}

// placeEnd separates the places where an order has a term.
const placeEnd = '\x1f'

// isWord reports whether an order has a term in a place without a letter or digit beside it, of an id at its end.
func isWord(o *Order, place, term string) bool {
	text, end := "", `(?:[^\pL\pN]|$)`
	switch key, ofMetadata := strings.CutPrefix(place, MatchedMetadata+"."); {
	case ofMetadata:
		values := map[string]string{}
		_ = json.Unmarshal(o.Metadata, &values) // our own column
		text = values[key]
	case place == MatchedCustomer && o.CustomerID != nil:
		text = *o.CustomerID
	case place == MatchedID:
		text, end = o.OrderID, "$"
	}
	return regexp.MustCompile(`(?i)(?:^|[^\pL\pN])` + regexp.QuoteMeta(term) + end).MatchString(text)
}

// mostInside is the number of words that a search looks for inside orders, which costs more than what an index has.
const mostInside = 4

// wordsOf are the words of a term such as "Order #49456, 49457." that may be ids: those with a digit and as long as a part,
// or else the whole, without the punctuation around them. None is left of a term that is so already.
func wordsOf(term string) (words []string) {
	bare := func(text string) string {
		return strings.TrimFunc(text, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) })
	}
	for word := range strings.FieldsFuncSeq(term, separates) {
		word = bare(word)
		if strings.ContainsFunc(word, unicode.IsDigit) && utf8.RuneCountInString(word) >= partLeast {
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

// lookInside looks for orders with one of the terms inside, with all words of one inside the same value of metadata, or with
// this amount, the newest first.
func (s *search) lookInside(terms []string, at Position, found *Found) (rows []db.OrdersSearchRow, err error) {
	if found.Keys, err = pg.Repeat(s.ctx, s.reader.life, s.reader.query.SearchKeys); err != nil {
		return nil, err
	}
	p := db.OrdersSearchPartsParams{Before: at.before(afterIndexes), Looks: looksInside, Most: s.looks + 1,
		Amount: s.amount, Currency: s.currency, Keys: found.Keys}
	for _, term := range terms[:min(len(terms), mostInside)] {
		if utf8.RuneCountInString(term) < partLeast {
			continue
		}
		if p.Amount == "" || aNumber.MatchString(term) { // else no part of a name
			p.Term, p.Words = term, strings.FieldsFunc(likely.Replace(term), separates)
		}
		inside, err := Read(s.ctx, s.reader, s.reader.query.OrdersSearchParts, p)
		if err != nil {
			return nil, err
		}
		if found.Looked, found.Since = inside.Looked, inside.Since; inside.Looked == looksInside {
			found.Next = &Position{Words: at.Words, After: afterIndexes, Before: inside.Last}
		}
		for i, number := range inside.Found {
			row := db.OrdersSearchRow{Term: term, OrderNo: number, Matched: MatchedPart, Key: inside.Places[i], OrderID: afterIndexes}
			if strings.HasPrefix(row.Key, MatchedAmount) {
				row.Matched, row.Key = MatchedAmount, ""
			}
			rows = append(rows, row)
		}
	}
	slices.SortStableFunc(rows, func(a, b db.OrdersSearchRow) int { return cmp.Compare(b.OrderNo, a.OrderNo) })
	return rows, nil
}

var anAmount = regexp.MustCompile(`^(?:\p{Sc}|([A-Za-z]{3}))? ?([0-9]{1,19}|[0-9]{1,3}(?:,[0-9]{3}){1,5})(?:\.([0-9]{1,4})|,([0-9]{1,2}))? ?(?:\p{Sc}|([A-Za-z]{3}))?$`)

// aNumber is a term that may be the end of an id, or a part of a name, as well as an amount.
var aNumber = regexp.MustCompile(`^[0-9]+$`)

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
