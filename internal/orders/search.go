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
	Among  Filter // which orders; their order and cursor do not count
	Counts bool   // it asks for Total
}

// Found is a page of what a search finds.
type Found struct {
	Matches []Match
	Next    *Position // where the next page begins; nil: this is the last one
	More    bool      // more match than Total, or without it than those on this page

	Total   *int64   // of all pages, if it was asked for and all are found by an index
	Missing []string // the words of a term of several that no order has

	// If no index had the term, or one of its words:
	Keys   []string  // the metadata keys whose values were searched
	Looked int32     // how many orders were looked inside, the newest first
	Since  time.Time // when the oldest of them was created
}

// Position is where a page of a search begins. The zero value is the first page.
type Position struct {
	Words  bool   `json:",omitempty"` // the words of the term are looked for
	After  string `json:",omitempty"` // the last id that begins with the term; lastID: the page has other orders
	Before int64  `json:",omitempty"` // the number of the last order that an index has otherwise
	Inside int64  `json:",omitempty"` // the number of the last order that was looked inside
}

// The ids of orders are between these.
const (
	firstID = " "
	lastID  = "\U0010ffff"
)

// Search finds a page of the orders that have one term of up to 255 characters, which match a filter. First come those whose
// id begins with it, by id; then, newest first, those that have it as something else. If none has the term as it is, in lower
// or in upper case, Search looks inside the newest orders, or inside those before a position. A number also finds the order
// whose id is that of the newest one with this number at its end. If none has the term there, Search does the same with each
// of the words of a term that is no amount. Errors: ErrUnavailable.
func (r *Reader) Search(ctx context.Context, q Sought, at Position) (found Found, err error) {
	s := search{reader: r, ctx: ctx, filter: q.Among, at: at, counts: q.Counts, looks: q.Among.Limit}
	term, conditions := q.Term, q.Among
	conditions.Limit, conditions.Oldest, conditions.After = 0, false, 0
	if s.filtered = !reflect.ValueOf(conditions).IsZero(); s.filtered {
		s.looks = looksAtMost
	} else if q.Counts {
		s.looks = countAtMost
	}
	words := wordsOf(term)
	if s.amount, s.currency = amountOf(term); s.amount != "" {
		words = nil
	} else if number := strings.TrimPrefix(term, "#"); number != "" && isNumber(number) {
		term, words = number, nil // of an order, and no amount
	}
	if !at.Words {
		err = s.find([]string{term})
	}
	if err == nil && len(words) > 0 && len(s.rows) == 0 && (at.Words || at == Position{}) {
		s.found, s.at.Words = Found{}, true
		err = s.find(words)
	}
	if err == nil {
		err = s.page()
	}
	return s.found, Unavailable("search orders", err)
}

// search is a page of a search in the making.
type search struct {
	reader           *Reader
	ctx              context.Context
	filter           Filter
	filtered         bool // the filter has conditions
	at               Position
	counts           bool
	looks            int32 // how many orders are examined for the page
	amount, currency string

	terms   []string // as orders have them
	rows    []db.OrdersSearchRow
	earlier []db.OrdersSearchRow // some that are on earlier pages
	next    *Position            // where the rows go on
	found   Found
}

// find finds the rows of terms.
func (s *search) find(terms []string) (err error) {
	first := s.looks
	if !s.counts && s.at.After != "" {
		first = 0 // a row tells which terms no order has
	}
	s.terms = slices.Clone(terms)
	if s.rows, s.found.Missing, err = s.lookUp(s.terms, first+1); err != nil {
		return err
	}
	if s.counts && len(s.found.Missing) == 0 {
		of, more := s.rows[:min(len(s.rows), int(s.looks))], len(s.rows) > int(s.looks)
		numbers, err := s.matching(of)
		if err != nil {
			return err
		}
		s.found.Total, s.found.More = new(int64(len(numbers))), more
	}
	switch {
	case s.at.Inside != 0:
		s.rows, s.earlier = nil, s.rows
	case s.at.After != "":
		s.earlier = s.rows[:min(len(s.rows), 1)] // the one with a number at its end comes first
		if s.rows, err = s.indexed(s.terms, s.at, s.looks+1); err != nil {
			return err
		}
	}
	if len(s.rows) > int(s.looks) {
		s.rows = s.rows[:s.looks]
		s.more(&s.rows[s.looks-1])
	} else if len(s.found.Missing) > 0 {
		inside, err := s.lookInside()
		if err != nil {
			return err
		}
		if s.rows = append(s.rows, inside...); len(terms) == 1 && len(s.rows) > 0 {
			s.found.Missing = nil // the index had it
		}
	}
	return nil
}

