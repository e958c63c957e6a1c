package console

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"pawl/client"
	"pawl/fsm"
)

type errorsPage struct {
	Groups []errorGroup
	More   bool
	Open   []wrong // refunds, captures and voids that wait
}

// errorGroup has the errors about which a person does the same: orders that wait for a provider, those that need a person
// for the same reason, or those that failed with the same code, each at all steps.
type errorGroup struct {
	key     string
	Title   string
	Code    string    // what a provider answers
	Failing time.Time // since when the provider has failed; zero: it does not
	Failed  time.Time // when the last call to it did
	Section string    // of the runbook; may be empty
	Rows    []errorRow
	Actions []errorAction
	Waits   bool     // they go on by themselves
	Short   []string // why a retry of some of them would fail, or what to do instead

	Orders, Trying int64
	More           bool
	Totals         []client.CurrencyTotal
	First, Last    time.Time
	NeedsPersonAt  time.Time // as of an incident
}

type errorRow struct {
	client.ErrorGroup
	List string // the URL of its orders
	Away string // which provider that a retry needs does not answer
}

// errorAction retries orders of a group with the same code, for which the same is known of their provider.
type errorAction struct {
	Label, URL string
	Away       string
	One        string // the URL that retries one of them first; empty: nothing is known against all
}

// errorGroups shows what a person can act on: providers first, then the group with the newest error.
func (v *visit) errorGroups() error {
	p, err := v.groupedErrors()
	if err != nil {
		return err
	}
	for i := range p.Groups {
		of := &p.Groups[i]
		if v.may("retryOrder") {
			of.Actions = retriesOf(of.Rows)
		}
		if of.key == "code "+outOfStock && of.Actions != nil {
			if err := v.lookAtStock(of); err != nil {
				return err
			}
		}
	}
	return v.show("errors", page{Title: "Errors", Data: p})
}

// lookAtStock finds which of the newest orders of a group would find too little again. Only the others can be retried.
func (v *visit) lookAtStock(of *errorGroup) error {
	p := &bulkPage{Verb: verbByName(verbs, "retry")}
	body := client.BulkBody{RequestID: client.NewID(), Filter: client.BulkFilter{
		Status: []client.Status{client.StatusFailed}, FailureCode: outOfStock, Limit: mostLookedAt}}
	err := v.applyTo(p, body, true)
	of.Short = p.WhyNot()
	switch all := of.Orders <= mostLookedAt && !of.More; {
	case all && len(p.Would) == 0:
		of.Actions = nil
	case all && of.Short != nil:
		of.Actions[0].Label = fmt.Sprintf("Try %d of them again from the start, with a new charge", len(p.Would))
	}
	return err
}

// mostLookedAt bounds what a page costs.
const mostLookedAt = 100

// groupedErrors says nothing of hosts to a person who may not read the overview.
func (v *visit) groupedErrors() (p errorsPage, err error) {
	found, err := v.api.ListErrorGroups(v.r.Context())
	if err != nil {
		return p, err
	}
	overview := &client.Overview{}
	if v.may("getOverview") {
		if known, err := v.api.GetOverview(v.r.Context()); err == nil { // the errors are worth more than their hosts
			overview = known
		}
	}
	for _, i := range overview.Incidents {
		switch {
		case i.Kind == client.IncidentKindOperationsWaiting:
			p.Open = append(p.Open, wrongOf(i, v.may))
		case i.Kind == client.IncidentKindProviderFailing && i.Orders == 0: // the overview names it, too
			found.Groups = append(found.Groups, client.ErrorGroup{Hold: client.ErrorGroupHoldRetry, Step: client.ErrorGroupStep(i.Step), Route: i.Route})
		}
	}
	for _, g := range found.Groups {
		group := groupOf(overview, &g)
		at := slices.IndexFunc(p.Groups, func(other errorGroup) bool { return other.key == group.key })
		if at < 0 {
			at = len(p.Groups)
			if group.Waits && group.Failing.IsZero() {
				group.Code = v.lastAnswer(&g)
			}
			p.Groups = append(p.Groups, group)
		}
		p.Groups[at].add(overview, g)
	}
	slices.SortStableFunc(p.Groups, func(a, b errorGroup) int { return falseFirst(!a.Waits, !b.Waits) })
	p.More = found.More
	return p, nil
}

