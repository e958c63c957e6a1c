package console

import (
	"cmp"
	"net/url"
	"slices"
	"strconv"
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
