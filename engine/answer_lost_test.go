package engine_test

import (
	"sync/atomic"
	"testing"
	"time"

	"pawl/internal/simulator"
)

// The reply of our own statement is lost: nobody has taken the order over, and no answer was fenced.
func TestLostReplyIsNoFencedAnswer(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"CallsSuspend", "RemoteCharged", "RemoteReserved", "RemoteConfirmed"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := openBehind(t)
			s.faults(t, simulator.Rule{Fault: simulator.NotDone, Step: "charge", Times: 1})
			var lost atomic.Bool
			s.proxy.On(func(statement string) fate {
				if statement == name && !lost.Swap(true) {
					return loseReply
				}
				return passes
			})
			s.admit(t, request("one"))
			eventually(t, "it is completed", func() bool { return status(t, s.Pool, "one") == "completed" })
			eventually(t, "it was lost", lost.Load)
			if n := s.engine.Stats.FencedAnswers.Load(); n != 0 {
				t.Errorf("%d answers were fenced", n)
			}
		})
	}
}

// The reply of the statement that keeps a callback is lost: the provider tells again, and nobody
// drives the order until a lease ends that names a process which does not know of it.
func TestCallbackRepeatedAfterALostReply(t *testing.T) {
	t.Parallel()
	s := openBehind(t)
	s.faults(t, simulator.Rule{Fault: simulator.CallbackLate, Step: "charge", Delay: 100 * time.Millisecond})
	var lost atomic.Bool
	s.proxy.On(func(statement string) fate {
		if statement == "AnswerStore" && !lost.Swap(true) {
			return loseReply
		}
		return passes
	})
	s.admit(t, request("one"))
	eventually(t, "it is completed", func() bool { return status(t, s.Pool, "one") == "completed" })
	if !lost.Load() {
		t.Error("no reply was lost")
	}
}
