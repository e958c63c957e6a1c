// Package step says what an order does in a state.
//
// A step is in-commit or outside. An in-commit step names the statement that does its
// effect and its move at once: the effect exists if and only if the move won. The
// ledger is in-commit: charge, reserve and confirm in the database itself.
//
// A step outside is done by an Executor: http, stripe, simulator. Its effect is at somebody
// else's and no transaction spans it, so an attempt is committed before the call and the
// answer after it, and the call carries a key that never changes. What is asked of the
// other side is in docs/guarantees.md; that all executors do their part is held by one
// suite of tests.
package step
