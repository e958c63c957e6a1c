package engine

import (
	"context"
	"errors"
	"fmt"

	"pawl/db"
	"pawl/fsm"
	"pawl/internal/orders"
	"pawl/internal/policy"
	"pawl/internal/policy/store"
)

// PolicyVersion is a stored policy.
type PolicyVersion struct {
	db.PoliciesListRow
	Active bool
	Policy *policy.Policy // nil: this process can't run it, or in a list, does not know it yet
	Source string         // not in lists
}

// Policies lists up to a number of versions below one, the highest first, and says which one is active. Errors:
// orders.ErrUnavailable.
func (e *Engine) Policies(ctx context.Context, below, most int32) ([]PolicyVersion, store.Current, error) {
	active, err := store.Active(ctx, e.query)
	if err != nil {
		return nil, active, orders.Unavailable("list policies", err)
	}
	rows, err := store.List(ctx, e.query, below, most)
	if err != nil {
		return nil, active, orders.Unavailable("list policies", err)
	}
	list := make([]PolicyVersion, len(rows))
	for i, row := range rows {
		known, _ := e.policies.byVersion(&row.Version)
		list[i] = PolicyVersion{PoliciesListRow: row, Active: row.Version == active.Version, Policy: known}
	}
	return list, active, nil
}

// Policy reads a version. Errors: orders.ErrNotFound, orders.ErrUnavailable.
func (e *Engine) Policy(ctx context.Context, version int32) (PolicyVersion, store.Current, error) {
	source, err := store.Source(ctx, e.query, version)
	if err != nil {
		return PolicyVersion{}, store.Current{}, policyError("read policy", err)
	}
	list, active, err := e.Policies(ctx, version+1, 1)
	if err != nil {
		return PolicyVersion{}, active, err
	}
	v := list[0]
	v.Source = source
	v.Policy, _ = policy.Parse([]byte(source))
	return v, active, nil
}

// StoredPolicy is what came of StorePolicy.
type StoredPolicy struct {
	Version  int32 // 0: a dry run of a policy that is not stored
	Created  bool  // it is stored now for the first time, or as a dry run would be
	Policy   *policy.Policy
	Warnings []error // as of PolicyWarnings
}

// StorePolicy checks a policy and stores it, unless it is stored or this is a dry run. It does not become the active
// version. By is who does it. Errors: policy.Problems, orders.ErrUnavailable.
func (e *Engine) StorePolicy(ctx context.Context, source []byte, by string, dryRun bool) (StoredPolicy, error) {
	p, err := policy.Parse(source)
	if err != nil {
		return StoredPolicy{}, err
	}
	warnings, err := e.PolicyWarnings(ctx, p)
	if err != nil {
		return StoredPolicy{}, err
	}
	out := StoredPolicy{Policy: p, Warnings: warnings}
	if dryRun {
		out.Version, err = store.Find(ctx, e.query, source)
		out.Created = out.Version == 0
		return out, policyError("store policy", err)
	}
	stored, err := detached(ctx, &e.core, func(ctx context.Context) (store.Stored, error) {
		stored, err := store.Store(ctx, e.query, source, by)
		return stored, e.reloaded(ctx, "store policy", err)
	})
	out.Version, out.Created = stored.Version, stored.Created
	return out, err
}

// ActivatePolicy makes a version the active one, or as a dry run says whether it could be. It returns the version as it is
// then. This process goes by it at once, others within seconds. Errors: orders.ErrNotFound, orders.ErrPrecondition where
// another version was activated since a.After, policy.Problems where this process can't run the version,
// orders.ErrUnavailable.
func (e *Engine) ActivatePolicy(ctx context.Context, a store.Activation, dryRun bool) (PolicyVersion, store.Current, error) {
	_, err := detached(ctx, &e.core, func(ctx context.Context) (_ struct{}, err error) {
		if dryRun {
			_, err = store.Activatable(ctx, e.query, a)
			return struct{}{}, policyError("activate policy", err)
		}
		return struct{}{}, e.reloaded(ctx, "activate policy", store.Activate(ctx, e.query, a))
	})
	if err != nil {
		return PolicyVersion{}, store.Current{}, err
	}
	return e.Policy(ctx, a.Version)
}

// PolicyWarnings says of each step that this process could not do under a policy why: a secret can't be read or may not be
// named, or an address may not be called. And it says if the stock that is tracked here would not count. Errors:
// orders.ErrUnavailable.
func (e *Engine) PolicyWarnings(ctx context.Context, p *policy.Policy) (why []error, err error) {
	for _, step := range fsm.Steps() {
		if err := e.cfg.Bounds.Usable(p, step); err != nil {
			why = append(why, err)
		}
	}
	err = store.CheckStock(ctx, e.query, p)
	if errors.Is(err, store.ErrStockIgnored) {
		return append(why, err), nil
	}
	return why, policyError("check stock", err)
}

// reloaded has this process know what was just written.
func (e *Engine) reloaded(ctx context.Context, doing string, err error) error {
	if err == nil {
		err = e.policies.load(ctx)
	}
	return policyError(doing, err)
}

func policyError(doing string, err error) error {
	var problems policy.Problems
	switch {
	case errors.As(err, &problems):
		return err
	case errors.Is(err, store.ErrNotFound):
		return fmt.Errorf("%s: %w", doing, &orders.NotFound{What: "policy"})
	case errors.Is(err, store.ErrActivated):
		return fmt.Errorf("%s: %w", doing, orders.ErrPrecondition)
	}
	return orders.Unavailable(doing, err)
}