// lastAnswer is the last answer to a try of the newest order of a group; empty: it is not known.
func (v *visit) lastAnswer(g *client.ErrorGroup) string {
	const most = 10 // with look-ups
	list, err := v.api.ListCalls(v.r.Context(), g.Example.OrderID, client.ListCallsParams{Sort: "newest", Limit: most})
	if err != nil { // the page is worth more
		return ""
	}
	if i := slices.IndexFunc(list.Calls, func(c client.Call) bool {
		return string(c.Step) == string(g.Step) && c.Operation != client.CallOperationLookup && c.Outcome != ""
	}); i >= 0 {
		return answerTo(&list.Calls[i])
	}
	return ""
}

// providerOf is the provider of retried orders, as the overview names it, without the orders.
func providerOf(found *client.Overview, g *client.ErrorGroup) errorGroup {
	var hosts []string
	for _, s := range found.ProviderSteps {
		if string(s.Step) == string(g.Step) && s.Route == g.Route && s.Host != "" && !slices.Contains(hosts, s.Host) {
			hosts = append(hosts, s.Host)
		}
	}
	of := errorGroup{Title: strings.Join(hosts, ", "), Section: "a-provider-is-away", Waits: true}
	for _, i := range found.Incidents {
		if i.Kind == client.IncidentKindProviderFailing && string(i.Step) == string(g.Step) && i.Route == g.Route {
			of.Title, of.Code, of.Failing, of.Failed, of.NeedsPersonAt = cmp.Or(i.Host, of.Title), i.Detail, i.Since, i.FailedAt, i.NeedsPersonAt
		}
	}
	of.Title = cmp.Or(of.Title, "The provider of "+string(g.Step))
	of.key = "provider " + of.Title
	return of
}

// groupOf is the group of an error, without its orders.
func groupOf(found *client.Overview, g *client.ErrorGroup) errorGroup {
	switch why := reasonOf(client.OrderHold(g.Hold), g.Code); g.Hold {
	case client.ErrorGroupHoldRetry:
		return providerOf(found, g)
	case client.ErrorGroupHoldAttention:
		_, detail, _ := strings.Cut(g.Code, ": ")
		return errorGroup{key: "reason " + g.Code, Title: strings.TrimSuffix(why.Title+": "+visible(codeInWords(detail)), ": "), Section: why.Section}
	}
	if g.Status == client.StatusCompleted {
		failed := "Failed " + string(g.Step) + "s: " + visible(codeInWords(g.Code))
		return errorGroup{key: failed, Title: failed, Short: []string{cmp.Or(afterFailure[string(g.Step)+" "+g.Code], afterFailure[string(g.Step)])}}
	}
	return errorGroup{key: "code " + g.Code, Title: "Failed: " + cmp.Or(visible(codeInWords(g.Code)), "without a code"), Section: "pawlordersfail"}
}

// afterFailure is what to do after a failed operation, also by its code.
var afterFailure = map[string]string{
	"capture": "Nothing was taken by them. Once the cause is gone, request another capture on the order's page.",
	"refund":  "The money did not go back. Once the cause is gone, request another refund on the order's page, or pay it back by hand.",
	"void":    "The authorization was not given up. It ends by itself.",

	"capture authorization_expired": "Nothing was taken by them. The authorization has ended: ask the customer for a new order.",
}

func (of *errorGroup) add(found *client.Overview, g client.ErrorGroup) {
	one, retry := client.Order{Status: g.Status, Route: g.Route}, verbByName(verbs, "retry")
	several := []client.Order{one, one} // with the advice for them
	away := slices.Concat(failingAt(found, retry, several), failedUndos(found, retry, several))
	of.Rows = append(of.Rows, errorRow{g, ordersURL(searchOf(&g)), strings.Join(away, " ")})
	of.Orders, of.Trying, of.More = of.Orders+g.Orders, of.Trying+g.Trying, of.More || g.More
	of.Totals = addTotals(of.Totals, g.Totals)
	of.First = earlier(of.First, g.FirstAt)
	if g.LastAt.After(of.Last) {
		of.Last = g.LastAt
	}
}

// Steps are the steps of the group, in the order of the machine.
func (of *errorGroup) Steps() string {
	var steps []string
	for _, step := range fsm.Steps() {
		for _, r := range of.Rows {
			if string(r.Step) == string(step) && !slices.Contains(steps, r.At()) {
				steps = append(steps, r.At())
			}
		}
	}
	return strings.Join(steps, ", ")
}

// At names the step, or its undo.
func (r errorRow) At() string {
	switch {
	case fsm.State(r.Status).Undoing():
		return theStep[r.Status]
	case r.Step == client.ErrorGroupStepCharge && r.Code == outOfStock:
		return "the stock check before the charge"
	}
	return string(r.Step)
}

