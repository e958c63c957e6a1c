package provider

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
)

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
// id of its own. It is marked as sampled: what an order did at its providers must be
// found when somebody asks.
func (c *Call) TraceParent() string {
	b := make([]byte, 0, 256)
	b = appendField(b, "trace")
	b = appendField(b, c.Installation[:])
	b = appendField(b, c.OrderID)
	b = appendField(b, binary.BigEndian.AppendUint32(nil, uint32(c.Generation)))
	sum := sha256.Sum256(b)
	return fmt.Sprintf("00-%x-%016x-01", sum[:16], rand.Uint64()|1) // all zeroes is no parent id
}
