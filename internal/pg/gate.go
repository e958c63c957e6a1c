package pg

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
)

// ErrAway: the server accepts no new connections, so the statement was not sent. The error also has the reason. FaultOf calls
// it Again.
var ErrAway = errors.New("the database accepts no connections")

// gate spares a server that is down or starting up. Each new connection passes it. When one can't be made, the gate closes: from
// then on a process makes one attempt at a time, with growing pauses, and everything else that needs a new connection waits.
// The first success opens it for all who wait; there are at most as many as the pool has places. While connections can be
// made, the gate delays none of them. A connection that breaks later is no reason to close it.
//
// It is a pgx.ConnectTracer, because the driver tells nothing else of the end of every attempt: a pool goes on with an attempt when the
// statement that wanted it has given up. As a tracer of statements it passes everything on to next.
type gate struct {
	next pgx.QueryTracer // nil: nobody wants to know of statements

	why atomic.Pointer[error] // of the last attempt that failed; nil: the gate is open

	mu      sync.Mutex    // for the rest, and to change why
	closed  time.Time     // since when it is closed
	fails   int           // attempts in a row, those that were under way when it closed counted once
	due     time.Time     // of the next attempt
	trying  bool          // one attempt is under way
	changed chan struct{} // closed when the gate opens, or an attempt of a closed gate ends
}

const (
	attemptSoonest = 20 * time.Millisecond  // the pause after the first attempt that failed; it doubles from then on
	attemptLatest  = 500 * time.Millisecond // shorter than awayAfter: no statement is refused without a new attempt
)

func newGate(next pgx.QueryTracer) *gate { return &gate{next: next, changed: make(chan struct{})} }

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

// attemptKey marks the context of the one attempt that a closed gate lets through.
type attemptKey struct{}

// waiterKey leads to the context of the statement for which a pool makes a connection. The pool's own context lasts longer.
type waiterKey struct{}

// TraceConnectStart waits until the attempt may be made. When nothing waits for the connection any more, the context that it
// returns has ended, and nothing is sent.
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

// ask reports whether the caller makes the next attempt of a closed gate, or how long to wait at most before it asks again.
// Without changed the gate is open.
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

// TraceConnectEnd opens or closes the gate. An attempt that ended with its context says nothing of the server.
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

// TraceQueryStart passes the statement on.
func (g *gate) TraceQueryStart(ctx context.Context, conn *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	if g.next == nil {
		return ctx
	}
	return g.next.TraceQueryStart(ctx, conn, data)
}

// TraceQueryEnd passes the end of the statement on.
func (g *gate) TraceQueryEnd(ctx context.Context, conn *pgx.Conn, data pgx.TraceQueryEndData) {
	if g.next != nil {
		g.next.TraceQueryEnd(ctx, conn, data)
	}
}
