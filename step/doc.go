// Package step says what an order does in a state.
//
// A step is in-commit or outside. An in-commit step names the statement that does its
// effect and its move at once: the effect exists if and only if the move won. The
// ledger is in-commit: charge, reserve and confirm in the database itself.
package step
