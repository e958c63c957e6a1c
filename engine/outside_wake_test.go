package engine_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pawl/engine"
	"pawl/simulator"
)

// A callback that comes between the commit that lets the order wait and the end of its run
// is given an order whose run is about to be forgotten: nobody drives it until its lease ends.
func TestCallbackWhileTheRunEndsDrivesTheOrder(t *testing.T) {
	t.Parallel()
	s := openBehind(t)
	s.faults(t, simulator.Rule{Fault: simulator.CallbackLate, Step: "charge", Delay: 300 * time.Millisecond})
	var finished, held atomic.Bool
	gate := make(chan struct{})
	release := sync.OnceFunc(func() { close(gate) })
	t.Cleanup(release)
	s.proxy.On(func(statement string) fate {
		switch statement {
		case "AttemptsFinish":
			finished.Store(true)
		case "OrdersByNo":
			if finished.Load() && !held.Swap(true) {
				<-gate // the read of the order that is about to be told to its callers
			}
		}
		return passes
	})
	s.admit(t, request("one"))
	eventually(t, "the order waits", func() bool {
		return held.Load() && value[bool](t, s.Pool, `SELECT coalesce(hold = 'callback', false) FROM orders`)
	})
	eventually(t, "the answer is stored", func() bool { return value[int](t, s.Pool, `SELECT count(*) FROM step_answers`) == 1 })
	eventually(t, "the order is woken", func() bool { return value[bool](t, s.Pool, `SELECT hold IS NULL FROM orders`) })
	release()
	start := time.Now()
	eventually(t, "the order is completed", func() bool { return status(t, s.Pool, "one") == "completed" })
	if took := time.Since(start); took > 3*time.Second {
		t.Errorf("completed after %s, by %q", took, verbs(t, s.Pool, "one"))
	}
}

type behind struct {
	*shop
	proxy *proxy
}

// openBehind is a shop whose engine reaches the database through a proxy.
func openBehind(t *testing.T) *behind {
	t.Helper()
	s := openShop(t, 0+1, quick)
	p := newProxy(t, s.URL)
	e := startEngine(t, p.URL, engine.Config{Poll: 10 * time.Millisecond, PublicURL: s.cfg.PublicURL})
	stop(t, s.engine)
	s.engine, s.engines = e, []*engine.Engine{e}
	s.use(t, allAtTheSimulator)
	return &behind{s, p}
}

// The same for a turn: granted between the commit of the wait and the end of the run.
func TestTurnGrantedWhileTheRunEndsDrivesTheOrder(t *testing.T) {
	t.Parallel()
	s := openBehind(t)
	s.use(t, allAtTheSimulator+"\nconcurrency: {by: item, limit: 1}\n")
	s.faults(t, simulator.Rule{Fault: simulator.Slow, Step: "charge", Delay: 300 * time.Millisecond, OrderPrefix: "first"})
	s.admit(t, request("first"))
	eventually(t, "the first has its turn", func() bool { return status(t, s.Pool, "first") == "charging" })
	in := request("second")
	// Held for a time first: it comes to its turn by way of OrderWait.
	in.StartAt = time.Now().Add(100 * time.Millisecond)
	var waited, held atomic.Bool
	gate := make(chan struct{})
	release := sync.OnceFunc(func() { close(gate) })
	t.Cleanup(release)
	s.proxy.On(func(statement string) fate {
		switch statement {
		case "OrderWait":
			waited.Store(true)
		case "OrdersByNo":
			if waited.Load() && !held.Swap(true) {
				<-gate
			}
		}
		return passes
	})
	s.admit(t, in)
	eventually(t, "the second was given its turn", func() bool {
		return value[int](t, s.Pool, `SELECT count(*) FROM transitions WHERE verb = 'turn'`) == 2
	})
	release()
	start := time.Now()
	eventually(t, "the second is completed", func() bool { return status(t, s.Pool, "second") == "completed" })
	if took := time.Since(start); took > 3*time.Second {
		t.Errorf("completed after %s, by %q", took, verbs(t, s.Pool, "second"))
	}
}
