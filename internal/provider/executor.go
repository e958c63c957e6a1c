// Package provider defines what the engine and the executors of remote steps share: the Executor with its Call and
// Result, the idempotency keys, and the rules for foreign text in our books.
//
// An Executor makes one call and returns its result. The engine calls it with no transaction open and no lock held: a
// call is committed before it is made, and the result after it. Every call of one operation has the same idempotency
// key and the same body. docs/guarantees.md says what providers must do; one test suite checks all executors. They are
// in provider/endpoint and provider/stripe. The policy decides which one the engine uses.
//
// Neither this package nor an executor uses the database or moves an order; test/house keeps them from importing db.
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

// Executor runs a remote step. It is called with no transaction and no lock held, after the call was committed; the
// result is committed after it. A call may be repeated, also concurrently and by another process, with the same key and
// the same body. Methods are safe for concurrent use and return by the end of ctx.
type Executor interface {
	// Do runs the step.
	Do(ctx context.Context, c *Call) Result
	// Undo reverses the Do of the same generation, or makes sure that it never happens: after Done, nothing of the
	// effect remains, and a late Do with that key must fail. It is never called for confirm. If there is a Reference,
	// it identifies the effect, even if the key was forgotten.
	Undo(ctx context.Context, c *Call) Result
	// Operate does the charge operation of the call, once for each OperationID: it refunds a part of a charge, captures
	// a part of an authorization, or voids the rest of it. Done has the provider's reference of the operation; Waiting
	// means that it is accepted and not done yet. It is called only for charge.
	Operate(ctx context.Context, c *Call) Result
}

// Looker is an Executor that can look up a key without any effect. The provider remembers refused keys: a later Do with
// that key is refused.
type Looker interface {
	Executor
	// Lookup returns Done, Refused or Waiting for a Do that arrived; Unknown with the code InProgress for one in
	// progress, which must be looked up again; Retry for one that has not arrived (it may still be on its way); and
	// otherwise Unknown. An undone key is Refused, whether its Do arrived or not. With an OperationID, the look-up is
	// about the charge operation. With the kind Void and no OperationID, it is about an authorization: Done while the
	// rest of it can still be captured, and Refused once it has ended.
	Lookup(ctx context.Context, c *Call) Result
}

// Call is the input of an executor. Between the calls of one operation, only Fence, Number, Clock and, for a Do,
// Reference change.
type Call struct {
	Installation  uuid.UUID
	OrderID       string
	Step          fsm.Step
	Generation    int32
	Amount        decimal.Decimal
	Currency      string
	Item          string
	Quantity      int32
	Lines         []byte          // as orders.FormatLines writes them, instead of Item and Quantity; nil: none
	CustomerID    string          // empty: none
	PaymentMethod string          // opaque; never logged
	Metadata      json.RawMessage // a JSON object of strings, or nil
	CallbackURL   string          // where a provider that answered Do with 202 sends the result
	Tokens        []string        // of the callbacks of all steps: masked in results

	Fence     int64
	Number    int32
	Reference string           // the provider's reference of the charge (charge, confirm) or reservation, once known
	Clock     func() time.Time // for signatures and dates; nil: the clock of this machine

	OperationKind      Operation // of the charge operation, whose amount is Amount; empty: the call is about the step
	OperationID        string    // the id of the charge operation
	OperationReference string    // the provider's reference of it, once known
	Final              bool      // of a capture: the rest is voided
	CaptureLater       bool      // of a charge: it only authorizes
	Reason             string    // of the charge operation
	RefundLines        []byte    // as orders.FormatOperationLines writes them; nil: the operation does not say

	ChargeKey, ChargeReference string // in a later step: of the charge, as far as it has them

	secrets *[]string // where an Exchange records the secrets that it used, for Masking; nil: nowhere
}

// Now is the time by the clock of the call.
func (c *Call) Now() time.Time {
	if c.Clock == nil {
		return time.Now()
	}
	return c.Clock()
}

// Operation is what a call does to a step at the provider. Each has a key of its own: an undo with the key of its do
// would get the stored answer of the do. Executors that make several requests for one operation define more.
type Operation string

// The operations. The last three are the charge operations.
const (
	Do      Operation = "do"
	Undo    Operation = "undo"
	Refund  Operation = "refund"
	Capture Operation = "capture" // a part of an authorization
	Void    Operation = "void"    // the rest of an authorization
)

// LookupKey is the key to look up.
func (c *Call) LookupKey() string {
	if c.OperationID != "" {
		return c.Key(c.OperationKind)
	}
	return c.Key(Do)
}

// Result is the result of a call: Done, Refused, Retry, Waiting or Unknown.
type Result interface{ result() }

// Done means that the effect happened.
type Done struct {
	Reference string          // the provider's reference, up to 255 characters
	Data      json.RawMessage // stored with the order; a JSON object of up to 16 KiB, or nil
}

// Refused means that the effect did not happen and never will under this key.
type Refused struct{ Code, Detail string }

// Retry means that this call certainly had no effect, and can be retried.
type Retry struct {
	Code, Detail string
	After        time.Duration // as the provider asked; 0: not specified
	Counts       bool          // counts as a retry, because it was an answer and not an outage or a full queue
}

// Waiting means that the provider has accepted the request and will answer by a callback.
type Waiting struct {
	Reference string
	Action    json.RawMessage // required from the customer, shown with the order; an object of up to 16 KiB, or nil
}

// Unknown means that the effect may have happened, or may still happen.
type Unknown struct {
	Code, Detail string
	After        time.Duration // as the provider asked; 0: not specified
	Reference    string        // the provider's reference, if it returned one
	Status       int           // of an HTTP answer that leaves it open; 0: there was none
}

