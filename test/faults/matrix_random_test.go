package faults

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pawl/internal/simulator"
)

// unreliable is a provider at which every third request or so goes wrong, at any step, doing and undoing.
func unreliable() (rules []simulator.Rule) {
	for _, rule := range doing {
		rule.Times, rule.Fraction = 0, 0.015
		rules = append(rules, rule)
	}
	rules = append(rules, simulator.Rule{Fault: simulator.Decline, Fraction: 0.06}, simulator.Rule{Fault: simulator.Slow, Delay: 50 * time.Millisecond, Fraction: 0.2})
	rules = append(rules, simulator.Rule{Fault: simulator.ForgetDeclines, Fraction: 0.03})
	for _, rule := range undoing {
		if rule.Fault != simulator.Decline {
			rule.Times, rule.Fraction = 0, 0.03
			for _, rule.Operation = range []string{"undo", "create", "read"} { // the latter are Stripe's
				rules = append(rules, rule)
			}
		}
	}
	return rules
}

// TestMatrixAtRandom kills replicas at random moments while orders go to an unreliable provider, and while some of them
// are canceled at random moments, by callers who do not know how far they are.
func TestMatrixAtRandom(t *testing.T) {
	build(t)
	t.Parallel()
	t.Run("one of several that can only call again", matrixAtRandom(blind, several()))
	if repeated() {
		t.Run("a lone replica that asks before it calls again", matrixAtRandom(looking, 1))
		t.Run("a lone replica that takes the money at once", matrixAtRandom(stripeNow, 1))
		t.Run("one of several that capture it at the end", matrixAtRandom(stripeLater, several()))
	}
}

func matrixAtRandom(executor string, n int) func(*testing.T) {
	return func(t *testing.T) {
		t.Parallel()
		s := openShop(t, executor, callLimit)
		s.meetKillsAtRandom(n)
	}
}

func (s *shop) meetKillsAtRandom(n int) {
	t := s.t
	t.Helper()
	random := newRandom(seed(t))
	s.faults(unreliable()...)
	r := s.open(n)
	load := s.send(16, random.Uint64())
	kills, redriven := 0, 0
	for least := rounds(t, 2); kills < least || kills < 10*least && (redriven == 0 || takeOvers(t, s.database.URL) == 0); kills++ {
		before, more := s.finished(), int64(40+random.IntN(60))
		eventually(t, patience, "orders end", func() bool { return s.finished() >= before+more })
		redriven += s.redrive(20)
		<-time.After(time.Duration(random.IntN(500)) * time.Millisecond)
		i := random.IntN(n)
		spared(t, s.database.URL)
		r.all[i].kill()
		r.replace(i)
	}
	load.finish()
	took := s.settle(3 * patience)
	s.prove()
	ends := map[string]int{}
	for _, o := range s.outcomes() {
		end := o.Status
		if o.Hold != "" {
			end = "held for " + o.Hold + ", " + strings.Fields(o.Reason)[0]
		}
		ends[end]++
	}
	sum := s.provider.Summary()
	taken := takeOvers(t, s.database.URL)
	t.Logf("%d kills, %d orders, %d canceled and %d tried again on request, ended %v after %s; %d take-overs; %d requests, %d duplicates suppressed, %d refused after an undo",
		kills, load.sent.Load(), load.canceled.Load(), redriven, ends, took, taken, sum.Requests, sum.DuplicatesSuppressed, sum.RefusedAfterUndo)
	if taken == 0 || ends["canceled"] == 0 || ends["completed"] == 0 || ends["failed"] == 0 || redriven == 0 {
		t.Error("the fault did not bite")
	}
}

func (s *shop) finished() int64 {
	s.t.Helper()
	return count(s.t, s.database.URL, `SELECT count(*) FROM books.orders AS o WHERE o.finished_at IS NOT NULL`)
}

// redrive asks that orders that have failed start anew, and returns how many do.
func (s *shop) redrive(most int) (redriven int) {
	s.t.Helper()
	for _, id := range query[string](s.t, s.database.URL, `SELECT o.order_id FROM books.orders AS o WHERE o.status = 'failed' LIMIT $1`, most) {
		if s.ask("retry", id) {
			redriven++
		}
	}
	return redriven
}

// senders send orders, and cancel every fourth of them after a random time.
type senders struct {
	sent, canceled atomic.Int64

	stop chan struct{}
	once sync.Once
	done sync.WaitGroup
}

func (s *shop) send(callers int, seed uint64) *senders {
	s.t.Helper()
	load := &senders{stop: make(chan struct{})}
	s.t.Cleanup(load.finish)
	for caller := range callers {
		random := rand.New(rand.NewPCG(seed, uint64(caller)))
		load.done.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-load.stop:
					return
				case <-time.After(time.Duration(random.IntN(60)) * time.Millisecond):
				}
				id := fmt.Sprintf("random-%d-%d", caller, i)
				cancels, prefer := random.IntN(4) == 0, "wait=1" // or they would send more than a busy machine ever gets done
				if cancels {
					prefer = "respond-async"
				}
				s.orderAs(id, prefer)
				load.sent.Add(1)
				if cancels {
					<-time.After(time.Duration(random.IntN(400)) * time.Millisecond)
					if s.ask("cancel", id) {
						load.canceled.Add(1)
					}
				}
			}
		})
	}
	return load
}

// finish lets the senders finish what they are at. Calling it again is harmless.
func (l *senders) finish() {
	l.once.Do(func() { close(l.stop) })
	l.done.Wait()
}
