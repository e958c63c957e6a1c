package httpapi

import (
	"bytes"
	"strconv"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/govalues/decimal"
)

// MarshalJSON lets lists and problems hold orders; there is one encoder of them.
func (o order) MarshalJSON() ([]byte, error) { return o.append(make([]byte, 0, 512)), nil }

// append writes the order as JSON. It is written by hand because every order that
// is processed goes through it; a test holds it to what encoding/json makes of
// the struct.
func (o *order) append(b []byte) []byte {
	b = appendString(append(b, `{"orderId":`...), o.OrderID)
	b = appendString(append(b, `,"status":`...), string(o.Status))
	b = o.Steps.append(append(b, `,"steps":`...))
	b = o.Amount.append(append(b, `,"amount":`...))
	b = appendString(append(b, `,"currency":`...), o.Currency)
	b = appendString(append(b, `,"item":`...), o.Item)
	b = strconv.AppendInt(append(b, `,"quantity":`...), int64(o.Quantity), 10)
	if len(o.Metadata) > 0 {
		b = append(append(b, `,"metadata":`...), o.Metadata...)
	}
	b = strconv.AppendInt(append(b, `,"generation":`...), int64(o.Generation), 10)
	b = strconv.AppendInt(append(b, `,"seq":`...), int64(o.Seq), 10)
	b = appendTime(append(b, `,"createdAt":`...), o.CreatedAt)
	b = appendOptionalTime(b, `,"finishedAt":`, o.FinishedAt)
	b = appendOptional(b, `,"submittedBy":`, o.SubmittedBy)
	if o.OrderTerms != nil {
		terms := appendRare(nil, o.OrderTerms)
		b = append(append(b, ','), terms[1:len(terms)-1]...) // there is one at least
	}
	b = appendOptional(b, `,"hold":`, o.Hold)
	b = appendOptional(b, `,"holdReason":`, o.HoldReason)
	b = appendOptionalTime(b, `,"resumesAt":`, o.ResumesAt)
	b = appendOptional(b, `,"stopRequested":`, o.StopRequested)
	if o.Failure != nil {
		b = appendRare(append(b, `,"failure":`...), o.Failure)
	}
	b = append(b, `,"allowedActions":[`...)
	for i, action := range o.AllowedActions {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(b, action)
	}
	b = append(b, ']')
	if o.DryRun {
		b = append(b, `,"dryRun":true`...)
	}
	if len(o.IgnoredFields) > 0 {
		b = appendRare(append(b, `,"ignoredFields":`...), o.IgnoredFields)
	}
	return append(b, '}')
}

func (s *steps) append(b []byte) []byte {
	b = s.Charge.append(append(b, `{"charge":`...))
	b = s.Reserve.append(append(b, `,"reserve":`...))
	b = s.Confirm.append(append(b, `,"confirm":`...))
	return append(b, '}')
}

func (s stepState) append(b []byte) []byte {
	b = strconv.AppendBool(append(b, `{"completed":`...), s.Completed)
	if s.Undone {
		b = append(b, `,"undone":true`...)
	}
	b = appendOptional(b, `,"reference":`, s.Reference)
	return append(b, '}')
}

// appendRare writes what few orders have, as encoding/json does.
func appendRare(b []byte, v any) []byte {
	var text bytes.Buffer
	_ = writeJSON(&text, v) // our own types
	return append(b, text.Bytes()...)
}

// MarshalJSON writes a string with every digit: most clients read a JSON number into a float.
func (a amount) MarshalJSON() ([]byte, error) { return a.append(nil), nil }

func (a amount) append(b []byte) []byte {
	b, _ = decimal.Decimal(a).AppendText(append(b, '"')) // its error is always nil
	return append(b, '"')
}

// MarshalJSON writes the text as it is: it is JSON already.
func (m stringMap) MarshalJSON() ([]byte, error) { return m, nil }

// MarshalJSON writes the text as it is: it is JSON already.
func (o object) MarshalJSON() ([]byte, error) { return o, nil }

func appendOptionalTime(b []byte, name string, t *time.Time) []byte {
	if t == nil {
		return b
	}
	return appendTime(append(b, name...), *t)
}

func appendOptional(b []byte, name string, value *string) []byte {
	if value == nil {
		return b
	}
	return appendString(append(b, name...), *value)
}

func appendTime(b []byte, t time.Time) []byte {
	return append(t.AppendFormat(append(b, '"'), time.RFC3339Nano), '"')
}

// appendString writes a JSON string with the fewest escapes (RFC 8785). Text that is not
// UTF-8 can't come from the database; it would be written as U+FFFD.
func appendString(b []byte, s string) []byte {
	b, _ = jsontext.AppendQuote(b, s)
	return b
}