func (Done) result()    {}
func (Refused) result() {}
func (Retry) result()   {}
func (Waiting) result() {}
func (Unknown) result() {}

// InProgress is the code of an Unknown whose request the provider is still processing. Unlike Waiting, there is no
// callback, so it must be asked again.
const InProgress = "in_progress"

// AuthorizationExpired is the code of a Refused capture or void of an authorization of which nothing is left.
const AuthorizationExpired = "authorization_expired"

// Unsent is the result of a call that failed before anything could be sent. It counts as a retry, because the cause
// does not pass by itself and a person must be asked in the end.
func Unsent(code string, err error) Result {
	return Retry{Code: code, Detail: Text(err.Error()), Counts: true}
}

// InDoubt is the result of a call of several requests, of which one ended in r and another may have had an effect: that
// r had none says nothing about the call.
func InDoubt(r Result) Result {
	switch r := r.(type) {
	case Refused:
		return Unknown{Code: r.Code, Detail: r.Detail}
	case Retry:
		return Unknown{Code: r.Code, Detail: r.Detail, After: r.After}
	}
	return r
}

// Body is the JSON body of Do, Undo or a charge operation for an endpoint. It has the same bytes in every call, from
// every replica and version of this program, because providers compare it with the one they have for the key and reject
// a different one. So it contains nothing that changes between calls, the amount is written as it is stored, metadata
// has one order, and no library decides how characters are escaped. It returns an error if the metadata is not an
// object of strings.
func (c *Call) Body(op Operation) ([]byte, error) {
	b := make([]byte, 0, 512)
	b = appendMember(append(b, '{'), "orderId", c.OrderID)
	b = appendMember(append(b, ','), "step", string(c.Step))
	b = appendMember(append(b, ','), "operation", string(op))
	b = strconv.AppendInt(append(b, `,"generation":`...), int64(c.Generation), 10)
	b = appendMember(append(b, ','), "amount", c.Amount.String())
	b = appendMember(append(b, ','), "currency", c.Currency)
	if c.Lines != nil {
		b = append(append(b, `,"lines":`...), c.Lines...)
	} else {
		b = appendMember(append(b, ','), "item", c.Item)
		b = strconv.AppendInt(append(b, `,"quantity":`...), int64(c.Quantity), 10)
	}
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
	case Refund, Capture, Void:
		b = appendMember(append(b, ','), string(op)+"Id", c.OperationID)
		if op == Capture {
			b = strconv.AppendBool(append(b, `,"final":`...), c.Final)
		}
		b = appendOptional(b, "reason", c.Reason)
		if c.RefundLines != nil {
			b = append(append(b, `,"`+string(op)+`Lines":`...), c.RefundLines...)
		}
		b = appendMember(append(b, ','), "chargeKey", c.KeyOfCharge())
		b = appendOptional(b, "reference", c.Reference)
	default:
		if c.CaptureLater {
			b = appendMember(append(b, ','), "capture", "later")
		}
		b = appendOptional(b, "chargeKey", c.ChargeKey)
		b = appendOptional(b, "chargeReference", c.ChargeReference)
		b = appendOptional(b, "callbackUrl", c.CallbackURL)
	}
	return append(b, '}'), nil
}

// KeyOfCharge is the key of the charge of the same generation.
func (c *Call) KeyOfCharge() string {
	charge := *c
	charge.Step, charge.OperationID = fsm.Charge, ""
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

// appendMetadata writes metadata from the request or from a jsonb column, which adds blanks between its tokens.
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

// AppendMetadata writes metadata as a JSON object with its keys in the order of jsonb: by length in bytes, then by
// bytes. So the text is the same before and after it was stored, for providers that compare bodies and callers that
// compare ETags.
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
	for _, r := range s { // invalid UTF-8 becomes U+FFFD
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

// Key is the idempotency key of an operation of this call: `pawl-` and 52 characters of lower-case base32, the SHA-256
// of what identifies the operation. It is the same on every call, and differs between installations, orders, steps,
// generations, operations and the ids of charge operations. An order ID would be no key: providers take 255 ASCII
// characters, and HTTP drops blanks around the value of a header.
func (c *Call) Key(op Operation) string {
	b := make([]byte, 0, 256)
	b = appendField(b, c.Installation[:])
	b = appendField(b, "") // reserved for the owner of the order, if an installation serves several
	b = appendField(b, c.OrderID)
	b = appendField(b, c.Step)
	b = appendField(b, op)
	b = appendField(b, binary.BigEndian.AppendUint32(nil, uint32(c.Generation)))
	if c.OperationID != "" { // not its number: if commits are lost, the same request gets the same key, whatever its number
		b = appendField(b, c.OperationID)
	}
	sum := sha256.Sum256(b)
	return "pawl-" + keyEncoding.EncodeToString(sum[:])
}

var keyEncoding = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// appendField writes a field after its length, so that no two lists of fields have the same bytes: "a", "bc" and "ab",
// "c" must not share a charge.
func appendField[T ~string | ~[]byte](b []byte, field T) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(len(field)))
	return append(b, field...)
}

// TraceParent identifies the trace of a call (W3C Trace Context, version 00). All calls of one generation of an order
// belong to one trace, on whichever replica; each has its own parent ID. It is marked as sampled, so that the calls of
// an order can be found at its providers.
func (c *Call) TraceParent() string {
	b := make([]byte, 0, 256)
	b = appendField(b, "trace")
	b = appendField(b, c.Installation[:])
	b = appendField(b, c.OrderID)
	b = appendField(b, binary.BigEndian.AppendUint32(nil, uint32(c.Generation)))
	sum := sha256.Sum256(b)
	return fmt.Sprintf("00-%x-%016x-01", sum[:16], rand.Uint64()|1) // all zeroes is no parent id
}
