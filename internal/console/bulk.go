package console

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"time"

	"pawl/client"
)

const bulkMost = 1000

// bulkPage requests a verb for many orders. Its form comes from links with a filter, from forms with IDs, and from
// itself.
type bulkPage struct {
	Verbs      []*verb // that the person may request
	Verb       *verb   // nil: not selected yet
	IDs        []string
	Body       client.BulkBody // without the IDs
	Fields     []field
	More       bool // a filter matches more orders than these
	Problem    *client.Problem
	Tried      bool                // there was a dry run
	Would, Not []client.BulkResult // orders with and without the verb, in a dry run
	Money      map[string]string   // what becomes of the money of each order in Would
	Every      bool                // the page has a row for each, not only for the first
	Begun      bool                // a part of the orders was done, but not those of IDs
	Away       []string            // what is known about providers that do not answer
	Back       string              // the URL of the page before
	Unticked   int                 // orders that earlier previews would have allowed
}

// bulk shows the form, then what would be done, then does it, and leads to the page of the request. A repeated form does
// nothing twice, because it keeps its request ID.
func (v *visit) bulk() error {
	if err := v.needs("applyBulkVerb"); err != nil {
		return err
	}
	if search := v.query("all"); search != "" { // all orders of a list, instead of the chosen ones
		return v.redirect(bulkURL(v.query("verb"), search))
	}
	if q := v.r.URL.Query(); q.Has("search") && !q.Has("id") {
		return v.redirect(address("/console/orders", url.Values{"q": {q.Get("search")}, "none": {"chosen"}}))
	}
	p, confirmed, err := v.readBulk()
	if err != nil {
		return err
	}
	var unexplained *client.Problem
	if confirmed && strings.TrimSpace(p.Body.Reason) == "" {
		confirmed, unexplained = false, newProblem(0, "Nothing was done yet.", "Say why: the reason is kept in the history of each order.")
	}
	if confirmed && v.ofAnother() {
		confirmed, unexplained = false, errOfAnother
	}
	switch {
	case len(p.IDs) > bulkMost:
		p.IDs = p.IDs[:bulkMost]
		p.Problem = newProblem(0, "At most 1,000 orders at a time.", "The first 1,000 of these are below. Come back for the others.")
	case p.Verb != nil && !reflect.ValueOf(p.Body.Filter).IsZero():
		if err := v.applyTo(p, p.Body, true); err != nil {
			return err
		}
		p.More = len(p.Would)+len(p.Not) == bulkMost
	case p.Verb != nil && len(p.IDs) > 0:
		err := v.askAll(p, !confirmed)
		if err == nil && confirmed {
			return v.redirect(requestURL(p.Body.RequestID, "") + fmt.Sprintf("&left=%d&unticked=%d", len(v.r.PostForm["refused"]), p.Unticked))
		}
		problem, _ := errors.AsType[*client.Problem](err)
		if p.Problem = problem; err != nil && (problem == nil || !p.Begun && refusedInput(err) == nil) {
			return err
		}
	}
	if p.Tried = p.Problem == nil && len(p.Would)+len(p.Not) > 0; p.Tried {
		would := make([]client.Order, len(p.Would))
		p.Money = map[string]string{}
		for i := range p.Would {
			would[i] = orderOf(&p.Would[i])
			p.Money[would[i].OrderID] = p.Verb.Many.money(&would[i])
		}
		if p.Away = v.failing(p.Verb, would...); p.Verb.Name == "refund" {
			p.Away = append(p.Away, v.disputed(would)...)
		}
	}
	if p.Problem == nil {
		p.Problem = unexplained
	}
	if p.Verb != nil {
		p.Fields = p.fields()
	}
	return v.show("bulk", page{Title: "Many orders", Data: p})
}

// Meaning is what the verb does to the orders.
func (p *bulkPage) Meaning() string {
	if p.Tried && len(p.Would) == 1 || !p.Tried && len(p.IDs) == 1 {
		return p.Verb.Meaning
	}
	return p.Verb.Many.Meaning
}

func requestURL(id, state string) string {
	query := url.Values{"id": {id}}
	if state != "" {
		query.Set("state", state)
	}
	return address("/console/bulk/request", query)
}

