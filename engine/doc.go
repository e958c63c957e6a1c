// Package engine moves orders: it admits them, drives them from state to state, claims those that another replica left
// behind, and tells callers how they ended. It moves them in batches. httpapi calls it. It does no step itself: ledger
// does those of the database, and the executors of provider do those of remote steps.
//
//	Process ──▶ queue ──▶ admit ──┐                  ┌──▶ finish: callers
//	recover, verbs, callbacks ────┼──▶ dispatch ─────┤
//	                              │     ▲    │ route │
//	            handler: ─────────┘     │    ▼       └──▶ queue ──▶ moveInLedger: one statement a batch
//	            where next?             └── handlers ◀── queues
//
// A handler takes a batch of runs (orders in memory), does one thing to them (one statement, one read, one call), and
// says of each where it goes next: run.next, a destination. One function sends them there: Engine.dispatch. The table of
// destinations (Engine.makeWays) is the way of an order, read from top to bottom. No handler knows another, or a queue.
//
// A queue holds the orders that wait for one statement (package batch). While the statement of a batch
// commits, the next one gathers; there is no timer, so a lone order is not delayed, a thousand go together,
// and one order is a batch of one, for which the ledger has shorter statements.
//
// apply is the only door to orders.status. A move is a compare-and-set on status,
// fence and seq; its rows are the verdict once the statement has ended without an
// error. What the statement does not return, or whose outcome is not known, is read
// back: the row says who drives the order and where it stands, and the engine goes on
// from there. Losing is a normal answer. A statement that can't run on the schema is no
// order's fault: its orders are given back, and the engine stands still until the schema
// is mended.
//
// A remote step takes another way, by the policy its order started with (remote.go):
//
//	route ─▶ nextCall ─▶ preflightCalls ─▶ permit ─▶ beginCalls ─▶ makeCall ─▶ commitResults ─▶ route
//	                     one read          callPool  commit        no lock     commit          └▶ held
//
// A call is committed before it is made, and the answer after it, by a compare-and-set
// like any move. Where there is a permit the call begins with the move into its state, and
// beginCalls is skipped. What has to be known before a call, as an answer that came without one, is read once,
// and only for orders that may have been called for before. From the commit of a call on the step is in doubt
// (orders.in_doubt_since) until it is done, refused, or certainly did nothing; a step
// in doubt is looked up, sent again with the same key, or undone, and never taken for
// failed. Orders that wait (hold) are in no replica's memory, unless a caller waits for them.
//
// Ownership is a lease on the row (due_at), a fence raised by every claim and the
// owner, a uuid of this process: a row with another owner or fence belongs to another process
// (Kleppmann, "How to do distributed locking", 2016). No clock of this machine decides
// who may write.
//
// The order in which to read the files. Calls between them run down this list; those few that don't are counted by a
// test.
//
//	start             begins and ends it
//	bulk verbs callback refund process inventory policy_versions recover
//	                  what callers ask for, and what happens by itself
//	engine            the way of an order
//	hot admit idempotency result side_calls remote watch gate read_back lease fenced move
//	                  handlers: each takes runs, does one thing, and says where they go next
//	call_pool call    permits, and one call
//	core              what every handler works with
//	metrics schema policies run token
//	                  tools
package engine
