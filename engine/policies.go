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

// policies are the versions this process knows. Reading takes no lock.
type policies struct {
	query *db.Queries
	log   *slog.Logger
	now   atomic.Pointer[knownPolicies]
	mu    sync.Mutex // one load at a time
	seen  []int32    // versions that need not be read again, those it can't run included
	heard time.Time  // when the recently active versions were read
}

// knownPolicies is what was known at one moment. It is never changed.
type knownPolicies struct {
	byVersion      map[int32]*policy.Policy
	versions       []int32 // of byVersion, rising
	active         *int32
	recentlyActive []int32 // versions that are active, or were so recently that an event of theirs may come
}

// notLoaded is the version that is active before the policies are read: one that does not exist.
// No order must start without a policy because it was not read yet.
const notLoaded = -1

// newPolicies knows nothing before the first load.
func newPolicies(query *db.Queries, log *slog.Logger) *policies {
	p := &policies{query: query, log: log, seen: []int32{}}
	p.now.Store(&knownPolicies{byVersion: map[int32]*policy.Policy{}, active: new(int32(notLoaded))})
	return p
}

// load reads what has been added since the last load. On an error all stays as it was.
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
		p.log.Error("the active policy can't be run by this process, which takes no new orders", "version", *v)
	}
	return nil
}

// recentlyActiveInterval is how often the recently active versions are read while the active one stays.
const recentlyActiveInterval = 10 * time.Minute

// hear reads which versions were recently active. Events of older ones are not heeded: a secret that was replaced ends.
func (p *policies) hear(ctx context.Context, now *knownPolicies, active int32) (err error) {
	if before := or(p.now.Load().active); before == active && time.Since(p.heard) < recentlyActiveInterval {
		return nil
	}
	if now.recentlyActive, err = store.RecentlyActive(ctx, p.query); err == nil {
		p.heard = time.Now()
	}
	return err
}

// add puts versions to those known. One that can't be run, as it may be from a newer
// release, is left out: its orders are left to others.
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

// active returns the version new orders start with: nil, nil when there has never been
// one. A version without a policy is one this process can't run, or does not know yet:
// it must not take new orders then. The policy is not to be changed.
func (p *policies) active() (*int32, *policy.Policy) {
	now := p.now.Load()
	if now.active == nil {
		return nil, nil
	}
	return now.active, now.byVersion[*now.active]
}

// byVersion returns the policy of an order. No version means the ledger for every step: nil,
// true. false means that the order must be left alone.
func (p *policies) byVersion(version *int32) (*policy.Policy, bool) {
	if version == nil {
		return nil, true
	}
	found, known := p.now.Load().byVersion[*version]
	return found, known
}

// versions are those this process can run, rising. The slice is not to be changed.
func (p *policies) versions() []int32 { return p.now.Load().versions }

// webhookSecrets are the secrets of the recently active policies that events of Stripe's are signed
// with, the newest first, each once.
func (p *policies) webhookSecrets() []policy.Secret {
	now := p.now.Load()
	var secrets []policy.Secret
	for _, version := range slices.Backward(now.versions) {
		secret := now.byVersion[version].Charge.WebhookSecret
		if secret != "" && slices.Contains(now.recentlyActive, version) && !slices.Contains(secrets, secret) {
			secrets = append(secrets, secret)
		}
	}
	return secrets
}

// needsPinned reports whether a step that stands, or may stand, is undone elsewhere under
// the other policy, or that one takes its key to be remembered for longer. It was sent
// under the pinned one, and the provider's memory is no longer than that says.
func needsPinned(o *orders.Order, pinned, other *policy.Policy) bool {
	var stands []fsm.Step
	if o.ChargedAt != nil && o.RefundedAt == nil {
		stands = append(stands, fsm.Charge)
	}
	if o.ReservedAt != nil && o.ReleasedAt == nil {
		stands = append(stands, fsm.Reserve)
	}
	if o.InDoubtSince != nil {
		stands = append(stands, o.Status.Step())
	}
	return slices.ContainsFunc(stands, func(s fsm.Step) bool {
		was, is := pinned.Step(s), other.Step(s)
		return was.Executor != is.Executor || was.URL != is.URL || was.UndoURL != is.UndoURL || was.Capture != is.Capture ||
			was.Executor.Remote() && (pinned.Copied || was.KeyRetention < is.KeyRetention)
	})
}
