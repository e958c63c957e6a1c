package policy

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"pawl/fsm"
)

// Keys of a step, by who needs them.
var (
	stepKeys = slices.Concat([]string{"executor", "url", "undoUrl", "refundUrl", "lookupUrl", "secret", "signedCallbacks", "webhookSecret", "capture"}, callKeys)
	callKeys = []string{"timeout", "keyRetention", "callbackTimeout", "inFlight", "queue", "retry", "breaker"}
)

// executorKeys are the keys of a step that an executor has: those it must have first.
var executorKeys = map[Executor]struct{ must, may []string }{
	Ledger:    {},
	HTTP:      {[]string{"url"}, slices.Concat([]string{"undoUrl", "refundUrl", "lookupUrl", "secret", "signedCallbacks"}, callKeys)},
	Stripe:    {[]string{"secret"}, slices.Concat([]string{"url", "webhookSecret", "capture"}, callKeys)},
	Simulator: {[]string{"url"}, slices.Concat([]string{"secret", "signedCallbacks"}, callKeys)},
}

// step reads the step of a policy. A step without an executor is the ledger's.
func (r *reader) step(policy mapping, s fsm.Step) (Step, mapping) {
	n := policy.values[string(s)]
	if n == nil {
		return Step{Executor: Ledger}, mapping{reader: r, path: string(s), node: policy.node}
	}
	m := r.mapping(n, string(s), stepKeys)
	names := executors(s)
	executor := Executor(m.word("executor", string(Ledger), names...))
	if given := m.values["executor"]; given != nil && given.Value != string(executor) {
		return Step{Executor: Ledger}, m // which other keys it can have is not known
	}
	if !m.fits(s, executor) || executor == Ledger {
		return Step{Executor: executor}, m
	}
	how := defaults(s, executor)
	m.reach(&how)
	m.tuning(&how)
	m.forgotten(&how)
	return how, m
}

// executors are the names of those that can do a step.
func executors(s fsm.Step) (names []string) {
	for _, executor := range slices.Sorted(maps.Keys(executorKeys)) {
		if s != fsm.Reserve || executor != Stripe { // Stripe has no stock
			names = append(names, string(executor))
		}
	}
	return names
}

// fits checks that the executor has all the keys it must have and uses all there are.
func (m mapping) fits(s fsm.Step, executor Executor) bool {
	before := len(m.problems)
	keys := executorKeys[executor]
	must, may := keys.must, keys.may
	if s != fsm.Charge {
		may = without(may, "refundUrl") // only money is refunded
	}
	switch {
	case executor == HTTP && s == fsm.Confirm:
		may = without(may, "undoUrl") // nothing undoes a confirmation
	case executor == HTTP:
		must = append(slices.Clone(must), "undoUrl")
	case executor == Stripe && s == fsm.Confirm: // the account is that of the charge
		must, may = nil, callKeys
	}
	for _, key := range slices.Sorted(maps.Keys(m.keys)) {
		if key != "executor" && !slices.Contains(must, key) && !slices.Contains(may, key) {
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

func without(keys []string, key string) []string {
	return slices.DeleteFunc(slices.Clone(keys), func(k string) bool { return k == key })
}

// unused says why a key of other executors or steps is none of this one.
func (m mapping) unused(key string, s fsm.Step, executor Executor) string {
	switch {
	case m.values["executor"] == nil:
		return "the ledger has no use for it; want executor beside it: " + strings.Join(without(executors(s), string(Ledger)), ", ")
	case executor == HTTP && key == "refundUrl":
		return "only a charge is refunded; leave it out"
	case executor == HTTP && key == "undoUrl":
		return "nothing undoes a confirmation; leave it out"
	case executor == Stripe && s == fsm.Confirm:
		return "stripe has no use for it in confirm, which goes by the account of charge"
	default:
		return fmt.Sprintf("%s has no use for it in %s", executor, s)
	}
}

// defaults is a step of which nothing is given but who does it.
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

// reach reads where a step is done and in whose name.
func (m mapping) reach(how *Step) {
	how.URL, how.UndoURL, how.LookupURL = m.address("url"), m.address("undoUrl"), m.address("lookupUrl")
	how.RefundURL = m.address("refundUrl")
	if how.URL != "" && how.URL == how.RefundURL {
		m.add(m.at("refundUrl"), m.pathOf("refundUrl"), "the same as url: want a place of its own, or a refund would charge again")
	}
	if how.RefundURL != "" && how.RefundURL == how.UndoURL {
		m.add(m.at("refundUrl"), m.pathOf("refundUrl"), "the same as undoUrl: want a place of its own, or a refund of a part would undo all")
	}
	if how.URL != "" && how.URL == how.UndoURL {
		m.add(m.at("undoUrl"), m.pathOf("undoUrl"), "the same as url: want a place of its own, or an undo would do the step again")
	}
	how.Secret, how.WebhookSecret = m.secret("secret"), m.secret("webhookSecret")
	read(m, "signedCallbacks", &how.SignedCallbacks, kind[bool]{"true or false", isTruth, func(text string) (bool, bool) {
		return text == "true", text == "true" || text == "false"
	}})
	if how.SignedCallbacks && m.values["secret"] == nil {
		m.add(m.at("signedCallbacks"), m.pathOf("signedCallbacks"), "means nothing without a secret: want secret beside it")
	}
	if m.values["capture"] != nil {
		how.Capture = m.word("capture", how.Capture, CaptureImmediately, CaptureOnConfirm)
	}
}

const (
	maxURL  = 2048
	wantURL = "an absolute URL with http or https and a host, without a user, a password or a fragment, and an IPv4 address as four decimal numbers"
)

// ParseURL reads the address of a provider or of a website. Its error does not repeat the
// text, which may hold a token.
func ParseURL(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.User != nil || u.Opaque != "" ||
		strings.Contains(text, "#") || oddAddress(u.Hostname()) {
		return nil, errors.New("not " + wantURL)
	}
	return u, nil
}

// oddAddress reports whether a host is a number that some programs take for an address and others for a name: 0x7f.1,
// 2130706433, 127.1. Browsers read them as addresses: https://url.spec.whatwg.org/#ends-in-a-number-checker
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
