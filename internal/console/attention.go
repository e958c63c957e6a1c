package console

import (
	"cmp"
	"fmt"
	"html/template"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"pawl/client"
	"pawl/fsm"
)

// attentionPage shows why orders need a person, and the orders with one of these reasons.
type attentionPage struct {
	Groups []waitingGroup
	Holds  []client.HoldCount // of all orders
	Chosen *waitingGroup
	Orders []waitingOrder
	First  int     // the number of the first order on this page, from 1
	Next   string  // the URL of the next page
	ForAll []*verb // verbs for all orders of the group, if it has several
	Away   string  // why a retry or an approval does not help now; empty: nothing is known
	One    bool    // one order is to be retried first
	Again  string  // that a retry may help now; empty: nothing is known
}

// waitingGroup has the orders that wait for the same reason.
type waitingGroup struct {
	reason
	Count  int64
	More   bool // there may be more
	Oldest time.Time
	Totals []client.CurrencyTotal
	URL    string
}

type waitingOrder struct {
	client.Order
	Made    []client.Call // the last calls, newest first
	Actions []*verb       // in the order in which to try them
	Own     bool          // this person submitted it, and may not approve it
	Kept    string        // why it can't be canceled; empty: it can, or is being undone
}

// Money says whether the customer has paid.
func (o *waitingOrder) Money() string { return moneyOf(&o.Order, nil) }

// Left says what is still to be undone of an order that is being undone; empty: it is not.
func (o *waitingOrder) Left() string {
	left := map[client.Status]string{client.StatusReleasing: "the reservation and the charge are", client.StatusRefunding: "the charge is"}[o.Status]
	if left == "" {
		return ""
	}
	again := map[bool]string{true: ": Retry tries again"}[slices.Contains(o.AllowedActions, "retry")]
	return "The goods are " + (&orderPage{Order: &o.Order}).Goods() + ". Only " + left + " left to undo" + again + "."
}

const (
	waitingOfPage = 10
	callsOfOrder  = 2
	callsAtOnce   = 4
)

func (v *visit) attention() error {
	groups, overview, err := v.waitingGroups()
	if err != nil {
		return err
	}
	p := &attentionPage{Groups: groups, Holds: overview.Holds, First: max(1, number(v.query("first")))}
	if p.Chosen = chosen(groups, v.query("hold"), v.query("reason"), fsm.State(v.query("status"))); p.Chosen != nil {
		if err := v.waiting(p); err != nil {
			return err
		}
		if p.Chosen.first() == "retry" {
			p.Away, p.Again = away(overview, p.Orders)
			p.One = p.Away != "" && !strings.Contains(p.Away, waitFirst)
		} else if p.Chosen.Hold() == fsm.HoldApproval {
			p.Away = strings.Join(failingAt(overview, verbByName(verbs, "approve"), []client.Order{{}}), " ")
		}
	}
	return v.show("attention", page{Title: "Needs a person", Data: p})
}

// chosen is the group in the URL, even if no order is left in it, or else the most urgent one.
func chosen(groups []waitingGroup, hold, key string, state fsm.State) *waitingGroup {
	named := hold != "" || key != ""
	hold = cmp.Or(hold, fsm.HoldAttention)
	for i := range groups {
		if !named || groups[i].Hold() == hold && groups[i].Key == key && (state == "" || groups[i].state == state) {
			return &groups[i]
		}
	}
	if !named {
		return nil
	}
	if first := slices.IndexFunc(groups, func(g waitingGroup) bool { return g.Hold() == hold }); key == "" && first >= 0 {
		return &groups[first]
	}
	why := reasonOf(client.OrderHold(hold), key)
	why.state = state
	return &waitingGroup{reason: why}
}

