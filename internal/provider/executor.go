package provider

import (
	"context"
	"encoding/json"
	"time"

	"github.com/google/uuid"
	"github.com/govalues/decimal"

	"pawl/fsm"
)

// Executor does a remote step. It is called with no transaction and no
// lock held, after the call has been committed; the answer is committed after it.
// A call may come again, from this process or from another, at the same time too: each
// has the same key and the same body. Methods are safe for concurrent use and return by
// the end of ctx.
type Executor interface {
	// Do does the step.
	Do(ctx context.Context, c *Call) Result
	// Undo takes back what Do did under the same generation, or sees to it that it never
	// happens: after Done, a Do with that key that comes late must fail. Done says that
	// nothing stands. It is never called for confirm.
	// What has a Reference is taken back by it, whether its key is remembered or not.
	Undo(ctx context.Context, c *Call) Result
	// Refund gives back a part of a charge that stands, or all that is left of it: once for each
	// RefundID. Done has the provider's name of the refund; Waiting says that it is accepted and not done yet.
	// It is called only for charge.
	Refund(ctx context.Context, c *Call) Result
}

// Looker is an Executor that can be asked what became of a key, without doing anything. The
// other side remembers what it refused: a Do that comes later with that key is refused.
type Looker interface {
	Executor
	// Lookup answers Done, Refused or Waiting for a Do that was seen, Unknown with the code InProgress
	// for one that is still being done, of which only another look-up will tell, Retry for one that
	// was not seen (it may still be on its way), and Unknown when it can't say. A key that was
	// undone is Refused, whether its Do was seen or not. With a RefundID it is about the refund.
	Lookup(ctx context.Context, c *Call) Result
}

// Call is what an executor is told. Nothing of it changes between the calls of one
// operation but Fence, Number, Clock and, of a Do, Reference.
type Call struct {
	Installation  uuid.UUID
	OrderID       string
	Step          fsm.Step
	Generation    int32
	Amount        decimal.Decimal
	Currency      string
	Item          string
	Quantity      int32
	CustomerID    string          // empty when not given
	PaymentMethod string          // opaque; never logged
	Metadata      json.RawMessage // a JSON object of strings, or nil
	CallbackURL   string          // where an answer 202 to Do is completed
	Tokens        []string        // of the callbacks of all steps: withheld from results

	Fence     int64
	Number    int32
	Reference string           // the provider's name for the charge (charge, confirm) or reservation, once known
	Clock     func() time.Time // what signatures and dates go by; nil: the clock of this machine

	RefundID        string // the id with which the refund was asked for that this is about; empty: it is about the step. Amount is that of the refund
	Reason          string // why it is refunded
	RefundReference string // the provider's name for the refund, once known

	secrets *[]string // where an Exchange notes what it was made with, for Masking; nil: nowhere
}

// Now is the time by the clock of the call.
func (c *Call) Now() time.Time {
	if c.Clock == nil {
		return time.Now()
	}
	return c.Clock()
}

// Operation is what is done to a step at its provider. Each has a key of its own: an
// undo with the key of its do would be answered with the stored answer of the do. An
// executor that makes several requests for one of them has operations of its own beside these.
type Operation string

// The operations of every step, and of a charge alone: Refund.
const (
	Do     Operation = "do"
	Undo   Operation = "undo"
	Refund Operation = "refund"
)

// LookupKey is the key that a look-up asks after.
func (c *Call) LookupKey() string {
	if c.RefundID != "" {
		return c.Key(Refund)
	}
	return c.Key(Do)
}

// Result is what came of a call: Done, Refused, Retry, Waiting or Unknown.
type Result interface{ result() }

// Done says that the effect is there.
type Done struct {
	Reference string          // the provider's name for it, up to 255 characters
	Data      json.RawMessage // kept on the order; a JSON object of up to 16 KiB, or nil
}

// Refused says that the effect is not there and never will be under this key.
type Refused struct{ Code, Detail string }

// Retry says that this call certainly did nothing and another may.
type Retry struct {
	Code, Detail string
	After        time.Duration // what the other side asked for; 0: nothing
	Counts       bool          // it was an answer, not an outage or a full queue
}

// Waiting says that the other side has taken it on and will answer by a callback.
type Waiting struct {
	Reference string
	Action    json.RawMessage // what the customer has to do, shown with the order; an object of up to 16 KiB, or nil
}

// Unknown says that the effect may be there or not, now or later.
type Unknown struct {
	Code, Detail string
	After        time.Duration // what the other side asked for; 0: nothing
	Reference    string        // the provider's name for what it is at work on, if it said so
}

func (Done) result()    {}
func (Refused) result() {}
func (Retry) result()   {}
func (Waiting) result() {}
func (Unknown) result() {}

// InProgress is the code of an Unknown that says that the other side is at work on it. Unlike with Waiting nobody calls
// back, so it is asked again.
const InProgress = "in_progress"

// Unsent is the result of a call that failed before anything could be sent. It counts:
// it does not go away by itself, so a person must be asked in the end.
func Unsent(code string, err error) Result {
	return Retry{Code: code, Detail: Text(err.Error()), Counts: true}
}

// InDoubt is the result of a call one of whose requests ended in r, if another request may have
// had an effect: that this one did nothing, or never will, says nothing of the call.
func InDoubt(r Result) Result {
	switch r := r.(type) {
	case Refused:
		return Unknown{Code: r.Code, Detail: r.Detail}
	case Retry:
		return Unknown{Code: r.Code, Detail: r.Detail, After: r.After}
	}
	return r
}
