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

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

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

// InProgress is the code of an Unknown that says that the other side is at work on it. Unlike with Waiting there is no
// callback, so it is asked again.
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

// Body is what an endpoint is told of Do, Undo or Refund, as JSON. It has the same bytes on
// every call, from every replica and every version of this program: providers compare
// it with the one they know under the key and refuse another. So nothing of a call is
// in it, the amount is written as it is stored, metadata has one order, and no library
// decides how a character is escaped. The error is that of metadata that are no object of strings.
func (c *Call) Body(op Operation) ([]byte, error) {
	b := make([]byte, 0, 512)
	b = appendMember(append(b, '{'), "orderId", c.OrderID)
	b = appendMember(append(b, ','), "step", string(c.Step))
	b = appendMember(append(b, ','), "operation", string(op))
	b = strconv.AppendInt(append(b, `,"generation":`...), int64(c.Generation), 10)
	b = appendMember(append(b, ','), "amount", c.Amount.String())
	b = appendMember(append(b, ','), "currency", c.Currency)
	b = appendMember(append(b, ','), "item", c.Item)
	b = strconv.AppendInt(append(b, `,"quantity":`...), int64(c.Quantity), 10)
	b = appendOptional(b, "customerId", c.CustomerID)
	b = appendOptional(b, "paymentMethod", c.PaymentMethod)
	b, err := appendMetadata(b, c.Metadata)
	if err != nil {
		return nil, err
	}
	switch op {
	case Undo:
		b = appendMember(append(b, ','), "undoKey", c.Key(Do))
		b = appendOptional(b, "reference", c.Reference)
	case Refund:
		b = appendMember(append(b, ','), "refundId", c.RefundID)
		b = appendOptional(b, "reason", c.Reason)
		b = appendMember(append(b, ','), "chargeKey", c.chargeKey())
		b = appendOptional(b, "reference", c.Reference)
	default:
		b = appendOptional(b, "callbackUrl", c.CallbackURL)
	}
	return append(b, '}'), nil
}

// chargeKey is the key that was sent to charge what is refunded now.
func (c *Call) chargeKey() string {
	charge := *c
	charge.RefundID = ""
	return charge.Key(Do)
}

func appendMember(b []byte, name, value string) []byte {
	b = append(appendString(b, name), ':')
	return appendString(b, value)
}

func appendOptional(b []byte, name, value string) []byte {
	if value == "" {
		return b
	}
	return appendMember(append(b, ','), name, value)
}

// appendMetadata writes what may come from the request or from a jsonb column, which
// prints blanks between its tokens.
func appendMetadata(b []byte, metadata json.RawMessage) ([]byte, error) {
	if len(metadata) == 0 {
		return b, nil
	}
	var pairs map[string]string
	if err := json.Unmarshal(metadata, &pairs); err != nil {
		return nil, fmt.Errorf("read metadata: %w", err)
	}
	if len(pairs) == 0 {
		return b, nil
	}
	return AppendMetadata(append(b, `,"metadata":`...), pairs), nil
}

// AppendMetadata writes metadata as a JSON object with its keys in the order in which jsonb
// keeps them: by length in bytes, then by bytes. So it has the same text before and after it
// was stored, for providers that compare bodies and for callers that compare ETags.
func AppendMetadata(b []byte, pairs map[string]string) []byte {
	keys := slices.SortedFunc(maps.Keys(pairs), func(a, b string) int {
		return cmp.Or(cmp.Compare(len(a), len(b)), strings.Compare(a, b))
	})
	b = append(b, '{')
	for i, key := range keys {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendMember(b, key, pairs[key])
	}
	return append(b, '}')
}

// appendString writes a JSON string (RFC 8259, section 7), escaping only what must be.
func appendString(b []byte, s string) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	for _, r := range s { // bytes that are no UTF-8 come as U+FFFD
		switch {
		case r == '"' || r == '\\':
			b = append(b, '\\', byte(r))
		case r < ' ':
			b = append(b, '\\', 'u', '0', '0', hex[r>>4], hex[r&15])
		default:
			b = utf8.AppendRune(b, r)
		}
	}
	return append(b, '"')
}

// Key is the idempotency key of one operation of this call: `pawl-` and 52 characters of
// lower-case base32, the SHA-256 of what the operation belongs to. It is the same on
// every call, and another one for every other installation, order, step, generation,
// operation and refund. It is a hash because an order id is no key: providers take 255 ASCII
// characters, and HTTP drops the blanks around a header's value.
func (c *Call) Key(op Operation) string {
	b := make([]byte, 0, 256)
	b = appendField(b, c.Installation[:])
	b = appendField(b, "") // whose order it is, once an installation serves several
	b = appendField(b, c.OrderID)
	b = appendField(b, c.Step)
	b = appendField(b, op)
	b = appendField(b, binary.BigEndian.AppendUint32(nil, uint32(c.Generation)))
	if c.RefundID != "" { // not its number: if commits are lost, the same request gets the same key, whatever its number
		b = appendField(b, c.RefundID)
	}
	sum := sha256.Sum256(b)
	return "pawl-" + keyEncoding.EncodeToString(sum[:])
}

var keyEncoding = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// appendField writes a field behind its length, so that no two lists of fields have the
// same bytes: "a", "bc" and "ab", "c" must not share a charge.
func appendField[T ~string | ~[]byte](b []byte, field T) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(len(field)))
	return append(b, field...)
}

// TraceParent names the trace of a call (W3C Trace Context, version 00). All calls of one
// generation of an order are one trace, whichever replica makes them; each has a parent
// id of its own. It is marked as sampled, so that what an order did at its
// providers can be found.
func (c *Call) TraceParent() string {
	b := make([]byte, 0, 256)
	b = appendField(b, "trace")
	b = appendField(b, c.Installation[:])
	b = appendField(b, c.OrderID)
	b = appendField(b, binary.BigEndian.AppendUint32(nil, uint32(c.Generation)))
	sum := sha256.Sum256(b)
	return fmt.Sprintf("00-%x-%016x-01", sum[:16], rand.Uint64()|1) // all zeroes is no parent id
}
