package main

import (
	"context"
	"fmt"
	"net/url"

	"github.com/google/uuid"

	"pawl/books"
	"pawl/db"
	"pawl/fsm"
	"pawl/policy"
	"pawl/step"
)

// providerAt is the provider whose books are at an address.
func providerAt(ctx context.Context, query *db.Queries, address string) (*books.Provider, error) {
	if u, err := url.Parse(address); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, configError{fmt.Errorf("--provider: not an http or https URL")}
	}
	installation, err := query.InstallationID(ctx)
	if err != nil {
		return nil, fmt.Errorf("read installation: %w", err)
	}
	asked, err := askedOverHTTP(ctx, query)
	if err != nil {
		return nil, err
	}
	return &books.Provider{URL: address, Key: keyOf(installation), Asked: asked}, nil
}

func keyOf(installation uuid.UUID) func(string, fsm.Step, int32) string {
	return func(orderID string, of fsm.Step, generation int32) string {
		call := step.Call{Installation: installation, OrderID: orderID, Step: of, Generation: generation}
		return call.Key(step.Do)
	}
}

// askedOverHTTP tells which steps of which policies may be in such books. Stripe has
// books of its own. A version that can't be read here is taken for one of the provider's: better to
// report what is no difference than to miss one.
func askedOverHTTP(ctx context.Context, query *db.Queries) (func(int32, fsm.Step) bool, error) {
	rows, err := query.PoliciesUnknown(ctx, nil)
	if err != nil {
		return nil, fmt.Errorf("read policies: %w", err)
	}
	versions := map[int32]*policy.Policy{}
	for _, row := range rows {
		if p, err := policy.Parse([]byte(row.Source)); err == nil {
			versions[row.Version] = p
		}
	}
	return func(version int32, of fsm.Step) bool {
		p, known := versions[version]
		return !known || p.Of(of).Executor != policy.Stripe
	}, nil
}
