package policy

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/govalues/decimal"
	"go.yaml.in/yaml/v4"

	"pawl/fsm"
	"pawl/internal/iso4217"
)

// Route is one of several providers that can charge an order.
type Route struct {
	Name     string
	When     Condition // of the orders that it charges; the last route has none
	Fallback []string  // codes of refusals after which the next route is tried

	charge, confirm Step
}

// Condition is what an order must have. All given fields must match; an empty condition matches every order.
type Condition struct {
	AmountOver    *decimal.Decimal // with Currency
	Currency      string
	Items         []string // one of them; a route has none
	Customers     []string // one of them; a route has none
	PaymentMethod string   // a prefix; an approval has none
	Metadata      map[string]string
}

// String is what an order must have, in words.
func (c *Condition) String() string {
	var all []string
	switch {
	case c.AmountOver != nil:
		all = append(all, "amount over "+c.AmountOver.String()+" "+c.Currency)
	case c.Currency != "":
		all = append(all, "currency "+c.Currency)
	}
	for what, names := range map[string][]string{"item ": c.Items, "customer ": c.Customers} {
		if names != nil {
			all = append(all, what+strings.Join(names, " or "))
		}
	}
	slices.Sort(all)
	return cmp.Or(strings.Join(all, ", "), "every order")
}

// fits reports whether an order has everything. One without a customer does not match a condition with customers.
func (c *Condition) fits(o Order) bool {
	return (c.AmountOver == nil || o.Amount.Cmp(*c.AmountOver) > 0) &&
		(c.Currency == "" || c.Currency == o.Currency) &&
		(c.Items == nil || slices.ContainsFunc(o.Items, func(item string) bool { return slices.Contains(c.Items, item) })) &&
		(c.Customers == nil || slices.Contains(c.Customers, o.CustomerID)) &&
		strings.HasPrefix(o.PaymentMethod, c.PaymentMethod) &&
		(c.Metadata == nil || c.fitsMetadata(o.Metadata))
}

// fitsMetadata compares texts, and of numbers and booleans their JSON.
func (c *Condition) fitsMetadata(metadata []byte) bool {
	var has map[string]json.RawMessage
	if json.Unmarshal(metadata, &has) != nil {
		return false
	}
	for key, want := range c.Metadata {
		value, given := has[key]
		text := string(value)
		if len(value) > 0 && value[0] == '"' && json.Unmarshal(value, &text) != nil || !given || text != want {
			return false
		}
	}
	return true
}

// RouteOf is the name of the route that charges an order first; empty: the charge has only one.
func (p *Policy) RouteOf(o Order) string {
	if p == nil {
		return ""
	}
	return firstFor(p.Routes, o)
}

func firstFor(routes []Route, o Order) string {
	for i := range routes {
		if routes[i].When.fits(o) {
			return routes[i].Name
		}
	}
	return ""
}

// NextRoute is the name of the route that charges an order after a route has refused it with a code; empty: none does.
func (p *Policy) NextRoute(after, code string, o Order) string {
	if !slices.Contains(p.FallbackOf(after), code) {
		return ""
	}
	return firstFor(p.Routes[p.routeNamed(after)+1:], o)
}

// FallbackOf are the codes of refusals of a route after which the next route is tried.
func (p *Policy) FallbackOf(route string) []string {
	if i := p.routeNamed(route); i >= 0 {
		return p.Routes[i].Fallback
	}
	return nil
}

func (p *Policy) routeNamed(name string) int {
	return slices.IndexFunc(p.Routes, func(r Route) bool { return r.Name == name })
}

// Place is where a step is done: which step, and at a charge with several routes by which of them. A confirmation has a
// route if it captures what the route has authorized.
type Place struct {
	Step  fsm.Step
	Route string
}

func (p Place) String() string {
	if p.Route == "" {
		return string(p.Step)
	}
	return string(p.Step) + "/" + p.Route
}

// Place is where a step of an order with a route is done.
func (p *Policy) Place(s fsm.Step, route string) Place {
	if p == nil || len(p.Routes) == 0 || s == fsm.Reserve || s == fsm.Confirm && p.Confirm.Executor != Stripe {
		route = ""
	}
	return Place{s, route}
}

