package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// provider is what does the remote steps: the service's own simulator, a process of
// its own with its books in memory. It says at the end how often each step was done.
type provider struct {
	target target
	server *server // while a run goes on
}

// providerLatency is that of a good payment provider.
const providerLatency = "50ms"

func newProvider(binary string) *provider {
	args := []string{"simulate", "--file", "", "--latency", providerLatency}
	return &provider{target: target{binary: binary, args: args, ready: "/summary"}}
}

// start serves, and writes the policy that leads every step there.
func (p *provider) start(ctx context.Context, folder string) (policy string, err error) {
	if p.server, err = p.target.start(ctx, "", folder); err != nil {
		return "", fmt.Errorf("start provider: %w", err)
	}
	policy, err = p.policy(folder)
	if err != nil {
		err = errors.Join(err, p.server.stop())
	}
	return policy, err
}

func (p *provider) policy(folder string) (string, error) {
	var text strings.Builder
	for _, step := range steps {
		fmt.Fprintf(&text, "%s: {executor: simulator, url: \"http://%s\"}\n", step, p.server.address)
	}
	file := filepath.Join(folder, "remote.yaml")
	return file, os.WriteFile(file, []byte(text.String()), 0o644)
}

var steps = []string{"charge", "reserve", "confirm"}

// summary is what the simulator says of its books (docs/simulator.md).
type summary struct {
	Steps map[string]struct {
		Effects int `json:"effects"`
	} `json:"steps"`
	DoubleLive      int `json:"doubleLive"`
	Overlaps        int `json:"overlaps"`
	RepeatedEffects int `json:"repeatedEffects"`
	Requests        int `json:"requests"`
}

func (p *provider) summary(ctx context.Context) (*summary, error) {
	body, err := p.server.get(ctx, "/summary", anything)
	if err != nil {
		return nil, fmt.Errorf("read summary of provider: %w", err)
	}
	defer body.Close()
	var s summary
	if err := json.NewDecoder(body).Decode(&s); err != nil {
		return nil, fmt.Errorf("read summary of provider: %w", err)
	}
	return &s, nil
}

// mismatch says what the provider saw that must not be, or nothing. The effects are
// compared only when it is known how many orders there were.
func (s *summary) mismatch(orders int, known bool) string {
	var wrong []string
	if s.DoubleLive != 0 || s.Overlaps != 0 || s.RepeatedEffects != 0 {
		wrong = append(wrong, fmt.Sprintf("%d orders with two live charges, %d effects beside a live one, %d keys with more than one effect",
			s.DoubleLive, s.Overlaps, s.RepeatedEffects))
	}
	for _, step := range steps {
		if effects := s.Steps[step].Effects; known && effects != orders {
			wrong = append(wrong, fmt.Sprintf("%d orders answered, but %s was done %d times", orders, step, effects))
		}
	}
	return strings.Join(wrong, "; ")
}

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
			r := run{setup: s, window: w, provider: newProvider(p.built[s.Target].binary)}
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
