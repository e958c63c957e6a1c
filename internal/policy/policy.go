// Package policy defines how orders are processed: which executor runs each step, how often it is retried, which orders
// need approval, and how many run concurrently.
//
// A policy is a YAML file. It is stored as an immutable version, and an order keeps the version it started with. It names
// secrets and never contains them. Without a policy, every step runs in the ledger, that is, in the database.
package policy

import (
	_ "embed" // for the line below
	"net/url"
	"path/filepath"
	"regexp"
	"strings"
	"time"
	"unicode"

	"github.com/govalues/decimal"

	"pawl/fsm"
)

// Policy is a valid policy with all defaults filled in. It is immutable.
type Policy struct {
	Charge, Reserve, Confirm Step          // Charge: of the first route, if there are several
	Routes                   []Route       // of a charge with several; the first whose condition holds charges an order
	Approval                 []Approval    // the first matching rule applies
	ReservationTTL           time.Duration // how long a reservation waits for its confirmation; 0: forever
	CompleteWithin           time.Duration // default deadline of orders; 0: none
	Concurrency              *Concurrency  // nil: no limit

	// Copied is set if the policy belongs to the installation that the database was copied from, whose providers must
	// not be called. Its remote steps don't run. It is not part of the text.
	Copied bool
}

// Step returns the configuration of a step of an order with that route; empty: it has none. Without a policy (nil), it
// is the ledger.
func (p *Policy) Step(s fsm.Step, route string) *Step {
	if p == nil {
		return &Step{Executor: Ledger}
	}
	place := p.Place(s, route)
	if place.Route != "" {
		return p.at(place)
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

// Executor is the kind of program that runs a step.
type Executor string

// The executors. The ledger runs its step in the database, in the commit of the move; the others are remote.
const (
	Ledger    Executor = "ledger"
	HTTP      Executor = "http"
	Stripe    Executor = "stripe"
	Simulator Executor = "simulator"
)

// Remote reports whether the executor runs outside the database.
func (e Executor) Remote() bool { return e != "" && e != Ledger }

// When the money of a charge is taken.
const (
	CaptureImmediately = "immediately"
	CaptureOnConfirm   = "on_confirm" // stripe: the charge authorizes; the confirm step captures
	CaptureLater       = "later"      // the charge authorizes; captures are requested
)

// Step is the configuration of a step. Fields that its executor does not use are empty. The confirm step of Stripe has
// the URL and the secrets of the charge.
type Step struct {
	Executor Executor

	URL        string // http: of the step; simulator: the base URL of pawl simulate; stripe: of the API, or empty
	UndoURL    string // http: of the undo; required for charge and reserve
	RefundURL  string // http, charge: of refunds; empty: not supported
	CaptureURL string // http, charge: of captures; required with CaptureLater, as is VoidURL
	VoidURL    string // http, charge: of voids
	LookupURL  string // http: of look-ups; empty: not supported
	Secret     Secret // http, simulator: signs requests (Standard Webhooks), empty: unsigned; stripe: the API key

	SignedCallbacks bool // http, simulator: callbacks must be signed with the secret

	WebhookSecret Secret // stripe: signs Stripe's events
	Capture       string // charge: CaptureImmediately, CaptureOnConfirm or CaptureLater

	CaptureWithin time.Duration // with CaptureLater: how long an authorization lasts; 168 h

	Timeout         time.Duration // of one call; charge 30 s, reserve 5 s, confirm 10 s
	KeyRetention    time.Duration // how long the provider remembers a key; 24 h
	CallbackTimeout time.Duration // how long to wait for the callback after a 202; 1 h
	InFlight        int           // concurrent calls per replica; 256
	Queue           int           // orders waiting for a call, per replica; 10,000
	Retry           Retry
	Breaker         Breaker
}

// Host is the host that the step calls, with the port if its URL has one; empty: none.
func (s *Step) Host() string {
	u, err := url.Parse(s.URL)
	switch {
	case s.Executor == Stripe && s.URL == "":
		return "api.stripe.com"
	case err != nil:
		return ""
	}
	return u.Host
}

// Retry configures the retries of a step. Both the retries and the budget of a window must be used up before a person is
// asked.
type Retry struct {
	Initial      time.Duration // upper bound of the first delay, with full jitter; 200 ms
	Factor       float64       // 2
	Cap          time.Duration // 60 s
	MaxRetries   int           // of retries that count; charge 7, others 19
	Budget       time.Duration // 15 min
	NonRetryable []string      // codes of answers that are not retried
}

// Breaker configures the circuit breaker.
type Breaker struct {
	Failures int           // consecutive failures that open it; 20
	Open     time.Duration // how long it stays open; 5 s
}

// Approval is a rule: a matching order waits for a person before its charge.
type Approval struct {
	Condition
	Timeout   time.Duration // 0: none
	OnTimeout string        // ApprovalCancel or ApprovalApprove
	ByAnother bool          // the submitter of the order can't approve it
}

// What happens when an approval times out.
const (
	ApprovalCancel  = "cancel"
	ApprovalApprove = "approve"
)

// Concurrency limits how many orders with the same key run concurrently.
type Concurrency struct {
	By    string // ByItem, ByCustomer, or ByKey: the concurrencyKey of the request
	Limit int
}

// The keys of concurrency limits.
const (
	ByItem     = "item"
	ByCustomer = "customerId"
	ByKey      = "concurrencyKey"
)

// Secret names a secret: env:NAME or file:/path. It is read when used, so that it can be replaced while the service
// runs, and only if Bounds allow it.
type Secret string

const wantSecret = "env:NAME or file:/absolute/path, where to find the secret; a policy is kept forever and must not hold one"

var envSecret = regexp.MustCompile(`^env:[A-Za-z_][A-Za-z0-9_]*$`)

// valid reports whether the syntax is valid.
func (s Secret) valid() bool {
	path, isFile := strings.CutPrefix(string(s), "file:")
	return envSecret.MatchString(string(s)) ||
		isFile && filepath.IsAbs(path) && filepath.Clean(path) == path && path != "/" && len(path) <= 4096 &&
			!strings.ContainsFunc(path, unicode.IsControl)
}

// Order has the fields of an order that policies use.
type Order struct {
	Amount         decimal.Decimal
	Currency       string
	Items          []string // of all lines, in their order
	CustomerID     string   // empty: not given
	ConcurrencyKey string   // empty: not given
	PaymentMethod  string   // empty: not given
	Metadata       []byte   // a JSON object, or empty
}

// ApprovalOf returns the first matching rule and its index, or nil if the order needs no approval.
func (p *Policy) ApprovalOf(o Order) (*Approval, int) {
	for i := range p.Approval {
		if p.Approval[i].fits(o) {
			return &p.Approval[i], i
		}
	}
	return nil, -1
}

// Key is the concurrency key of the order, such as item:widget. It is empty if the policy has no limit, or if the order
// lacks the field. An order with lines has the key of its first item.
func (p *Policy) Key(o Order) string {
	if p.Concurrency == nil {
		return ""
	}
	item := ""
	if len(o.Items) > 0 {
		item = o.Items[0]
	}
	value := map[string]string{ByItem: item, ByCustomer: o.CustomerID, ByKey: o.ConcurrencyKey}[p.Concurrency.By]
	if value == "" {
		return ""
	}
	return p.Concurrency.By + ":" + value
}

//go:embed schema.json
var schema string

// Schema returns the JSON schema of policies (draft 2020-12), for editors. It accepts everything that Parse accepts,
// and some things that Parse rejects.
func Schema() string { return schema }
