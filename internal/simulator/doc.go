// Package simulator is a payment provider and warehouse that is not real but behaves:
// it remembers what it did under each idempotency key, in a file of its own, and can be
// told to fail in every way a provider does.
//
// What it did is counted when it is done, not when it is answered. Its books are
// therefore a judge of "exactly once" that knows nothing of the service it judges.
package simulator
