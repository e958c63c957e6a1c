package httpapi

import (
	"bytes"
	"errors"
	"unicode/utf8"
)

// fieldError is one fault of a request. A fault of the whole body has neither
// pointer nor parameter nor header. Values are never repeated, with one
// exception: what is stored and what was sent in a conflict.
type fieldError struct {
	Pointer   string  `json:"pointer,omitempty" doc:"The field of the body, as a JSON pointer (RFC 6901)." example:"/amount"`
	Parameter string  `json:"parameter,omitempty" doc:"The parameter of the path or the query string."`
	Header    string  `json:"header,omitempty" doc:"The header field."`
	Code      string  `json:"code" doc:"What is wrong, for programs." example:"too_many_fraction_digits"`
	Detail    string  `json:"detail" doc:"What is wrong, for people."`
	Stored    *string `json:"stored,omitempty" doc:"In a conflict: the value the order was stored with."`
	Sent      *string `json:"sent,omitempty" doc:"In a conflict: the value in this request."`
}

// decoder reads the members of one body and collects what is wrong with them, so
// that a caller learns of all faults at once.
type decoder struct {
	scanner
	faults []fieldError
}

// maxFaults bounds the answer: a body can hold thousands of faults in its metadata.
const maxFaults = 64

func (d *decoder) fault(pointer, code, detail string) {
	if len(d.faults) < maxFaults {
		d.faults = append(d.faults, fieldError{Pointer: pointer, Code: code, Detail: detail})
	}
}

// decode reads a body that has to be one object. It calls field at the value of
// each known name; field consumes the value and reports faults. Unknown names are
// skipped, but not one that differs from a known name only in case: other readers
// take it for the known one. Finish runs behind the last member.
func decode(data []byte, known []string, field func(d *decoder, name string) error, finish func(d *decoder)) error {
	d := decoder{scanner: scanner{data: data}}
	if err := d.body(known, field, finish); err != nil {
		var text *malformed
		if errors.As(err, &text) {
			return malformedJSON(text)
		}
		return err
	}
	if len(d.faults) > 0 {
		return invalidInput(d.faults)
	}
	return nil
}

func (d *decoder) body(known []string, field func(d *decoder, name string) error, finish func(d *decoder)) error {
	if !utf8.Valid(d.data) {
		return d.fail("encoding", "the body is not UTF-8")
	}
	if d.peek() != '{' {
		if err := d.skip(); err != nil {
			return err
		}
		d.fault("", "wrong_type", "must be a JSON object")
		return d.end()
	}
	err := d.members(func(name []byte) error {
		at, found := lookup(known, name)
		switch {
		case found:
			if err := field(d, at); err != nil {
				return locate(err, "/"+at)
			}
			return nil
		case at != "":
			d.fault("/"+at, "name_case", "is written in another case")
		}
		return d.skip()
	})
	if err != nil {
		return err
	}
	finish(d)
	return d.end()
}

// lookup finds a name among the known ones. Not found, but equal when case is
// folded: it returns the known name and false.
func lookup(known []string, name []byte) (at string, found bool) {
	for _, k := range known {
		if string(name) == k {
			return k, true
		}
	}
	for _, k := range known {
		if bytes.EqualFold(name, []byte(k)) {
			return k, false
		}
	}
	return "", false
}

// locate says in which field a text stopped being JSON.
func locate(err error, pointer string) error {
	var text *malformed
	if errors.As(err, &text) && text.pointer == "" {
		text.pointer = pointer
	}
	return err
}

// text reads a string of 1 to limit characters. What is not one is a fault, and
// the result is empty.
func (d *decoder) text(pointer string, limit int) (string, error) {
	raw, ok, err := d.stringOf(pointer)
	if !ok {
		return "", err
	}
	if code, detail := checkText(raw, limit); code != "" {
		d.fault(pointer, code, detail)
		return "", nil
	}
	return string(raw), nil
}

// stringOf reads a string with its escapes resolved; ok is false for any other
// value, which is a fault. The bytes may belong to the body.
func (d *decoder) stringOf(pointer string) (value []byte, ok bool, err error) {
	if d.peek() != '"' {
		d.fault(pointer, "wrong_type", "must be a string")
		return nil, false, d.skip()
	}
	raw, escaped, err := d.str()
	if err != nil {
		return nil, false, err
	}
	if escaped {
		raw = unescape(raw)
	}
	return raw, true, nil
}

// integer reads an integer within the bounds.
func (d *decoder) integer(pointer string, least, most int64) (int64, error) {
	c := d.peek()
	if c != '-' && (c < '0' || c > '9') {
		d.fault(pointer, "wrong_type", "must be an integer")
		return 0, d.skip()
	}
	text, err := d.number()
	if err != nil {
		return 0, err
	}
	value, ok := parseInteger(text)
	switch {
	case !ok:
		d.fault(pointer, "not_integer", "must be an integer, without fraction or exponent")
	case value < least || value > most:
		d.fault(pointer, "out_of_range", "must be from "+decimalText(least)+" to "+decimalText(most))
	default:
		return value, nil
	}
	return 0, nil
}
