package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"

	"pawl/db"
	"pawl/fsm"
	"pawl/internal/books"
	"pawl/internal/policy"
	"pawl/internal/policy/store"
	"pawl/internal/provider"
	"pawl/internal/provider/stripe"
)

// providerAt is the provider whose books are at some addresses, each of them for all steps or for one (STEP=URL). Without any it
// is nil.
func providerAt(ctx context.Context, query *db.Queries, addresses []string) (*books.Provider, error) {
	if len(addresses) == 0 {
		return nil, nil
	}
	urls, compared, err := parseProviders(addresses)
	if err != nil {
		return nil, configError{err}
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
	return &books.Provider{URLs: urls, Key: func(s books.Sent) (string, bool) {
		// A step of a version that can't be read here is taken for the provider's: better to report what is no
		// difference than to miss one.
		var how policy.Step
		if p := versions[s.Policy]; p != nil {
			how = *p.Step(s.Step)
		}
		key, asked := keyAt(how, installation, s)
		return key, asked && compared[s.Step]
	}}, nil
}

// parseProviders reads what --provider was given: where there are books, and which steps are compared with them. All books are
// looked through for a key, so a step can have more than one provider.
func parseProviders(addresses []string) (urls []string, compared map[fsm.Step]bool, err error) {
	compared = map[fsm.Step]bool{}
	for _, address := range addresses {
		steps := fsm.Steps()
		if name, url, named := strings.Cut(address, "="); named && slices.Contains(steps, fsm.Step(name)) {
			steps, address = []fsm.Step{fsm.Step(name)}, url
		}
		if _, err := policy.ParseURL(address); err != nil {
			return nil, nil, fmt.Errorf("--provider: want a URL, or charge=URL, reserve=URL or confirm=URL: %w", err)
		}
		for _, step := range steps {
			compared[step] = true
		}
		if !slices.Contains(urls, address) {
			urls = append(urls, address)
		}
	}
	return urls, compared, nil
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
