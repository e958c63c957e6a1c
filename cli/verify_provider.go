package cli

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"pawl/books"
	"pawl/db"
	"pawl/fsm"
	"pawl/policy"
	"pawl/policy/store"
	"pawl/provider"
	"pawl/provider/stripe"
)

// providerAt is the provider whose books are at an address.
func providerAt(ctx context.Context, query *db.Queries, address string) (*books.Provider, error) {
	if _, err := policy.ParseURL(address); err != nil {
		return nil, configError{fmt.Errorf("--provider: %w", err)}
	}
	installation, err := query.InstallationID(ctx)
	if err != nil {
		return nil, fmt.Errorf("read installation: %w", err)
	}
	of, err := executorsOf(ctx, query)
	if err != nil {
		return nil, err
	}
	return &books.Provider{URL: address, Key: func(s books.Sent) (string, bool) {
		return keyAt(of(s.Policy, s.Step), installation, s)
	}}, nil
}

// keyAt is the key of a step in such books, false if it is not in them. Stripe itself has no such
// books, what plays its part at an address of its own does; and it is not asked for nothing.
func keyAt(how policy.Step, installation uuid.UUID, s books.Sent) (key string, asked bool) {
	call := provider.Call{Installation: installation, OrderID: s.OrderID, Step: s.Step, Generation: s.Generation}
	switch {
	case how.Executor != policy.Stripe:
		return call.Key(provider.Do), true
	case how.URL == "" || s.Amount.IsZero():
		return "", false
	default:
		return stripe.EffectKey(&call), true
	}
}

// executorsOf returns who does a step by a version of the policy. For a version that can't
// be read here it is nobody in particular, and taken for the provider: better to report what
// is no difference than to miss one.
func executorsOf(ctx context.Context, query *db.Queries) (func(int32, fsm.Step) policy.Step, error) {
	_, stored, err := store.Read(ctx, query, nil)
	if err != nil {
		return nil, err
	}
	versions := map[int32]*policy.Policy{}
	for _, v := range stored {
		versions[v.Number] = v.Policy
	}
	return func(version int32, of fsm.Step) policy.Step {
		p := versions[version]
		if p == nil {
			return policy.Step{}
		}
		return *p.Step(of)
	}, nil
}
