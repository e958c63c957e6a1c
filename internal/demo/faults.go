package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"time"

	"pawl/internal/console"
)

// fault is something that goes wrong until the next one does.
type fault struct {
	says    string
	rules   []string // of the provider, in the short form of docs/simulator.md
	replica int      // that gets the signal, from 1 on
	signal  syscall.Signal
}

var faults = []fault{
	{says: slow.Says, rules: slow.Rules},
	{says: "replica 1 is killed (SIGKILL)", replica: 1, signal: syscall.SIGKILL},
	{says: silent.Says, rules: silent.Rules},
	{says: "replica 2 stands still (SIGSTOP)", replica: 2, signal: syscall.SIGSTOP},
	{says: wrong.Says, rules: wrong.Rules},
	{says: "replica 2 is killed (SIGKILL)", replica: 2, signal: syscall.SIGKILL},
	{says: hangsUp.Says, rules: hangsUp.Rules},
	{says: busy.Says, rules: busy.Rules},
}

// usual is what some orders come to at any provider: they fail, and what was done for them is undone.
var usual = []string{"decline:card_declined@charge,fraction=0.03", "decline:out_of_stock@reserve,fraction=0.03"}

// plan gives the provider its rules.
func (s *stage) plan(rules ...string) error {
	body, err := json.Marshal(slices.Concat(rules, usual))
	if err != nil {
		return err
	}
	response, err := http.Post(s.provider.url+"/faults", "application/json", bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("tell the provider what goes wrong: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		var why struct{ Detail string }
		_ = json.NewDecoder(response.Body).Decode(&why) // what can be told is told
		return fmt.Errorf("tell the provider what goes wrong: it answers %s: %s", response.Status, why.Detail)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rules = rules
	return nil
}

// play sends orders and has a fault every few seconds, until it is time or ctx ends. It returns when all orders have ended.
func (s *stage) play(ctx context.Context) error {
	ctx, end := context.WithCancel(ctx)
	defer end()
	sent := make(chan struct{})
	var unsent error
	go func() {
		defer close(sent)
		unsent = s.send(ctx)
	}()
	err := s.disturb(ctx, end, sent)
	end()
	<-sent
	return errors.Join(err, unsent)
}

// disturb has the faults, until it is time to end or ctx ends, and tells what happens until all orders have ended and all
// replicas serve again. All that is broken or mended, by itself or by hand, is so here.
func (s *stage) disturb(ctx context.Context, end func(), sent <-chan struct{}) (err error) {
	defer close(s.over)
	pause := min(max(s.Length/time.Duration(len(faults)+1), time.Second), 4*time.Second)
	stop := time.Now().Add(s.Length)
	next := time.NewTicker(pause)
	redraw := time.NewTicker(200 * time.Millisecond)
	defer next.Stop()
	defer redraw.Stop()
	s.table.begin()
	s.table.row(fmt.Sprintf("%d callers send orders", callers))
	for over := ctx.Done(); err == nil && (sent != nil || s.starting > 0); {
		select {
		case <-next.C:
			if time.Until(stop) > pause/2 && over != nil && s.starting == 0 && !s.byHand.Load() {
				err = s.strike()
			}
		case r := <-s.restarted:
			s.starting--
			if err = r.err; err == nil {
				s.table.row(fmt.Sprintf("replica %d serves again", r.number))
			}
		case a := <-s.asked:
			a.answer <- s.obey(a.LabAction, over == nil)
		case <-over:
			over = nil
			err = s.mend()
			s.table.row("no more new orders, no more faults")
		case <-sent:
			sent = nil
		case <-redraw.C:
			if over != nil && !s.byHand.Load() && !time.Now().Before(stop) {
				end()
			}
			s.table.draw()
		}
	}
	for ; s.starting > 0; s.starting-- {
		err = errors.Join(err, (<-s.restarted).err)
	}
	if c := s.tally.peek(); c.sent == c.completed+c.failed {
		s.table.row("every order has ended")
	}
	return err
}

// strike ends the last fault and begins the next one.
func (s *stage) strike() error {
	f := faults[s.struck%len(faults)]
	s.struck++
	if err := s.heal(f.rules...); err != nil {
		return err
	}
	s.table.row(f.says)
	if f.replica > 0 {
		s.signal(f.replica-1, f.signal)
	}
	if f.signal == syscall.SIGKILL {
		s.restart(f.replica - 1)
	}
	return nil
}

// heal ends the last fault. The provider goes on with other rules, if there are any.
func (s *stage) heal(rules ...string) error {
	for i := range s.replicas {
		s.signal(i, syscall.SIGCONT)
	}
	return s.plan(rules...)
}

// What can be wrong with the provider.
var (
	slow    = console.LabFault{Name: "Slow", Says: "the provider is slow: it takes half a second for every second request", Rules: []string{"slow:500ms,fraction=0.5"}}
	silent  = console.LabFault{Name: "Silent", Says: "the provider is silent: one request in five is done and never answered", Rules: []string{"timeout-after,fraction=0.2"}}
	wrong   = console.LabFault{Name: "Wrong", Says: "the provider is wrong: one request in five is done and answered with 500", Rules: []string{"error-after,fraction=0.2"}}
	hangsUp = console.LabFault{Name: "Hangs up", Says: "the provider hangs up in the middle of one answer in five", Rules: []string{"cut-after,fraction=0.2"}}
	busy    = console.LabFault{Name: "Busy", Says: "the provider is busy: it answers one request in three with 429", Rules: []string{"rate-limit,fraction=0.33"}}
	twice   = console.LabFault{Name: "Answers twice", Says: "the provider answers twice: one answer in two comes again, by callback", Rules: []string{"answer-twice,fraction=0.5"}}
	away    = console.LabFault{Name: "Broken", Says: "the provider is broken: it answers every request with 500, and does nothing", Rules: []string{"error"}}
)

// labFaults are the buttons of the lab.
var labFaults = []console.LabFault{{Name: "Works", Says: "nothing is wrong with the provider"}, slow, silent, wrong, hangsUp, busy, twice, away}

// asked is what a person asks for, and where the answer is waited for.
type asked struct {
	console.LabAction
	answer chan error
}

var errOver = errors.New("the demonstration is coming to its end, and everything is mended")

// lab is what the console shows and offers.
func (s *stage) lab() *console.Lab {
	return &console.Lab{State: s.look, Do: func(ctx context.Context, action console.LabAction) error {
		a := asked{action, make(chan error, 1)}
		select {
		case s.asked <- a:
			return <-a.answer
		case <-s.over:
			return errOver
		case <-ctx.Done():
			return ctx.Err()
		}
	}}
}

// look says how everything is.
func (s *stage) look(ctx context.Context) console.LabState {
	seen := s.tally.peek()
	state := console.LabState{
		Replicas: s.states(), Faults: labFaults, ByHand: s.byHand.Load(),
		Orders: console.LabOrders{Sent: seen.sent, Completed: seen.completed, Failed: seen.failed},
	}
	s.mu.Lock()
	state.Rules = s.rules
	s.mu.Unlock()
	state.Books, state.Proof = s.watch(ctx)
	return state
}

// obey does what a person asks for. From then on nothing breaks by itself.
func (s *stage) obey(action console.LabAction, over bool) error {
	if over {
		return errOver
	}
	says, err := s.act(action)
	if err != nil {
		return err
	}
	if !s.byHand.Swap(true) {
		s.table.row("from now on things are broken by hand, until Ctrl-C")
	}
	s.table.row("by hand: " + says)
	return nil
}

// act does it, and says what it was.
func (s *stage) act(action console.LabAction) (says string, err error) {
	if action.Verb == console.LabProvider {
		s.struck++
		return saysOf(action.Rules), s.plan(action.Rules...)
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
		s.signal(i, syscall.SIGKILL)
		<-s.replica(i).exited
		says = fmt.Sprintf("replica %d is killed (SIGKILL)", action.Replica)
	case console.LabStop:
		s.signal(i, syscall.SIGSTOP)
		says = fmt.Sprintf("replica %d stands still (SIGSTOP)", action.Replica)
	case console.LabGoOn:
		s.signal(i, syscall.SIGCONT)
		return fmt.Sprintf("replica %d goes on (SIGCONT)", action.Replica), nil
	case console.LabStart:
		s.restart(i)
		return fmt.Sprintf("replica %d is started again", action.Replica), nil
	}
	s.struck++
	return says, nil
}

// possible says in which states of a replica a verb means something.
var possible = map[string][]string{
	console.LabKill:  {console.LabServes, console.LabStopped},
	console.LabStop:  {console.LabServes},
	console.LabGoOn:  {console.LabStopped},
	console.LabStart: {console.LabDead},
}

func saysOf(rules []string) string {
	for _, f := range labFaults {
		if f.Is(rules) {
			return f.Says
		}
	}
	return "the provider goes by " + strings.Join(rules, "; ")
}

// mend ends the last fault, and starts the replicas that a person has killed.
func (s *stage) mend() error {
	err := s.heal()
	for i, r := range s.states() {
		if r.State == console.LabDead {
			s.restart(i)
		}
	}
	return err
}