// away says which providers that orders need do not answer, that one works again, or what the last call of them was that failed.
func away(overview *client.Overview, orders []waitingOrder) (away, again string) {
	retry, of, last, undoing := verbByName(verbs, "retry"), make([]client.Order, len(orders)), client.Call{}, false
	for i := range orders {
		of[i], undoing = orders[i].Order, undoing || fsm.State(orders[i].Status).Undoing()
		for _, c := range orders[i].Made {
			if c.StartedAt.After(last.StartedAt) && inVain(&c) {
				last = c
			}
		}
	}
	if failing := failingAt(overview, retry, of); failing != nil {
		return strings.Join(failing, " "), ""
	}
	for _, ended := range overview.Outages {
		if undoing || last.StartedAt.After(ended.Until) { // that a step works again says nothing about its undo
			break
		}
		for _, at := range worksAgain(overview, &ended) {
			if step, route, _ := strings.Cut(at, " "); needing(retry, of, step, route) != nil {
				return "", fmt.Sprintf("%s works again at %s since %s UTC: a retry can succeed.", cmp.Or(ended.Host, "The provider"), at, ended.Until.UTC().Format("15:04"))
			}
		}
	}
	for _, s := range overview.ProviderSteps {
		if !undoing && s.FailedAt.IsZero() && s.WorkedAt.After(last.StartedAt) && needing(retry, of, string(s.Step), s.Route) != nil {
			return "", fmt.Sprintf("Another order succeeded at %s at %s UTC, after the last failure here: a retry can succeed.", s.Step, s.WorkedAt.UTC().Format("15:04"))
		}
	}
	if len(orders) > 1 && !last.StartedAt.IsZero() {
		undo := map[bool]string{true: "the undo of "}[last.Operation == client.CallOperationUndo]
		return capital(fmt.Sprintf("%s%s last failed at %s UTC (%s).", undo, theStep[client.Status(fsm.DoneIn(fsm.Step(last.Step)))],
			last.StartedAt.UTC().Format("15:04"), answerTo(&last))) + oneFirst, ""
	}
	return "", ""
}

// inVain reports whether a call has failed, or got no answer. Look-ups don't count: they may be answered while the step fails.
func inVain(c *client.Call) bool {
	return c.Operation != client.CallOperationLookup && (c.Outcome == client.CallOutcomeUnknown || c.Outcome == client.CallOutcomeRetry)
}

// Primary reports whether the runbook recommends a verb now.
func (p *attentionPage) Primary(verb string) bool {
	return verb == p.Chosen.first() && (verb != "retry" && verb != "approve" || p.Away == "")
}

// waitingGroups are the incidents that need a person, the most urgent first. The order is fixed, so that the page does
// not turn to other orders while a person reads it. A person who may not read the overview gets one group of their own
// orders, and an empty overview.
func (v *visit) waitingGroups() (groups []waitingGroup, overview *client.Overview, err error) {
	if !v.may("getOverview") {
		own := reason{words: words{Title: "Your orders that need a person", Section: fsm.HoldAttention}}
		return []waitingGroup{{reason: own, URL: address("/console/attention", own.query())}}, &client.Overview{}, nil
	}
	found, err := v.api.GetOverview(v.r.Context())
	if err != nil {
		return nil, nil, err
	}
	for _, i := range found.Incidents {
		if hold := client.OrderHold(i.Kind); hold == client.OrderHoldAttention || hold == client.OrderHoldApproval {
			why := reasonOf(hold, i.Reason)
			if hold == client.OrderHoldAttention {
				why.state = fsm.State(i.Status)
			}
			groups = append(groups, waitingGroup{why, i.Orders, i.More, i.Since, i.Totals, address("/console/attention", why.query())})
		}
	}
	urgency := func(g *waitingGroup) uint { // -1 becomes the largest: unknown reasons come last
		return uint(slices.IndexFunc(reasons, func(known words) bool { return known.Section == g.Section }))
	}
	slices.SortStableFunc(groups, func(a, b waitingGroup) int { // approvals come after attention
		return cmp.Or(-cmp.Compare(a.Hold(), b.Hold()), cmp.Compare(urgency(&a), urgency(&b)), cmp.Compare(a.Key, b.Key), cmp.Compare(a.state, b.state))
	})
	return groups, found, nil
}

// query is the reason as parameters of the page.
func (r reason) query() url.Values {
	query := url.Values{"hold": {r.Hold()}}
	if r.Key != "" {
		query.Set("reason", r.Key)
	}
	if r.state != "" {
		query.Set("status", string(r.state))
	}
	return query
}

