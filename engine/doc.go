// Package engine moves orders: it admits them, drives them from state to state, claims
// those somebody left behind, and tells callers how they ended. It moves them in batches. httpapi calls it. It does
// no step itself: ledger does those of the database, and the executors of provider do those of remote steps.
//
//	Process ──▶ admit ──▶ ┌───────────── drive: by state ─────────────┐ ──▶ finish: callers
//	                      │  charging    reserving    confirming   …  │
//	recover: due ─claim─▶ │  ┌───────┐   ┌───────┐    ┌───────┐       │
//	                      │  │ queue │   │ queue │    │ queue │       │
//	                      │  └───┬───┘   └───┬───┘    └───┬───┘       │
//	                      │     └── apply: one statement a batch ┐    │
//	                      │  moved ◀─────────────────────────────┤    │
//	                      └──────────────────────────────────────┼────┘
//	                           not moved, or not known: read back ┘
//
// A queue holds the orders that wait for one statement (package batch). While the statement of a batch
// commits, the next one gathers; no timer delays a lone order, a thousand go together,
// and one order is a batch of one, for which the ledger has shorter statements.
//
// apply is the only door to orders.status. A move is a compare-and-set on status,
// fence and seq; its rows are the verdict once the statement has ended without an
// error. What the statement does not return, or whose outcome is not known, is read
// back: the row says who drives the order and where it stands, and the engine goes on
// from there. Losing is a normal answer. A statement that can't run on the schema is no
// order's fault: its orders are handed back, and the engine stands still until the schema
// is mended.
//
// A remote step takes another way, by the policy its order started with (calls.go):
//
//	drive ─▶ call ─▶ preflight ─▶ permit ─▶ begin ─▶ makeCall ─▶ commitResults ─▶ drive
//	                 one read     callPool  commit   no lock     commit         └▶ held
//
// A call is committed before it is made, and the answer after it, by a compare-and-set
// like any move. Where there is a permit the call begins with the move into its state, and
// begin is skipped. What has to be known before a call, as an answer that came without one, is read once,
// and only for orders that may have been called for before. From the commit of a call on the step is in doubt
// (orders.in_doubt_since) until it is done, refused, or certainly did nothing; what is
// in doubt is asked after, sent again with the same key, or undone, and never taken for
// failed. Orders that wait (hold) are in no replica's memory, but for those somebody
// waits for.
//
// Ownership is a lease on the row (due_at), a fence raised by every claim and the
// owner, a uuid of this process: a row with another owner or fence is somebody else's
// (Kleppmann, "How to do distributed locking", 2016). No clock of this machine decides
// who may write.
//
// The order in which to read the files. Most calls between them run down this list; queues and what
// follows a statement lead back up.
//
//	engine            what there is: queues, loops, settings
//	inventory bulk verbs callback process
//	overview activity policy_versions
//	                  what callers ask for
//	side_calls refund concurrency watch recover
//	                  what happens by itself
//	admit idempotency drive gate hot
//	                  the way of an order
//	call result call_pool identity
//	                  the way of a call
//	move release      a move, and what follows a statement
//	metrics schema run policies core
//	                  tools
package engine
