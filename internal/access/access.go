// Package access identifies callers: by a token, a session of a browser, or the address that a request comes from. It says
// which roles a caller has, and counts its requests. httpapi calls it, and decides which roles an operation needs.
//
// As long as no token was ever made, the service is open: callers on this machine may do everything, others may process
// orders. Making the first token closes it for good.
package access

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"pawl/db"
)

// Role is a right to do some operations.
type Role string

// The roles. A token has any set of them.
const (
	Submit   Role = "submit"   // process orders, and read those that it submitted
	Read     Role = "read"     // read all orders, their history and the stock
	Operate  Role = "operate"  // cancel, retry, pause, resume and refund orders
	Approve  Role = "approve"  // approve and reject orders
	Settle   Role = "settle"   // say what became of a step: that decides about money
	Stock    Role = "stock"    // change the stock
	Delegate Role = "delegate" // say on whose behalf something is done
	Metrics  Role = "metrics"  // read the metrics, and nothing else
	Admin    Role = "admin"    // tokens, policies, endpoints
)

// Roles is a set of roles.
type Roles []Role

// AllRoles are the roles there are, in the order in which people are shown them.
var AllRoles = Roles{Submit, Read, Operate, Approve, Settle, Stock, Delegate, Metrics, Admin}

// Has reports whether a role is among them.
func (r Roles) Has(role Role) bool { return slices.Contains(r, role) }

func (r Roles) String() string { return strings.Join(texts(r), ", ") }

// Limits are how much a principal may ask for. Zero is no limit.
type Limits struct {
	Rate     int32 // requests in a second
	InFlight int32 // requests at one time
	Bytes    int64 // of bodies in a second, in and out
}

// Principal is the sender of a request. It is never changed.
type Principal struct {
	Name   string // in the history: token:shop-web, oidc:https://id.example.com#u-17, local or anonymous
	Email  string // of an OpenID Connect caller, verified by the issuer; people are shown it, nothing is compared with it
	Roles  Roles
	Limits Limits
}

// Has reports whether the principal has a role.
func (p *Principal) Has(role Role) bool { return p.Roles.Has(role) }

// Callers without a credential.
var (
	Local     = &Principal{Name: "local", Roles: AllRoles}          // of an open service, on this machine
	Anonymous = &Principal{Name: "anonymous", Roles: Roles{Submit}} // of an open service, on another machine
	Nobody    = &Principal{Name: "anonymous"}                       // of an operation that needs no credential
)

// ErrUnavailable is wrapped where the database did not answer.
var ErrUnavailable = errors.New("the database does not answer")

// NotIdentified is the error of a request that is not authenticated.
type NotIdentified struct {
	Reason  string // a sentence for the caller
	Invalid bool   // a credential was sent, and it is not good
}

func (n *NotIdentified) Error() string { return n.Reason }

// Config is what a Control can be told.
type Config struct {
	Issuer     Issuer                // of the OpenID Connect tokens that count; zero: none does
	Registerer prometheus.Registerer // of metrics; nil: none
	Log        *slog.Logger          // nil: discarded
}

// Control knows who may use the service. Its methods are safe for concurrent use. A nil one is that of an open service.
type Control struct {
	query *db.Queries
	log   *slog.Logger
	life  context.Context // ends with Stop
	end   context.CancelFunc

	mu      sync.Mutex // for running and stopped
	running sync.WaitGroup
	stopped bool

	closed   atomic.Bool // a token was made, or there is an issuer: that never changes back
	open     *cache[bool]
	tokens   *cache[*grant] // by id
	sessions *cache[*grant] // of browsers, by cookie
	issuer   *issuer        // nil: none

	denials  denials
	usages   usages
	attempts *attempts
	metrics  *metrics
}

// openFor is how long a service is believed to be open still.
const openFor = time.Second

// New returns the control of the database that the queries go to. Stop must be called. Whether the issuer answers is no
// matter. It panics if Check finds something wrong with the issuer.
func New(ctx context.Context, query *db.Queries, cfg Config) (*Control, error) {
	c := &Control{query: query, log: cmp.Or(cfg.Log, slog.New(slog.DiscardHandler)), attempts: newAttempts()}
	c.open = newCache(c, openFor, c.readOpen)
	c.tokens, c.sessions = newCache(c, tokenFor, c.readToken), newCache(c, tokenFor, c.readSession)
	c.life, c.end = context.WithCancel(context.WithoutCancel(ctx))
	if _, err := c.isOpen(ctx); err != nil {
		c.Stop()
		return nil, err
	}
	c.metrics = newMetrics(cfg.Registerer) // once it can't fail any more: a metric can be registered once
	if cfg.Issuer.URL != "" {
		c.trust(cfg.Issuer)
	}
	return c, nil
}

