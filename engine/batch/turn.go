package batch

import (
	"context"
	"time"
)

// Turn lets the queues that share it flush one batch at a time, in the order in which they ask. Meanwhile the other
// batches grow, and a statement for twice as many items costs the database far less than twice the work. This is for
// statements that keep a processor busy: one that waits for the disk should not make others wait for it.
//
// It is safe for concurrent use.
type Turn struct {
	free chan struct{} // holds a token while no queue has its turn
}

// patience is how long a queue keeps its turn. A batch that takes longer is waiting: for a lock, the disk, or a
// silent connection.
const patience = 20 * time.Millisecond

// NewTurn returns a turn that is free.
func NewTurn() *Turn {
	t := &Turn{make(chan struct{}, 1)}
	t.free <- struct{}{}
	return t
}

// wait returns when it is the caller's turn, or reports false if ctx ends before that. A nil Turn is always free.
func (t *Turn) wait(ctx context.Context) bool {
	if t == nil {
		return ctx.Err() == nil
	}
	select {
	case <-t.free:
		return true
	case <-ctx.Done():
		return false
	}
}

// during flushes a batch, and ends the caller's turn.
func (t *Turn) during(flush func()) {
	if t == nil {
		flush()
		return
	}
	end := func() { t.free <- struct{}{} }
	late := time.AfterFunc(patience, end)
	flush()
	if late.Stop() {
		end()
	}
}
