package policy

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/govalues/decimal"
	"go.yaml.in/yaml/v4"

	"pawl/fsm"
)

const (
	maxTerm  = 8760 * time.Hour // a year
	maxLimit = 1_000_000
)

// Parse reads a policy: one YAML document of up to 256 KiB. Missing keys get their defaults. The error is a Problems
// with all mistakes.
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
	var charges []mapping
	if n := m.values[string(fsm.Charge)]; n != nil && n.Kind == yaml.SequenceNode {
		charges = r.routes(p, m)
	} else {
		how, charge := r.step(m, fsm.Charge)
		p.Charge, charges = how, []mapping{charge}
	}
	p.Reserve, _ = r.step(m, fsm.Reserve)
	how, confirm := r.step(m, fsm.Confirm)
	p.Confirm = how
	r.capture(p, charges, confirm)
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

// capture checks that an authorized charge is captured by the confirm step, and by nothing else: after a crash, two
// effects in one step could not be told apart. The confirm step uses the account of the charge.
func (r *reader) capture(p *Policy, charges []mapping, confirm mapping) {
	for i, m := range charges {
		charge, captures := &p.Charge, &p.Confirm
		if p.Routes != nil {
			p.Routes[i].confirm = p.Confirm
			charge, captures = &p.Routes[i].charge, &p.Routes[i].confirm
		}
		onConfirm := charge.Executor == Stripe && charge.Capture == CaptureOnConfirm
		switch {
		case onConfirm && p.Confirm.Executor != Stripe:
			r.add(m.at("capture"), m.pathOf("capture"), "with on_confirm, the confirm step captures: confirm.executor must be stripe")
		case !onConfirm && p.Confirm.Executor == Stripe:
			r.add(confirm.at("executor"), "confirm.executor",
				"stripe confirms by capturing what the charge authorized: charge.executor must be stripe, and charge.capture on_confirm")
			return // once for all routes
		case onConfirm:
			captures.URL, captures.Secret, captures.WebhookSecret = charge.URL, charge.Secret, charge.WebhookSecret
		}
	}
}

func (r *reader) approval(n *yaml.Node, path string) Approval {
	m := r.mapping(n, path, []string{"amountOver", "currency", "items", "customers", "approver", "timeout", "onTimeout"})
	a := Approval{Condition: m.condition()}
	a.Items, a.Customers = m.texts("items"), m.texts("customers")
	a.ByAnother = m.word("approver", "anybody", "anybody", "another") == "another"
	m.duration("timeout", &a.Timeout, 0, maxTerm)
	a.OnTimeout = m.word("onTimeout", ApprovalCancel, ApprovalCancel, ApprovalApprove)
	if m.values["onTimeout"] != nil && a.Timeout == 0 {
		m.wrong("onTimeout", "requires timeout")
	}
	return a
}

var amountText = regexp.MustCompile(`^(0|[1-9][0-9]{0,14})(\.[0-9]{1,4})?$`)

// amount is an amount as in orders, or nil if it is not given.
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

// needs rejects a mapping without these keys.
func (m mapping) needs(keys ...string) {
	if m.node.Kind != yaml.MappingNode {
		return // already reported
	}
	for _, key := range keys {
		if m.values[key] == nil {
			m.add(m.node, m.pathOf(key), "is missing")
		}
	}
}

// The keys of a step.
var (
	stepKeys = slices.Concat([]string{"executor", "url", "undoUrl", "refundUrl", "captureUrl", "voidUrl", "lookupUrl", "secret", "signedCallbacks",
		"webhookSecret", "capture", "captureWithin"}, callKeys)
	callKeys = []string{"timeout", "keyRetention", "callbackTimeout", "inFlight", "queue", "retry", "breaker"}
)

// executorKeys are the required and optional keys of a step, by executor.
var executorKeys = map[Executor]struct{ must, may []string }{
	Ledger:    {},
	HTTP:      {[]string{"url"}, slices.Concat([]string{"undoUrl", "refundUrl", "captureUrl", "voidUrl", "lookupUrl", "secret", "signedCallbacks", "capture", "captureWithin"}, callKeys)},
	Stripe:    {[]string{"secret"}, slices.Concat([]string{"url", "webhookSecret", "capture", "captureWithin"}, callKeys)},
	Simulator: {[]string{"url"}, slices.Concat([]string{"secret", "signedCallbacks", "capture", "captureWithin"}, callKeys)},
}