// Stop ends what is under way. After it no request is authenticated.
func (c *Control) Stop() {
	c.mu.Lock()
	c.stopped = true
	c.mu.Unlock()
	c.end()
	c.running.Wait()
	if c.issuer != nil {
		c.issuer.close()
	}
}

// enter reports whether something may begin that Stop waits for: until running.Done.
func (c *Control) enter() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.stopped {
		c.running.Add(1)
	}
	return !c.stopped
}

// begin runs f in the background, unless Stop was called. It returns whether it does.
func (c *Control) begin(f func()) bool {
	entered := c.enter()
	if entered {
		go func() {
			defer c.running.Done()
			f()
		}()
	}
	return entered
}

// Request is what a request shows of its sender.
type Request struct {
	Authorization string     // the header
	Session       string     // the cookie of a browser, if the request can't come from another site
	Address       netip.Addr // of the caller
	Local         bool       // the caller is on this machine, without a proxy between
	Forwarded     bool       // it says that it came through a proxy
}

// Identify authenticates a request. Errors: *NotIdentified, *Exceeded, ErrUnavailable, ErrIssuerAway, or
// why ctx ended.
func (c *Control) Identify(ctx context.Context, q Request) (*Principal, error) {
	if q.Authorization != "" {
		return c.bearer(ctx, q)
	}
	open, err := c.isOpen(ctx)
	switch {
	case err != nil:
		return nil, err
	case !open && q.Session != "":
		return c.session(ctx, q)
	case !open:
		return nil, &NotIdentified{Reason: "No credentials were sent."}
	case q.Forwarded:
		return nil, &NotIdentified{Reason: "No credentials were sent, and they are required for requests through a proxy."}
	case q.Local:
		return Local, nil
	default:
		return Anonymous, nil
	}
}

// Open reports whether no token was ever made. It is at most a second behind, unless the database does not answer.
func (c *Control) Open(ctx context.Context) bool {
	if c == nil {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, readLimit)
	defer cancel()
	open, err := c.isOpen(ctx)
	return open && err == nil
}

func (c *Control) isOpen(ctx context.Context) (bool, error) {
	if c == nil {
		return true, nil
	}
	if c.closed.Load() {
		return false, nil
	}
	return c.open.get(ctx, "")
}

func (c *Control) readOpen(ctx context.Context, _ string) (bool, error) {
	closed, err := c.query.TokensExist(ctx)
	if closed {
		c.closed.Store(true)
	}
	return !closed, err
}

// bearer identifies the holder of a token.
func (c *Control) bearer(ctx context.Context, q Request) (*Principal, error) {
	scheme, token, _ := strings.Cut(q.Authorization, " ")
	switch {
	case !strings.EqualFold(scheme, "Bearer"):
		return nil, invalid("The credential is no bearer token.")
	case c == nil:
		return nil, errUnknown
	}
	if id, ok := tokenID(token); ok {
		return c.holder(ctx, c.tokens, id, attemptBy{q.Address, token})
	}
	ask := func(context.Context) (*Principal, error) { return nil, errUnknown }
	if c.issuer != nil && !strings.HasPrefix(token, tokenPrefix) {
		if p := c.issuer.remembered(token); p != nil {
			return p, nil
		}
		ask = func(ctx context.Context) (*Principal, error) { return c.issuer.identify(ctx, token) }
	}
	return c.attempt(ctx, attemptBy{q.Address, token}, ask)
}

func invalid(reason string) error { return &NotIdentified{Reason: reason, Invalid: true} }

var (
	errUnknown = invalid("The token is not known.")
	errExpired = invalid("The token has expired.")
	errRevoked = invalid("The token was revoked.")
)

type metrics struct {
	limited *prometheus.CounterVec
	asked   *prometheus.CounterVec
}

func newMetrics(registerer prometheus.Registerer) *metrics {
	factory := promauto.With(registerer)
	m := &metrics{
		limited: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "pawl_requests_limited_total",
			Help: "Requests answered 429, by the quota that was used up: requests, in-flight or bytes of a token, or failed-attempts of an address.",
		}, []string{"quota"}),
		asked: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "pawl_oidc_requests_total",
			Help: "Requests to the OpenID Connect issuer, for its keys and where they are, by outcome: ok or error.",
		}, []string{"outcome"}),
	}
	for _, quota := range []string{requestsQuota, inFlightQuota, bytesQuota, attemptsQuota} {
		m.limited.WithLabelValues(quota)
	}
	m.asked.WithLabelValues("ok")
	m.asked.WithLabelValues("error")
	return m
}

// issuerAsked counts a request to the issuer.
func (m *metrics) issuerAsked(err error) {
	outcome := "ok"
	if err != nil {
		outcome = "error"
	}
	m.asked.WithLabelValues(outcome).Inc()
}
