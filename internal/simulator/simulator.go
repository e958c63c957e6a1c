// Package simulator simulates a payment provider and warehouse. It stores what it did under each idempotency key in a
// file, and can be made to fail in every way that providers do.
//
// What it did is counted when it is done, not when it is answered. So its books show whether effects happened exactly
// once, without any knowledge of the service.
package simulator

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"pawl/internal/signing"
)

// Config configures a simulator.
type Config struct {
	// File stores what the simulator did, for one simulator at a time. Empty: only in memory.
	File string
	// Latency is how long a do or an undo takes that is not a repetition.
	Latency time.Duration
	// KeyRetention is how long it remembers a key after it was last done or undone, at least. 0: forever. References are
	// remembered forever.
	KeyRetention time.Duration
	// Faults is the plan; see SetFaults.
	Faults []Rule
	// Seed decides which requests a Rule with a Fraction applies to.
	Seed uint64
	// Secret of the Standard Webhooks signatures of requests and callbacks. With the prefix whsec_ it is in base64.
	// Empty: neither is signed.
	Secret string
	// StripeWebhook is the URL for events of payment intents, signed with StripeWebhookSecret as by Stripe. Empty: none.
	StripeWebhook, StripeWebhookSecret string
	// PublicOnly keeps callbacks and events from this machine and from private networks.
	PublicOnly bool
	// Log gets callbacks that failed. Nil: none.
	Log *slog.Logger
}

// Simulator is a provider, served over HTTP. It is safe for concurrent use.
type Simulator struct {
	mux     *http.ServeMux
	cfg     Config
	key     []byte // of signatures
	client  *http.Client
	journal *journal

	closing context.Context // ends when Close begins
	close   context.CancelFunc
	work    sync.WaitGroup // requests and jobs that may still write

	mu       sync.Mutex // held briefly, never while waiting
	closed   bool
	state    *state
	plan     plan
	requests map[string]int // by key, of do or undo, since the start
	history  history
	counts   counts
}

type counts struct {
	requests, repeated, suppressed, refusedAfterUndo, answersFound int

	foundOf string // the order of the last answer that was found
}

// New returns a simulator that keeps everything in memory and has no faults.
func New() *Simulator {
	s, err := Open(Config{})
	if err != nil {
		panic(err) // impossible: only a file, a rule or a secret can be wrong
	}
	return s
}

// Open returns a simulator with the contents of its file, which has everything that was ever answered, even after an
// unclean stop. Promised callbacks are on their way again. The caller closes it.
func Open(cfg Config) (*Simulator, error) {
	closing, cancel := context.WithCancel(context.Background())
	s := &Simulator{
		cfg: cfg, client: newClient(cfg.PublicOnly), closing: closing, close: cancel,
		state: newState(), plan: plan{seed: cfg.Seed}, requests: map[string]int{}, history: newHistory(),
	}
	if s.cfg.Log == nil {
		s.cfg.Log = slog.New(slog.DiscardHandler)
	}
	s.mux = s.routes()
	if err := s.open(cfg); err != nil {
		cancel()
		return nil, err
	}
	s.resume()
	return s, nil
}

func (s *Simulator) open(cfg Config) (err error) {
	if cfg.Secret != "" {
		if s.key, err = signing.Key(cfg.Secret); err != nil {
			return err
		}
	}
	if cfg.StripeWebhookSecret != "" && len(cfg.StripeWebhookSecret) < signing.MinKey {
		return fmt.Errorf("secret of Stripe's events: must have at least %d bytes", signing.MinKey)
	}
	if err := s.SetFaults(cfg.Faults...); err != nil {
		return err
	}
	if cfg.File != "" {
		s.journal, err = openJournal(cfg.File, s.replay)
	}
	return err
}

func (s *Simulator) replay(line []byte) error {
	var r record
	if err := json.Unmarshal(line, &r); err != nil {
		return fmt.Errorf("read record: %w", err)
	}
	return s.state.apply(r)
}

// Close waits for requests and callbacks under way, except those that only wait, and closes the file. Later requests
// are answered 503 and do nothing. Close a server in front of the simulator after it: a request that is never answered
// ends with Close, or when its caller leaves.
func (s *Simulator) Close() error {
	s.mu.Lock()
	again := s.closed
	s.closed = true
	s.mu.Unlock()
	if again {
		return nil
	}
	s.close()
	s.work.Wait()
	s.client.CloseIdleConnections()
	return s.journal.close()
}

// enter reports whether work may begin; work.Done ends it.
func (s *Simulator) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.work.Add(1)
	}
	return !s.closed
}

// start runs a job that Close waits for.
func (s *Simulator) start(job func()) {
	if !s.enter() {
		return
	}
	go func() {
		defer s.work.Done()
		job()
	}()
}

// pause returns false when the simulator is closed before the time is over.
func (s *Simulator) pause(d time.Duration) bool {
	if d <= 0 {
		return s.closing.Err() == nil
	}
	select {
	case <-time.After(d):
		return true
	case <-s.closing.Done():
		return false
	}
}

// SetFaults replaces the plan. The first rule that matches a request and is not used up applies; an item that names a
// fault comes last. If a rule is wrong, it returns an error and changes nothing.
func (s *Simulator) SetFaults(rules ...Rule) error {
	checked := make([]Rule, 0, len(rules))
	for _, rule := range rules {
		rule, err := rule.checked()
		if err != nil {
			return err
		}
		checked = append(checked, rule)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.plan.rules, s.plan.used = checked, map[use]int{}
	return nil
}

// Faults returns the plan.
func (s *Simulator) Faults() []Rule {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.plan.rules
}

// record makes a change and adds it to the file; mu is held. It is answered when the file is durable.
func (s *Simulator) record(r record) {
	r.At = time.Now().UTC()
	line := encode(r)
	if err := s.state.apply(r); err != nil {
		panic(err) // the numbers of its entries are ours
	}
	s.journal.add(line)
}

// forget forgets a key after KeyRetention, unless something is being done under it. Effects stay in the books, and are
// found by reference; a do with the key is new. mu is held.
func (s *Simulator) forget(key string) {
	e := s.state.keys[key]
	kept := e == nil || e.State == "" || e.State == Pending || e.running
	if s.cfg.KeyRetention == 0 || kept || time.Since(e.At) < s.cfg.KeyRetention {
		return
	}
	s.record(record{Forgot: key})
}
