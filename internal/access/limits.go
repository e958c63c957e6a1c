package access

import (
	"context"
	"errors"
	"hash/maphash"
	"maps"
	"math"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"
	"golang.org/x/time/rate"

	"pawl/internal/pg"
)

// Quota is a limit of a caller and what remains of it.
type Quota struct {
	Name      string        // requests, in-flight, bytes or failed-attempts
	Unit      string        // requests, concurrent-requests or content-bytes
	Most      int64         // in the window
	Window    time.Duration // zero: at any time
	Remaining int64         // now
	Wait      time.Duration // until there is more; zero: when something ends
}

// Exceeded is the error of a request beyond a limit.
type Exceeded struct {
	Quota Quota         // the exceeded one
	All   []Quota       // all quotas of the caller, including that one
	Pause time.Duration // when to retry
}

func (e *Exceeded) Error() string { return "too much of " + e.Quota.Name }

// The names of quotas.
const (
	requestsQuota = "requests"
	inFlightQuota = "in-flight"
	bytesQuota    = "bytes"
	attemptsQuota = "failed-attempts" // of an address; the others are of a token
)

const (
	window       = time.Second // of what tokens may do
	inFlightWait = time.Second // a guess, because the end of a request is unknown
	inFlightPoll = 5 * time.Millisecond
)

// Admission tracks the usage of one principal against its limits. A nil Admission has no limits.
type Admission struct {
	limits          Limits
	requests, bytes *rate.Limiter // in a second
	inFlight        atomic.Int64
}

// Admit counts a request of a principal, or returns *Exceeded. Done must be called when the request has ended.
func (c *Control) Admit(p *Principal) (*Admission, error) {
	a, over := c.count(p)
	if over != nil {
		c.metrics.limited.WithLabelValues(over.Quota.Name).Inc()
		return nil, over
	}
	return a, nil
}

// AdmitSoon is Admit, but waits until the limits allow another request or ctx ends.
func (c *Control) AdmitSoon(ctx context.Context, p *Principal) (*Admission, error) {
	for ctx.Err() == nil {
		a, over := c.count(p)
		if over == nil {
			return a, nil
		}
		pg.Sleep(ctx, max(over.Quota.Wait, inFlightPoll))
	}
	return nil, ctx.Err()
}

// count counts a request of a principal with limits. A service without access control has no Control, and no limits.
func (c *Control) count(p *Principal) (*Admission, *Exceeded) {
	if p.Limits == (Limits{}) {
		return nil, nil
	}
	now := time.Now()
	a := c.usages.of(p, now)
	return a, a.enter(now)
}

// enter takes a request from the quota, unless another one is used up.
func (a *Admission) enter(now time.Time) *Exceeded {
	var over string
	switch inFlight := a.inFlight.Add(1); {
	case a.limits.InFlight > 0 && inFlight > int64(a.limits.InFlight):
		over = inFlightQuota
	case a.limits.Bytes > 0 && a.bytes.TokensAt(now) <= 0:
		over = bytesQuota
	case a.limits.Rate > 0 && !a.requests.AllowN(now, 1):
		over = requestsQuota
	default:
		return nil
	}
	a.inFlight.Add(-1)
	all := a.Quotas(now)
	q := &all[slices.IndexFunc(all, func(q Quota) bool { return q.Name == over })]
	q.Remaining = 0
	return &Exceeded{Quota: *q, All: all, Pause: max(q.Wait, inFlightWait)}
}

// Done ends the request. bytes is the length of its body and answer. It counts against later requests, because it is
// not known before.
func (a *Admission) Done(bytes int64) {
	if a != nil {
		a.leave(time.Now(), bytes)
	}
}

func (a *Admission) leave(now time.Time, bytes int64) {
	a.inFlight.Add(-1)
	for a.limits.Bytes > 0 && bytes > 0 { // a limiter reserves at most its burst at a time
		part := min(bytes, int64(a.bytes.Burst()))
		a.bytes.ReserveN(now, int(part))
		bytes -= part
	}
}

// Quotas are the quotas of the principal.
func (a *Admission) Quotas(now time.Time) (all []Quota) {
	if a.limits.Rate > 0 {
		all = append(all, quotaOf(requestsQuota, "requests", a.requests, now))
	}
	if most := int64(a.limits.InFlight); most > 0 {
		all = append(all, Quota{Name: inFlightQuota, Unit: "concurrent-requests", Most: most, Remaining: max(0, most-a.inFlight.Load())})
	}
	if a.limits.Bytes > 0 {
		all = append(all, quotaOf(bytesQuota, "content-bytes", a.bytes, now))
	}
	return all
}

func quotaOf(name, unit string, limiter *rate.Limiter, now time.Time) Quota {
	left := limiter.TokensAt(now)
	missing := max(0, 1-left) / float64(limiter.Limit())
	return Quota{
		Name: name, Unit: unit, Most: int64(limiter.Burst()), Window: window, Remaining: max(0, int64(left)),
		Wait: time.Duration(math.Ceil(missing*1e3)) * time.Millisecond,
	}
}

