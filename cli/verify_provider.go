package cli

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"pawl/books"
	"pawl/db"
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
	_, stored, err := store.Read(ctx, query, nil)
	if err != nil {
		return nil, err
	}
	versions := map[int32]*policy.Policy{}
	for _, v := range stored {
		versions[v.Number] = v.Policy
	}
	return &books.Provider{URL: address, Key: func(s books.Sent) (string, bool) {
		// A step of a version that can't be read here is taken for the provider's: better to report what is no
		// difference than to miss one.
		var how policy.Step
		if p := versions[s.Policy]; p != nil {
			how = *p.Step(s.Step)
		}
		return keyAt(how, installation, s)
	}}, nil
}

// keyAt is the key of a step in such books, false if it is not in them. Stripe itself has no such
// books, what plays its part at an address of its own does; and it is not asked for nothing.
func keyAt(how policy.Step, installation uuid.UUID, s books.Sent) (key string, asked bool) {
	call := provider.Call{Installation: installation, OrderID: s.OrderID, Step: s.Step, Generation: s.Generation, RefundID: s.RefundID}
	switch {
	case how.Executor != policy.Stripe:
		return call.LookupKey(), true
	case how.URL == "" || s.Amount.IsZero():
		return "", false
	default:
		return stripe.EffectKey(&call), true
	}
}
