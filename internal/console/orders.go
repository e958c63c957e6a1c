package console

import (
	"cmp"
	"errors"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"pawl/client"
	"pawl/fsm"
	"pawl/internal/spelling"
)

type ordersPage struct {
	Search  string
	Filter  client.ListOrdersParams // without the page
	Notes   []string
	Meant   string // the search that was probably meant, if a condition is wrong
	Also    string // the search by conditions that the words may be
	Views   []view
	Orders  []client.Order
	First   int    // the number of the first order on this page, from 1
	Next    string // the URL of the next page
	Looked  string // inside which orders a term was looked for
	Total   int64  // of all pages
	More    bool   // there may be more than Total
	Amounts []client.CurrencyTotal
	Totals  []client.MoneyTotal
	Since   *booksSince
	Verbs   []*verb // for selected orders
	Fits    string  // the first of them that all orders on the page allow; empty: none
	Help    [][2]string
	Chips   []view   // the search without one of its words, named by the word
	Sorted  string   // the search in the other order
	Term    string   // that was looked for; empty: a filter was used
	Keys    []string // of metadata, whose values terms find
	Without []view   // of an empty list: searches without one of its filters, named by it, that find orders
}

type view struct{ Name, Search string }

var views = []view{
	{Name: "All"},
	{Name: "Open", Search: "status:open"},
	{Name: "Needs a person", Search: "hold:attention sort:oldest"},
	{Name: "To approve", Search: "hold:approval sort:oldest"},
	{Name: "Retrying", Search: "hold:retry"},
	{Name: "Failed today", Search: "status:failed from:today"},
	{Name: "Failed this week", Search: "status:failed from:7d"},
	{Name: "Canceled this week", Search: "status:canceled from:7d"},
	{Name: "Refunds failed", Search: "step:refund"},
}

var searchHelp = [][2]string{
	{`pi_3P8xZq`, "an id, its beginning or the number at its end (#123), a customer, a provider's reference (of Stripe: pi_, re_ and dp_, and ch_ of a disputed charge) or a value of searchable " +
		"metadata. If no order has it, the newest orders that have it inside, or that have this amount (417, $417, 417 EUR). In quotes if it looks like a condition, with quotes doubled. Conditions beside it apply, too"},
	{`status:failed,canceled`, "in one of these states; open: not ended"},
	{`hold:attention`, "on hold: attention, approval, retry, callback, queued, scheduled or paused"},
	{`reason:retries_exhausted`, "on hold for this reason; the part before a colon is enough"},
	{`item:widget`, "for the item"},
	{`customer:"ann smith"`, "of the customer; use quotes for blanks"},
	{`amount:>100`, "also >=100, <100, 100..200, in any currency"},
	{`currency:USD`, "in this currency"},
	{`charged:yes`, "it was charged, also if that was undone"},
	{`refunded:yes`, "something of it was refunded, or its charge was undone"},
	{`authorized:yes`, "something of it is authorized, and neither captured nor voided"},
	{`voided:yes`, "something of its authorization was voided or has ended"},
	{`refund:open`, "a refund, capture or void is under way; done: the last refund is done"},
	{`dispute:open`, "the customer disputes the charge; also won, lost"},
	{`created:2026-11-01`, "created on that day (UTC); also today, yesterday"},
	{`from:2026-11-01`, "created on or after that day; also a time, today, yesterday, 90m, 24h, 7d (UTC)"},
	{`to:2026-11-01`, "created on or before that day"},
	{`route:eu`, "charged by this route"},
	{`code:out_of_stock`, "failed or being undone, with this code"},
	{`step:reserve`, "failed or being undone, because of this step; refund, capture, void: the last one has failed"},
	{`sort:oldest`, "oldest first"},
}

const ordersOfPage = 50

