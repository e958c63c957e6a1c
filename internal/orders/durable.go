package orders

import (
	"context"
	"sync"

	"pawl/db"
	"pawl/internal/pg"
)

// durableReads are reads that wait until orders are as durable as the settings demand. Such a read keeps its connection
// even if its caller leaves, and a standby may be away for long. So one statement reads for all callers that have
// gathered while the one before it waited, and no more than one connection is taken.
type durableReads struct {
	mu      sync.Mutex
	running bool                  // a goroutine reads
	next    map[*durableRead]bool // of the callers that have gathered, and not left
	wait    sync.WaitGroup
}

// durableRead is what one caller wants of a statement. found and err are valid once done is closed.
type durableRead struct {
	ids   []string
	done  chan struct{}
	found map[string]Order // by id, of all callers of the statement
	err   error
}

// UnderWay reports whether a replica drives the order. Its last steps may not be on the disk yet (queries/order_moves.sql).
func UnderWay(o Order) bool { return o.Owner != nil }

// later does something in the background, unless life has ended.
func (r *Reader) later(do func()) {
	r.durable.mu.Lock()
	defer r.durable.mu.Unlock()
	if r.life.Err() == nil {
		r.durable.wait.Go(do)
	}
}

// Wait waits, once life has ended, for reads whose callers have left.
func (r *Reader) Wait() {
	r.durable.mu.Lock()
	r.durable.mu.Unlock() //nolint:staticcheck // empty, but after it every reader that saw life go on has been counted
	r.durable.wait.Wait()
}

// readDurably reads orders by id. Errors: ErrUnavailable.
func (r *Reader) readDurably(ctx context.Context, ids ...string) (map[string]Order, error) {
	q := r.join(ids)
	if q == nil {
		found, err := r.readAll(ctx, ids)
		return found, Unavailable("read order", err)
	}
	select {
	case <-q.done:
	case <-ctx.Done():
		r.durable.leave(q)
		return nil, Unavailable("read order", ctx.Err())
	}
	if q.err != nil && (r.life.Err() != nil || pg.FaultOf(q.err) == pg.Bad) { // the process stops, or another caller is to blame
		q.found, q.err = r.readAll(ctx, ids)
	}
	return q.found, Unavailable("read order", q.err)
}

// join is nil once life has ended.
func (r *Reader) join(ids []string) *durableRead {
	r.durable.mu.Lock()
	defer r.durable.mu.Unlock()
	if r.life.Err() != nil {
		return nil
	}
	q := &durableRead{ids: ids, done: make(chan struct{})}
	if r.durable.next == nil {
		r.durable.next = map[*durableRead]bool{}
	}
	r.durable.next[q] = true
	if !r.durable.running {
		r.durable.running = true
		r.durable.wait.Go(r.readGathered)
	}
	return q
}

// leave forgets a caller. While a standby is away, callers come and go without an end.
func (d *durableReads) leave(q *durableRead) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.next, q)
}

// readGathered reads for the callers that have gathered, until there are none.
func (r *Reader) readGathered() {
	for {
		callers := r.durable.take()
		if len(callers) == 0 {
			return
		}
		var ids []string
		for q := range callers {
			ids = append(ids, q.ids...)
		}
		found, err := r.readAll(r.life, ids)
		for q := range callers {
			q.found, q.err = found, err
			close(q.done)
		}
	}
}

func (d *durableReads) take() map[*durableRead]bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	callers := d.next
	d.next, d.running = nil, len(callers) > 0
	return callers
}

func (r *Reader) readAll(ctx context.Context, ids []string) (map[string]Order, error) {
	rows, err := Read(ctx, r, r.query.OrdersByID, db.OrdersByIDParams{OrderIds: ids, Durable: true})
	found := make(map[string]Order, len(rows))
	for _, row := range rows {
		found[row.OrderID] = row
	}
	return found, err
}
