package console

import (
	"cmp"
	"net/url"
	"slices"
	"strings"
	"time"

	"pawl/client"
	"pawl/fsm"
)

type errorsPage struct {
	Groups []errorGroup
	More   bool
}

// errorGroup has the errors about which a person does the same: those of a provider that fails or is waited for, those
// for the same reason, or those with the same code, each at all steps.
type errorGroup struct {
	key     string
	Title   string
	Host    bool // the title is a host
	Code    string
	Failing time.Time // since when the provider has failed; zero: it does not
	Section string    // of the runbook; may be empty
	Rows    []errorRow
	Actions []errorAction
	Waits   bool // some go on by themselves

	Orders, LastMinute int64
	More               bool
	Totals             []client.CurrencyTotal
	First, Last        time.Time
}

type errorRow struct {
	client.ErrorGroup
	List string // the URL of its orders
}

// errorAction retries all orders of a group with the same code.
type errorAction struct {
	Label, URL string
	Charges    bool // again: they failed
}

// errorGroups shows what a person can act on. The group with the newest error comes first.
func (v *visit) errorGroups() error {
	var steps []client.ProviderStep
	if v.may("getOverview") {
		if found, err := v.api.GetOverview(v.r.Context()); err == nil { // the errors are worth more than their hosts
			steps = found.ProviderSteps
		}
	}
	groups, more, err := v.groupedErrors(steps)
	if err != nil {
		return err
	}
	for i := range groups {
		if v.may("retryOrder") {
			groups[i].Actions = retriesOf(groups[i].Rows)
		}
	}
	return v.show("errors", page{Title: "Errors", Data: errorsPage{groups, more}})
}

func (v *visit) groupedErrors(steps []client.ProviderStep) (groups []errorGroup, more bool, err error) {
	found, err := v.api.ListErrorGroups(v.r.Context())
	if err != nil {
		return nil, false, err
	}
	providers := providersOf(steps)
	for _, g := range found.Groups {
		group := providers.groupOf(&g)
		at := slices.IndexFunc(groups, func(other errorGroup) bool { return other.key == group.key })
		if at < 0 {
			at = len(groups)
			groups = append(groups, group)
		}
		groups[at].add(g)
	}
	return groups, found.More, nil
}

// stepProvider is what does a step: its hosts, and why and since when they fail.
type stepProvider struct {
	hosts, failure string
	since          time.Time
	routes         []string // of a charge
}

type stepProviders map[client.ErrorGroupStep]stepProvider

// providersOf are the providers that were called lately.
func providersOf(steps []client.ProviderStep) stepProviders {
	all := stepProviders{}
	for _, s := range steps {
		step := client.ErrorGroupStep(s.Step)
		of, fails := all[step], !s.FailingSince.IsZero()
		routes := of.routes
		if !slices.Contains(routes, s.Route) {
			routes = append(routes, s.Route)
		}
		switch {
		case fails && of.since.IsZero(): // those that work are not what the errors are about
			of = stepProvider{hosts: s.Host, failure: s.Failure, since: s.FailingSince}
		case fails == !of.since.IsZero() && s.Host != "" && !slices.Contains(strings.Split(of.hosts, ", "), s.Host):
			of.hosts = strings.TrimPrefix(of.hosts+", "+s.Host, ", ")
		}
		if fails && s.FailingSince.Before(of.since) {
			of.since = s.FailingSince
		}
		of.routes = routes
		all[step] = of
	}
	return all
}

