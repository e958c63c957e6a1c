package httpapi

import (
	"bytes"
	"slices"
	"strings"
	"sync"
)

// fieldError is one fault of a request. A fault of the whole body has neither
// pointer nor parameter nor header. Texts that were sent are never repeated, except in a
// conflict. Names are, and so are numbers and times out of range.
type fieldError struct {
	Pointer   string  `json:"pointer,omitempty" doc:"The field of the body, as a JSON pointer (RFC 6901)." example:"/amount"`
	Parameter string  `json:"parameter,omitempty" doc:"The parameter of the path or the query string."`
	Header    string  `json:"header,omitempty" doc:"The header field."`
	Code      string  `json:"code" doc:"What is wrong, for programs." example:"too_many_fraction_digits"`
	Detail    string  `json:"detail" doc:"What is wrong, for people."`
	Stored    *string `json:"stored,omitempty" doc:"In a conflict: the value the order was stored with."`
	Sent      *string `json:"sent,omitempty" doc:"In a conflict: the value in this request."`
	Line      int32   `json:"line,omitempty" minimum:"1" doc:"In a policy: the line of the mistake."`
	Column    int32   `json:"column,omitempty" minimum:"1" doc:"In a policy: its column."`
}

// decoder reads the members of one body and collects what is wrong with them, so
// that a caller learns of all faults at once.
type decoder struct {
	tokens
	faults  []fieldError
	known   []string // the names that the body can have
	ignored []string // names that are not known
}

var decoders = sync.Pool{New: func() any { return &decoder{} }}

func newDecoder(data []byte) *decoder {
	d, _ := decoders.Get().(*decoder)
	d.reset(data)
	d.faults, d.known, d.ignored = nil, nil, nil
	return d
}

func (d *decoder) free() { decoders.Put(d) }

// maxFaults bounds the answer: a body can hold thousands of faults in its metadata.
const maxFaults = 64

func (d *decoder) fault(pointer, code, detail string) {
	if len(d.faults) < maxFaults {
		d.faults = append(d.faults, fieldError{Pointer: pointer, Code: code, Detail: detail})
	}
}

// decode reads a body that has to be one object. It calls field at the value of
// each known name; field reads the value and reports faults. Unknown names are
// skipped and returned, but one that differs from a known name only in case is a fault:
// other readers take it for the known one. Finish runs behind the last member.
func decode(data []byte, known []string, field func(d *decoder, name string), finish func(d *decoder)) (ignored []string, err error) {
	d := newDecoder(data)
	defer d.free()
	d.body(known, field, finish)
	switch {
	case d.err != nil:
		return nil, malformedJSON(d.err)
	case len(d.faults) > 0:
		p := newProblem("invalid_input", "", d.faults...)
		p.IgnoredFields = d.ignored
		return d.ignored, p
	}
	return d.ignored, nil
}

func (d *decoder) body(known []string, field func(d *decoder, name string), finish func(d *decoder)) {
	d.known = known
	if d.kind() != '{' {
		d.skip()
		d.fault("", "wrong_type", "must be a JSON object")
		d.end()
		return
	}
	d.members(func(name []byte) {
		at, found := lookup(known, name)
		switch {
		case found:
			d.at = at
			field(d, at)
			d.at = ""
			return
		case at != "":
			d.fault("/"+at, "name_case", "must be written in this case: "+at)
		default:
			d.ignored = append(d.ignored, string(name))
		}
		d.skip()
	})
	finish(d)
	d.end()
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

// refuseMisspelled refuses fields whose name is one letter off that of a field that decides what is done. If they were ignored,
// something else would be done than the caller wrote, before anybody reads ignoredFields.
func (d *decoder) refuseMisspelled(deciding ...string) {
	d.ignored = slices.DeleteFunc(d.ignored, func(name string) bool {
		for _, meant := range deciding {
			if slices.Contains(d.known, meant) && oneEditApart(strings.ToLower(name), strings.ToLower(meant)) {
				d.fault("/"+pointerEscape.Replace(name), "misspelled", "unknown field "+name+"; did you mean "+meant+"?")
				return true
			}
		}
		return false
	})
}

// oneEditApart reports whether a becomes b when one character is added, left out or replaced, or two neighbours are exchanged:
// a Damerau-Levenshtein distance of 1.
func oneEditApart(a, b string) bool {
	x, y := []rune(a), []rune(b)
	for len(x) > 0 && len(y) > 0 && x[0] == y[0] {
		x, y = x[1:], y[1:]
	}
	for len(x) > 0 && len(y) > 0 && x[len(x)-1] == y[len(y)-1] {
		x, y = x[:len(x)-1], y[:len(y)-1]
	}
	exchanged := len(x) == 2 && len(y) == 2 && x[0] == y[1] && x[1] == y[0]
	return exchanged || max(len(x), len(y)) == 1
}

func (d *decoder) require(given bool, pointer string) {
	if !given {
		d.fault(pointer, "required", "is required")
	}
}

// text reads a string of 1 to limit characters. What is not one is a fault, and
// the result is empty.
func (d *decoder) text(pointer string, limit int) string {
	raw, ok := d.stringOf(pointer)
	if !ok {
		return ""
	}
	if code, detail := checkText(raw, limit); code != "" {
		d.fault(pointer, code, detail)
		return ""
	}
	return string(raw)
}

// visibleText reads a name of up to maxText characters, without what people do not see:
// two names must not look the same.
func (d *decoder) visibleText(pointer string) string {
	text := d.text(pointer, maxText)
	if code, detail := checkVisible(text); code != "" {
		d.fault(pointer, code, detail)
	}
	return text
}

// stringOf reads a string; ok is false for any other value, which is a fault. The
// string is valid until the next one.
func (d *decoder) stringOf(pointer string) (value []byte, ok bool) {
	if d.kind() != '"' {
		d.fault(pointer, "wrong_type", "must be a string")
		d.skip()
		return nil, false
	}
	return d.string(), true
}

// integer reads an integer within the bounds.
func (d *decoder) integer(pointer string, least, most int64) int64 {
	if d.kind() != '0' {
		d.fault(pointer, "wrong_type", "must be an integer")
		d.skip()
		return 0
	}
	text := d.scalar()
	value, ok := parseInteger(text)
	switch {
	case !ok:
		d.fault(pointer, "not_integer", "must be an integer, without fraction or exponent")
	case value < least || value > most:
		d.fault(pointer, "out_of_range", "must be from "+decimalText(least)+" to "+decimalText(most)+", not "+shownNumber(text))
	default:
		return value
	}
	return 0
}
