package faults

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	pawl "pawl/client"
	"pawl/internal/simulator"
	"pawl/test/dbtest"
)

// refundMoments are where a process ends that was asked for a refund. Between its last two statements it calls the provider.
var refundMoments = []struct {
	statement string
	after     bool
}{
	{"RefundAsk", false}, {"RefundAsk", true}, {"RefundsClaim", true}, {"RefundBegin", true}, {"RefundFinish", false}, {"RefundFinish", true},
}

// TestKilledInARefund ends the program at every statement of a refund, and in its call. The caller asks again under the same
// request id, as callers do who were not answered: another replica has done it, or does it, once.
func TestKilledInARefund(t *testing.T) {
	build(t)
	t.Parallel()
	for _, executor := range []string{looking, blind} {
		name := map[string]string{looking: "looked up", blind: "sent again"}[executor]
		for i, m := range refundMoments {
			if !repeated() && (i/2%2 == 0) != (executor == looking) { // together they come to every moment once
				continue
			}
			when := map[bool]string{false: "before", true: "after"}[m.after]
			t.Run(fmt.Sprintf("%s, %s %s", name, when, m.statement), func(t *testing.T) {
				t.Parallel()
				s := openShop(t, executor, callLimit)
				p := dbtest.NewProxy(t, s.database.URL)
				victim := s.sellOne(p.URL)
				s.endAt(p, victim, m.statement, m.after)
				s.refundAfter(victim)
			})
		}
		t.Run(name+", in the call", func(t *testing.T) {
			t.Parallel()
			s := openShop(t, executor, 10*time.Second)
			victim := s.sellOne(s.database.URL)
			s.faults(simulator.Rule{Fault: simulator.TimeoutAfter, Step: "charge", Operation: "refund", Times: 1})
			go func() {
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				_, err := s.provider.Await(ctx, func(r simulator.Request) bool { return r.Operation == "refund" && r.Outcome == "done" })
				if err != nil {
					t.Error(err)
				}
				victim.kill()
			}()
			s.refundAfter(victim)
		})
	}
}

// sellOne starts a replica that reaches the database at an address, and has it complete the order "one".
func (s *shop) sellOne(databaseURL string) *process {
	s.t.Helper()
	r := s.openAt(databaseURL, 1)
	s.order("one")
	s.until("one", "completed", "")
	return r.all[0]
}

// endAt ends a process before the next statement of a name, or after it was committed.
func (s *shop) endAt(p *dbtest.Proxy, victim *process, statement string, after bool) {
	var asked atomic.Bool
	p.OnLost(victim.kill)
	p.On(func(now string) dbtest.Fate {
		asked.CompareAndSwap(false, now == "RefundAsk") // claims come all the time, and before it they find nothing
		switch {
		case now != statement || !asked.Load():
			return dbtest.Passes
		case after:
			return dbtest.LoseReply
		}
		return dbtest.LoseRequest
	})
}

// refundAfter asks for a refund of the order "one", and again when the process that was asked has ended.
func (s *shop) refundAfter(victim *process) {
	s.t.Helper()
	ask := pawl.RefundBody{Amount: new("0.50"), Reason: "broken", RequestID: "ticket"}
	for api := s.api(s.any()); victim.running(); { // a lost reply does not show that the process has ended
		_, _ = api.RefundOrder(s.t.Context(), "one", nil, ask)
		<-time.After(pace)
	}
	if _, err := s.api(s.open(1).addresses()[0]).RefundOrder(s.t.Context(), "one", nil, ask); err != nil {
		s.t.Errorf("the caller comes again and gets %s", err)
	}
	const books = `SELECT format('%s %s %s %s', r.refund, r.state, r.amount, r.request_id) FROM books.refunds AS r`
	if rows := query[string](s.t, s.database.URL, books); len(rows) != 1 || rows[0] != "1 done 0.50 ticket" {
		s.t.Errorf("the books have %q", rows)
	}
	given := 0
	for _, e := range s.provider.Books("one") {
		if e.Step == "refund" {
			given += e.Effects
		}
	}
	if given != 1 {
		s.t.Errorf("the provider has given back %d times\n%s", given, s.trace("one"))
	}
	s.prove()
}