// step reads a step of a policy. The default executor is the ledger.
func (r *reader) step(policy mapping, s fsm.Step) (Step, mapping) {
	n := policy.values[string(s)]
	if n == nil {
		return Step{Executor: Ledger}, mapping{reader: r, path: string(s), node: policy.node}
	}
	return r.stepAt(n, string(s), s, nil)
}

// stepAt reads a step, or a route, which has more keys. A route must be remote.
func (r *reader) stepAt(n *yaml.Node, path string, s fsm.Step, others []string) (Step, mapping) {
	m := r.mapping(n, path, slices.Concat(stepKeys, others))
	names, otherwise := executors(s), string(Ledger)
	if others != nil {
		names, otherwise = without(names, otherwise), ""
		m.needs("executor")
	}
	executor := Executor(m.word("executor", otherwise, names...))
	if given := m.values["executor"]; executor == "" || given != nil && given.Value != string(executor) {
		return Step{Executor: Ledger}, m // the other keys depend on the executor
	}
	if !m.fits(s, executor, others) || executor == Ledger {
		return Step{Executor: executor}, m
	}
	how := defaults(s, executor)
	m.reach(&how)
	m.tuning(&how)
	m.forgotten(&how)
	return how, m
}

// executors are the names of the executors for a step.
func executors(s fsm.Step) (names []string) {
	for _, executor := range slices.Sorted(maps.Keys(executorKeys)) {
		if s != fsm.Reserve || executor != Stripe { // Stripe has no stock
			names = append(names, string(executor))
		}
	}
	return names
}

// fits checks that the step has all required keys of its executor, and only keys that it uses, or others.
func (m mapping) fits(s fsm.Step, executor Executor, others []string) bool {
	before := len(m.problems)
	keys := executorKeys[executor]
	must, may := keys.must, keys.may
	if s != fsm.Charge {
		may = slices.DeleteFunc(slices.Clone(may), func(key string) bool { return slices.Contains(onlyOfCharge, key) })
	}
	switch {
	case executor == HTTP && s == fsm.Confirm:
		may = without(may, "undoUrl") // nothing undoes a confirmation
	case executor == HTTP:
		must = append(slices.Clone(must), "undoUrl")
	case executor == Stripe && s == fsm.Confirm: // it uses the account of the charge
		must, may = nil, callKeys
	}
	for _, key := range slices.Sorted(maps.Keys(m.keys)) {
		if key != "executor" && !slices.Contains(must, key) && !slices.Contains(may, key) && !slices.Contains(others, key) {
			m.add(m.keys[key], m.pathOf(key), m.unused(key, s, executor))
		}
	}
	for _, key := range must {
		if m.values[key] == nil {
			m.add(m.at("executor"), m.pathOf(key), fmt.Sprintf("is missing; %s needs it", executor))
		}
	}
	return len(m.problems) == before
}

// onlyOfCharge are keys about money, which only a charge takes.
var onlyOfCharge = []string{"refundUrl", "captureUrl", "voidUrl", "capture", "captureWithin"}

func without(keys []string, key string) []string {
	return slices.DeleteFunc(slices.Clone(keys), func(k string) bool { return k == key })
}

// unused says why a key does not belong to this executor and step.
func (m mapping) unused(key string, s fsm.Step, executor Executor) string {
	switch {
	case m.values["executor"] == nil:
		return "is not used by the ledger; requires executor: " + strings.Join(without(executors(s), string(Ledger)), ", ")
	case executor == HTTP && slices.Contains(onlyOfCharge, key):
		return "only a charge takes money; leave it out"
	case executor == HTTP && key == "undoUrl":
		return "nothing undoes a confirmation; leave it out"
	case executor == Stripe && s == fsm.Confirm:
		return "is not used by stripe in confirm, which uses the account of charge"
	default:
		return fmt.Sprintf("is not used by %s in %s", executor, s)
	}
}

