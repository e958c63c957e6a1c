// Package provider is what the engine and the executors of remote steps have in common: the Executor, what it
// is told (Call) and what it answers (Result), the idempotency keys, and the rules for what others write into our books.
//
// An Executor makes one call and says what came of it. The engine calls it, with no transaction open and no lock held:
// a call is committed before it is made, the result after it, and every call of one operation carries the same idempotency key
// and the same body. What is asked of the other side is in docs/guarantees.md; one suite of tests holds all executors to it.
// They are in provider/endpoint and provider/stripe. The engine chooses one by the policy.
//
// Neither this package nor an executor ever touches the database or moves an order: the house test keeps them from importing db.
package provider
