package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"syscall"
	"time"
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