// orders shows a list, or redirects to the one order that was searched for.
func (v *visit) orders() error {
	s := parseSearch(v.query("q"), time.Now())
	p := &ordersPage{
		Search: v.query("q"), Filter: s.filter, Views: views, Help: searchHelp, First: max(1, number(v.query("first"))), Verbs: v.bulkVerbs(),
	}
	if p.Term = s.term; len(s.notes) == 0 {
		only, err := v.find(s, p)
		if err != nil {
			return err
		}
		if only != "" {
			return v.redirect(orderURL(only))
		}
	}
	if v.query("none") != "" && len(p.Orders) > 0 {
		s.note("Select orders in the list first.")
	}
	p.Notes = s.notes
	p.Since = v.sinceBooks(p)
	p.describe(s)
	p.Fits = v.fits(p.Orders)
	if p.Meant = s.meant; len(p.Orders) == 0 {
		if err := errors.Join(v.suggest(p), v.findWithout(p)); err != nil {
			return err
		}
	}
	return v.show("orders", page{Title: "Orders", Data: p})
}

// describe says how the list was filtered and sorted, and how else it can be.
func (p *ordersPage) describe(s *search) {
	var words []string
	for _, w := range wordsOf(p.Search) {
		words = append(words, w.typed)
	}
	for i := range words {
		if p.Term != "" && !slices.Contains(s.filters, words[i]) {
			continue
		}
		p.Chips = append(p.Chips, view{words[i], strings.Join(slices.Concat(words[:i], words[i+1:]), " ")})
	}
	sorts := func(word string) bool { return strings.HasPrefix(strings.ToLower(word), "sort:") }
	if p.Sorted = strings.Join(slices.DeleteFunc(words, sorts), " "); s.filter.Sort != client.ListOrdersParamsSortOldest {
		p.Sorted = strings.TrimSpace(p.Sorted + " sort:oldest")
	}
}

// mostWithout is how many filters of an empty list are tried without one of them.
const mostWithout = 5

// findWithout finds the filters that are the only reason for an empty list.
func (v *visit) findWithout(p *ordersPage) error {
	if p.Next != "" || len(wordsOf(p.Search)) < 2 || len(p.Chips) > mostWithout {
		return nil
	}
	for _, chip := range p.Chips {
		if strings.HasPrefix(chip.Name, "sort:") {
			continue
		}
		finds, err := v.finds(chip.Search)
		if err != nil {
			return err
		}
		if finds {
			p.Without = append(p.Without, chip)
		}
	}
	return nil
}

// finds reports whether a search finds an order.
func (v *visit) finds(search string) (bool, error) {
	s := parseSearch(search, time.Now())
	if len(s.notes) > 0 {
		return false, nil
	}
	s.filter.Limit = 1
	found, err := v.api.ListOrders(v.r.Context(), s.filter)
	some := err == nil && len(found.Orders) > 0
	if refusedInput(err) != nil {
		err = nil
	}
	return some, err
}

// mostWords is how many words of a search are tried as conditions.
const mostWords = 4

// suggest finds the search by conditions that the words may be.
func (v *visit) suggest(p *ordersPage) error {
	var meant []string
	words := wordsOf(p.Search)
	if p.Meant != "" || p.Term == "" || len(words) > mostWords {
		return nil
	}
	for _, w := range words {
		name, _, colon := strings.Cut(w.typed, ":")
		condition := w.typed
		if w.quoted || !colon || qualifiers[strings.ToLower(name)] == nil {
			var err error
			if condition, err = v.conditionOf(w.text); condition == "" || err != nil {
				return err
			}
		}
		meant = append(meant, condition)
	}
	search := strings.Join(meant, " ")
	finds, err := v.finds(search)
	if finds {
		p.Also = search
	}
	return err
}

