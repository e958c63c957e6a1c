package main

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"
)

const (
	remoteCallers = 2000 // and the policy's limit of calls at a time, for each step
	remoteItems   = 10_000

	// So many callers that begin at the same moment go through their steps side by side
	// at first, and the connections to the provider have to be made.
	remoteWarmUp = 5 * time.Second
)

// withProvider measures the service with every step at a provider: with orders offered
// at a rate, and with so many callers that wait.
func (p *plan) withProvider(ctx context.Context) error {
	w := p.window
	w.warmUp = max(w.warmUp, remoteWarmUp)
	for range p.rounds {
		for _, s := range []setup{{Rate: p.rate}, {Callers: remoteCallers}} {
			s.Target, s.Items = "pawl", remoteItems
			r := run{setup: s, window: w, stock: p.stock, provider: newProvider(p.built[s.Target].binary)}
			if err := p.do(ctx, r); err != nil {
				return err
			}
		}
	}
	return nil
}

// measureRemote is measure with a provider that begins with empty books, and is asked
// what it did after the service has ended.
func (r run) measureRemote(ctx context.Context) (out result, err error) {
	policy, err := r.provider.start(ctx, r.folder)
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, r.provider.server.stop()) }()
	r.target.args = append(slices.Clone(r.target.args), "--policy", policy)
	if out, err = r.measure(ctx); err != nil {
		return out, err
	}
	if out.Provider, err = r.provider.summary(ctx); err != nil {
		return out, err
	}
	wrong := []string{out.BooksMismatch, out.Provider.mismatch(out.Answered, out.Errors == 0)}
	out.BooksMismatch = strings.Join(slices.DeleteFunc(wrong, func(s string) bool { return s == "" }), "; ")
	return out, nil
}
