package console

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
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
	Tried      bool                   // there was a dry run
	Would, Not []client.BulkResult    // orders with and without the verb, in a dry run or for real
	Totals     []client.CurrencyTotal // of Would, for each of the requests that its length takes
}

// bulk shows the form, then what would be done, then does it, and leads to the page of the request. If some orders were
// refused, the results are a page: no other knows them. A repeated form does nothing twice, because it keeps its request ID.
func (v *visit) bulk() error {
	if len(v.bulkVerbs()) == 0 {
		if v.r.Method == http.MethodPost {
			return errForbidden
		}
		return v.show("bulk", page{Title: "Many orders", Data: &bulkPage{}}) // says which roles are needed
	}
	p, confirmed, err := v.readBulk()
	if err != nil {
		return err
	}
	complete := confirmed || p.complete()
	switch {
	case len(p.IDs) > bulkMost:
		p.IDs = p.IDs[:bulkMost]
		p.Problem = newProblem(0, "At most 1,000 orders at a time.", "The first 1,000 of these are below. Come back for the others.")
	case p.Verb != nil && len(p.IDs) > 0 && complete:
		err := v.askAll(p, !confirmed)
		if p.Problem = refusedInput(err); err != nil && p.Problem == nil {
			return err
		}
		if err == nil && confirmed && len(p.Not) == 0 && v.may("getRequest") {
			return v.redirect(requestURL(p.Body.RequestID))
		}
		if err == nil && confirmed {
			return v.show("bulk_results", page{Title: p.Verb.Label + ": results", Data: p})
		}
		p.Tried = err == nil
	}
	if p.Verb != nil {
		p.Fields = p.Verb.bulkFields(p.Body)
	}
	return v.show("bulk", page{Title: "Many orders", Data: p})
}

// complete reports whether the form has what a dry run needs.
func (p *bulkPage) complete() bool {
	switch {
	case p.Verb == nil:
		return true
	case p.Verb.Name == "step-result":
		return p.Body.Step != "" && p.Body.Outcome != "" && p.Body.Reason != ""
	case p.Verb.Name == "refund":
		return p.Body.Reason != ""
	}
	return true
}

func requestURL(id string) string {
	return address("/console/bulk/request", url.Values{"id": {id}})
}

// requestPage shows how far the orders of a request are.
type requestPage struct {
	ID   string
	Page *client.RequestPage
	Next string // the URL of the next page
}

func (v *visit) showRequest() error {
	id := v.query("id")
	found, err := v.api.GetRequest(v.r.Context(), id, client.GetRequestParams{Cursor: v.query("cursor")})
	if err != nil {
		return err
	}
	return v.show("bulk_request", page{Title: "Request " + visible(id), Data: &requestPage{id, found, v.nextPage(found.NextCursor)}})
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
	ids := slices.Concat(form["id"], form["ids"])
	if !confirmed {
		ids = append(ids, form["refused"]...) // the next dry run may allow them
	}
	p = &bulkPage{
		Verbs: v.bulkVerbs(), Verb: verbByName(v.bulkVerbs(), get("verb")), IDs: pastedIDs(ids),
		Body: client.BulkBody{
			Reason: get("reason"), RequestID: get("requestId"), Policy: client.BulkBodyPolicy(get("policy")),
			Step: client.BulkBodyStep(get("step")), Outcome: client.BulkBodyOutcome(get("outcome")), Code: get("code"), Detail: get("detail"),
		},
	}
	if p.Body.RequestID == "" {
		p.Body.RequestID = client.NewID()
	}
	if !link {
		return p, confirmed, nil
	}
	filter, given, err := bulkFilter(v.r.URL.Query())
	if err == nil && given {
		p.IDs, p.More, err = v.collect(v.r.Context(), filter)
	}
	return p, false, err
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
		params := client.ApplyBulkVerbParams{DryRun: dryRun}
		out, err := v.api.ApplyBulkVerb(v.r.Context(), client.BulkVerb(p.Verb.Name), body, params)
		switch {
		case err == nil:
			p.Totals = append(p.Totals, out.Totals...)
			for _, r := range out.Results {
				if r.Applied {
					p.Would = append(p.Would, r)
				} else {
					p.Not = append(p.Not, r)
				}
			}
		case dryRun || len(p.Would)+len(p.Not) == 0:
			return err
		default: // the person must see that others are done
			for _, id := range body.IDs {
				p.Not = append(p.Not, unanswered(id, err))
			}
		}
	}
	return nil
}

func unanswered(id string, err error) client.BulkResult {
	r := client.BulkResult{OrderID: id, Detail: err.Error()}
	if problem, ok := errors.AsType[*client.Problem](err); ok {
		r.Code, r.Detail = problem.Code, problem.Title+" "+problem.Detail
	}
	return r
}

// bulkFields are the fields of a verb for many orders.
func (a *verb) bulkFields(body client.BulkBody) (all []field) {
	with := func(f field, value string) field {
		f.Value = value
		return f
	}
	switch a.Name {
	case "step-result":
		outcome := with(outcomeField, string(body.Outcome))
		outcome.Label, outcome.Help = "What happened to it", "For all these orders, at the provider. If it was refused, they fail."
		all = []field{
			{Name: "step", Label: "Step", Type: "select", Options: []string{"", "charge", "reserve", "confirm"}, Value: string(body.Step),
				Required: true, Help: "The step that the orders are at, or undo."},
			outcome, with(codeField, body.Code), with(detailField, body.Detail),
		}
	case "retry":
		all = []field{with(policyField, string(body.Policy))}
	}
	return append(all, field{Name: "reason", Label: "Reason", Value: body.Reason, Required: a.Name == "step-result" || a.Name == "refund",
		Help: "It is kept in the history of each order."})
}

// Asks reports whether a dry run depends on the fields.
func (a *verb) Asks() bool { return a.Name == "step-result" || a.Name == "retry" }

// errFilter is the error of a link with an unknown filter, which must not mean all orders.
var errFilter = newProblem(http.StatusUnprocessableEntity, "The link does not say which orders it is about.",
	"Its filter is unknown, or it has none.")

// bulkFilter reads the filter of a link, by the parameters of listOrders. given reports whether it selects orders.
func bulkFilter(q url.Values) (f client.ListOrdersParams, given bool, err error) {
	texts := map[string]*string{
		"customerId": &f.CustomerID, "item": &f.Item, "hold": (*string)(&f.Hold), "holdReason": &f.HoldReason,
		"failureStep": (*string)(&f.FailureStep), "failureCode": &f.FailureCode, "amountFrom": &f.AmountFrom, "amountTo": &f.AmountTo,
	}
	times := map[string]*time.Time{"createdFrom": &f.CreatedFrom, "createdTo": &f.CreatedTo}
	for name := range q {
		value := q.Get(name)
		switch {
		case name == "verb" || name == "id" || name == "ids":
			continue
		case name == "sort":
			f.Sort = client.ListOrdersParamsSort(value)
			continue
		case name == "status":
			for status := range strings.SplitSeq(value, ",") {
				f.Status = append(f.Status, client.Status(status))
			}
		case times[name] != nil:
			*times[name], err = time.Parse(time.RFC3339, value)
		case texts[name] != nil:
			*texts[name] = value
		default:
			return f, false, errFilter
		}
		if given = true; value == "" || err != nil {
			return f, false, errFilter
		}
	}
	if !given && f.Sort != "" {
		err = errFilter
	}
	return f, given, err
}
