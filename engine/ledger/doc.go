// Package ledger moves orders in the database. A move is one statement for a batch of orders: it compares status, fence and
// seq, sets the next status, and writes the effect and the history row, all in one commit. So the effect exists if and only
// if the order moved.
//
// Moves are for steps that the database does itself. SaveResults and Suspend commit the results of calls to providers. Only
// the engine calls them, through one function; which move leads where is defined by the machine (fsm). This package makes no
// calls outside the database and keeps nothing in memory.
package ledger
