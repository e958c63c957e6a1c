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

// bulkMost is how many orders one bulk request can be about.
const bulkMost = 1000

// bulkForm is what a person asks of many orders. It comes from links with a filter, from forms with ids, and from itself.
type bulkForm struct {
	Verb    *verb // nil: not chosen yet
	IDs     []string
	Body    client.BulkBody // all but the ids
	Confirm bool            // what a dry run said was seen
}

// bulkPage is what the screen shows: a form to choose with, or what a dry run says.
type bulkPage struct {
	bulkForm
	Verbs      []*verb // that the person may ask for
	Fields     []field
	More       bool // a filter has more orders than these
	Problem    *client.Problem
	Would, Not []client.BulkResult // the orders it would be done to, and the others; on the page of what came of it, was done to
	Tried      bool                // there was a dry run
}

// bulk asks, shows what would be done, or does it. Its answer to what was done is a page of its own and not a redirect: a
// thousand results fit in no URL. To send the form again does nothing twice, because its request id is the same.
func (v *visit) bulk() error {
	verbs := v.bulkVerbs()
	switch {
	case len(verbs) > 0:
	case v.r.Method == http.MethodPost:
		return errForbidden
	default: // it says what it takes
		return v.show("bulk", page{Title: "Many orders", Data: &bulkPage{}})
	}
	form, more, err := v.readBulk()
	if err != nil {
		return err
	}
	p := &bulkPage{bulkForm: form, More: more, Verbs: verbs}
	switch {
	case len(form.IDs) > bulkMost:
		p.IDs = form.IDs[:bulkMost]
		p.Problem = newProblem(0, "These are more than 1,000 orders, and 1,000 are the most at a time.", "The first 1,000 of them are below. Come again for the others.")
	case form.complete():
		err := v.askAll(p)
		if p.Problem = refusedInput(err); err != nil && p.Problem == nil {
			return err
		}
		if err == nil && form.Confirm {
			return v.show("bulk_results", page{Title: form.Verb.Label + ": what came of it", Data: p})
		}
		p.Tried = err == nil
	}
	if form.Verb != nil {
		p.Fields = form.Verb.fieldsOfMany(form.Body)
	}
	return v.show("bulk", page{Title: "Many orders", Data: p})
}

// complete reports whether it has all that a dry run needs.
func (f *bulkForm) complete() bool {
	b := &f.Body
	return f.Verb != nil && len(f.IDs) > 0 && (f.Confirm || f.Verb.Name != "step-result" || b.Step != "" && b.Outcome != "" && b.Reason != "")
}

// askAll asks the verb of all orders, in as many requests as their ids need. It is a dry run before the person has confirmed it.
func (v *visit) askAll(p *bulkPage) error {
	asked := p.Body
	for i, ids := range bodies(p.IDs) {
		asked.IDs = ids
		out, err := p.Verb.askMany(v.r.Context(), v.api, !p.Confirm, asked)
		if err != nil && (i == 0 || !p.Confirm) {
			return err
		}
		if err != nil { // some are done: the person has to hear of them
			for _, id := range ids {
				p.Not = append(p.Not, unanswered(id, err))
			}
			continue
		}
		for _, r := range out.Results {
			if r.Applied {
				p.Would = append(p.Would, r)
			} else {
				p.Not = append(p.Not, r)
			}
		}
	}
	return nil
}

// unanswered is the result of an order in a request that failed.
func unanswered(id string, err error) client.BulkResult {
	r := client.BulkResult{OrderID: id, Detail: err.Error()}
	if problem, ok := errors.AsType[*client.Problem](err); ok {
		r.Code, r.Detail = problem.Code, problem.Title+" "+problem.Detail
	}
	return r
}

// maxBulkIDs is how many bytes of ids fit into one request, whose body is 64 KiB at most, beside a reason and a detail.
const maxBulkIDs = 40 << 10

// bodies cuts ids into pieces that fit into a request.
func bodies(ids []string) (pieces [][]string) {
	size := 0
	for _, id := range ids {
		text, _ := json.Marshal(id) //nolint:errchkjson // a string has no error
		if size += len(text) + 1; len(pieces) == 0 || size > maxBulkIDs {
			pieces, size = append(pieces, nil), len(text)+1
		}
		last := &pieces[len(pieces)-1]
		*last = append(*last, id)
	}
	return pieces
}

