// Package engine moves orders: it admits them, drives them from state to state, claims those that another replica left
// behind, and tells callers how they ended. It works in batches. httpapi calls it. It does no step itself: ledger does
// those of the database, and the executors of provider do the remote ones.
//
//	Process ──▶ queue ──▶ admit ──┐                  ┌──▶ finish: callers
//	recover, verbs, callbacks ────┼──▶ dispatch ─────┤
//	                              │     ▲    │ route │
//	            handler: ─────────┘     │    ▼       └──▶ queue ──▶ moveInLedger: one statement per batch
//	            where next?             └── handlers ◀── queues
//
// A handler takes a batch of runs (orders in memory), does one thing to them (one statement, one read, one call), and sets
// the next destination of each: run.next. Engine.dispatch sends them there. The table of destinations (Engine.makeWays) is
// the way of an order, read from top to bottom. Handlers don't know each other or the queues, except for hot.go and
// call_pool.go, which are queues themselves.
//
// A queue holds the orders that wait for one statement (package batch). While the statement of a batch commits, the next
// batch gathers. There is no timer: a lone order is not delayed, and is a batch of one, for which the ledger has shorter
// statements.
//
// apply is the only door to orders.status. A move is a compare-and-set on status, fence and seq, and the rows that it
// returns have moved if the statement ended without an error. Orders that are not returned, or whose outcome is not known,
// are read back: the row tells who drives the order and in which state it is, and the engine continues from there. Losing a
// compare-and-set is a normal answer. A statement that can't run on the schema is not the fault of its orders: they are
// released, and the engine stands still until the schema is mended.
//
// A remote step goes another way, by the policy that its order started with (remote.go):
//
//	route ─▶ nextCall ─▶ preflightCalls ─▶ permit ─▶ beginCalls ─▶ makeCall ─▶ commitResults ─▶ route
//	                     one read          callPool  commit        no lock     commit          └▶ held
//
// A call is committed before it is made. Its result is committed afterwards, by a compare-and-set like any move. If there
// is a permit, the call begins with the move into its state, and beginCalls is skipped. Earlier calls, and answers without
// a call, are read once before a call, and only for orders that may have any. From the commit of a call, the step is in
// doubt (orders.in_doubt_since) until it is done, refused, or certainly not done. A step in doubt is looked up, sent again
// with the same key, or undone, and never treated as failed. Orders on hold are in no replica's memory, unless a caller
// waits for them.
//
// An order is owned by a lease on its row (due_at), a fence that every claim raises, and the owner, a uuid of this process.
// A row with another owner or fence belongs to another process (Kleppmann, "How to do distributed locking", 2016). No clock
// of this machine decides who may write.
//
// The order in which to read the files. Calls between them run down this list; a test counts the few that don't.
//
//	start             begins and ends it
//	bulk verbs callback charge_operation dispute erase process inventory policy_versions recover report
//	                  what callers request, and what happens by itself
//	engine            the way of an order
//	hot admit idempotency result route side_calls stock_look remote watch gate read_back forget lease fenced move
//	                  handlers: each takes runs, does one thing, and sets where they go next
//	call_pool call    permits, and one call
//	core              what every handler uses
//	metrics schema policies run token
//	                  tools
package engine