// requestPage shows how far the orders of a request are.
type requestPage struct {
	ID       string
	Page     *client.RequestPage
	Verb     *verb         // nil: none of the known ones
	States   []requestTile // that some of its orders are in
	Orders   int64
	Ended    int64  // orders that are done or failed
	Next     string // the URL of the next page
	Left     int    // how many orders the preview left out
	Unticked int    // and how many a person
}

// requestTile has the orders of a request that are in a state, and their amounts.
type requestTile struct {
	Name, Words, URL string
	one              string // instead of Words, if they differ for one order
	Orders           int64
	Amounts          []string
}

// requestStates are the states of the orders of a request, in the order of the page, and what people call them.
var requestStates = []requestTile{
	{Name: "done", Words: "done"}, {Name: "in_progress", Words: "under way"}, {Name: "waiting", Words: "waiting, continue by themselves", one: "waiting, continues by itself"},
	{Name: "held", Words: "held again, need a person", one: "held again, needs a person"}, {Name: "failed", Words: "failed"},
}

// totalsOf tells how far a request is.
func totalsOf(found *client.RequestPage) string { return fmt.Sprint(found.Totals) }

func (v *visit) showRequest() error {
	id, state := v.query("id"), v.query("state")
	found, err := v.api.GetRequest(v.r.Context(), id, client.GetRequestParams{State: client.GetRequestParamsState(state), Cursor: v.query("cursor")})
	if err != nil {
		return err
	}
	v.live = address("/console/live", url.Values{"request": {id}, "totals": {totalsOf(found)}})
	p := &requestPage{ID: id, Page: found, Next: v.nextPage(found.NextCursor), Left: number(v.query("left")), Unticked: number(v.query("unticked"))}
	if len(found.Results) > 0 {
		p.Verb = verbByName(verbs, found.Results[0].Verb)
	} else if len(found.Refused) > 0 {
		p.Verb = verbByName(verbs, found.Refused[0].Verb)
	}
	for _, tile := range requestStates {
		tile.URL = requestURL(id, tile.Name)
		for _, total := range found.Totals {
			if string(total.State) == tile.Name {
				tile.Orders += total.Orders
				tile.Amounts = append(tile.Amounts, count(total.Amount)+" "+total.Currency)
			}
		}
		if tile.Orders == 1 {
			tile.Words = cmp.Or(tile.one, tile.Words)
		}
		if p.Verb != nil && p.Verb.Many != nil {
			tile.Words += p.Verb.Many.means[tile.Name]
		}
		if p.Orders += tile.Orders; tile.Orders > 0 {
			p.States = append(p.States, tile)
		}
		if tile.Name == "done" || tile.Name == "failed" {
			p.Ended += tile.Orders
		}
	}
	return v.show("bulk_request", page{Title: "Request " + visible(id), Data: p})
}

// readBulk reads a form, or the filter of a link.
func (v *visit) readBulk() (p *bulkPage, confirmed bool, err error) {
	if err := v.r.ParseForm(); err != nil {
		return nil, false, newProblem(http.StatusRequestEntityTooLarge, "The form could not be read.", err.Error())
	}
	form, link := v.r.PostForm, v.r.Method == http.MethodGet
	if link {
		form = v.r.Form
	}
	get := form.Get
	confirmed = !link && get("confirm") != ""
	ids := slices.Clone(form["id"])
	if link && form.Has("search") && !strings.Contains(get("search"), "sort:oldest") {
		slices.Reverse(ids) // ticked in a list that has the newest first; the oldest are done first
	}
	for _, pasted := range form["ids"] {
		ids = append(ids, strings.ReplaceAll(pasted, ",", "\n"))
	}
	if !confirmed {
		ids = append(ids, form["refused"]...) // the next dry run may allow them
	}
	p = &bulkPage{
		Verbs: v.bulkVerbs(), Verb: verbByName(v.bulkVerbs(), get("verb")), IDs: pastedIDs(ids),
		Body: client.BulkBody{Reason: get("reason"), RequestID: get("requestId"), Policy: client.BulkBodyPolicy(get("policy"))},
		Back: cameFrom(v.r), Every: get("every") != "",
	}
	if p.Body.RequestID == "" {
		p.Body.RequestID = client.NewID()
	}
	if !link {
		p.Unticked = number(get("unticked")) + max(0, number(get("offered"))-len(form["id"]))
		if !confirmed && get("person") != "" && v.ofAnother() {
			p.Body.Reason = "" // somebody else typed it before their session ended
		}
		return p, confirmed, nil
	}
	return p, false, v.readSearch(p)
}

