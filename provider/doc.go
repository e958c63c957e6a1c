// Package provider does steps outside the database: at an HTTP endpoint, at Stripe, at the simulator.
//
// An Executor makes one call and says what came of it. The engine calls it, with no transaction open and no lock held:
// the attempt is committed before the call, the result after it, and every call of one operation carries the same idempotency key
// and the same body. What is asked of the other side is in docs/guarantees.md; one suite of tests holds all executors to it.
//
// This package never touches the database and never moves an order: the house test keeps it from importing db.
package provider
