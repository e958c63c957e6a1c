// Package access authenticates callers, by a token, a browser session, or the address of the request. It determines their
// roles and enforces their limits. httpapi calls it, and decides which roles an operation needs.
//
// Until the first token is created, the service is open: callers on this machine may do everything, others may process
// orders. The first token closes it permanently.
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

// Role is a permission to use some operations.
type Role string

// The roles. A token has any set of them.
const (
	Submit   Role = "submit"   // process orders, and read those that it submitted
	Read     Role = "read"     // read all orders, their history and the stock
	Operate  Role = "operate"  // cancel, retry, pause, resume and refund orders
	Approve  Role = "approve"  // approve and reject orders
	Settle   Role = "settle"   // record the result of a step, which decides about money
	Stock    Role = "stock"    // change the stock
	Erase    Role = "erase"    // erase customers
	Delegate Role = "delegate" // act on behalf of others
	Metrics  Role = "metrics"  // read the metrics, and nothing else
	Admin    Role = "admin"    // tokens, policies, endpoints
)

// Roles is a set of roles.
type Roles []Role

// AllRoles are all roles, in display order.
var AllRoles = Roles{Submit, Read, Operate, Approve, Settle, Stock, Erase, Delegate, Metrics, Admin}

// Has reports whether the set contains a role.
func (r Roles) Has(role Role) bool { return slices.Contains(r, role) }

func (r Roles) String() string { return strings.Join(texts(r), ", ") }

// Limits are the limits of a principal. Zero means no limit.
type Limits struct {
	Rate     int32 // requests per second
	InFlight int32 // concurrent requests
	Bytes    int64 // bytes of bodies per second, in and out
}

// Principal is the authenticated sender of a request. It is immutable.
type Principal struct {
	Name   string // in the history: token:shop-web, oidc:https://id.example.com#u-17, local or anonymous
	Email  string // of an OpenID Connect caller, verified by the issuer; for display only
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

// ErrUnavailable is wrapped by errors because the database does not answer.
var ErrUnavailable = errors.New("the database does not answer")

// NotIdentified is the error of a request that is not authenticated.
type NotIdentified struct {
	Reason  string // a sentence for the caller
	Invalid bool   // a credential was sent and is invalid
}

func (n *NotIdentified) Error() string { return n.Reason }

// Config configures a Control.
type Config struct {
	Issuer     Issuer                // of accepted OpenID Connect tokens; zero: none
	Registerer prometheus.Registerer // of metrics; nil: none
	Log        *slog.Logger          // nil: discarded
}

// Control authenticates callers. Its methods are safe for concurrent use. A nil Control leaves the service open.
type Control struct {
	query *db.Queries
	log   *slog.Logger
	life  context.Context // ends with Stop
	end   context.CancelFunc

	mu      sync.Mutex // for running and stopped
	running sync.WaitGroup
	stopped bool

	closed   atomic.Bool // there is a token or an issuer; never reset
	open     *cache[bool]
	tokens   *cache[*grant] // by id
	sessions *cache[*grant] // of browsers, by cookie
	issuer   *issuer        // nil: none

	denials  denials
	usages   usages
	attempts *attempts
	metrics  *metrics
}

// openFor is how long it is cached that the service is open.
const openFor = time.Second

// New returns a control, which must be stopped. It does not require the issuer to answer. It panics if the issuer does
// not pass Check.
func New(ctx context.Context, query *db.Queries, cfg Config) (*Control, error) {
	c := &Control{query: query, log: cmp.Or(cfg.Log, slog.New(slog.DiscardHandler)), attempts: newAttempts()}
	c.open = newCache(c, openFor, c.readOpen)
	c.tokens, c.sessions = newCache(c, tokenFor, c.readToken), newCache(c, tokenFor, c.readSession)
	c.life, c.end = context.WithCancel(context.WithoutCancel(ctx))
	if _, err := c.isOpen(ctx); err != nil {
		c.Stop()
		return nil, err
	}
	c.metrics = newMetrics(cfg.Registerer) // only now, when nothing can fail, because a metric can be registered only once
	if cfg.Issuer.URL != "" {
		c.trust(cfg.Issuer)
	}
	return c, nil
}

// Stop ends background work. After it, no request is authenticated.
func (c *Control) Stop() {
	c.mu.Lock()
	c.stopped = true
	c.mu.Unlock()
	c.end()
	c.running.Wait()
	if c.issuer != nil {
		c.issuer.client.CloseIdleConnections()
	}
}

// enter reports whether background work may begin. Stop waits for its running.Done.
func (c *Control) enter() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.stopped {
		c.running.Add(1)
	}
	return !c.stopped
}

// begin runs f in the background, unless Stop was called, and reports whether it does.
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

// Request is what identifies the sender of a request.
type Request struct {
	Authorization string     // the header
	Session       string     // the cookie of a browser, if the request can't come from another site
	Address       netip.Addr // of the caller
	Local         bool       // the caller is on this machine, not behind a proxy
	Forwarded     bool       // the request has headers of a proxy
}

// Identify authenticates a request. Errors: *NotIdentified, *Exceeded, ErrUnavailable, ErrIssuerAway, or that of ctx.
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

// Open reports whether the service is open. The answer is at most a second old, unless the database is away.
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
		return nil, invalid("The credential is not a bearer token.")
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
