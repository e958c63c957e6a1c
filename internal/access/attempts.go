package access

import (
	"context"
	"errors"
	"hash/maphash"
	"net/netip"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"
	"golang.org/x/time/rate"
)

// How often an address may try a credential that is not good: this often at once, and then once in a while.
const (
	attemptsAtOnce = 20
	attemptEvery   = 3 * time.Second
	attemptsWindow = attemptsAtOnce * attemptEvery

	// How many credentials an address may try at one time while it has not failed lately: behind one address there may be
	// many callers, who all come when the service has started.
	unknownAtOnce = 256
)

// attempts counts the failed attempts of addresses, in as much memory as it takes at first: addresses share places, and
// nobody can choose with whom.
type attempts struct {
	shared singleflight.Group // by address and credential
	seed   maphash.Seed
	places [8192]atomic.Pointer[place]
}

func newAttempts() *attempts { return &attempts{seed: maphash.MakeSeed()} }

// place is for the addresses that have one hash.
type place struct {
	failures *rate.Limiter
	pending  atomic.Int64 // attempts of which is not known yet whether they fail
}

// attemptBy is an attempt that one address makes with one credential.
type attemptBy struct {
	address    netip.Addr
	credential string
}

// attempt identifies somebody unless his address has failed too often. The requests that come with one credential while
// it is looked up are one attempt: a client that begins with many requests at once has not failed.
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
		p, err := identify(context.WithoutCancel(ctx)) // it is for others, too; every way of it has a limit
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

// Network is what limits of an address count under: of IPv6, one caller has a /64 at least.
func Network(address netip.Addr) netip.Addr {
	address = address.Unmap().WithZone("")
	if !address.Is6() || address.IsLoopback() {
		return address
	}
	whole, _ := address.Prefix(64) // its error is that of a wrong length
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