// conditionOf is the condition that a word was probably meant as, or empty.
func (v *visit) conditionOf(word string) (condition string, err error) {
	low := strings.ToLower(word)
	for _, key := range []string{"status", "hold"} {
		if value := cmp.Or(otherWords[low], spelling.Meant(low, valuesOf[key])); value != "" && notOneOf(key, value) == "" {
			return key + ":" + value, nil
		}
	}
	switch {
	case low == "today" || low == "yesterday":
		return "created:" + low, nil
	case aCurrency.MatchString(word):
		return "currency:" + word, nil
	case anAmount.MatchString(strings.ReplaceAll(word, ",", ".")):
		return "amount:" + strings.ReplaceAll(word, ",", "."), nil
	}
	for _, key := range []string{"item", "customer", "code"} {
		if key == "code" && !strings.Contains(word, "_") {
			break // no index has codes, and nearly all have one
		}
		condition = key + ":" + word
		if strings.ContainsAny(word, "\" \t") {
			condition = key + ":" + quoted(word)
		}
		if finds, err := v.finds(condition); finds || err != nil {
			return condition, err
		}
	}
	return "", nil
}

// searched says how a list by a term was found.
func (p *ordersPage) searched(s *search, list *client.OrderPage, older bool) {
	p.Keys = list.MetadataKeys
	slices.SortStableFunc(p.Orders, func(a, b client.Order) int {
		if a.Matched.By == client.MatchByPart && b.Matched.By == client.MatchByPart {
			return slices.Compare(a.Matched.Keys, b.Matched.Keys)
		}
		return 0
	})
	if list.Looked > 0 {
		p.Looked = lookedInside(list, older)
	}
	if len(list.NotFound) > 0 {
		s.note("Not found: %s.", visible(strings.Join(list.NotFound, ", ")))
	}
	if key, value, ok := strings.Cut(s.term, ":"); ok && value != "" && len(p.Orders) == 0 {
		s.note("%q is not a condition of searches (see Search help). A value of metadata is found by itself: %s", key+":", value)
	}
	if strings.HasPrefix(s.term, "ch_") && len(p.Orders) == 0 {
		s.note("Of a charge at Stripe, orders have the payment intent (pi_…). The charge (ch_…) is found after a dispute of it.")
	}
}

// meansFirst reports whether a search can only mean its first order: the others merely have the term inside something, which
// may be anybody's.
func meansFirst(found *client.OrderPage) bool {
	if len(found.Orders) == 0 || len(found.NotFound) > 0 {
		return false
	}
	first, inside := found.Orders[0].Matched, func(o client.Order) bool { return o.Matched.By == client.MatchByPart }
	if first.By == client.MatchByWord {
		return slices.Contains(first.Keys, "orderId") && !slices.ContainsFunc(found.Orders[1:], func(o client.Order) bool { return !inside(o) })
	}
	return len(found.Orders) == 1 && found.NextCursor == "" && !inside(found.Orders[0])
}

// lookedInside says how far a search looked inside orders.
func lookedInside(found *client.OrderPage, older bool) string {
	switch back := found.LookedSince.UTC().Format("2 January 2006, 15:04 UTC"); {
	case found.More:
		return "Looked inside orders, the newest first."
	case found.NextCursor == "":
		return "Looked inside all orders."
	case older:
		return fmt.Sprintf("Looked inside %s older orders, back to %s.", count(found.Looked), back)
	default:
		return fmt.Sprintf("Looked inside the newest %s orders only, back to %s.", count(found.Looked), back)
	}
}

// howMatched says why an order was found.
func howMatched(o client.Order) string {
	places := strings.Join(o.Matched.Keys, ", ")
	if how := map[client.MatchBy]string{"word": "Found as a word of the ", "part": "Found inside the "}[o.Matched.By]; how != "" {
		var names []string
		for _, at := range o.Matched.Keys {
			place, key, _ := strings.Cut(at, ".")
			names = append(names, strings.TrimSpace(matchNames[place]+" "+key))
		}
		return how + strings.Join(names, " and the ")
	}
	return strings.TrimSpace("Found by " + matchNames[string(o.Matched.By)] + " " + places)
}

