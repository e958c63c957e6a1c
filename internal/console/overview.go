package console

import (
	"fmt"
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
	Machine template.HTML
}

// wrong is an incident as the overview shows it.
type wrong struct {
	client.Incident
	Title string
	Why   string // why orders need a person
	URL   string // of the orders or the endpoint
	Link  string // what is behind it
	Warns bool   // it can wait
}

// verdict sums up the incidents.
type verdict struct {
	Person client.Incident // all orders that need one
	Alone  int64           // orders that wait and go on by themselves
	More   bool            // there may be more than Alone
	Away   bool            // a provider fails
}

func (p *overviewPage) judge() {
	v := &p.Verdict
	for _, i := range p.Incidents {
		v.Away = v.Away || i.Kind == client.IncidentKindProviderFailing
		if i.Kind == client.IncidentKindAttention || i.Kind == client.IncidentKindApproval {
			v.Person.Orders, v.Person.More = v.Person.Orders+i.Orders, v.Person.More || i.More
			v.Person.Totals = addTotals(v.Person.Totals, i.Totals)
		}
	}
	for _, h := range p.Holds {
		if h.Hold == fsm.HoldRetry || h.Hold == fsm.HoldCallback || h.Hold == fsm.HoldQueued {
			v.Alone, v.More = v.Alone+h.Orders, v.More || h.More
		}
	}
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
	for _, i := range found.Incidents {
		p.Wrong = append(p.Wrong, wrongOf(i))
	}
	p.judge()
	return v.show("overview", page{Title: "Overview", Data: p})
}

func wrongOf(i client.Incident) wrong {
	w := wrong{Incident: i}
	switch i.Kind {
	case client.IncidentKindAttention:
		why := reasonOf(client.OrderHoldAttention, i.Reason)
		w.Title, w.Why, w.Link, w.URL = "Needs you", why.Title, "Look and act", address("/console/attention", why.query())
	case client.IncidentKindApproval:
		w.Title, w.Link, w.URL, w.Warns = "To approve", "Look and decide", address("/console/attention", approval.query()), true
	case client.IncidentKindProviderFailing:
		step := string(i.Step)
		w.Title, w.Link = strings.ToUpper(step[:1])+step[1:], "Show them"
		w.URL = ordersURL("status:" + strings.Join(statusesAt(fsm.Step(step)), ",") + " hold:retry")
	case client.IncidentKindOverdue:
		w.Title, w.Link, w.URL = "Overdue", "Runbook", "/console/runbook#pawlordersnottakenup"
	case client.IncidentKindReplicaLost:
		w.Title, w.Link, w.URL, w.Warns = "Replica "+i.Replica, "Runbook", "/console/runbook#pawldown", true
	default:
		w.Title, w.Link, w.URL, w.Warns = "Endpoint "+i.EndpointID, "Show it", endpointURL(i.EndpointID), true
	}
	return w
}

// Runbook is the section on a webhook endpoint.
func (w wrong) Runbook() string {
	sections := map[client.IncidentKind]string{
		client.IncidentKindWebhookFailing: "pawlwebhookendpointfailing", client.IncidentKindWebhookDisabled: "pawlwebhookendpointdisabled",
	}
	return sections[w.Kind]
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
			Text: text, Title: fmt.Sprintf("%s orders are %s", text, c.Status), Link: ordersURL("status:" + string(c.Status)),
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

// duration formats seconds in a suitable unit.
func duration(seconds float64) string {
	switch {
	case seconds <= 0:
		return "0"
	case seconds < .0995:
		return short(seconds*1000) + " ms"
	case seconds < 100:
		return short(seconds) + " s"
	case seconds < 6000:
		return short(seconds/60) + " min"
	}
	return short(seconds/3600) + " h"
}

func holdURL(hold string) string { return ordersURL("hold:" + hold + " sort:oldest") }
