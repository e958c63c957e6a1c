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
	{says: "the provider is slow: it takes half a second for every second request", rules: []string{"slow:500ms,fraction=0.5"}},
	{says: "replica 1 is killed (SIGKILL)", replica: 1, signal: syscall.SIGKILL},
	{says: "the provider is silent: one request in five is done and never answered", rules: []string{"timeout-after,fraction=0.2"}},
	{says: "replica 2 stands still (SIGSTOP)", replica: 2, signal: syscall.SIGSTOP},
	{says: "the provider is wrong: one request in five is done and answered with 500", rules: []string{"error-after,fraction=0.2"}},
	{says: "replica 2 is killed (SIGKILL)", replica: 2, signal: syscall.SIGKILL},
	{says: "the provider hangs up in the middle of one answer in five", rules: []string{"cut-after,fraction=0.2"}},
	{says: "the provider is busy: it answers one request in three with 429", rules: []string{"rate-limit,fraction=0.33"}},
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
		return fmt.Errorf("tell the provider what goes wrong: it answers %s", response.Status)
	}
	return nil
}

// play sends orders and has a fault every few seconds, until it is time or ctx ends. It returns when all orders have ended.
func (s *stage) play(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.Length)
	defer cancel()
	sent := make(chan struct{})
	var unsent error
	go func() {
		defer close(sent)
		unsent = s.send(ctx)
	}()
	err := s.disturb(ctx, sent)
	cancel()
	<-sent
	return errors.Join(err, unsent)
}

// disturb has the faults, until ctx ends, and tells what happens until all orders were sent and all replicas serve again.
func (s *stage) disturb(ctx context.Context, sent <-chan struct{}) (err error) {
	pause := min(max(s.Length/time.Duration(len(faults)+1), time.Second), 4*time.Second)
	end, _ := ctx.Deadline()
	next := time.NewTicker(pause)
	redraw := time.NewTicker(200 * time.Millisecond)
	defer next.Stop()
	defer redraw.Stop()
	s.table.begin()
	s.table.row(fmt.Sprintf("%d callers send orders", callers))
	for over := ctx.Done(); err == nil && (sent != nil || s.starting > 0); {
		select {
		case <-next.C:
			if time.Until(end) > pause/2 && over != nil && s.starting == 0 {
				err = s.strike()
			}
		case r := <-s.restarted:
			s.starting--
			err = r.err
			s.table.row(fmt.Sprintf("replica %d serves again", r.number))
		case <-over:
			over = nil
			err = s.heal()
			s.table.row("no more new orders, no more faults")
		case <-sent:
			sent = nil
		case <-redraw.C:
			s.table.draw()
		}
	}
	for ; s.starting > 0; s.starting-- {
		err = errors.Join(err, (<-s.restarted).err)
	}
	s.table.row("every order has ended")
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
		s.replica(f.replica - 1).signal(f.signal)
	}
	if f.signal == syscall.SIGKILL {
		s.starting++
		go func() {
			<-s.replica(f.replica - 1).exited
			s.restarted <- restart{f.replica, s.startReplica(context.Background(), f.replica-1)}
		}()
	}
	return nil
}

// heal ends the last fault. The provider goes on with other rules, if there are any.
func (s *stage) heal(rules ...string) error {
	for i := range s.replicas {
		s.replica(i).signal(syscall.SIGCONT)
	}
	return s.plan(rules...)
}

// restart is a replica that was started again.
type restart struct {
	number int // from 1 on
	err    error
}
