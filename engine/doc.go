// Package engine moves orders: it admits them, drives them from state to state, claims
// those somebody left behind, and tells callers how they ended. It moves them in sets.
//
//	Process ──▶ admit ──▶ ┌───────────── drive: by state ─────────────┐ ──▶ finish: callers
//	                      │  charging   reserving   confirming   …    │
//	recover: due ─claim─▶ │  ┌──────┐   ┌──────┐    ┌──────┐          │
//	                      │  │ line │   │ line │    │ line │          │
//	                      │  └──┬───┘   └──┬───┘    └──┬───┘          │
//	                      │     └── apply: one statement a set ──┐    │
//	                      │  moved ◀─────────────────────────────┤    │
//	                      └──────────────────────────────────────┼────┘
//	                           not moved, or not known: read back ┘
//
// A line holds the orders that wait for one move. While the statement of a set
// commits, the next set gathers; no timer delays a lone order, a thousand go together,
// and one order is a set of one: there is no second code path.
//
// apply is the only door to orders.status. A move is a compare-and-set on status,
// fence and seq; its rows are the verdict once the statement has ended without an
// error. What the statement does not return, or whose outcome is not known, is read
// back: the row says who drives the order and where it stands, and the engine goes on
// from there. Losing is a normal answer. A statement that can't run on the schema is no
// order's fault: its orders are handed back, and the engine stands still until the schema
// is mended.
//
// A step that reaches outside takes another way, by the policy its order started with:
//
//	drive ─▶ lane: one per step of a policy ──▶ begins ──▶ call ──▶ records ─▶ drive
//	          │ queue, slots, breaker            commit     no lock   commit   └▶ held
//	          └▶ inbox: an answer may be there without a call ─────────▲
//
// The attempt is committed before the call, and the answer after it, by a compare-and-set
// like any move. Where a slot is free the attempt begins with the move into its state, and
// begins is skipped. From the commit of an attempt on the step is in doubt
// (orders.in_doubt_since) until it is done, refused, or certainly did nothing; what is
// in doubt is asked after, sent again with the same key, or undone, and never taken for
// failed. Orders that wait (hold) are in no replica's memory, but for those somebody
// waits for.
//
// Ownership is a lease on the row (due_at), a fence raised by every claim and the
// owner, a uuid of this process: a row with another owner or fence is somebody else's
// (Kleppmann, "How to do distributed locking", 2016). No clock of this machine decides
// who may write.
package engine
