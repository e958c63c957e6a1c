package access

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"pawl/db"
)

// ErrUnavailable: the database did not say who it is.
var ErrUnavailable = errors.New("the database does not say who it is")

// NotIdentified is the error of a request that is nobody's.
type NotIdentified struct {
	Reason  string // a sentence for the caller
	Invalid bool   // a credential was sent, and it is not good
}

func (n *NotIdentified) Error() string { return n.Reason }

// Config is what a Control can be told.
type Config struct {
	Issuer     Issuer                // of the OpenID Connect tokens that count; zero: none does
	Registerer prometheus.Registerer // of metrics; nil: nobody reads them
	Log        *slog.Logger          // nil: nobody is told of faults
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

	closed atomic.Bool // a token was made, or there is an issuer: that never changes back
	open   recent[bool]
	tokens tokens
	issuer *issuer // nil: none
	// The sessions of browsers.
	sessions tokens

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
	c := &Control{
		query: query, log: cmp.Or(cfg.Log, slog.New(slog.DiscardHandler)), open: recent[bool]{good: openFor},
		attempts: newAttempts(),
	}
	c.tokens.control, c.tokens.read = c, c.readToken
	c.sessions.control, c.sessions.read = c, c.readSession
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

// Stop ends what is under way. After it nobody is identified any more.
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

// begin runs f, which Stop waits for. It returns false, and does not, after Stop.
func (c *Control) begin(f func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.stopped {
		c.running.Go(f)
	}
	return !c.stopped
}

// Request is what is known of who sends a request.
type Request struct {
	Authorization string     // the header
	Session       string     // the cookie of a browser, if the request can't come from another site
	Address       netip.Addr // of the caller
	Local         bool       // the caller is on this machine, and nobody is between
	Forwarded     bool       // it says that it came through a proxy
}

// Identify says who sends a request. Errors: *NotIdentified, *Exceeded, ErrUnavailable, ErrIssuerAway, or
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
		return nil, &NotIdentified{Reason: "No credential was sent."}
	case q.Forwarded:
		return nil, &NotIdentified{Reason: "No credential was sent, and without one the service can't be used through a proxy."}
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
	return c.open.get(ctx, c, func(ctx context.Context) (bool, error) {
		closed, err := c.query.TokensExist(ctx)
		if closed {
			c.closed.Store(true)
		}
		return !closed, err
	})
}

// bearer identifies who sends a token. One that is known to be good is not asked for. All others cost the database or
// the processor something, so an address may fail only so often.
func (c *Control) bearer(ctx context.Context, q Request) (*Principal, error) {
	scheme, token, _ := strings.Cut(q.Authorization, " ")
	switch {
	case !strings.EqualFold(scheme, "Bearer"):
		return nil, invalid("The credential is no bearer token.")
	case c == nil:
		return nil, errUnknown
	}
	if id, ok := tokenID(token); ok {
		if good := c.tokens.lastGood(id, token); good != nil {
			return c.tokens.principal(ctx, id, token, good)
		}
	} else if c.issuer != nil {
		if p := c.issuer.good.find(token, time.Now()); p != nil {
			return p, nil
		}
	}
	return c.attempt(ctx, attemptBy{q.Address, token}, func(ctx context.Context) (*Principal, error) { return c.verify(ctx, token) })
}

func (c *Control) verify(ctx context.Context, token string) (*Principal, error) {
	if id, ok := tokenID(token); ok {
		return c.tokens.principal(ctx, id, token, nil)
	}
	if c.issuer != nil && !strings.HasPrefix(token, tokenPrefix) {
		return c.issuer.identify(ctx, token)
	}
	return nil, errUnknown
}

func invalid(reason string) error { return &NotIdentified{Reason: reason, Invalid: true} }

var (
	errUnknown = invalid("The token is not known.")
	errExpired = invalid("The token has expired.")
	errRevoked = invalid("The token was revoked.")
)
