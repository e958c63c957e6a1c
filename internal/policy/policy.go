// Package policy says how the orders of a shop are done: which executor does each step,
// how long it is tried, what has to be approved, how many orders go at a time.
//
// A policy is a YAML file. It is stored as an immutable version, and an order keeps the
// version it started with. It names secrets and never holds them. No policy at all means
// the ledger for every step: all in the database, nothing waits.
package policy

import (
	_ "embed" // for the line below
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/govalues/decimal"

	"pawl/fsm"
)

// Policy is one version, checked, with every default filled in. It is never changed.
type Policy struct {
	Charge, Reserve, Confirm Step
	Approval                 []Approval    // the first rule that fits counts
	ReservationTTL           time.Duration // how long a reservation waits for its confirmation; 0: for ever
	CompleteWithin           time.Duration // the deadline of an order that names none; 0: none
	Concurrency              *Concurrency  // nil: no limit

	// Copied: it is of the installation that the database was copied from, whose providers must hear nothing of the copy. No
	// remote step is done by it. The text of a policy does not say so.
	Copied bool
}

// Step returns how a step is done: by the ledger where there is no policy (nil).
func (p *Policy) Step(s fsm.Step) *Step {
	if p == nil {
		return &Step{Executor: Ledger}
	}
	switch s {
	case fsm.Charge:
		return &p.Charge
	case fsm.Reserve:
		return &p.Reserve
	default:
		return &p.Confirm
	}
}

// Executor is what does a step.
type Executor string

// The executors. The ledger does its step in the database, in the commit of the move;
// the others are remote.
const (
	Ledger    Executor = "ledger"
	HTTP      Executor = "http"
	Stripe    Executor = "stripe"
	Simulator Executor = "simulator"
)

// Remote reports whether a step with this executor is a remote step: it is not done by the database.
func (e Executor) Remote() bool { return e != "" && e != Ledger }

// When Stripe takes the money of a charge.
const (
	CaptureImmediately = "immediately"
	CaptureOnConfirm   = "on_confirm" // the charge authorizes; the confirm step captures
)

// Step is how one step is done. What an executor does not use is empty. The confirm step of
// Stripe has the URL and the secrets of the charge.
type Step struct {
	Executor Executor

	URL       string // http: where to do it; simulator: the base URL of pawl simulate; stripe: empty, or where the API is
	UndoURL   string // http: where to undo it; charge and reserve must have one
	RefundURL string // http, charge: where to refund it, when the order is completed; empty: there is no such place
	LookupURL string // http: where to ask after a key; empty: there is no such place
	Secret    Secret // http, simulator: signs requests (Standard Webhooks), empty: none are signed; stripe: the API key

	SignedCallbacks bool // http, simulator: a callback must be signed with the secret

	WebhookSecret Secret // stripe: signs what Stripe sends to us
	Capture       string // stripe, charge: CaptureImmediately or CaptureOnConfirm

	Timeout         time.Duration // of one call; charge 30 s, reserve 5 s, confirm 10 s
	KeyRetention    time.Duration // how long the other side remembers a key; 24 h
	CallbackTimeout time.Duration // how long an answer 202 may wait for its callback; 1 h
	InFlight        int           // calls at a time, per replica; 256
	Queue           int           // orders that wait for a call, per replica; 10,000
	Retry           Retry
	Breaker         Breaker
}

// Retry says how a step is tried again. The retries and the budget of a window must
// both be spent before a person is asked.
type Retry struct {
	Initial      time.Duration // 200 ms; the first delay is drawn from 0 to this
	Factor       float64       // 2
	Cap          time.Duration // 60 s
	MaxRetries   int           // after the first call, of those that count; charge 7, others 19
	Budget       time.Duration // 15 min
	NonRetryable []string      // codes that end the step where the answer would have been tried again
}

// Breaker says when an executor that keeps failing is left alone.
type Breaker struct {
	Failures int           // in a row; 20
	Open     time.Duration // how long it is left alone; 5 s
}

// Approval is a rule: an order it fits waits for a person before its charge. All that
// is given must fit.
type Approval struct {
	AmountOver *decimal.Decimal // with Currency
	Currency   string
	Items      []string
	Customers  []string
	Timeout    time.Duration // 0: no time-out
	OnTimeout  string        // ApprovalCancel or ApprovalApprove
	ByAnother  bool          // the submitter of the order can't approve it
}

// What the end of the time for an approval means.
const (
	ApprovalCancel  = "cancel"
	ApprovalApprove = "approve"
)

// Concurrency limits how many orders with the same key are under way.
type Concurrency struct {
	By    string // ByItem, ByCustomer, or ByKey: the concurrencyKey of the request
	Limit int
}

// What a concurrency limit goes by.
const (
	ByItem     = "item"
	ByCustomer = "customerId"
	ByKey      = "concurrencyKey"
)

// Secret names a secret: env:NAME or file:/path. It is read when it is used, so that it
// can be replaced while the service runs, and only where Bounds allow it.
type Secret string

const wantSecret = "env:NAME or file:/absolute/path, where to find the secret; a policy is kept for ever and must not hold one"

var envSecret = regexp.MustCompile(`^env:[A-Za-z_][A-Za-z0-9_]*$`)

// valid reports whether the secret names a place.
func (s Secret) valid() bool {
	path, isFile := strings.CutPrefix(string(s), "file:")
	return envSecret.MatchString(string(s)) ||
		isFile && filepath.IsAbs(path) && filepath.Clean(path) == path && path != "/" && len(path) <= 4096 &&
			!strings.ContainsFunc(path, unicode.IsControl)
}

// Order is what a policy asks of an order.
type Order struct {
	Amount         decimal.Decimal
	Currency, Item string
	CustomerID     string // empty: not given
	ConcurrencyKey string // empty: not given
}

// ApprovalOf returns the first rule that fits the order and its place in the list, or
// nil if the order needs no approval.
func (p *Policy) ApprovalOf(o Order) (*Approval, int) {
	for i := range p.Approval {
		if p.Approval[i].fits(o) {
			return &p.Approval[i], i
		}
	}
	return nil, -1
}

// fits reports whether all that the rule gives is true of the order. A rule that gives
// nothing fits every order; one with customers does not fit an order without.
func (a *Approval) fits(o Order) bool {
	return (a.AmountOver == nil || o.Amount.Cmp(*a.AmountOver) > 0) &&
		(a.Currency == "" || a.Currency == o.Currency) &&
		(a.Items == nil || slices.Contains(a.Items, o.Item)) &&
		(a.Customers == nil || slices.Contains(a.Customers, o.CustomerID))
}

// Key is what the order shares with those it must not be under way with: kind and value,
// as item:widget. Empty: no limit holds for it, because the policy has none or the order
// does not have what the limit goes by.
func (p *Policy) Key(o Order) string {
	if p.Concurrency == nil {
		return ""
	}
	value := map[string]string{ByItem: o.Item, ByCustomer: o.CustomerID, ByKey: o.ConcurrencyKey}[p.Concurrency.By]
	if value == "" {
		return ""
	}
	return p.Concurrency.By + ":" + value
}

//go:embed schema.json
var schema string

// Schema returns the JSON schema of policies (draft 2020-12), for editors. It accepts all
// that Parse accepts; some of what Parse refuses it can't say.
func Schema() string { return schema }
