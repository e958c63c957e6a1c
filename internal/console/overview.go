package console

import (
	"cmp"
	"html/template"
	"slices"
	"strconv"
	"strings"
	"time"

	"pawl/client"
	"pawl/fsm"
	"pawl/fsm/diagram"
)

type overviewPage struct {
	*client.Overview
	Orders  bool    // there are orders
	Wrong   []wrong // in the order of the API: the worst first
	Verdict verdict
	Policy  *client.PolicyVersion // that was activated lately, if a provider fails
	Machine template.HTML
	Money   *booksPage // the newest report; nil: there is none, or this person may not read it
}

// wrong is an incident as the overview shows it. A provider that fails at several steps is one.
type wrong struct {
	client.Incident
	steps  []string // where the provider fails, with the route
	causes []string // there
	Title  string
	Why    string // why orders need a person
	URL    string // of the orders or the endpoint
	Link   string // what is behind it
	Warns  bool   // it can wait

	Runbook string // the section about it, besides what URL shows
}

// verdict sums up the incidents.
type verdict struct {
	Person client.Incident // all orders that this person can act on
	Others client.Incident // all orders that need another person
	Alone  int64           // orders that wait and go on by themselves
	More   bool            // there may be more than Alone
	Until  time.Time       // when retries of some are used up, unless what fails works again; zero: not known
	Away   bool            // a provider fails
	Fails  []string        // what does not work: hosts, endpoints, replicas
	Books  bool            // they are wrong, or differ
}

// judge sums up for a person who may do some operations.
func (p *overviewPage) judge(may func(string) bool) {
	v := &p.Verdict
	for _, i := range p.Incidents {
		p.Wrong = addWrong(p.Wrong, wrongOf(i, may))
	}
	for _, w := range p.Wrong {
		v.Away, v.Until = v.Away || w.Kind == client.IncidentKindProviderFailing, earlier(v.Until, w.NeedsPersonAt)
		switch w.Kind {
		case client.IncidentKindAttention, client.IncidentKindApproval:
			of := &v.Others
			if decides(w.Kind, may) {
				of = &v.Person
			}
			of.Orders, of.More, of.Totals = of.Orders+w.Orders, of.More || w.More, addTotals(of.Totals, w.Totals)
		case client.IncidentKindBooksWrong, client.IncidentKindBooksDiffer:
			v.Books = true
		case client.IncidentKindOverdue, client.IncidentKindOperationsWaiting: // nothing more to say
		case client.IncidentKindProviderFailing:
			v.Fails = append(v.Fails, w.Title+" at "+w.Steps())
		case client.IncidentKindReplicaLost, client.IncidentKindWebhookFailing, client.IncidentKindWebhookDisabled:
			v.Alone, v.More = v.Alone+w.Orders, v.More || w.More
			v.Fails = append(v.Fails, strings.ToLower(w.Title[:1])+w.Title[1:])
		}
	}
	p.Holds = slices.DeleteFunc(p.Holds, func(h client.HoldCount) bool { return h.Orders+h.Trying == 0 })
	for _, h := range p.Holds {
		if h.Hold == fsm.HoldRetry || h.Hold == fsm.HoldCallback || h.Hold == fsm.HoldQueued {
			v.Alone, v.More = v.Alone+h.Orders, v.More || h.More
		}
	}
}

// decides reports whether a person may act on orders that need one.
func decides(kind client.IncidentKind, may func(string) bool) bool {
	if kind == client.IncidentKindApproval {
		return may("approveOrder")
	}
	return may("retryOrder") || may("cancelOrder") || may("settleStepOfOrder")
}

// Works are the steps of an outage that ended and that have not failed since. Without any, it is only history.
func (p overviewPage) Works(o client.EndedOutage) []string { return worksAgain(p.Overview, &o) }

func worksAgain(found *client.Overview, o *client.EndedOutage) []string {
	return slices.DeleteFunc(slices.Clone(o.Steps), func(step string) bool {
		return slices.ContainsFunc(found.ProviderSteps, func(s client.ProviderStep) bool {
			return !s.FailedAt.IsZero() && step == strings.TrimSpace(string(s.Step)+" "+s.Route)
		}) || slices.ContainsFunc(found.Outages, func(later client.EndedOutage) bool {
			return later.Until.After(o.Until) && slices.Contains(later.Steps, step)
		})
	})
}