// defaults is a step with the defaults of its executor.
func defaults(s fsm.Step, executor Executor) Step {
	how := Step{
		Executor: executor, Timeout: 10 * time.Second, KeyRetention: 24 * time.Hour, CallbackTimeout: time.Hour,
		InFlight: 256, Queue: 10_000,
		Retry:   Retry{Initial: 200 * time.Millisecond, Factor: 2, Cap: time.Minute, MaxRetries: 19, Budget: 15 * time.Minute},
		Breaker: Breaker{Failures: 20, Open: 5 * time.Second},
	}
	switch s {
	case fsm.Charge:
		how.Timeout, how.Retry.MaxRetries = 30*time.Second, 7
		if executor == Stripe {
			how.Capture = CaptureImmediately
		}
	case fsm.Reserve:
		how.Timeout = 5 * time.Second
	case fsm.Confirm:
	}
	return how
}

// reach reads the addresses and secrets of a step.
func (m mapping) reach(how *Step) {
	how.URL, how.UndoURL, how.LookupURL = m.address("url"), m.address("undoUrl"), m.address("lookupUrl")
	how.RefundURL, how.CaptureURL, how.VoidURL = m.address("refundUrl"), m.address("captureUrl"), m.address("voidUrl")
	for _, c := range []struct{ key, address, other, same, or string }{
		{"refundUrl", how.RefundURL, "url", how.URL, "a refund would charge again"},
		{"refundUrl", how.RefundURL, "undoUrl", how.UndoURL, "a refund of a part would undo all"},
		{"captureUrl", how.CaptureURL, "url", how.URL, "a capture would charge again"},
		{"voidUrl", how.VoidURL, "url", how.URL, "a void would charge again"},
		{"voidUrl", how.VoidURL, "captureUrl", how.CaptureURL, "a void would capture"},
		{"voidUrl", how.VoidURL, "undoUrl", how.UndoURL, "a void of the rest would undo all"},
		{"undoUrl", how.UndoURL, "url", how.URL, "an undo would do the step again"},
	} {
		if c.address != "" && c.address == c.same {
			m.wrong(c.key, "the same as "+c.other+": must be another, or "+c.or)
		}
	}
	how.Secret, how.WebhookSecret = m.secret("secret"), m.secret("webhookSecret")
	read(m, "signedCallbacks", &how.SignedCallbacks, kind[bool]{"true or false", isTruth, func(text string) (bool, bool) {
		return text == "true", text == "true" || text == "false"
	}})
	if how.SignedCallbacks && m.values["secret"] == nil {
		m.wrong("signedCallbacks", "requires secret")
	}
	m.captures(how)
}

// captures reads when the money is taken.
func (m mapping) captures(how *Step) {
	words := []string{CaptureImmediately, CaptureLater}
	if how.Executor == Stripe {
		words = []string{CaptureImmediately, CaptureOnConfirm, CaptureLater}
	}
	if m.values["capture"] != nil {
		how.Capture = m.word("capture", how.Capture, words...)
	}
	if how.Executor != Stripe && how.Capture == CaptureImmediately {
		how.Capture = "" // what it is anyway
	}
	if how.Capture == CaptureLater {
		how.CaptureWithin = 168 * time.Hour
		m.duration("captureWithin", &how.CaptureWithin, time.Minute, maxTerm)
	}
	for _, key := range []string{"captureWithin", "captureUrl", "voidUrl"} {
		switch given := m.values[key] != nil; {
		case given && how.Capture != CaptureLater:
			m.wrong(key, "requires capture: later")
		case !given && how.Capture == CaptureLater && how.Executor == HTTP && key != "captureWithin":
			m.add(m.at("capture"), m.pathOf(key), "is missing; capture: later needs it")
		}
	}
}

const (
	maxURL  = 2048
	wantURL = "an absolute URL with http or https and a host, without a user, a password or a fragment, and an IPv4 address as four decimal numbers"
)

// ParseURL parses the URL of a provider or endpoint. Its error does not repeat the text, which may contain a token.
func ParseURL(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.User != nil || u.Opaque != "" ||
		strings.Contains(text, "#") || oddAddress(u.Hostname()) {
		return nil, errors.New("must be " + wantURL)
	}
	return u, nil
}