// matchNames are the titles of what a search matches.
var matchNames = map[string]string{
	"orderId": "id", "orderIdPrefix": "beginning of the id", "customerId": "customer", "chargeReference": "reference of the charge",
	"reservationReference": "reference of the reservation", "refundReference": "reference of a refund", "disputeReference": "reference of a dispute", "disputeCharge": "charge of a dispute",
	"voidReference": "reference of a void", "captureReference": "reference of a capture", "metadata": "metadata", "amount": "amount",
}

// findByID returns the first ID that an order has, or an empty one. An ID may look like a search, with quotes.
func (v *visit) findByID(ids ...string) (string, error) {
	for _, id := range slices.Compact(ids) {
		_, err := v.api.GetOrder(v.r.Context(), id)
		if err == nil || !hasStatus(err, http.StatusNotFound) && refusedInput(err) == nil {
			return id, err
		}
	}
	return "", nil
}

// find reads a page of matching orders. only is the ID of the order that has the term as its ID, or that is the only match.
// What the API rejects becomes a note.
func (v *visit) find(s *search, p *ordersPage) (only string, err error) {
	filter := s.filter
	if p.OfOperations() {
		p.Verbs = nil // the actions are about orders
	}
	filter.Limit, filter.Cursor, filter.Count = ordersOfPage, v.query("cursor"), true
	filter.Money = filter.Charged || filter.Refunded || filter.Authorized || filter.Voided || p.OfRefunds() || p.OfFailed() || filter.Dispute != "" || filter.Currency != ""
	alone := s.term != "" && filter.Cursor == "" && len(s.filters) == 0
	if alone {
		if only, err = v.findByID(s.term, p.Search); only != "" || err != nil {
			return only, err
		}
	}
	list, err := v.api.ListOrders(v.r.Context(), filter)
	if problem := refusedInput(err); problem != nil {
		for _, field := range problem.Errors {
			if field.Parameter != "term" { // nothing can have this name
				s.note("%s %s", field.Parameter, field.Detail)
			}
		}
		return "", nil
	}
	switch {
	case err != nil:
		return "", err
	case alone && meansFirst(list):
		return list.Orders[0].OrderID, nil
	}
	p.Orders, p.More, p.Total, p.Totals, p.Amounts = list.Orders, list.More, list.Total, list.Totals, list.Amounts
	if list.NextCursor != "" {
		first := strconv.Itoa(p.First + len(list.Orders))
		p.Next = address("/console/orders", url.Values{"q": {p.Search}, "cursor": {list.NextCursor}, "first": {first}})
	}
	if s.term != "" {
		p.searched(s, list, filter.Cursor != "")
	}
	if list.Looked > 0 {
		v.live = "" // what it costs to look inside orders is not for every change of one
	}
	return "", nil
}

// OfOperations reports whether the list is about open refunds, captures and voids, and OfRefunds about refunds that are done.
func (p *ordersPage) OfOperations() bool { return p.Filter.Refund == client.ListOrdersParamsRefundOpen }
func (p *ordersPage) OfRefunds() bool    { return p.Filter.Refund == client.ListOrdersParamsRefundDone }

// OfFailed reports whether the list is about refunds, captures or voids that failed.
func (p *ordersPage) OfFailed() bool {
	return p.Filter.FailureStep != "" && !slices.Contains(fsm.Steps(), fsm.Step(p.Filter.FailureStep))
}

// Operations are the refunds, captures and voids of an order that the list is about: the open ones, the refunds that are done, or
// those that failed.
func (p *ordersPage) Operations(o client.Order) []operation {
	return slices.DeleteFunc(operationsOf(&o), func(c operation) bool {
		return !(p.OfOperations() && c.Waits() || p.OfRefunds() && c.Kind == "refund" && c.State == client.CaptureStateDone ||
			c.Kind == string(p.Filter.FailureStep) && c.State == client.CaptureStateFailed)
	})
}