// readBulk reads a form, or the filter of a link. More: the filter has more orders than were read.
func (v *visit) readBulk() (form bulkForm, more bool, err error) {
	if err := v.r.ParseForm(); err != nil {
		return form, false, newProblem(http.StatusRequestEntityTooLarge, "The form could not be read.", err.Error())
	}
	said := v.r.PostForm
	if v.r.Method == http.MethodGet {
		said = v.r.Form
	}
	get := said.Get
	ids := slices.Concat(said["id"], said["ids"])
	if get("confirm") == "" {
		ids = append(ids, said["refused"]...) // by the dry run before, which may say otherwise of what was chosen since
	}
	form = bulkForm{
		Verb: verbNamed(v.bulkVerbs(), get("verb")), IDs: pastedIDs(ids), Confirm: v.r.Method == http.MethodPost && get("confirm") != "",
		Body: client.BulkBody{
			Reason: get("reason"), RequestID: get("requestId"), Policy: client.BulkBodyPolicy(get("policy")),
			Step: client.BulkBodyStep(get("step")), Outcome: client.BulkBodyOutcome(get("outcome")), Code: get("code"), Detail: get("detail"),
		},
	}
	if form.Body.RequestID == "" {
		form.Body.RequestID = client.NewID()
	}
	if v.r.Method != http.MethodGet {
		return form, false, nil
	}
	filter, given, err := bulkFilter(v.r.URL.Query())
	if err == nil && given {
		form.IDs, more, err = v.collect(v.r.Context(), filter)
	}
	return form, more, err
}

// pastedIDs are the ids in texts, one in a line, each once. Where they are too many, it is one too many and no more: a form has room
// for a million.
func pastedIDs(texts []string) (ids []string) {
	seen := map[string]bool{}
	for _, text := range texts {
		for id := range strings.SplitSeq(text, "\n") {
			if id = strings.TrimSpace(id); id != "" && !seen[id] {
				seen[id] = true
				if ids = append(ids, id); len(ids) > bulkMost {
					return ids
				}
			}
		}
	}
	return ids
}

// maxPages bounds how long orders are looked for: a page may be short where few of many orders fit.
const maxPages = 20

// collect reads the ids of the orders of a filter, as many as one bulk request takes.
func (v *visit) collect(ctx context.Context, filter client.ListOrdersParams) (ids []string, more bool, err error) {
	for range maxPages {
		filter.Limit = min(bulkMost-len(ids), 200)
		found, err := v.api.ListOrders(ctx, &filter)
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

// askMany applies the verb to many orders.
func (a *verb) askMany(ctx context.Context, api *client.Client, dryRun bool, body client.BulkBody) (*client.BulkOutcome, error) {
	return api.ApplyBulkVerb(ctx, client.BulkVerb(a.Name), &client.ApplyBulkVerbParams{DryRun: dryRun}, body)
}

// fieldsOfMany are what a person can say beside the verb.
func (a *verb) fieldsOfMany(body client.BulkBody) (all []field) {
	settles := a.Name == "step-result"
	switch {
	case settles:
		all = []field{
			{Name: "step", Label: "Step", Type: "select", Options: []string{"", "charge", "reserve", "confirm"}, Value: string(body.Step), Required: true,
				Help: "The step that the orders do now, or undo."},
			{Name: "outcome", Label: "What became of it", Type: "select", Options: []string{"", "done", "refused", "not_done"}, Words: outcomeWords, Value: string(body.Outcome), Required: true,
				Help: "Of all these orders, at the provider. If it was refused, they fail."},
			{Name: "code", Label: notDoneCode, Help: notDoneHelp, Value: body.Code},
			{Name: "detail", Label: notDoneWhy, Value: body.Detail},
		}
	case a.Name == "retry":
		all = []field{{Name: "policy", Label: "Policy", Type: "select", Options: []string{"pinned", "active"}, Value: string(body.Policy), Words: policyWords}}
	}
	return append(all, field{Name: "reason", Label: "Reason", Value: body.Reason, Required: settles, Help: "Kept in the history of each order."})
}

// Asks reports whether what a dry run of many orders says depends on the fields.
func (a *verb) Asks() bool { return a.Name == "step-result" || a.Name == "retry" }

// errFilter is the error of a link that says less than was meant: all orders are never meant.
var errFilter = newProblem(http.StatusUnprocessableEntity, "The link does not say which orders are meant.", "It has a filter that nobody knows, or none.")

// bulkFilter reads the filter of a link: the parameters of listOrders, by their names. given: it chooses among the orders.
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