// RetryURL is where orders that need a person because of a provider can be retried.
func (p overviewPage) RetryURL(w wrong) string {
	if i := slices.IndexFunc(p.Wrong, func(held wrong) bool {
		return held.Kind == client.IncidentKindAttention && held.Step != "" && strings.Contains(w.Steps(), string(held.Step))
	}); i >= 0 {
		return p.Wrong[i].URL
	}
	return "/console/attention"
}

// Aged reports whether the numbers are more than a few seconds old.
func (p overviewPage) Aged() bool { return !p.At.IsZero() && time.Since(p.At) > 3*time.Second }

// overview is the start page, also for people who may open only other screens.
func (v *visit) overview() error {
	if len(v.me.Roles) == 0 {
		return errUnknown
	}
	if !v.may("getOverview") {
		return v.show("overview", page{Title: "Overview"})
	}
	found, err := v.api.GetOverview(v.r.Context())
	if err != nil {
		return err
	}
	p := overviewPage{
		Overview: found, Machine: machineOf(found),
		Orders: slices.ContainsFunc(found.Statuses, func(c client.StatusCount) bool { return c.Orders > 0 }),
	}
	p.judge(v.may)
	if v.may("getVerification") && found.Books.Number != 0 {
		if state, err := v.api.GetVerification(v.r.Context()); err == nil { // the page is worth more
			p.Money = &booksPage{Verification: state}
		}
	}
	if p.Verdict.Away {
		if active, err := v.activePolicy(); err == nil && time.Since(active.ActivatedAt) < time.Hour { // it may be why
			p.Policy = active
		}
	}
	return v.show("overview", page{Title: "Overview", Data: p})
}

// incidents are what incidents of a kind have in common.
var incidents = map[client.IncidentKind]wrong{
	client.IncidentKindAttention:         {Title: "Needs you", Link: "Look and act"},
	client.IncidentKindApproval:          {Title: "To approve", Link: "Look and decide", URL: address("/console/attention", approval.query()), Warns: true},
	client.IncidentKindProviderFailing:   {Link: "Orders to be retried", Runbook: "a-provider-is-away"},
	client.IncidentKindOperationsWaiting: {Link: "Show them", URL: ordersURL("refund:open sort:oldest"), Runbook: "pawlchargeoperationsopen"},
	client.IncidentKindOverdue:           {Title: "Overdue", Link: "Runbook", URL: "/console/runbook#pawlordersnottakenup"},
	client.IncidentKindReplicaLost:       {Link: "Runbook", URL: "/console/runbook#pawldown", Warns: true},
	client.IncidentKindBooksWrong:        {Title: "The books are wrong", Link: "Show what is wrong", URL: "/console/books"},
	client.IncidentKindBooksDiffer:       {Title: "The provider's books differ", Link: "Show the differences", URL: "/console/books#provider", Warns: true},
	client.IncidentKindWebhookFailing:    {Link: "Show it", Runbook: "pawlwebhookendpointfailing", Warns: true},
	client.IncidentKindWebhookDisabled:   {Link: "Show it", Runbook: "pawlwebhookendpointdisabled", Warns: true},
}

func wrongOf(i client.Incident, may func(string) bool) wrong {
	w := incidents[i.Kind]
	w.Incident = i
	switch i.Kind {
	case client.IncidentKindAttention:
		why := reasonOf(client.OrderHoldAttention, i.Reason)
		why.state = fsm.State(i.Status)
		if w.Why, w.URL = why.Title+why.At(), address("/console/attention", why.query()); !decides(i.Kind, may) {
			w.Title, w.Link = "Needs a person", "Look"
		}
	case client.IncidentKindApproval:
		if !decides(i.Kind, may) {
			w.Why, w.Link = "by a person with the role approve", "Look"
		}
	case client.IncidentKindProviderFailing:
		w.Title, w.steps, w.causes = cmp.Or(i.Host, "The provider of "+string(i.Step)), []string{string(i.Step)}, []string{i.Detail}
		if i.Route != "" {
			w.steps[0] += " (" + i.Route + ")"
		}
		w.URL = waitingAt(statusesAt(fsm.Step(i.Step)), i.Route)
	case client.IncidentKindOperationsWaiting:
		w.Title, w.Warns = capital(string(i.Operation))+"s", i.Reason == ""
	case client.IncidentKindReplicaLost:
		w.Title = "Replica " + i.Replica
	case client.IncidentKindWebhookFailing, client.IncidentKindWebhookDisabled:
		w.Title, w.URL = "Endpoint "+i.EndpointID, endpointURL(i.EndpointID)
	case client.IncidentKindOverdue, client.IncidentKindBooksWrong, client.IncidentKindBooksDiffer: // nothing more to say
	}
	return w
}

