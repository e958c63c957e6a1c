package engine

import (
	"context"
	"errors"
	"fmt"

	"pawl/db"
	"pawl/internal/orders"
	"pawl/internal/policy"
	"pawl/internal/policy/store"
)

// PolicyVersion is a stored policy.
type PolicyVersion struct {
	db.PoliciesListRow
	Active bool
	Policy *policy.Policy // nil: this process can't run it or, in a list, has not loaded it yet
	Source string         // not in lists
}

// Policies lists up to most versions below one, highest first, and returns the active version. Errors:
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

// StoredPolicy is the result of StorePolicy.
type StoredPolicy struct {
	Version  int32 // 0: dry run of a new policy
	Created  bool  // the policy is new
	Policy   *policy.Policy
	Warnings []error // see PolicyWarnings
}

// StorePolicy checks a policy and stores it, unless it is already stored or this is a dry run. It does not activate it.
// by is the actor. Errors: policy.Problems, orders.ErrUnavailable.
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

// ActivatePolicy activates a version, or in a dry run checks whether it could, and returns the version. This process uses
// it at once, others within seconds. Errors: orders.ErrNotFound, orders.ErrPrecondition if another version was activated
// since a.After, policy.Problems if this process can't run the version, orders.ErrUnavailable.
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

// PolicyWarnings returns why this process could not run steps under a policy: a secret is unreadable or not allowed, or
// an address is not allowed. It also warns if tracked stock would be ignored. Errors: orders.ErrUnavailable.
func (e *Engine) PolicyWarnings(ctx context.Context, p *policy.Policy) (why []error, err error) {
	for _, place := range p.Places() {
		if err := e.cfg.Bounds.Usable(p, place); err != nil {
			why = append(why, err)
		}
	}
	err = store.CheckStock(ctx, e.query, p)
	if errors.Is(err, store.ErrStockIgnored) {
		return append(why, err), nil
	}
	return why, policyError("check stock", err)
}

// reloaded loads what was just written.
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
