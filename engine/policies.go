package engine

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"pawl/db"
	"pawl/fsm"
	"pawl/internal/orders"
	"pawl/internal/policy"
	"pawl/internal/policy/store"
)

// policies are the loaded policy versions. Reading takes no lock.
type policies struct {
	query *db.Queries
	log   *slog.Logger
	now   atomic.Pointer[knownPolicies]
	mu    sync.Mutex // one load at a time
	seen  []int32    // versions that were read, including those this process can't run
	heard time.Time  // when the recently active versions were read
}

// knownPolicies is an immutable snapshot.
type knownPolicies struct {
	byVersion      map[int32]*policy.Policy
	versions       []int32 // of byVersion, rising
	active         *int32
	recentlyActive []int32 // versions that are active, or were so recently that the provider may still send events for them
}

// notLoaded is the active version until the policies have been read. It does not exist, so no order starts without its
// policy.
const notLoaded = -1

// newPolicies returns policies that are empty until the first load.
func newPolicies(query *db.Queries, log *slog.Logger) *policies {
	p := &policies{query: query, log: log, seen: []int32{}}
	p.now.Store(&knownPolicies{byVersion: map[int32]*policy.Policy{}, active: new(int32(notLoaded))})
	return p
}

// load reads what was added since the last load. On an error, nothing changes.
func (p *policies) load(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	active, added, err := store.Read(ctx, p.query, p.seen)
	if err != nil {
		return err
	}
	before := p.now.Load()
	now := &knownPolicies{byVersion: before.byVersion, versions: before.versions, recentlyActive: before.recentlyActive}
	if active != 0 {
		now.active = &active
	}
	if err := p.hear(ctx, now, active); err != nil {
		return err
	}
	if len(added) > 0 {
		p.add(now, added)
	}
	p.now.Store(now)
	if v := now.active; v != nil && now.byVersion[*v] == nil && (before.active == nil || *before.active != *v) {
		p.log.Error("this process can't run the active policy, and takes no new orders", "version", *v)
	}
	return nil
}

// recentlyActiveInterval is how often the recently active versions are read while the active one stays.
const recentlyActiveInterval = 10 * time.Minute

// hear reads which versions were recently active. Events of older ones are ignored, so that a replaced secret expires.
func (p *policies) hear(ctx context.Context, now *knownPolicies, active int32) (err error) {
	if before := or(p.now.Load().active); before == active && time.Since(p.heard) < recentlyActiveInterval {
		return nil
	}
	if now.recentlyActive, err = store.RecentlyActive(ctx, p.query); err == nil {
		p.heard = time.Now()
	}
	return err
}

// add adds versions to the known ones. A version that this process can't run, for example of a newer release, is left
// out, and its orders are left to other replicas.
func (p *policies) add(now *knownPolicies, added []store.Version) {
	now.byVersion = maps.Clone(now.byVersion)
	for _, v := range added {
		p.seen = append(p.seen, v.Number)
		if v.Err != nil {
			p.log.Error("a stored policy can't be run by this process; its orders are left to others",
				"version", v.Number, "error", v.Err)
			continue
		}
		now.byVersion[v.Number] = v.Policy
	}
	now.versions = slices.Sorted(maps.Keys(now.byVersion))
}

// active returns the version that new orders start with, or nil, nil if there has never been one. If this process can't
// run the version or has not loaded it, the policy is nil, and it must not take new orders. The policy must not be
// changed.
func (p *policies) active() (*int32, *policy.Policy) {
	now := p.now.Load()
	if now.active == nil {
		return nil, nil
	}
	return now.active, now.byVersion[*now.active]
}

// byVersion returns the policy of an order: nil, true without a version, which means the ledger for every step, or false
// if the order must be left to other replicas.
func (p *policies) byVersion(version *int32) (*policy.Policy, bool) {
	if version == nil {
		return nil, true
	}
	found, known := p.now.Load().byVersion[*version]
	return found, known
}

// policyOrder is an order as policies see it. It lacks the concurrency key of the request.
func policyOrder(o *orders.Order) policy.Order {
	return policy.Order{Amount: o.Amount, Currency: o.Currency, Items: orders.ItemsOf(o.Item, o.Lines),
		CustomerID: or(o.CustomerID), PaymentMethod: or(o.PaymentMethod), Metadata: o.Metadata}
}

// stepFor is the configuration of a step of an order under a policy.
func stepFor(p *policy.Policy, o *orders.Order, s fsm.Step) *policy.Step {
	return p.Step(s, or(o.Route))
}

// versions are those that this process can run, in ascending order. The slice must not be changed.
func (p *policies) versions() []int32 { return p.now.Load().versions }

// webhookSecrets are the distinct secrets that sign Stripe's events under the recently active policies, newest first.
func (p *policies) webhookSecrets() []policy.Secret {
	now := p.now.Load()
	var secrets []policy.Secret
	for _, version := range slices.Backward(now.versions) {
		p := now.byVersion[version]
		for _, place := range p.Places() {
			secret := p.Step(place.Step, place.Route).WebhookSecret
			if secret != "" && slices.Contains(now.recentlyActive, version) && !slices.Contains(secrets, secret) {
				secrets = append(secrets, secret)
			}
		}
	}
	return secrets
}

// isCharged reports whether the charge of the current generation stands.
func isCharged(o *orders.Order) bool { return o.ChargedAt != nil && o.RefundedAt == nil }

// needsPinned reports whether a step that was done, or may have been, would be undone at a different place under the
// other policy, or whether that policy assumes a longer key retention. The provider keeps the key as the pinned policy
// says.
func needsPinned(o *orders.Order, pinned, other *policy.Policy) bool {
	var done []fsm.Step
	if isCharged(o) {
		done = append(done, fsm.Charge)
	}
	if o.ReservedAt != nil && o.ReleasedAt == nil {
		done = append(done, fsm.Reserve)
	}
	if o.InDoubtSince != nil {
		done = append(done, o.Status.Step())
	}
	return slices.ContainsFunc(done, func(s fsm.Step) bool {
		was, is := stepFor(pinned, o, s), stepFor(other, o, s) // the order keeps its route
		return was.Executor != is.Executor || was.URL != is.URL || was.UndoURL != is.UndoURL || was.Capture != is.Capture ||
			was.Executor == policy.Stripe && was.Secret != is.Secret || // of another account
			was.Executor.Remote() && (pinned.Copied || was.KeyRetention < is.KeyRetention)
	})
}