// oddAddress reports whether some programs treat a host as an address and others as a name, such as 0x7f.1, 2130706433
// or 127.1. Browsers treat them as addresses: https://url.spec.whatwg.org/#ends-in-a-number-checker
func oddAddress(host string) bool {
	labels := strings.Split(strings.TrimSuffix(host, "."), ".")
	last := strings.ToLower(labels[len(labels)-1])
	_, err := strconv.ParseUint(last, 0, 64)
	if err != nil && !strings.HasPrefix(last, "0x") && strings.Trim(last, "0123456789") != "" {
		return false
	}
	_, err = netip.ParseAddr(host)
	return err != nil
}

func (m mapping) address(key string) (address string) {
	read(m, key, &address, kind[string]{wantURL, isText, func(text string) (string, bool) {
		_, err := ParseURL(text)
		return text, err == nil && len(text) <= maxURL
	}})
	return address
}

func (m mapping) secret(key string) (secret Secret) {
	read(m, key, &secret, kind[Secret]{wantSecret, isText, func(text string) (Secret, bool) { return Secret(text), Secret(text).valid() }})
	return secret
}

// The limits of times in a step. The margin of the key retention covers the delay and timeout of a last call that
// begins at the end of its window.
const (
	leastTime    = time.Millisecond
	maxTimeout   = 10 * time.Minute
	maxCap       = 30 * time.Minute
	maxWait      = 720 * time.Hour
	maxRetention = 87_600 * time.Hour
	keyMargin    = time.Hour
)

// tuning reads the limits and retries of a step.
func (m mapping) tuning(how *Step) {
	m.duration("timeout", &how.Timeout, leastTime, maxTimeout)
	m.duration("keyRetention", &how.KeyRetention, time.Hour, maxRetention)
	m.duration("callbackTimeout", &how.CallbackTimeout, leastTime, maxWait)
	m.wholeNumber("inFlight", &how.InFlight, 1, 10_000)
	m.wholeNumber("queue", &how.Queue, 1, maxLimit)
	if n := m.values["retry"]; n != nil {
		retry := m.mapping(n, m.pathOf("retry"), []string{"initial", "factor", "cap", "maxRetries", "budget", "nonRetryable"})
		retry.duration("initial", &how.Retry.Initial, leastTime, maxCap)
		retry.number("factor", &how.Retry.Factor, 1, 10)
		retry.duration("cap", &how.Retry.Cap, leastTime, maxCap)
		retry.wholeNumber("maxRetries", &how.Retry.MaxRetries, 0, 999)
		retry.duration("budget", &how.Retry.Budget, 0, maxWait)
		how.Retry.NonRetryable = retry.texts("nonRetryable")
		if how.Retry.Cap < how.Retry.Initial {
			retry.add(retry.at("cap", "initial"), retry.pathOf("cap"), "must not be less than initial: it is the longest delay")
		}
	}
	if n := m.values["breaker"]; n != nil {
		breaker := m.mapping(n, m.pathOf("breaker"), []string{"failures", "open"})
		breaker.wholeNumber("failures", &how.Breaker.Failures, 1, maxLimit)
		breaker.duration("open", &how.Breaker.Open, leastTime, time.Hour)
	}
}

// forgotten rejects a step that could be retried after the provider has forgotten the key of the first call, and so be
// done twice.
func (m mapping) forgotten(how *Step) {
	retries := how.Retry.Longest(how.Timeout)
	where := m.at("keyRetention", "callbackTimeout", "retry", "executor")
	if how.Executor == Stripe && how.KeyRetention > 24*time.Hour {
		m.add(where, m.pathOf("keyRetention"), "must be at most 24h: Stripe promises no more")
	}
	if need := retries + how.CallbackTimeout + keyMargin; need > how.KeyRetention {
		m.add(where, m.pathOf("keyRetention"), fmt.Sprintf(
			"%s is too short: retries (up to %s), callbackTimeout (%s) and a margin of %s need %s, or a step could be "+
				"done again under a key that is forgotten",
			short(how.KeyRetention), short(retries), short(how.CallbackTimeout), short(keyMargin), short(need)))
	}
}

// Longest is the longest possible retry window: every call times out, every delay is maximal, and both retries and
// budget are used up.
func (r Retry) Longest(timeout time.Duration) time.Duration {
	spent := time.Duration(0)
	delay := float64(r.Initial)
	for range r.MaxRetries + 1 { // the first call, too
		spent += timeout + min(time.Duration(delay), r.Cap)
		delay = min(delay*r.Factor, float64(r.Cap))
	}
	return max(spent, r.Budget)
}
