package policy

import (
	"fmt"
	"regexp"
	"time"

	"github.com/govalues/decimal"
	"go.yaml.in/yaml/v4"

	"pawl/fsm"
	"pawl/internal/iso4217"
)

const (
	maxTerm  = 8760 * time.Hour // a year
	maxLimit = 1_000_000
)

// Parse reads a policy: one YAML document of known keys, at most 256 KiB. What is left
// out gets its default. The error is a Problems with all that is wrong.
func Parse(source []byte) (*Policy, error) {
	r := &reader{}
	if document := r.document(source); document != nil {
		if p := r.policy(document); len(r.problems) == 0 {
			return p, nil
		}
	}
	r.problems.sort()
	return nil, r.problems
}

func (r *reader) policy(n *yaml.Node) *Policy {
	m := r.mapping(n, "", []string{"charge", "reserve", "confirm", "approval", "reservationTtl", "completeWithin", "concurrency"})
	p := &Policy{}
	steps := map[fsm.Step]mapping{}
	for _, s := range fsm.Steps() {
		*p.Step(s), steps[s] = r.step(m, s)
	}
	r.capture(p, steps)
	m.duration("reservationTtl", &p.ReservationTTL, 0, maxTerm)
	m.duration("completeWithin", &p.CompleteWithin, 0, maxTerm)
	for i, entry := range m.list("approval", "a list of rules") {
		p.Approval = append(p.Approval, r.approval(entry, fmt.Sprintf("approval[%d]", i)))
	}
	if m.values["concurrency"] != nil {
		p.Concurrency = r.concurrency(m.values["concurrency"])
	}
	return p
}

// capture checks that money which is only authorized by the charge is taken by the
// confirm step, and by nothing else: two effects in one step could not be told apart
// after a crash. The account is that of the charge.
func (r *reader) capture(p *Policy, steps map[fsm.Step]mapping) {
	onConfirm := p.Charge.Executor == Stripe && p.Charge.Capture == CaptureOnConfirm
	switch {
	case onConfirm && p.Confirm.Executor != Stripe:
		r.add(steps[fsm.Charge].at("capture"), "charge.capture",
			"on_confirm makes the capture the confirm step: want confirm.executor stripe")
	case !onConfirm && p.Confirm.Executor == Stripe:
		r.add(steps[fsm.Confirm].at("executor"), "confirm.executor",
			"stripe confirms by capturing what the charge authorized: want charge.executor stripe and charge.capture on_confirm")
	case onConfirm:
		p.Confirm.URL, p.Confirm.Secret, p.Confirm.WebhookSecret = p.Charge.URL, p.Charge.Secret, p.Charge.WebhookSecret
	}
}

func (r *reader) approval(n *yaml.Node, path string) Approval {
	m := r.mapping(n, path, []string{"amountOver", "currency", "items", "customers", "approver", "timeout", "onTimeout"})
	a := Approval{AmountOver: m.amount("amountOver"), Items: m.texts("items"), Customers: m.texts("customers")}
	if currency, ok := m.scalar("currency", "a currency such as USD", "!!str"); ok {
		if a.Currency = currency; !iso4217.Known(currency) {
			m.wants(m.values["currency"], m.pathOf("currency"), "a currency of ISO 4217, in capital letters")
		}
	}
	if m.values["amountOver"] != nil && m.values["currency"] == nil {
		m.add(m.at("amountOver"), m.pathOf("amountOver"), "means nothing without a currency: want currency beside it")
	}
	a.ByAnother = m.word("approver", "anybody", "anybody", "another") == "another"
	m.duration("timeout", &a.Timeout, 0, maxTerm)
	a.OnTimeout = m.word("onTimeout", ApprovalCancel, ApprovalCancel, ApprovalApprove)
	if m.values["onTimeout"] != nil && a.Timeout == 0 {
		m.add(m.at("onTimeout"), m.pathOf("onTimeout"), "there is no time-out: want timeout beside it")
	}
	return a
}

var amountText = regexp.MustCompile(`^(0|[1-9][0-9]{0,14})(\.[0-9]{1,4})?$`)

// amount is an amount as orders have it, nil where it is not given.
func (m mapping) amount(key string) *decimal.Decimal {
	const want = "an amount from 0, with up to 15 digits before the point and 4 after it, without quotes"
	var amount decimal.Decimal
	given := read(m, key, &amount, kind[decimal.Decimal]{want, isNumber, func(text string) (decimal.Decimal, bool) {
		d, err := decimal.Parse(text)
		return d, err == nil && amountText.MatchString(text)
	}})
	if !given {
		return nil
	}
	return &amount
}

func (r *reader) concurrency(n *yaml.Node) *Concurrency {
	m := r.mapping(n, "concurrency", []string{"by", "limit"})
	c := &Concurrency{By: m.word("by", "", ByItem, ByCustomer, ByKey)}
	m.wholeNumber("limit", &c.Limit, 1, maxLimit)
	m.needs("by", "limit")
	return c
}

// needs refuses a mapping without these keys.
func (m mapping) needs(keys ...string) {
	if m.node.Kind != yaml.MappingNode {
		return // that was said
	}
	for _, key := range keys {
		if m.values[key] == nil {
			m.add(m.node, m.pathOf(key), "is missing")
		}
	}
}