// retriesOf are the retries that may help: one for all orders of which the same is known, with the same code. Orders that are
// retried go on by themselves.
func retriesOf(rows []errorRow) (all []errorAction) {
	for _, row := range rows {
		if row.Code == "" || row.Hold == client.ErrorGroupHoldRetry || !retryHelps(&row.ErrorGroup) {
			continue
		}
		var same []errorRow
		also := "" // what the search for them says, to leave out others
		for _, r := range rows {
			switch {
			case r.Hold != row.Hold || r.Code != row.Code:
			case r.Away == row.Away && r.Route == row.Route && retryHelps(&r.ErrorGroup):
				same = append(same, r)
			case r.Status == row.Status:
				also = map[bool]string{true: " step:" + string(row.Step), false: " route:" + quoted(row.Route)}[row.Hold == ""]
			}
		}
		if also != "" {
			same = slices.DeleteFunc(same, func(r errorRow) bool { return r.Step != row.Step })
		}
		if action := retryOf(same, also); !slices.Contains(all, action) {
			all = append(all, action)
		}
	}
	return all
}

// retryOf is the retry of orders of which the same is known, with the same code. also is a part of the search for them.
func retryOf(rows []errorRow, also string) (action errorAction) {
	of, statuses, first := errorGroup{Rows: rows}, []string{}, rows[0]
	for _, r := range rows {
		of.Orders, of.More, statuses = of.Orders+r.Orders, of.More || r.More, append(statuses, string(r.Status))
	}
	number := atLeast(of.Orders, of.More) + plural(of.Orders, " order", " orders")
	if of.Orders > bulkMost {
		number = "the newest " + count(bulkMost) + " of " + number
	}
	if action.Away = strings.TrimSuffix(first.Away, oneFirst); of.Orders > 1 && action.Away != first.Away {
		action.Away, action.One = first.Away, actionURL("retry", first.Example.OrderID)
	}
	slices.Sort(statuses)
	search := "status:" + strings.Join(slices.Compact(statuses), ",")
	if first.Hold == "" {
		action.Label, search = "Try "+number+" again from the start, with a new charge", search+also+" code:"+quoted(first.Code)
	} else {
		action.Label = "Retry " + number + " at " + strings.TrimSuffix(of.Steps()+" by "+first.Route, " by ")
		search += also + " hold:" + string(first.Hold) + " reason:" + quoted(first.Code)
	}
	action.URL = bulkURL("retry", search)
	return action
}

func plural(n int64, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}

// Label is the link to the orders.
func (r errorRow) Label() string {
	return "List the " + plural(r.Orders, "order", atLeast(r.Orders, r.More)+" orders")
}

// Declined reports whether the charge was refused by the provider: the same card is probably refused again.
func (of *errorGroup) Declined() bool {
	return slices.ContainsFunc(of.Rows, func(r errorRow) bool { return r.Hold == "" && declined(client.FailureStep(r.Step), r.Code) })
}

// declined reports whether the provider refused the charge. An item that is sold out ends an order before its charge.
func declined(step client.FailureStep, code string) bool {
	return step == client.FailureStepCharge && code != outOfStock
}

// outOfStock is the code of orders whose item is sold out.
const outOfStock = "out_of_stock"

// retryHelps reports whether the first thing that the runbook says is to retry the orders of a group. A refused charge needs
// another payment method, for each order. What a provider refused of a completed one is requested again with its order.
func retryHelps(g *client.ErrorGroup) bool {
	if g.Hold == "" {
		return g.Status != client.StatusCompleted && !declined(client.FailureStep(g.Step), g.Code)
	}
	try := reasonOf(client.OrderHold(g.Hold), g.Code).try
	return try == "" || strings.HasPrefix(try, "retry")
}

// searchOf returns the search for the orders of a group.
func searchOf(g *client.ErrorGroup) string {
	search, code := "status:"+string(g.Status), quoted(g.Code)
	switch {
	case g.Hold == client.ErrorGroupHoldRetry && g.Route != "":
		return search + " hold:retry route:" + quoted(g.Route)
	case g.Hold == client.ErrorGroupHoldRetry:
		return search + " hold:retry"
	case g.Hold != "":
		return search + " hold:" + string(g.Hold) + " reason:" + code
	case g.Step != "":
		search += " step:" + string(g.Step)
	}
	return search + " code:" + code
}
