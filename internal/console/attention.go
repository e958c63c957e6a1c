package console

import (
	"cmp"
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

// attentionPage is the screen of what waits for a person: why orders wait, and those that wait for one of these reasons, with
// what the runbook says of it.
type attentionPage struct {
	Groups []waitingGroup
	Chosen *waitingGroup
	Orders []waitingOrder
	First  int     // which of the orders of the group comes first on this page, from 1
	Next   string  // where the next page is
	ForAll []*verb // what the person may do with all orders of the group
}

// waitingGroup are the orders that wait for the same reason.
type waitingGroup struct {
	reason
	Count  int
	More   bool // there may be more than that
	Oldest time.Time
	URL    string
}

// waitingOrder is one of them, with what is known of it.
type waitingOrder struct {
	client.Order
	Made    []client.Call // the last ones, the newest first
	Actions []*verb       // what the person can do, in the order in which to try it
}

const (
	waitingLooked = 100 // at an end of the orders of a hold, to see why they wait
	waitingOfPage = 10
	callsOfOrder  = 3
	callsAtOnce   = 4
)

func (v *visit) attention() error {
	groups, err := v.waitingGroups()
	if err != nil {
		return err
	}
	p := &attentionPage{Groups: groups, First: max(1, number(v.query("first")))}
	if p.Chosen = chosen(groups, v.query("hold"), v.query("reason")); p.Chosen != nil {
		if err := v.waiting(p); err != nil {
			return err
		}
	}
	return v.show("attention", page{Title: "Needs a person", Data: p})
}

// chosen is the group that the URL names, even where no order is left in it, or the one with the oldest order.
func chosen(groups []waitingGroup, hold, key string) *waitingGroup {
	named := hold != "" || key != ""
	hold = cmp.Or(hold, fsm.HoldAttention)
	for i := range groups {
		if !named || groups[i].Hold() == hold && groups[i].Key == key {
			return &groups[i]
		}
	}
	if !named {
		return nil
	}
	return &waitingGroup{reason: reasonOf(client.OrderHold(hold), key)}
}

// waitingGroups looks at the orders that have waited longest, and at the newest ones, whose reasons may be others. The group with the
// oldest order comes first.
func (v *visit) waitingGroups() (groups []waitingGroup, err error) {
	seen := map[string]bool{}
	for _, look := range []client.ListOrdersParams{
		{Hold: client.ListOrdersParamsHoldAttention, Sort: client.ListOrdersParamsSortOldest},
		{Hold: client.ListOrdersParamsHoldAttention, Sort: client.ListOrdersParamsSortNewest},
		{Hold: client.ListOrdersParamsHoldApproval, Sort: client.ListOrdersParamsSortOldest},
	} {
		look.Limit = waitingLooked
		list, err := v.api.ListOrders(v.r.Context(), &look)
		if err != nil {
			return nil, err
		}
		for i := range list.Orders {
			if order := &list.Orders[i]; !seen[order.OrderID] {
				seen[order.OrderID] = true
				groups = counted(groups, order, list.NextCursor != "")
			}
		}
	}
	slices.SortStableFunc(groups, func(a, b waitingGroup) int { return a.Oldest.Compare(b.Oldest) })
	return groups, nil
}

func counted(groups []waitingGroup, order *client.Order, more bool) []waitingGroup {
	why := reasonOf(order.Hold, order.HoldReason)
	i := slices.IndexFunc(groups, func(g waitingGroup) bool { return g.Hold() == why.Hold() && g.Key == why.Key })
	if i < 0 {
		i = len(groups)
		groups = append(groups, waitingGroup{reason: why, Oldest: order.CreatedAt, URL: address("/console/attention", why.query())})
	}
	groups[i].Count++
	groups[i].More = groups[i].More || more
	if order.CreatedAt.Before(groups[i].Oldest) {
		groups[i].Oldest = order.CreatedAt
	}
	return groups
}

// query names a reason in a URL of the page.
func (r reason) query() url.Values {
	query := url.Values{"hold": {r.Hold()}}
	if r.Key != "" {
		query.Set("reason", r.Key)
	}
	return query
}

// waiting reads the orders of the chosen group.
func (v *visit) waiting(p *attentionPage) error {
	why := p.Chosen.reason
	list, err := v.api.ListOrders(v.r.Context(), &client.ListOrdersParams{
		Hold: client.ListOrdersParamsHold(why.Hold()), HoldReason: why.Key, Sort: client.ListOrdersParamsSortOldest,
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
	if why.Hold() != fsm.HoldAttention || why.Key != "" { // else it would be asked of whoever is on hold for other reasons, too
		p.ForAll = why.ranked(v.bulkActions(list.Orders))
	}
	return nil
}

// withCalls adds their last calls to orders, and what a person can do.
func (v *visit) withCalls(list []client.Order, why reason) ([]waitingOrder, error) {
	all := make([]waitingOrder, len(list))
	var readers errgroup.Group
	readers.SetLimit(callsAtOnce)
	for i := range list {
		one := &all[i]
		one.Order, one.Actions = list[i], why.ranked(v.actions(&list[i]))
		if one.Calls == 0 {
			continue
		}
		readers.Go(func() error {
			last, err := v.api.ListCalls(v.r.Context(), one.OrderID, &client.ListCallsParams{Sort: client.ListCallsParamsSortNewest, Limit: callsOfOrder})
			if err == nil {
				one.Made = last.Calls
			}
			return err
		})
	}
	return all, readers.Wait()
}

// AllURL is the page where a verb is asked of all orders of the group.
func (g *waitingGroup) AllURL(verb string) string {
	filter := url.Values{"hold": {g.Hold()}, "sort": {"oldest"}}
	if g.Key != "" {
		filter.Set("holdReason", g.Key)
	}
	return bulkURL(verb, filter)
}

// reason is why orders wait for a person.
type reason struct {
	Key     string // what is before the colon in holdReason; of an approval, nothing
	Title   string // in words
	Meaning string // what is known then, in a sentence
	Section string // of the runbook
	try     []string
}

const (
	stepInDoubt = "The step may have been done or not, and nobody knows."
	dataRefused = "sqlstate"
)

// reasons are what the runbook has a section on, with the actions in the order in which it says to try them.
var reasons = []reason{
	{"retries_exhausted", "Retries are used up", "Every call of the step failed or got no answer. It may have been done, so the customer may have been charged.",
		"retries_exhausted", []string{"retry", "cancel", "step-result"}},
	{"outcome_unknown", "Nobody knows the outcome", stepInDoubt + " The provider may have forgotten the key, so nothing is sent again. Look at the provider first.",
		"outcome_unknown", []string{"step-result", "cancel"}},
	{"policy_unusable", "The policy can't be used", "A secret is missing, or the policy names a step that can't be done. Nothing was sent.",
		"policy_unusable", []string{"retry", "cancel"}},
	{"undo_refused", "The provider refuses the undo", "Money or goods stand at the provider until they are taken back there.",
		"undo_refused", []string{"step-result", "retry", "cancel"}},
	{"void_refused", "The provider refuses to void an earlier try", "Nothing of the present try was sent. What stands of the earlier one must be gone first.",
		"void_refused", []string{"retry", "cancel"}},
	{"refused_in_doubt", "Refused, but perhaps confirmed before", "The confirmation was refused, and an earlier call of it got no answer. Look at the provider first.",
		"refused_in_doubt", []string{"step-result", "retry"}},
	{"retry_after", "The provider asks to wait", "It asks for a longer pause than the policy allows.",
		"retry_after", []string{"retry", "cancel"}},
	{"non_retryable", "Not to be tried again", stepInDoubt + " The policy says not to try again after this answer.",
		"non_retryable", []string{"retry", "cancel", "step-result"}},
	{"taken over three times without a move", "Replicas fail on it", "Three replicas in a row took it over and did not move it. See their logs first.",
		"taken-over-three-times-without-a-move", []string{"retry", "cancel"}},
	{"unknown_move", "A move that nobody knows", "The program and the schema of the database do not agree. Find out which of them is wrong first.",
		"unknown_move", []string{"retry", "cancel"}},
	{dataRefused, "The database refuses its data", "The statement that moves it fails each time, because of rows that the service did not write.",
		"an-sqlstate", []string{"retry", "cancel"}},
}

var approval = reason{"", "Waits for approval", "A rule of the policy wants a person to look at it before anything is charged.",
	"approval", []string{"approve", "reject"}}

var anSQLState = regexp.MustCompile(`^[0-9A-Z]{5}$`)

// reasonOf finds the reason in the words that an order is held with.
func reasonOf(hold client.OrderHold, words string) reason {
	if hold == client.OrderHoldApproval {
		return approval
	}
	key, _, _ := strings.Cut(words, ":")
	named := func(name string) int { return slices.IndexFunc(reasons, func(r reason) bool { return r.Key == name }) }
	if i := named(key); i >= 0 {
		return reasons[i]
	}
	if anSQLState.MatchString(key) {
		r := reasons[named(dataRefused)]
		r.Key = key
		r.Title += " (" + key + ")"
		return r
	}
	return reason{Key: key, Title: cmp.Or(key, "Without a reason"), Section: "attention"}
}

// Runbook is what the runbook says about it.
func (r reason) Runbook() template.HTML { return runbook.sections[r.Section] }

// Hold is what orders wait for with this reason.
func (r reason) Hold() string {
	if r.Section == approval.Section {
		return fsm.HoldApproval
	}
	return fsm.HoldAttention
}

// ranked puts verbs into the order in which to try them.
func (r reason) ranked(verbs []*verb) []*verb {
	rank := func(a *verb) int {
		if i := slices.Index(r.try, a.Name); i >= 0 {
			return i
		}
		return len(r.try)
	}
	slices.SortStableFunc(verbs, func(a, b *verb) int { return rank(a) - rank(b) })
	return verbs
}