func (v *visit) waiting(p *attentionPage) error {
	why := p.Chosen.reason
	var at []client.Status
	if why.state != "" {
		at = []client.Status{client.Status(why.state)}
	}
	list, err := v.api.ListOrders(v.r.Context(), client.ListOrdersParams{
		Status: at,
		Hold:   client.ListOrdersParamsHold(why.Hold()), HoldReason: why.Key, Sort: client.ListOrdersParamsSortOldest,
		Limit: waitingOfPage, Cursor: v.query("cursor"),
	})
	if err != nil {
		return err
	}
	if p.Orders, err = v.withCalls(list.Orders, why); err != nil {
		return err
	}
	if list.NextCursor != "" {
		query := why.query()
		query.Set("cursor", list.NextCursor)
		query.Set("first", strconv.Itoa(p.First+len(list.Orders)))
		p.Next = address("/console/attention", query)
	}
	if p.Chosen.Count > 1 && (why.Hold() != fsm.HoldAttention || why.Key != "") { // otherwise it would include orders with other reasons
		p.ForAll = why.ranked(v.bulkActions(list.Orders))
	}
	return nil
}

// withCalls adds the last calls of orders, and what a person can do.
func (v *visit) withCalls(list []client.Order, why reason) ([]waitingOrder, error) {
	all := make([]waitingOrder, len(list))
	var readers errgroup.Group
	readers.SetLimit(callsAtOnce)
	for i := range list {
		one := &all[i]
		one.Order, one.Actions = list[i], why.ranked(v.actions(&list[i]))
		one.Own = one.SubmittedBy == v.me.Name && strings.HasPrefix(one.HoldReason, fsm.AnotherApprover)
		if !beingUndone(&one.Order) {
			one.Kept = v.noCancel(&one.Order)
		}
		if one.Calls == 0 {
			continue
		}
		readers.Go(func() error {
			last, err := v.api.ListCalls(v.r.Context(), one.OrderID, client.ListCallsParams{Sort: client.ListCallsParamsSortNewest, Limit: callsOfOrder})
			if err == nil {
				one.Made = last.Calls
				slices.Reverse(one.Made) // people read them as they came
			}
			return err
		})
	}
	return all, readers.Wait()
}

// AllLabel names a verb for all orders of the group, as far as one request can have them.
func (p *attentionPage) AllLabel(a *verb) string {
	can := slices.DeleteFunc(slices.Clone(p.Orders), func(o waitingOrder) bool { return verbByName(o.Actions, a.Name) == nil })
	switch g := p.Chosen; {
	case len(can) < len(p.Orders) && p.Next == "" && p.First == 1:
		return fmt.Sprintf("%s %d of %d", a.Label, len(can), len(p.Orders))
	case len(can) < len(p.Orders):
		return a.Label + " all that can be " + a.Many.Done
	case g.Count > bulkMost:
		return a.Label + " the oldest " + count(bulkMost)
	default:
		return a.Label + " all " + atLeast(g.Count, g.More)
	}
}

// AllURL is the page of a verb for all orders of the group.
func (g *waitingGroup) AllURL(verb string) string {
	search := "hold:" + g.Hold() + " sort:oldest"
	if g.Key != "" {
		search += " reason:" + quoted(g.Key)
	}
	if g.state != "" {
		search += " status:" + string(g.state)
	}
	return bulkURL(verb, search)
}

// reason is why orders need a person.
type reason struct {
	words
	state fsm.State // in which the orders are held; empty: any
}

type words struct {
	Key     string // the part of holdReason before the colon
	Title   string
	Section string // of the runbook
	try     string // verbs, in the order of the runbook
	Meaning string // in a sentence
}

// At names the step or its undo, after a title.
func (r reason) At() string {
	if r.state == "" {
		return ""
	}
	return ": " + strings.TrimPrefix(theStep[client.Status(r.state)], "the ")
}

