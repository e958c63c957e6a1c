package engine

import "sync/atomic"

// Stats counts what the engine did since it was made. The counters only rise; read
// them at any time.
type Stats struct {
	Admitted       atomic.Int64 // orders this replica inserted
	Known          atomic.Int64 // requests for orders that existed
	Sets           atomic.Int64 // move statements that committed
	Moves          atomic.Int64 // orders moved by them
	Lost           atomic.Int64 // orders a move statement did not return
	Fenced         atomic.Int64 // orders found to be another's after a lost move
	TakenOver      atomic.Int64 // orders claimed after their lease had ended
	Held           atomic.Int64 // orders put on hold
	UnknownOutcome atomic.Int64 // statements whose outcome had to be read back
	Retried        atomic.Int64 // statements sent again after a rollback
	Overloaded     atomic.Int64 // requests turned away
}

// InFlight is the number of orders in this replica's memory.
func (e *Engine) InFlight() int64 { return e.runs.size.Load() }