// cameFrom is the page of the console that led to a request, as its forms and the browser say.
func cameFrom(r *http.Request) string {
	if back := r.PostForm.Get("back"); strings.HasPrefix(back, "/console/") {
		return back
	}
	from, err := url.Parse(r.Referer())
	if err != nil || from.Host != r.Host || !strings.HasPrefix(from.Path, "/console/") || from.Path == r.URL.Path {
		return "/console/orders"
	}
	return from.RequestURI()
}

// pastedIDs returns the IDs in texts, one per line, without duplicates, and at most one more than a request can have: a
// form has room for a million.
func pastedIDs(texts []string) (ids []string) {
	seen := map[string]bool{}
	for _, text := range texts {
		for id := range strings.SplitSeq(text, "\n") {
			if id = strings.TrimSpace(id); id != "" && !seen[id] && len(ids) <= bulkMost {
				seen[id], ids = true, append(ids, id)
			}
		}
	}
	return ids
}

// maxPages limits a search for orders: a page may be short if few of many orders match.
const maxPages = 20

// collect returns the IDs of the orders that match a filter, as many as a request can have.
func (v *visit) collect(ctx context.Context, filter client.ListOrdersParams) (ids []string, more bool, err error) {
	for range maxPages {
		filter.Limit = min(bulkMost-len(ids), 200)
		found, err := v.api.ListOrders(ctx, filter)
		if err != nil {
			return nil, false, err
		}
		for i := range found.Orders {
			ids = append(ids, found.Orders[i].OrderID)
		}
		if filter.Cursor = found.NextCursor; filter.Cursor == "" || len(ids) == bulkMost {
			return ids, filter.Cursor != "", nil
		}
	}
	return ids, true, nil
}

// maxBulkIDs is how many bytes of IDs fit into a request of at most 64 KiB, besides reason and detail.
const maxBulkIDs = 40 << 10

// askAll requests the verb for all orders, in as many requests as their IDs need.
func (v *visit) askAll(p *bulkPage, dryRun bool) error {
	body := p.Body
	for rest := p.IDs; len(rest) > 0; {
		size, n := 0, 0
		for ; n < len(rest); n++ {
			text, _ := json.Marshal(rest[n]) //nolint:errchkjson // a string has no error
			if size += len(text) + 1; n > 0 && size > maxBulkIDs {
				break
			}
		}
		body.IDs, rest = rest[:n], rest[n:]
		if err := v.applyTo(p, body, dryRun); err != nil {
			p.IDs = slices.Concat(body.IDs, rest)
			return err
		}
		p.Begun = !dryRun
	}
	return nil
}

// applyTo requests the verb once.
func (v *visit) applyTo(p *bulkPage, body client.BulkBody, dryRun bool) error {
	if dryRun {
		body.Reason = "preview" // not stored; the form asks for the reason
	}
	out, err := v.api.ApplyBulkVerb(v.r.Context(), client.BulkVerb(p.Verb.Name), body, client.ApplyBulkVerbParams{DryRun: dryRun})
	if err != nil {
		return err
	}
	p.Would = slices.Grow(p.Would, len(out.Results))
	for _, r := range out.Results {
		if r.SoldOut.Item != "" {
			r.Detail, r.Applied = soldOut(&r), false
		}
		if r.Applied {
			p.Would = append(p.Would, r)
		} else {
			p.Not = append(p.Not, r)
		}
	}
	return nil
}

// soldOut says why a retry is of no use.
func soldOut(r *client.BulkResult) string {
	units, why := 0, "so it would fail"
	for _, l := range append(r.Lines, client.Line{Item: r.Item, Quantity: r.Quantity}) { // it has the one or the other
		if l.Item == r.SoldOut.Item {
			units += l.Quantity
		}
	}
	switch {
	case int64(units) <= r.SoldOut.Left:
		why = "and the orders before it take them"
	case r.Failure.Code == "out_of_stock":
		why += " again"
	}
	return fmt.Sprintf("too little in stock: %s has %s left, %s", visible(r.SoldOut.Item), count(r.SoldOut.Left), why)
}