func waitingAt(statuses []string, route string) string {
	search := "status:" + strings.Join(statuses, ",") + " hold:retry"
	if route != "" {
		search += " route:" + quoted(route)
	}
	return ordersURL(search)
}

// addWrong adds an incident. All that one host fails at is one thing to act on.
func addWrong(all []wrong, w wrong) []wrong {
	at := slices.IndexFunc(all, func(other wrong) bool {
		return w.Kind == client.IncidentKindProviderFailing && other.Kind == w.Kind && w.Host != "" && other.Host == w.Host
	})
	if at < 0 {
		return append(all, w)
	}
	one := &all[at]
	one.steps, one.causes = append(one.steps, w.steps...), append(one.causes, w.causes...)
	statuses := statusesAt(fsm.Step(one.Step))
	if one.Step != w.Step { // routes of a charge share its states
		statuses = append(statuses, statusesAt(fsm.Step(w.Step))...)
	}
	one.URL = waitingAt(statuses, "")
	one.Trying, one.Orders, one.More, one.Totals = one.Trying+w.Trying, one.Orders+w.Orders, one.More || w.More, addTotals(one.Totals, w.Totals)
	one.Since, one.NeedsPersonAt = earlier(one.Since, w.Since), earlier(one.NeedsPersonAt, w.NeedsPersonAt)
	return all
}

// earlier is the earlier of two times that are known.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// Steps are the steps that fail.
func (w wrong) Steps() string { return strings.Join(w.steps, ", ") }

// Cause is why they fail, for each step if not all have the same cause.
func (w wrong) Cause() string {
	var all, causes []string
	for i, cause := range w.causes {
		if cause != "" {
			all, causes = append(all, w.steps[i]+": "+cause), append(causes, cause)
		}
	}
	if len(slices.Compact(slices.Clone(causes))) == 1 {
		return causes[0]
	}
	return strings.Join(all, "; ")
}

// Found is what is wrong with the books: checks, or providers.
func (w wrong) Found() []string {
	found := strings.Split(w.Detail, ", ")
	if w.Kind == client.IncidentKindBooksDiffer {
		places := placesOf(found, nil)
		for found = nil; len(places) > 0; places = places[1:] {
			found = append(found, places[0].URL)
		}
	}
	return found
}

// statusesAt are the states in which a step is done or undone.
func statusesAt(step fsm.Step) (statuses []string) {
	for _, state := range fsm.States() {
		if state.Step() == step {
			statuses = append(statuses, string(state))
		}
	}
	return statuses
}

// machineOf draws the machine with the number of orders in each state.
func machineOf(found *client.Overview) template.HTML {
	picture := diagram.Picture{Label: "How many orders are in each state", States: map[fsm.State]diagram.Mark{}}
	for _, c := range found.Statuses {
		text := atLeast(c.Orders, c.More)
		picture.States[fsm.State(c.Status)] = diagram.Mark{
			Text: text, Title: text + plural(c.Orders, " order is ", " orders are ") + string(c.Status), Link: ordersURL("status:" + string(c.Status)),
		}
	}
	return picture.HTML()
}

// short formats a number with two digits, or as many as it has before the point.
func short(n float64) string {
	switch {
	case n == 0:
		return "0"
	case n >= 9.95:
		return strconv.FormatFloat(n, 'f', 0, 64)
	case n >= .095:
		return strconv.FormatFloat(n, 'f', 1, 64)
	}
	return strconv.FormatFloat(n, 'g', 1, 64)
}

// duration formats seconds: as a length, and short ones exactly.
func duration(seconds float64) string {
	if seconds < 100 {
		return short(seconds) + " s"
	}
	return length(time.Duration(seconds * float64(time.Second)))
}

func holdURL(hold string) string { return ordersURL("hold:" + hold + " sort:oldest") }