// more says that there are others after a row.
func (s *search) more(row *db.OrdersSearchRow) {
	next := Position{Words: s.at.Words}
	switch {
	case row.Matched == MatchedPart || row.Matched == MatchedAmount:
		next.Inside = row.OrderNo
	case row.Matched == MatchedWord:
		next.After = firstID
	case row.OrderID != "":
		next.After = row.OrderID
	default:
		next.After, next.Before = lastID, row.OrderNo
	}
	s.next, s.found.More = &next, s.found.More || s.found.Total == nil
}

// matching are the numbers of the rows whose orders match the filter, each once.
func (s *search) matching(rows []db.OrdersSearchRow) (numbers []int64, err error) {
	seen := map[int64]bool{}
	for _, row := range rows {
		if !seen[row.OrderNo] {
			seen[row.OrderNo], numbers = true, append(numbers, row.OrderNo)
		}
	}
	if !s.filtered {
		return numbers, nil
	}
	q := s.filter.query(window{from: s.filter.CreatedFrom, to: s.filter.CreatedTo})
	if s.filter.CreatedTo.IsZero() {
		q.CreatedTo = never
	}
	q.By, q.Holds, q.OrderNos, q.Looks = "these", nil, numbers, int32(len(numbers))
	found, err := Read(s.ctx, s.reader, s.reader.query.OrdersFind, q)
	left := map[int64]bool{}
	for _, number := range found.Found {
		left[number] = true
	}
	return slices.DeleteFunc(numbers, func(number int64) bool { return !left[number] }), err
}

// page reads the orders of the rows.
func (s *search) page() error {
	numbers, err := s.matching(s.rows)
	if err != nil || len(numbers) == 0 {
		s.found.Next = s.next
		return err
	}
	how := map[int64][]db.OrdersSearchRow{}
	for _, row := range s.rows {
		how[row.OrderNo] = append(how[row.OrderNo], row)
	}
	if len(numbers) > int(s.filter.Limit) {
		numbers = numbers[:s.filter.Limit]
		s.more(&how[numbers[len(numbers)-1]][0])
	}
	page, cut, err := s.reader.readPage(s.ctx, numbers)
	if cut != 0 {
		s.more(&how[cut][0])
	}
	s.found.Next = s.next
	asWord := wordIn(s.terms)
	for _, order := range page {
		rows := how[order.OrderNo]
		begins := func(term string) bool { return strings.HasPrefix(order.OrderID, term) }
		same := func(row db.OrdersSearchRow) bool { return row.OrderNo == order.OrderNo }
		if rows[0].OrderID == "" && (slices.ContainsFunc(s.terms, begins) || slices.ContainsFunc(s.earlier, same)) {
			continue // an earlier page has it
		}
		s.found.Matches = append(s.found.Matches, matchOf(order, rows, asWord))
	}
	slices.SortStableFunc(s.found.Matches, func(a, b Match) int { return cmp.Compare(a.rank(), b.rank()) })
	return err
}

// matchOf is an order with what matched in it.
func matchOf(order Order, rows []db.OrdersSearchRow, asWord func(o *Order, key string) bool) Match {
	m := Match{Order: order, Matched: rows[0].Matched}
	for _, row := range rows {
		if row.Matched == m.Matched && row.Key != "" && m.Matched != MatchedAmount {
			m.Keys = append(m.Keys, strings.Split(row.Key, placeEnd)...)
		}
	}
	slices.Sort(m.Keys)
	m.Keys = slices.Compact(m.Keys)
	inside := func(key string) bool { return !asWord(&order, key) }
	if words := slices.DeleteFunc(slices.Clone(m.Keys), inside); m.Matched == MatchedPart && len(words) > 0 {
		m.Matched, m.Keys = MatchedWord, words
	}
	return m
}

// placeEnd separates the places where an order has a term.
const placeEnd = "\x1f"

// wordIn reports whether an order has one of the terms in a place, without a letter or digit beside it. An id ends with it.
func wordIn(terms []string) func(*Order, string) bool {
	var all []string
	for _, term := range terms {
		all = append(all, regexp.QuoteMeta(term))
	}
	word := `(?i)(^|[^\pL\pN])(` + strings.Join(all, "|") + ")$"
	atEnd, anywhere := regexp.MustCompile(word), regexp.MustCompile(strings.TrimSuffix(word, "$")+`($|[^\pL\pN])`)
	return func(o *Order, place string) bool {
		key, ofMetadata := strings.CutPrefix(place, MatchedMetadata+".")
		switch {
		case ofMetadata:
			values := map[string]string{}
			return json.Unmarshal(o.Metadata, &values) == nil && anywhere.MatchString(values[key])
		case place == MatchedCustomer:
			return o.CustomerID != nil && anywhere.MatchString(*o.CustomerID)
		}
		return place == MatchedID && atEnd.MatchString(o.OrderID)
	}
}

