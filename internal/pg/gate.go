package pg

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
)

// ErrAway says that the server accepts no new connections, so the statement was not sent. The error also has the
// reason. FaultOf calls it Again.
var ErrAway = errors.New("the database accepts no connections")

// gate spares a server that is down or starting. Each new connection passes it. If one can't be made, the gate closes:
// the process then makes one attempt at a time, with growing pauses, and everything else that needs a new connection
// waits. The first success opens the gate. An open gate delays nothing, and a connection that breaks later does not
// close it.
//
// It is a pgx.ConnectTracer, because the driver reports the end of every attempt only there: a pool continues an
// attempt when the statement that wanted it has given up.
type gate struct {
	why atomic.Pointer[error] // of the last failed attempt; nil: the gate is open

	mu      sync.Mutex    // guards the rest, and changes of why
	closed  time.Time     // since when it is closed
	fails   int           // failed attempts in a row; those that were in progress when it closed count once
	due     time.Time     // of the next attempt
	trying  bool          // an attempt is in progress
	changed chan struct{} // closed when the gate opens, or an attempt of a closed gate ends
}

const (
	attemptSoonest = 20 * time.Millisecond  // the pause after the first failed attempt; it doubles from then on
	attemptLatest  = 500 * time.Millisecond // shorter than repeatFor: no statement fails without a new attempt
)

func newGate() *gate { return &gate{changed: make(chan struct{})} }

// away is why no connection can be made; nil: the gate is open.
func (g *gate) away() error {
	if why := g.why.Load(); why != nil {
		return *why
	}
	return nil
}

// failed is how many attempts in a row have failed.
func (g *gate) failed() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.fails
}

// awayFor reports whether no connection could be made for d, and more attempts than that have failed.
func (g *gate) awayFor(d time.Duration, failed int) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.fails > failed && time.Since(g.closed) >= d
}

// attemptKey marks the context of the attempt that a closed gate permits.
type attemptKey struct{}

// waiterKey has the context of the statement for which a pool makes a connection. The pool's own context lasts longer.
type waiterKey struct{}

// TraceConnectStart waits until the attempt may be made. When nothing waits for the connection any more, it returns a
// context that has ended, and nothing is sent.
func (g *gate) TraceConnectStart(ctx context.Context, _ pgx.TraceConnectStartData) context.Context {
	waiting, stop := context.WithCancel(ctx)
	defer stop()
	if waiter, ok := ctx.Value(waiterKey{}).(context.Context); ok {
		defer context.AfterFunc(waiter, stop)()
	}
	for waiting.Err() == nil {
		chosen, pause, changed := g.ask()
		switch {
		case chosen:
			return context.WithValue(ctx, attemptKey{}, true)
		case changed == nil:
			return ctx
		}
		again := time.NewTimer(pause)
		select {
		case <-changed:
		case <-again.C:
		case <-waiting.Done():
		}
		again.Stop()
	}
	return waiting
}

// ask reports whether the caller makes the next attempt of a closed gate, or how long it waits at most before it asks
// again. The gate is open if changed is nil.
func (g *gate) ask() (chosen bool, pause time.Duration, changed <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch pause = time.Until(g.due); {
	case g.why.Load() == nil:
		return false, 0, nil
	case g.trying:
		return false, connectTimeout, g.changed
	case pause > 0:
		return false, pause, g.changed
	}
	g.trying = true
	return true, 0, nil
}

// TraceConnectEnd opens or closes the gate. An attempt that ended with its context says nothing about the server.
func (g *gate) TraceConnectEnd(ctx context.Context, end pgx.TraceConnectEndData) {
	chosen := ctx.Value(attemptKey{}) != nil
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case end.Err == nil:
		g.why.Store(nil)
		g.fails = 0
	case !chosen && (ctx.Err() != nil || g.why.Load() != nil):
		return
	default:
		if g.fails == 0 {
			g.closed = time.Now()
		}
		if ctx.Err() == nil {
			g.why.Store(&end.Err)
		}
		g.fails++
		g.due = time.Now().Add(Jitter(min(attemptSoonest<<min(g.fails-1, 10), attemptLatest)))
	}
	if chosen {
		g.trying = false
	}
	close(g.changed)
	g.changed = make(chan struct{})
}

// TraceQueryStart does nothing. pgx requires it of a tracer.
func (*gate) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}

// TraceQueryEnd does nothing.
func (*gate) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