// Places are all places of a policy, in the order of the steps and routes.
func (p *Policy) Places() (all []Place) {
	for _, s := range fsm.Steps() {
		places := []Place{p.Place(s, "")}
		if s != fsm.Reserve && p.Place(s, "x").Route != "" {
			places = nil
			for i := range p.Routes {
				places = append(places, Place{s, p.Routes[i].Name})
			}
		}
		all = append(all, places...)
	}
	return all
}

// unknownRoute is the step of a route that a policy does not have. No executor runs it, so nothing is sent to another
// provider instead.
var unknownRoute = Step{Executor: "unknown route"}

// at is the step of a place that has a route.
func (p *Policy) at(place Place) *Step {
	i := p.routeNamed(place.Route)
	switch {
	case i < 0:
		return &unknownRoute
	case place.Step == fsm.Charge:
		return &p.Routes[i].charge
	default:
		return &p.Routes[i].confirm
	}
}

// routeKeys are the keys that a route has besides those of its step.
var routeKeys = []string{"name", "currency", "amountOver", "paymentMethod", "metadata", "fallback"}

// conditionKeys are those of them that are a condition.
var conditionKeys = routeKeys[1:5]

// routes reads a charge that is a list. The first route is the charge of the policy.
func (r *reader) routes(p *Policy, list mapping) (steps []mapping) {
	for i, entry := range list.list(string(fsm.Charge), "a step, or a list of routes") {
		how, m := r.stepAt(entry, fmt.Sprintf("charge[%d]", i), fsm.Charge, routeKeys)
		route := Route{Name: m.routeName(), When: m.routeCondition(), Fallback: m.texts("fallback"), charge: how}
		if route.Name != "" && p.routeNamed(route.Name) >= 0 {
			m.wrong("name", "given twice")
		}
		p.Routes, steps = append(p.Routes, route), append(steps, m)
	}
	if len(steps) == 0 {
		return nil
	}
	p.Charge = p.Routes[0].charge
	for i, m := range steps {
		last := i == len(steps)-1
		given := slices.ContainsFunc(conditionKeys, func(key string) bool { return m.keys[key] != nil })
		switch {
		case last && given:
			r.add(m.at(conditionKeys...), m.path, "the last route must have no condition, so that every order has a route")
		case !last && !given && m.values["fallback"] == nil:
			r.add(m.node, m.path, "must have a condition or fallback, or the routes after it are never used")
		case last && m.values["fallback"] != nil:
			m.wrong("fallback", "there is no route after the last one")
		}
	}
	return steps
}

var plainName = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,39}$`)

func (m mapping) routeName() (name string) {
	read(m, "name", &name, kind[string]{"a name of up to 40 lowercase letters, digits, - and _", isText, func(text string) (string, bool) {
		return text, plainName.MatchString(text)
	}})
	m.needs("name")
	return name
}

func (m mapping) routeCondition() Condition {
	c := m.condition()
	read(m, "paymentMethod", &c.PaymentMethod, kind[string]{"text in quotes, with which payment methods begin", isText, func(text string) (string, bool) {
		return text, text != "" && len(text) <= maxText
	}})
	if n := m.values["metadata"]; n != nil {
		c.Metadata = m.metadata(n)
	}
	return c
}

// condition reads what approvals and routes can both demand.
func (m mapping) condition() Condition {
	c := Condition{AmountOver: m.amount("amountOver")}
	if currency, ok := m.scalar("currency", "a currency such as USD", "!!str"); ok {
		if c.Currency = currency; !iso4217.Known(currency) {
			m.wants(m.values["currency"], m.pathOf("currency"), "a currency of ISO 4217, in capital letters")
		}
	}
	if m.values["amountOver"] != nil && m.values["currency"] == nil {
		m.wrong("amountOver", "requires currency")
	}
	return c
}

func (m mapping) metadata(n *yaml.Node) map[string]string {
	const want = "a mapping of metadata keys to texts"
	path := m.pathOf("metadata")
	if n.Kind != yaml.MappingNode || n.ShortTag() != "!!map" || len(n.Content) == 0 {
		m.wants(n, path, want)
		return nil
	}
	all := map[string]string{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, ok := m.text(n.Content[i], path, want, isText...)
		value, fits := m.text(n.Content[i+1], path, "text, a number, true or false", slices.Concat(isText, isNumber, isTruth)...)
		if _, twice := all[key]; ok && twice {
			m.add(n.Content[i], path, "duplicate key")
		}
		if ok && fits {
			all[key] = value
		}
	}
	return maps.Clone(all)
}