// rank is lower for what was more probably meant.
func (m *Match) rank() int {
	switch {
	case m.Matched == MatchedPart:
		return 2
	case m.Matched == MatchedAmount, m.Matched == MatchedWord && !slices.Contains(m.Keys, MatchedID):
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

// lookUp finds the orders that have one of the terms as it is, in lower or in upper case, which it then is. missing are the
// others, and a single number that is no id: other ids may end with it.
func (s *search) lookUp(terms []string, most int32) (all []db.OrdersSearchRow, missing []string, err error) {
	for i, term := range terms {
		before := len(all)
		if isNumber(term) {
			if all, err = s.appendNumbered(all, term); err != nil {
				return nil, nil, err
			}
		}
		for _, typed := range slices.Compact([]string{term, strings.ToLower(term), strings.ToUpper(term)}) {
			rows, err := s.indexed([]string{typed}, Position{}, most)
			if err != nil {
				return nil, nil, err
			}
			if all = append(all, rows...); len(rows) > 0 {
				terms[i] = typed
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
	sortRows(all)
	return all, missing, nil
}

// indexed finds the orders that have one of the terms as it is, from a position on.
func (s *search) indexed(terms []string, at Position, most int32) (all []db.OrdersSearchRow, err error) {
	p := db.OrdersSearchParams{AfterID: at.After, Before: cmp.Or(at.Before, math.MaxInt64), Most: most}
	for _, p.Term = range terms {
		rows, err := Read(s.ctx, s.reader, s.reader.query.OrdersSearch, p)
		if err != nil {
			return nil, err
		}
		all = append(all, rows...)
	}
	sortRows(all)
	return all, nil
}

// sortRows sorts what an index has: the order with a number at its end, then ids, then others, the newest first.
func sortRows(rows []db.OrdersSearchRow) {
	stage := func(row *db.OrdersSearchRow) int {
		switch {
		case row.Matched == MatchedWord:
			return 0
		case row.OrderID != "":
			return 1
		}
		return 2
	}
	slices.SortStableFunc(rows, func(a, b db.OrdersSearchRow) int {
		return cmp.Or(cmp.Compare(stage(&a), stage(&b)), cmp.Compare(a.OrderID, b.OrderID), cmp.Compare(b.OrderNo, a.OrderNo))
	})
}

// appendNumbered appends the order whose id is that of the newest order with another number at its end. No index has the ends of ids.
func (s *search) appendNumbered(all []db.OrdersSearchRow, number string) ([]db.OrdersSearchRow, error) {
	newest, _, err := s.reader.ListIDs(s.ctx, Filter{Limit: 1})
	if err != nil || len(newest) == 0 {
		return all, err
	}
	prefix := strings.TrimRight(newest[0], "0123456789")
	rows, err := s.indexed([]string{prefix + number}, Position{}, 1)
	for _, row := range rows {
		if row.Matched == MatchedID && prefix != "" {
			row.Matched, row.Key = MatchedWord, MatchedID
			all = append(all, row)
		}
	}
	return all, err
}

// lookInside looks for orders with one of the missing terms inside, with all words of one inside the same value of metadata,
// or with this amount, the newest first. What it finds is not missing any more.
func (s *search) lookInside() (rows []db.OrdersSearchRow, err error) {
	terms, found := s.found.Missing, &s.found
	found.Missing = nil
	if found.Keys, err = pg.Repeat(s.ctx, s.reader.life, s.reader.query.SearchKeys); err != nil {
		return nil, err
	}
	p := db.OrdersSearchPartsParams{Before: cmp.Or(s.at.Inside, math.MaxInt64), Looks: looksInside, Most: s.looks + 1,
		Amount: s.amount, Currency: s.currency, Keys: found.Keys}
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
		inside, err := Read(s.ctx, s.reader, s.reader.query.OrdersSearchParts, p)
		if err != nil {
			return nil, err
		}
		if found.Looked, found.Since = inside.Looked, inside.Since; inside.Looked == looksInside {
			s.next = &Position{Words: s.at.Words, Inside: inside.Last}
		}
		if len(inside.Found) == 0 {
			found.Missing = append(found.Missing, term)
		}
		for i, number := range inside.Found {
			row := db.OrdersSearchRow{OrderNo: number, Matched: MatchedPart, Key: inside.Places[i]}
			if strings.HasPrefix(row.Key, MatchedAmount) {
				row.Matched = MatchedAmount
			}
			rows = append(rows, row)
		}
	}
	sortRows(rows)
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
