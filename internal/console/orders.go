package console

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"pawl/client"
)

// ordersPage is the screen of orders.
type ordersPage struct {
	Search string
	Notes  []string
	Views  []view
	Orders []client.Order
	First  int     // which of the orders that were found comes first on this page, from 1
	Next   string  // where the next page is
	Verbs  []*verb // for those that are chosen
	Help   [][2]string
}

// view is a search that many people need.
type view struct{ Name, Search string }

var views = []view{
	{Name: "All"},
	{Name: "Open", Search: "status:open"},
	{Name: "Held for a person", Search: "hold:attention sort:oldest"},
	{Name: "To approve", Search: "hold:approval sort:oldest"},
	{Name: "Tried again", Search: "hold:retry"},
	{Name: "Failed today", Search: "status:failed from:today"},
	{Name: "Failed this week", Search: "status:failed from:7d"},
	{Name: "Canceled this week", Search: "status:canceled from:7d"},
}

// searchHelp says what can be typed.
var searchHelp = [][2]string{
	{`status:failed,canceled`, "in one of these states; open: in any that is not the last"},
	{`hold:attention`, "that wait for it: attention, approval, retry, callback, queued, scheduled, paused"},
	{`reason:retries_exhausted`, "held with this reason, or with this before a colon in it"},
	{`item:widget`, "for the item"},
	{`customer:"ann smith"`, "of the customer; quotes keep blanks together"},
	{`amount:>100`, "also >=100, <100, 100..200, in whatever currency"},
	{`from:2026-11-01`, "created on that day or later; also a time, today, yesterday, 90m, 24h, 7d (UTC)"},
	{`to:2026-11-01`, "created on that day or earlier"},
	{`code:out_of_stock`, "failed, or being undone, with this code"},
	{`step:reserve`, "failed, or being undone, because of this step"},
	{`sort:oldest`, "the oldest first"},
	{`order-123`, "the order with this id; in quotes if it has a colon that could be meant otherwise; two quotes in there stand for one"},
}

const ordersOfPage = 50

// orders answers with a list, or leads to the order whose id was looked for.
func (v *visit) orders() error {
	s := parseSearch(v.query("q"), time.Now())
	if s.id != "" {
		found, err := v.findByID(s.id, v.query("q"))
		switch {
		case err != nil:
			return err
		case found != "":
			return v.redirect(orderURL(found))
		}
		s.note("There is no order %q.", s.id)
	}
	p := &ordersPage{Search: v.query("q"), Views: views, Help: searchHelp, First: max(1, number(v.query("first"))), Verbs: v.bulkVerbs()}
	if s.id == "" {
		if err := v.find(s, p); err != nil {
			return err
		}
	}
	p.Notes = s.notes
	return v.show("orders", page{Title: "Orders", Data: p})
}

// findByID returns the id of an order among those that a search can mean: what was typed may be an id as it is, with its quotes.
// Empty: there is none.
func (v *visit) findByID(ids ...string) (string, error) {
	for _, id := range slices.Compact(ids) {
		_, err := v.api.GetOrder(v.r.Context(), id, nil)
		if err == nil || !hasStatus(err, http.StatusNotFound) && refusedInput(err) == nil { // quotes may make an id too long
			return id, err
		}
	}
	return "", nil
}

// find reads a page of the orders that are looked for. What the API does not take becomes a note.
func (v *visit) find(s *search, p *ordersPage) error {
	filter := s.filter
	filter.Limit, filter.Cursor = ordersOfPage, v.query("cursor")
	list, err := v.api.ListOrders(v.r.Context(), &filter)
	if problem := refusedInput(err); problem != nil {
		for _, field := range problem.Errors {
			s.note("%s %s", field.Parameter, field.Detail)
		}
		return nil
	}
	if err != nil {
		return err
	}
	p.Orders = list.Orders
	if list.NextCursor != "" {
		first := strconv.Itoa(p.First + len(list.Orders))
		p.Next = address("/console/orders", url.Values{"q": {p.Search}, "cursor": {list.NextCursor}, "first": {first}})
	}
	return nil
}

// Range says which of the orders that were found are on the page. How many there are in all is not counted: that would take as
// long as there are orders.
func (p *ordersPage) Range() string {
	switch n := len(p.Orders); {
	case n == 0:
		return ""
	case n == 1 && p.First == 1 && p.Next == "":
		return "1 order"
	case p.First == 1 && p.Next == "":
		return fmt.Sprintf("%d orders", n)
	default:
		return fmt.Sprintf("Orders %d to %d", p.First, p.First+n-1)
	}
}