// Risk is what a person must know about orders that are held in the state.
func (r reason) Risk() string {
	const undo = " Cancel can't help: the order ends only once it is undone."
	return map[fsm.State]string{
		fsm.Charging:   "The customer may have been charged, and Cancel gives back what was.",
		fsm.Reserving:  "The customer was charged, and the goods may be reserved. Cancel releases them and gives the money back.",
		fsm.Confirming: "The customer was charged, and the goods are reserved. If the order is confirmed already, nothing undoes that: look before you decide.",
		fsm.Releasing:  "The goods may still be reserved, and the money has not gone back." + undo,
		fsm.Refunding:  "What the customer was charged may not have gone back." + undo,
	}[r.state]
}

const dataRefused = "sqlstate"

// reasons have a section in the runbook. The most urgent comes first.
var reasons = []words{
	{"retries_exhausted", "Retries are used up", "retries_exhausted", "retry cancel step-result",
		"Every call failed or got no answer. What is in doubt may have been done, or may still be."},
	{"outcome_unknown", "The outcome is unknown", "outcome_unknown", "step-result cancel",
		"The step may have been done or not. The provider may have forgotten the key, so nothing is sent again. Look at the provider first."},
	{"policy_unusable", "The policy can't be used", "policy_unusable", "retry cancel",
		"A secret is missing, or the policy names a step that can't be done. Nothing was sent."},
	{"undo_refused", "The provider refuses the undo", "undo_refused", "step-result retry cancel",
		"A refusal does not go away by itself."},
	{"void_refused", "The provider refuses to void an earlier try", "void_refused", "retry cancel",
		"Nothing of the current try was sent. The effects of the earlier one must be undone first."},
	{"refused_in_doubt", "Refused, but perhaps confirmed before", "refused_in_doubt", "step-result retry",
		"The confirmation was refused, and an earlier call of it got no answer. Look at the provider first."},
	{"retry_after", "The provider asks to wait", "retry_after", "retry cancel",
		"It asks for a longer pause than the policy allows."},
	{"non_retryable", "Not to be retried", "non_retryable", "retry cancel step-result",
		"The step may have been done or not. The policy says not to retry after this answer."},
	{"taken over three times without a move", "Replicas fail on it", "taken-over-three-times-without-a-move", "retry cancel",
		"Three replicas in a row took it over and did not move it. See their logs first."},
	{"unknown_move", "An unknown move", "unknown_move", "retry cancel",
		"The program and the schema of the database do not agree. Find out first which of them is wrong."},
	{dataRefused, "The database refuses its data", "an-sqlstate", "retry cancel",
		"The statement that moves it fails each time, because of rows that the service did not write."},
}

var approval = reason{words: words{"", "Waits for approval", "approval", "approve reject",
	"A rule of the policy requires a person to look at it before anything is charged."}}

var anSQLState = regexp.MustCompile(`^[0-9A-Z]{5}$`)

func reasonOf(hold client.OrderHold, text string) reason {
	if hold == client.OrderHoldApproval {
		return approval
	}
	key, _, _ := strings.Cut(text, ":")
	for _, r := range reasons {
		switch {
		case r.Key == key:
			return reason{words: r}
		case r.Key == dataRefused && anSQLState.MatchString(key):
			r.Key, r.Title = key, r.Title+" ("+key+")"
			return reason{words: r}
		}
	}
	return reason{words: words{Key: key, Title: cmp.Or(key, "Without a reason"), Section: "attention"}}
}

// Runbook is the section of the runbook.
func (w words) Runbook() template.HTML { return runbook.sections[w.Section] }

// Hold is the hold of orders with this reason.
func (r reason) Hold() string {
	if r.Section == approval.Section {
		return fsm.HoldApproval
	}
	return fsm.HoldAttention
}

// first is the verb to try first; empty: none is known.
func (w words) first() string {
	first, _, _ := strings.Cut(w.try, " ")
	return first
}

// ranked sorts verbs by the order in which to try them.
func (r reason) ranked(verbs []*verb) []*verb {
	try := strings.Fields(r.try)
	rank := func(a *verb) uint { return uint(slices.Index(try, a.Name)) } // -1 becomes the largest: others come last
	slices.SortStableFunc(verbs, func(a, b *verb) int { return cmp.Compare(rank(a), rank(b)) })
	return verbs
}
