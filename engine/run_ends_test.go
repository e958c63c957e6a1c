package engine_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pawl/engine"
	"pawl/internal/simulator"
)

// A callback that comes between the commit that lets the order wait and the end of its run
// is given an order whose run is about to be forgotten: nobody drives it until its lease ends.
func TestCallbackWhileTheRunEndsDrivesTheOrder(t *testing.T) {
	t.Parallel()
	s := openBehind(t)
	s.faults(t, simulator.Rule{Fault: simulator.CallbackNever, Step: "charge"})
	var finished, held atomic.Bool
	gate := make(chan struct{})
	release := sync.OnceFunc(func() { close(gate) })
	t.Cleanup(release)
	s.proxy.On(func(statement string) fate {
		switch statement {
		case "CallsSuspend":
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
	if r, err := s.engine.Answer(t.Context(), s.tokenOf(t, "one"), engine.CallbackResult{Outcome: "done"}); err != nil || !r.Accepted {
		t.Fatalf("%+v, %v", r, err)
	}
	eventually(t, "the order is woken", func() bool { return value[bool](t, s.Pool, `SELECT hold IS NULL FROM orders`) })
	release()
	eventually(t, "the order is completed", func() bool { return status(t, s.Pool, "one") == "completed" })
}

type behind struct {
	*shop
	proxy *proxy
}

// openBehind is a shop whose engine reaches the database through a proxy. Its leases last longer than a test: what nobody
// drives stays where it is.
func openBehind(t *testing.T) *behind {
	t.Helper()
	s := openShop(t, 0+1, quick)
	p := newProxy(t, s.URL)
	e := startEngine(t, p.URL, engine.Config{RecoveryInterval: often, Lease: time.Hour, PublicURL: s.cfg.PublicURL})
	stop(t, s.engine)
	s.engine, s.engines = e, []*engine.Engine{e}
	s.use(t, allAtTheSimulator)
	return &behind{s, p}
}

// The same for a permit: granted between the commit of the wait and the end of the run.
func TestPermitGrantedWhileTheRunEndsDrivesTheOrder(t *testing.T) {
	t.Parallel()
	s := openBehind(t)
	s.use(t, allAtTheSimulator+"\nconcurrency: {by: item, limit: 1}\n")
	s.faults(t, simulator.Rule{Fault: simulator.CallbackNever, Step: "charge", OrderPrefix: "first"})
	s.admit(t, request("first"))
	s.until(t, "first", "callback") // and keeps its permit
	in := request("second")
	// Held for a time first: it comes to its permit by way of OrdersHold.
	in.StartAt = time.Now().Add(time.Hour)
	s.admit(t, in)
	s.until(t, "second", "scheduled")
	var waited, held atomic.Bool
	gate := make(chan struct{})
	release := sync.OnceFunc(func() { close(gate) })
	t.Cleanup(release)
	s.proxy.On(func(statement string) fate {
		switch statement {
		case "OrdersHold":
			waited.Store(true)
		case "OrdersByNo":
			if waited.Load() && !held.Swap(true) {
				<-gate
			}
		}
		return passes
	})
	s.startNow(t, "second")
	eventually(t, "the second waits for its permit", func() bool {
		return held.Load() && value[bool](t, s.Pool, `SELECT coalesce(hold = 'queued', false) FROM orders WHERE order_id = 'second'`)
	})
	if r, err := s.engine.Answer(t.Context(), s.tokenOf(t, "first"), engine.CallbackResult{Outcome: "done"}); err != nil || !r.Accepted {
		t.Fatalf("%+v, %v", r, err)
	}
	eventually(t, "the second was given its permit", func() bool {
		return value[int](t, s.Pool, `SELECT count(*) FROM transitions WHERE verb = 'permit'`) == 2
	})
	release()
	eventually(t, "the second is completed", func() bool { return status(t, s.Pool, "second") == "completed" })
}