// usages are the admissions of all principals with limits. An issuer can have any number of principals, so idle ones
// are removed when there are many.
type usages struct {
	mu    sync.Mutex
	known map[usageKey]*Admission
	swept time.Time
}

type usageKey struct {
	name   string
	limits Limits // may change when the token is rotated
}

const usagesMost = 10_000

func (all *usages) of(p *Principal, now time.Time) *Admission {
	key := usageKey{p.Name, p.Limits}
	all.mu.Lock()
	defer all.mu.Unlock()
	found, ok := all.known[key]
	if !ok {
		if len(all.known) >= usagesMost && now.Sub(all.swept) > window { // nothing becomes idle sooner
			maps.DeleteFunc(all.known, func(_ usageKey, a *Admission) bool { return a.idle(now) })
			all.swept = now
		}
		found = &Admission{limits: p.Limits, requests: perSecond(int64(p.Limits.Rate)), bytes: perSecond(p.Limits.Bytes)}
		if all.known == nil {
			all.known = map[usageKey]*Admission{}
		}
		all.known[key] = found
	}
	return found
}

// idle reports whether a new admission would be the same.
func (a *Admission) idle(now time.Time) bool {
	full := func(l *rate.Limiter) bool { return l.TokensAt(now) >= float64(l.Burst()) }
	return a.inFlight.Load() == 0 && full(a.requests) && full(a.bytes)
}

func perSecond(n int64) *rate.Limiter { return rate.NewLimiter(rate.Limit(n), int(n)) }

// How often an address may try invalid credentials: a burst, and then at intervals.
const (
	attemptsAtOnce = 20
	attemptEvery   = 3 * time.Second
	attemptsWindow = attemptsAtOnce * attemptEvery

	// How many credentials an address may try concurrently while it has not failed recently. One address may have many
	// callers, which all connect when the service starts.
	unknownAtOnce = 256
)

// attempts counts the failed attempts of addresses in fixed memory: addresses share places by a keyed hash.
type attempts struct {
	shared singleflight.Group // by address and credential
	seed   maphash.Seed
	places [8192]atomic.Pointer[place]
}

func newAttempts() *attempts { return &attempts{seed: maphash.MakeSeed()} }

// place is shared by the addresses with the same hash.
type place struct {
	failures *rate.Limiter
	pending  atomic.Int64 // undecided attempts
}

// attemptBy is an attempt that one address makes with one credential.
type attemptBy struct {
	address    netip.Addr
	credential string
}

// attempt authenticates a request unless its address has failed too often. The requests that come with one credential
// while it is looked up are one attempt: a client that begins with many requests at once has not failed.
func (c *Control) attempt(ctx context.Context, by attemptBy, identify func(context.Context) (*Principal, error)) (*Principal, error) {
	address := Network(by.address)
	found, err, _ := c.attempts.shared.Do(address.String()+" "+by.credential, func() (any, error) {
		at := c.attempts.placeOf(address)
		if err := at.begin(time.Now()); err != nil {
			c.metrics.limited.WithLabelValues(attemptsQuota).Inc()
			return nil, err
		}
		failed := true
		defer func() { at.end(time.Now(), failed) }()
		p, err := identify(context.WithoutCancel(ctx)) // other callers share it; every read has a time limit
		_, failed = errors.AsType[*NotIdentified](err)
		return p, err
	})
	p, _ := found.(*Principal)
	return p, err
}

// placeOf is the place of a network.
func (a *attempts) placeOf(address netip.Addr) *place {
	at := &a.places[maphash.Comparable(a.seed, address)%uint64(len(a.places))]
	if at.Load() == nil {
		at.CompareAndSwap(nil, &place{failures: rate.NewLimiter(rate.Every(attemptEvery), attemptsAtOnce)})
	}
	return at.Load()
}

// Network is the unit of limits by address: with IPv6, one caller has at least a /64.
func Network(address netip.Addr) netip.Addr {
	address = address.Unmap().WithZone("")
	if !address.Is6() || address.IsLoopback() {
		return address
	}
	whole, _ := address.Prefix(64) // it fails only for a wrong length
	return whole.Addr()
}

// begin returns *Exceeded if the address has failed too often. The attempt ends with end.
func (p *place) begin(now time.Time) error {
	pending := p.pending.Add(1)
	left := p.failures.TokensAt(now)
	if left >= attemptsAtOnce {
		left = unknownAtOnce
	}
	if float64(pending) <= left {
		return nil
	}
	p.pending.Add(-1)
	q := quotaOf(attemptsQuota, "requests", p.failures, now)
	q.Window, q.Remaining = attemptsWindow, 0
	return &Exceeded{Quota: q, All: []Quota{q}, Pause: max(q.Wait, time.Second)}
}

func (p *place) end(now time.Time, failed bool) {
	if failed {
		p.failures.AllowN(now, 1)
	}
	p.pending.Add(-1)
}