// groupOf is the group of an error, without its orders.
func (providers stepProviders) groupOf(g *client.ErrorGroup) errorGroup {
	by := providers[g.Step]
	why := reasonOf(client.OrderHold(g.Hold), g.Code)
	switch {
	case g.Hold == client.ErrorGroupHoldRetry, g.Hold == client.ErrorGroupHoldAttention && g.Code == "retries_exhausted" && !by.since.IsZero() && len(by.routes) == 1: // of several, a group does not say which
		of := errorGroup{Title: by.hosts, Host: by.hosts != "", Code: by.failure, Failing: by.since, Section: "a-provider-is-away"}
		of.Title = cmp.Or(of.Title, "The provider of "+string(g.Step))
		of.key = "provider " + of.Title
		return of
	case g.Hold == client.ErrorGroupHoldAttention:
		return errorGroup{key: "reason " + g.Code, Title: why.Title, Code: g.Code, Section: why.Section}
	}
	return errorGroup{key: "code " + g.Code, Title: "Failed", Code: g.Code, Section: "pawlordersfail"}
}

func (of *errorGroup) add(g client.ErrorGroup) {
	of.Rows = append(of.Rows, errorRow{g, ordersURL(searchOf(&g))})
	of.Waits = of.Waits || g.Hold == client.ErrorGroupHoldRetry
	of.Orders, of.LastMinute, of.More = of.Orders+g.Orders, of.LastMinute+g.LastMinute, of.More || g.More
	of.Totals = addTotals(of.Totals, g.Totals)
	if of.First.IsZero() || g.FirstAt.Before(of.First) {
		of.First = g.FirstAt
	}
	if g.LastAt.After(of.Last) {
		of.Last = g.LastAt
	}
}

// Steps are the steps of the group, in the order of the machine.
func (of *errorGroup) Steps() (steps []string) {
	for _, step := range fsm.Steps() {
		if slices.ContainsFunc(of.Rows, func(r errorRow) bool { return string(r.Step) == string(step) }) {
			steps = append(steps, string(step))
		}
	}
	return steps
}

// retriesOf are the retries that may help, one for each code. Orders that are retried go on by themselves.
func retriesOf(rows []errorRow) (all []errorAction) {
	done := map[string]bool{}
	for _, row := range rows {
		key := string(row.Hold) + " " + row.Code
		if done[key] || row.Code == "" || row.Hold == client.ErrorGroupHoldRetry || !retryHelps(&row.ErrorGroup) {
			continue
		}
		done[key] = true
		var statuses []string
		var orders int64
		more := false
		for _, same := range rows {
			if same.Hold == row.Hold && same.Code == row.Code {
				orders, more = orders+same.Orders, more || same.More
				statuses = append(statuses, string(same.Status))
			}
		}
		all = append(all, retryOf(&row.ErrorGroup, statuses, atLeast(orders, more)+plural(orders, " order", " orders")))
	}
	return all
}

// retryOf is the retry of the orders with the code of a group, in some statuses.
func retryOf(g *client.ErrorGroup, statuses []string, number string) errorAction {
	slices.Sort(statuses)
	filter := url.Values{"status": {strings.Join(slices.Compact(statuses), ",")}}
	if g.Hold == "" {
		filter.Set("failureCode", g.Code)
		return errorAction{"Try " + number + " again from the start", bulkURL("retry", filter), true}
	}
	filter.Set("hold", string(g.Hold))
	filter.Set("holdReason", g.Code)
	return errorAction{"Retry " + number + ": " + strings.ToLower(reasonOf(client.OrderHold(g.Hold), g.Code).Title), bulkURL("retry", filter), false}
}

func plural(n int64, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}

// retryHelps reports whether the first thing that the runbook says is to retry the orders of a group.
func retryHelps(g *client.ErrorGroup) bool {
	if g.Hold == "" {
		return true
	}
	try := reasonOf(client.OrderHold(g.Hold), g.Code).try
	return try == "" || strings.HasPrefix(try, "retry")
}

// searchOf returns the search for the orders of a group.
func searchOf(g *client.ErrorGroup) string {
	search, code := "status:"+string(g.Status), quoted(g.Code)
	switch {
	case g.Hold != "":
		return search + " hold:" + string(g.Hold) + " reason:" + code
	case g.Step != "":
		search += " step:" + string(g.Step)
	}
	return search + " code:" + code
}
