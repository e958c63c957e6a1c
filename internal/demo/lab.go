package demo

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"time"

	"pawl/db"
	"pawl/internal/books"
	"pawl/internal/console"
	"pawl/internal/pgembed"
	"pawl/internal/simulator"
)

// Faults of the provider, in the short form of docs/simulator.md.
var (
	slow    = of("Slow", "slow:500ms,fraction=0.5", "the provider is slow: every second request takes half a second")
	silent  = of("Silent", "timeout-after,fraction=0.2", "the provider is silent: it does one request in five, and never answers it")
	wrong   = of("Wrong", "error-after,fraction=0.2", "the provider is wrong: it does one request in five, and answers it with 500")
	hangsUp = of("Hangs up", "cut-after,fraction=0.2", "the provider hangs up in the middle of one answer in five")
	busy    = of("Busy", "rate-limit,fraction=0.33", "the provider is busy: it answers one request in three with 429")
	twice   = of("Answers twice", "answer-twice,fraction=0.5", "the provider answers twice: one answer in two comes again, by callback")
	away    = of("Broken", "error", "the provider is broken: it does nothing, and answers every request with 500")

	// labFaults are the buttons of the lab.
	labFaults = []console.LabFault{{Name: "Works", Effect: "nothing is wrong with the provider"}, slow, silent, wrong, hangsUp, busy, twice, away}
)

func of(name, rule, says string) console.LabFault {
	return console.LabFault{Name: name, Effect: says, Rules: []string{rule}}
}

// fault is a fault of the provider, or a signal for a replica. It lasts until the next one.
type fault struct {
	console.LabFault
	replica int // from 1; 0: none
	signal  syscall.Signal
}

var faults = []fault{
	{LabFault: slow},
	{LabFault: console.LabFault{Effect: "replica 1 is killed (SIGKILL)"}, replica: 1, signal: syscall.SIGKILL},
	{LabFault: silent},
	{LabFault: console.LabFault{Effect: "replica 2 is frozen (SIGSTOP)"}, replica: 2, signal: syscall.SIGSTOP},
	{LabFault: wrong},
	{LabFault: console.LabFault{Effect: "replica 2 is killed (SIGKILL)"}, replica: 2, signal: syscall.SIGKILL},
	{LabFault: hangsUp},
	{LabFault: busy},
}

// usual are the usual declines of a provider. Their orders fail, and their completed steps are undone.
var usual = []string{"decline:card_declined@charge,fraction=0.03", "decline:out_of_stock@reserve,fraction=0.03"}

