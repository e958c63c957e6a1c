package provider

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

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
