// Package ledger moves orders in the database. A move is one statement for a batch of orders: it compares status, fence and
// seq, sets the next status, and writes the effect and the history row, all in one commit. So the effect exists
// if and only if the move won.
//
// Moves are for steps that the database does itself. SaveResults and Suspend commit what came of calls to
// providers. Only the engine calls them, through one function; which move leads where is the
// machine's business (fsm). This package makes no calls outside the database and keeps nothing in memory.
package ledger