func (s *stage) plan(rules ...string) error {
	body, err := json.Marshal(slices.Concat(rules, usual))
	if err != nil {
		return err
	}
	response, err := http.Post(s.provider.url+"/faults", "application/json", bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("set the faults of the provider: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		var why struct{ Detail string }
		_ = json.NewDecoder(response.Body).Decode(&why) // as much of the reason as there is
		return fmt.Errorf("set the faults of the provider: %s: %s", response.Status, why.Detail)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rules = rules
	return nil
}

// strike ends the last fault and begins the next one, unless a replica is still starting or the lab is in use.
func (s *stage) strike() {
	s.acting.Lock()
	defer s.acting.Unlock()
	if s.byHand.Load() || slices.ContainsFunc(s.states(), func(r console.LabReplica) bool { return r.State == console.LabStarting }) {
		return
	}
	f := faults[s.struck%len(faults)]
	s.struck++
	if err := s.heal(f.Rules...); err != nil {
		s.fail(err)
		return
	}
	s.table.row(f.Effect)
	if f.replica > 0 {
		s.signal(f.replica-1, f.signal)
	}
	if f.signal == syscall.SIGKILL {
		s.restart(f.replica - 1)
	}
}

// heal ends the last fault. The provider gets new rules.
func (s *stage) heal(rules ...string) error {
	for i := range s.replicas {
		s.signal(i, syscall.SIGCONT)
	}
	return s.plan(rules...)
}

// mend ends all faults for good, and starts the replicas that were killed from the lab.
func (s *stage) mend() {
	s.acting.Lock()
	defer s.acting.Unlock()
	s.over = true
	if err := s.heal(); err != nil {
		s.fail(err)
	}
	for i, r := range s.states() {
		if r.State == console.LabDead {
			s.restart(i)
		}
	}
	s.table.row("no more orders and faults")
}

func (s *stage) look(ctx context.Context) console.LabState {
	s.mu.Lock()
	last := s.last
	s.mu.Unlock()
	if last != nil {
		return *last
	}
	state := console.LabState{
		Replicas: s.states(), Faults: labFaults, ByHand: s.byHand.Load(), Books: s.readBooks(ctx), Proof: s.lastProof(),
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	state.Rules = s.rules
	now := time.Now()
	if ended := state.Books.Ended(); ended != s.ended || now.Sub(s.lookedAt) > stallAfter {
		s.ended, s.endedAt = ended, now
	}
	s.lookedAt = now
	state.Stalled = stalled(&state, now.Sub(s.endedAt))
	return state
}

// stallAfter is longer than it takes to take over the orders of a dead replica, and than a page takes to look again.
const stallAfter = 4 * time.Second

// stalled says why orders have not ended for a while, and what to press; empty: they do.
func stalled(now *console.LabState, since time.Duration) string {
	in := func(state string) bool {
		return slices.ContainsFunc(now.Replicas, func(r console.LabReplica) bool { return r.State == state })
	}
	switch fault := slices.IndexFunc(labFaults, func(f console.LabFault) bool { return f.Is(now.Rules) }); {
	case in(console.LabServes) && (since < stallAfter || now.Books.UnderWay == 0):
		return ""
	case !in(console.LabServes) && in(console.LabStarting):
		return "No replica serves yet. One is starting, and continues the orders of the other."
	case !in(console.LabServes):
		return "No replica serves, so all orders wait, and the callers try again. Press Start or Continue at a replica: it continues them."
	case fault < 0:
		return "No order ends, because of your own rules. Press Works, and all of them end."
	case len(now.Rules) > 0:
		return "No order ends: " + labFaults[fault].Effect + ". Pawl keeps trying. Press Works, and all of them end."
	}
	return "The provider works again. Pawl sends it one call every few seconds until one succeeds, and then all of them: wait a moment."
}

var errOver = errors.New("the demonstration is ending: no more faults")

// act does an action of the lab. From then on, all faults come from the lab.
func (s *stage) act(_ context.Context, action console.LabAction) error {
	s.acting.Lock()
	defer s.acting.Unlock()
	if s.over {
		return errOver
	}
	says, err := s.do(action)
	if err != nil {
		return err
	}
	if !s.byHand.Swap(true) {
		s.table.row("from now on, faults come from the lab, until Ctrl-C")
	}
	s.table.row("lab: " + says)
	return nil
}

// checkRules names each rule that is wrong.
func checkRules(rules []string) (wrong error) {
	for _, text := range rules {
		_, err := simulator.ParseRule(text)
		wrong = errors.Join(wrong, err)
	}
	return wrong
}

// possible are the states of a replica in which a verb is possible.
var possible = map[string][]string{
	console.LabKill:  {console.LabServes, console.LabStopped},
	console.LabStop:  {console.LabServes},
	console.LabGoOn:  {console.LabStopped},
	console.LabStart: {console.LabDead},
}

func (s *stage) do(action console.LabAction) (says string, err error) {
	if action.Verb == console.LabProvider {
		if err := checkRules(action.Rules); err != nil {
			return "", err
		}
		if len(action.Rules) > 0 { // Works is none
			s.struck++
		}
		says = "the faults of the provider are now " + strings.Join(action.Rules, "; ")
		if i := slices.IndexFunc(labFaults, func(f console.LabFault) bool { return f.Is(action.Rules) }); i >= 0 {
			says = labFaults[i].Effect
		}
		return says, s.plan(action.Rules...)
	}
	i := action.Replica - 1
	if i < 0 || i >= len(s.replicas) {
		return "", fmt.Errorf("there is no replica %d", action.Replica)
	}
	if state := s.states()[i].State; !slices.Contains(possible[action.Verb], state) {
		return "", fmt.Errorf("replica %d can't do that now: %s", action.Replica, state)
	}
	switch action.Verb {
	case console.LabKill:
		s.struck++
		<-s.signal(i, syscall.SIGKILL).exited
		says = "is killed (SIGKILL)"
	case console.LabStop:
		s.struck++
		s.signal(i, syscall.SIGSTOP)
		says = "is frozen (SIGSTOP)"
	case console.LabGoOn:
		s.signal(i, syscall.SIGCONT)
		says = "continues (SIGCONT)"
	case console.LabStart:
		s.restart(i)
		says = "is started again"
	}
	return fmt.Sprintf("replica %d %s", action.Replica, says), nil
}

const (
	readLimit   = 3 * time.Second
	proveEvery  = 5 * time.Second
	proveSparse = 4 // least pause between proofs, as a multiple of their duration
)

// currency is the currency of all orders.
const currency = "USD"

// readBooks reads the books of both sides, one after the other. An order that ends or begins in between must not look like
// a fault: ours are read first, so every order that they call completed is charged at the provider, and orders are
// counted last, so every charge there is of one of them.
func (s *stage) readBooks(ctx context.Context) console.LabBooks {
	ctx, cancel := context.WithTimeout(ctx, readLimit)
	defer cancel()
	ours, err := db.New(s.pool).DemoBooks(ctx, currency)
	if err != nil {
		return console.LabBooks{Wrong: "Pawl's: " + err.Error()}
	}
	theirs, err := s.summary(ctx)
	if err != nil {
		return console.LabBooks{Wrong: "the provider's: " + err.Error()}
	}
	all, err := db.New(s.pool).DemoOrders(ctx)
	if err != nil {
		return console.LabBooks{Wrong: "Pawl's: " + err.Error()}
	}
	charged, kept := int64(theirs.Steps["charge"].Live), "0"
	for _, m := range theirs.Money {
		if m.Currency == currency {
			kept = m.Kept
		}
	}
	return console.LabBooks{
		Completed: ours.Completed, Failed: ours.Failed, UnderWay: all.Orders - ours.Completed - ours.Failed, Orders: all.Orders, Late: all.Late,
		Charges: ours.Charges, ChargesThere: charged, Currency: currency, Kept: ours.Kept, KeptThere: kept,
		Repeated: theirs.Repeated, Found: theirs.AnswersFound, FoundOf: theirs.FoundOf, Twice: theirs.DoubleLive + theirs.Overlaps + theirs.RepeatedEffects,
	}
}

func (s *stage) summary(ctx context.Context) (sum simulator.Summary, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.provider.url+"/summary", nil)
	if err != nil {
		return sum, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return sum, err
	}
	defer response.Body.Close()
	return sum, json.NewDecoder(response.Body).Decode(&sum)
}

// lastProof returns the last result of pawl verify, which runs in the background while the page is open.
func (s *stage) lastProof() console.LabProof {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.proving && time.Now().After(s.proveNext) {
		s.proving = true
		s.provers.Go(func() {
			began := time.Now()
			proof := s.prove(s.proofs)
			s.mu.Lock()
			defer s.mu.Unlock()
			s.proof, s.proving, s.proveNext = proof, false, time.Now().Add(max(proveEvery, proveSparse*time.Since(began)))
		})
	}
	return s.proof
}

// prove runs pawl verify on both books until ctx ends.
func (s *stage) prove(ctx context.Context) (proof console.LabProof) {
	var out, said bytes.Buffer
	p := &process{cmd: s.command("verify", "--database-url", s.databaseURL(), "--provider", s.provider.url, "--output", "json")}
	p.cmd.Stdout, p.cmd.Stderr = &out, &said
	var err error
	if p.exited, err = pgembed.Launch(p.cmd); err != nil {
		return console.LabProof{At: time.Now(), Wrong: err.Error()}
	}
	defer context.AfterFunc(ctx, func() { p.signal(syscall.SIGKILL) })()
	<-p.exited
	proof.At = time.Now()
	var report books.Report
	if err := json.Unmarshal(out.Bytes(), &report); err != nil {
		proof.Wrong = cmp.Or(strings.TrimSpace(said.String()), "pawl verify has ended: "+p.cmd.ProcessState.String())
		return proof
	}
	proof.Checks = len(report.Checks)
	for _, check := range report.Checks {
		if check.Violations > 0 && !check.Warning {
			proof.Broken = append(proof.Broken, fmt.Sprintf("%d times not true: %s", check.Violations, check.Proves))
		}
	}
	return proof
}
