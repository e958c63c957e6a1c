package demo

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"

	"pawl/internal/console"
)

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