// rowsAtFirst is how many orders a person reads before they decide about all.
const rowsAtFirst = 100

// Rows are the orders that the page has rows for.
func (p *bulkPage) Rows() []client.BulkResult {
	if p.Every {
		return p.Would
	}
	return p.Would[:min(len(p.Would), rowsAtFirst)]
}

// Others are included as well.
func (p *bulkPage) Others() []client.BulkResult { return p.Would[len(p.Rows()):] }

// Unseen are their fields of the form. A template takes 20 ms more for a thousand.
func (p *bulkPage) Unseen() template.HTML {
	var b strings.Builder
	for _, r := range p.Others() {
		fmt.Fprintf(&b, "<input type=\"hidden\" name=\"id\" value=\"%s\" data-amount=\"%s %s\" data-money=\"%s\">\n", template.HTMLEscapeString(r.OrderID),
			cmp.Or(r.Refund.Amount, r.Amount), r.Currency, template.HTMLEscapeString(p.Money[r.OrderID]))
	}
	return template.HTML(b.String())
}

// WhyNot has the first reasons to leave orders out.
func (p *bulkPage) WhyNot() (all []string) {
	const most = 5
	for _, r := range p.Not {
		if why := sentence(r.Detail); len(all) < most && !slices.Contains(all, why) {
			all = append(all, why)
		}
	}
	return all
}

// Short reports whether an order is left out because of its stock.
func (p *bulkPage) Short() bool {
	return slices.ContainsFunc(p.Not, func(r client.BulkResult) bool { return r.SoldOut.Item != "" })
}

// addTotals adds totals by currency.
func addTotals(sums, totals []client.CurrencyTotal) []client.CurrencyTotal {
	for _, more := range totals {
		i := slices.IndexFunc(sums, func(t client.CurrencyTotal) bool { return t.Currency == more.Currency })
		if i < 0 {
			sums = append(sums, more)
			continue
		}
		sums[i].Amount, sums[i].Orders = added(parsed(sums[i].Amount), parsed(more.Amount)).String(), sums[i].Orders+more.Orders
	}
	return sums
}

// fields are those of the verb. If it can be done to none of the orders, only another policy may change that.
func (p *bulkPage) fields() (all []field) {
	if !p.Tried || len(p.Would) > 0 {
		all = []field{{Name: "reason", Label: "Reason", Value: p.Body.Reason, Required: true, Help: "It is kept in the history of each order."}}
	}
	if p.Verb.Name == "retry" && (all != nil || !p.Short()) {
		policy := policyField
		policy.Value, policy.Looks = string(p.Body.Policy), true
		all = append(all, policy)
	}
	return all
}

// errFilter is the error of a link with an unknown filter, which must not mean all orders.
var errFilter = newProblem(http.StatusUnprocessableEntity, "The link does not say which orders it is about.",
	"Its filter is unknown, or it has none.")

// readSearch reads the search of a link, if it has one. The dry run of a verb finds its orders by itself, the oldest first, but
// not those of a search with other conditions than a bulk request can have, such as a term.
func (v *visit) readSearch(p *bulkPage) error {
	link := v.r.URL.Query()
	searches := link["q"]
	if len(searches) == 0 {
		for name := range link {
			if !slices.Contains([]string{"verb", "id", "ids", "search"}, name) {
				return errFilter
			}
		}
		return nil
	}
	found := parseSearch(searches[0], time.Now())
	if len(searches) > 1 || len(found.notes) > 0 || reflect.ValueOf(found.filter).IsZero() {
		return errFilter
	}
	conditions, err := json.Marshal(found.filter)
	if err != nil {
		return err
	}
	read := json.NewDecoder(bytes.NewReader(conditions))
	if read.DisallowUnknownFields(); p.Verb != nil && read.Decode(&p.Body.Filter) == nil {
		return nil
	}
	p.Body.Filter = client.BulkFilter{}
	p.IDs, p.More, err = v.collect(v.r.Context(), found.filter)
	if found.filter.Sort != client.ListOrdersParamsSortOldest {
		slices.Reverse(p.IDs)
	}
	return err
}