// Sum is that of orders on hold, or of the open operations if the page has all of them.
func (p *ordersPage) Sum() (sums []client.CurrencyTotal) {
	switch {
	case p.Filter.Hold != "" && !p.More && !p.OfOperations():
		return p.Amounts
	case !p.OfOperations() || p.Next != "" || p.First > 1:
		return nil
	}
	for _, o := range p.Orders {
		for _, c := range p.Operations(o) {
			sums = addTotals(sums, []client.CurrencyTotal{{Currency: o.Currency, Amount: c.Amount}})
		}
	}
	return sums
}

// Found says why an order is in the list of a term, if the one before it is there for something else.
func (p *ordersPage) Found(i int) string {
	if p.Term == "" || i > 0 && howMatched(p.Orders[i]) == howMatched(p.Orders[i-1]) {
		return ""
	}
	return howMatched(p.Orders[i])
}

// Range says which orders are on the page, and of how many.
func (p *ordersPage) Range() string {
	n := len(p.Orders)
	switch {
	case n == 0:
		return ""
	case p.First == 1 && (p.Next == "" || p.Looked != "" && !p.Full()):
		return times(n, "1 order", "orders")
	case p.Looked != "": // nobody counts these
		return fmt.Sprintf("Orders %s to %s", count(p.First), count(p.First+n-1)) + map[bool]string{true: ", and more"}[p.Next != ""]
	}
	return fmt.Sprintf("Orders %s to %s of %s", count(p.First), count(p.First+n-1), count(p.Total)) + map[bool]string{true: " or more"}[p.More]
}

// Full reports whether the page has no room for more orders.
func (p *ordersPage) Full() bool { return len(p.Orders) == ordersOfPage }

// OfBooks reports whether the list is one that a figure of the books leads to.
func (p ordersPage) OfBooks() bool { return strings.Contains(p.Search, "currency:") }

// OfFigure reports whether each of the orders has figures, as those of a figure of the books have.
func (p ordersPage) OfFigure() bool {
	return p.OfBooks() && !slices.ContainsFunc(p.Orders, func(o client.Order) bool { return o.Money.Kept == "" })
}

// whyHeld is the reason of a hold, in words.
func whyHeld(o client.Order) string {
	if o.Hold == client.OrderHoldAttention {
		return visible(reasonOf(o.Hold, o.HoldReason).Title)
	}
	return visible(codeInWords(o.HoldReason))
}

// nextOf says what an order on hold does by itself, and when; empty: nothing.
func nextOf(o client.Order) template.HTML {
	if o.ResumesAt.IsZero() {
		return ""
	}
	words := map[string]string{"retry": "next try %s", "callback": "Pawl asks %s", "scheduled": "starts %s",
		"approvalapprove": "approved %s unless rejected", "approvalcancel": "canceled %s unless approved"}[string(o.Hold)+string(o.ApprovalOnTimeout)]
	return markup(cmp.Or(words, "next %s"), due(o.ResumesAt))
}

// refundedOf says what became of a charge, besides what columns have; empty: it was not asked.
func refundedOf(o client.Order, columns bool) string {
	var parts []string
	refunded := map[bool]string{true: "undone", false: "refunded"}[o.Steps.Charge.Undone]
	for _, part := range [][2]string{{"authorized", o.Money.Authorized}, {"voided or ended", o.Money.Voided}, {refunded, cmp.Or(o.Money.Refunded, o.Refunded)},
		{"still to go back", goingBack(&o).String()}, {"in dispute", o.Money.Disputed}, {"lost", o.Money.Lost}} {
		if strings.Trim(part[1], "0.") != "" && !(columns && part[0] == refunded) {
			parts = append(parts, part[0]+" "+count(part[1]))
		}
	}
	if o.Money.Kept != "" && !columns {
		parts = append(parts, "kept "+count(o.Money.Kept))
	}
	return strings.Join(parts, ", ")
}
