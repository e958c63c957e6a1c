package httpapi

import (
	"bytes"
	"errors"
	"io"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"pawl/internal/spelling"
)

// maxDepth is the maximum nesting of objects and arrays, including the body itself.
const maxDepth = 16

// tokens reads one JSON text token by token. It uses jsontext, which rejects texts that decoders interpret differently:
// a name twice in one object, and a lone surrogate escape (many decoders turn each into U+FFFD, so two ids become one).
// It adds a limit of depth, and our own errors.
//
// The first error ends the text: it is kept in err, and from then on every method returns the zero value and reads
// nothing. So callers check err once, at the end.
type tokens struct {
	data     []byte
	source   bytes.Buffer // over data
	json     jsontext.Decoder
	unquoted []byte // the last string that was read
	at       string // the current field: its pointer without the first slash, for err
	err      *malformed
}

func (t *tokens) reset(data []byte) {
	t.data, t.at, t.err = data, "", nil
	t.source = *bytes.NewBuffer(data)
	t.json.Reset(&t.source)
}

// kind peeks at the next token. Numbers have kind '0'. At the end of the text, and where no token can be, it is
// KindInvalid.
func (t *tokens) kind() jsontext.Kind {
	if t.err != nil {
		return jsontext.KindInvalid
	}
	kind := t.json.PeekKind()
	if kind == jsontext.KindInvalid { // reading it returns the reason
		_, err := t.json.ReadToken()
		t.fail(err)
	}
	return kind
}

// next reads one token: a name, a scalar, or one bracket of an object or array.
func (t *tokens) next() {
	var err error
	switch t.kind() {
	case jsontext.KindInvalid:
		return
	case '{', '[':
		if _, err = t.json.ReadToken(); err == nil && t.json.StackDepth() > maxDepth {
			err = errTooDeep
		}
	case '}', ']':
		_, err = t.json.ReadToken()
	default:
		t.scalar()
	}
	if err != nil {
		t.fail(err)
	}
}

// scalar reads a name, or a value that is not an object or array. It returns the text, which aliases data.
func (t *tokens) scalar() []byte {
	if t.err != nil {
		return nil
	}
	value, err := t.json.ReadValue()
	end := int(t.json.InputOffset())
	if err == nil && value[len(value)-1] == '0' && digits(t.data[end:]) > 0 {
		err = errLeadingZero // jsontext reads a zero, and then finds more
	}
	if err != nil {
		t.fail(err)
		return nil
	}
	return t.data[end-len(value) : end]
}

// string reads a string or a name, and resolves its escapes. The result is valid until the next call.
func (t *tokens) string() []byte {
	text := t.scalar()
	if t.err != nil {
		return nil
	}
	if bytes.IndexByte(text, '\\') < 0 { // nearly always
		return text[1 : len(text)-1]
	}
	t.unquoted, _ = jsontext.AppendUnquote(t.unquoted[:0], text) // no error: scalar has checked it
	return t.unquoted
}

// skip reads a value of any kind, and returns its text.
func (t *tokens) skip() []byte {
	from, depth := t.json.InputOffset(), t.json.StackDepth()
	for t.next(); t.err == nil && t.json.StackDepth() > depth; t.next() {
	}
	return bytes.TrimLeft(t.data[from:t.json.InputOffset()], whiteSpace+":,")
}

// members reads an object and calls visit at each value with its name; visit must read the value. The name is valid
// until visit reads a string.
func (t *tokens) members(visit func(name []byte)) {
	for t.next(); t.more('}'); {
		name := t.string()
		if !bytes.HasPrefix(t.rest(), []byte{':'}) {
			t.kind() // fail here, while at still names the object
		}
		visit(name)
	}
	t.next()
}

// more reports whether another element follows before the closing bracket.
func (t *tokens) more(closing jsontext.Kind) bool {
	kind := t.kind()
	return kind != closing && kind != jsontext.KindInvalid
}

// end checks that nothing follows the value.
func (t *tokens) end() {
	if t.err == nil && len(t.rest()) > 0 {
		t.fail(errTrailing)
	}
}

// rest is what follows the last token, without the white space before it.
func (t *tokens) rest() []byte {
	return bytes.TrimLeft(t.data[t.json.InputOffset():], whiteSpace)
}

const whiteSpace = " \t\r\n"

// malformed is a text that is not JSON, or JSON with more than one reading.
type malformed struct {
	pointer, code, detail string
	offset                int
}

// text describes the error and its place.
func (m *malformed) text() string {
	return m.detail + " at byte " + strconv.Itoa(m.offset)
}

var (
	errTooDeep     = errors.New("nested deeper than " + strconv.Itoa(maxDepth) + " levels")
	errLeadingZero = errors.New("a number has a leading zero")
	errTrailing    = errors.New("unexpected data after the value")
	surrogate      = regexp.MustCompile(`^\\u[dD][89a-fA-F][0-9a-fA-F]{2}`)
)

// invalidAt is the index of the first byte that is not UTF-8.
func invalidAt(data []byte) int {
	for at := 0; at < len(data); {
		r, size := utf8.DecodeRune(data[at:])
		if r == utf8.RuneError && size == 1 {
			return at
		}
		at += size
	}
	return len(data)
}

// fail records an error of jsontext in our own words: jsontext quotes the text, and an answer must not repeat texts
// that were sent, except names.
func (t *tokens) fail(err error) {
	m := &malformed{"", "syntax", "invalid JSON", int(t.json.InputOffset())}
	t.err = m
	if t.at != "" {
		m.pointer = "/" + t.at
	}
	var syntactic *jsontext.SyntacticError
	if errors.As(err, &syntactic) {
		m.offset = int(syntactic.ByteOffset)
	}
	switch {
	case !utf8.Valid(t.data):
		*m = malformed{code: "encoding", detail: "the body is not valid UTF-8", offset: invalidAt(t.data)}
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		m.detail, m.offset = "unexpected end", len(t.data)
	case errors.Is(err, errTooDeep):
		m.code, m.detail = "too_deep", err.Error()
	case errors.Is(err, errLeadingZero), errors.Is(err, errTrailing):
		m.detail = err.Error()
	case errors.Is(err, jsontext.ErrDuplicateName):
		m.code, m.detail, m.pointer = "duplicate_name", "duplicate name in an object", string(syntactic.JSONPointer)
	case surrogate.Match(t.data[m.offset:]) && bytes.IndexByte(t.data[t.json.InputOffset():m.offset], '"') >= 0: // in a string
		m.code, m.detail = "lone_surrogate", "lone surrogate in a string"
	}
}

// fieldError is one fault of a request. A fault of the whole body has neither pointer nor parameter nor header. It
// never repeats texts that were sent, except in a conflict. It may repeat names, and numbers and times out of range.
type fieldError struct {
	Pointer   string  `json:"pointer,omitempty" doc:"The field of the body, as a JSON pointer (RFC 6901)."`
	Parameter string  `json:"parameter,omitempty" doc:"The parameter of the path or the query string."`
	Header    string  `json:"header,omitempty" doc:"The header field."`
	Code      string  `json:"code" doc:"A code for programs."`
	Detail    string  `json:"detail" doc:"A description for people."`
	Stored    *string `json:"stored,omitempty" doc:"In a conflict: the stored value."`
	Sent      *string `json:"sent,omitempty" doc:"In a conflict: the value in this request."`
	Line      int32   `json:"line,omitempty" minimum:"1" doc:"In a policy: the line of the mistake."`
	Column    int32   `json:"column,omitempty" minimum:"1" doc:"In a policy: its column."`
}

// decoder reads the members of one body and collects its faults, so that a caller learns of all of them at once.
type decoder struct {
	tokens
	faults  []fieldError
	known   []string // names that the body can have
	given   []string // those of them that it has
	ignored []string // unknown names
}

var decoders = sync.Pool{New: func() any { return &decoder{} }}

func newDecoder(data []byte) *decoder {
	d, _ := decoders.Get().(*decoder)
	d.reset(data)
	d.faults, d.known, d.given, d.ignored = nil, nil, d.given[:0], nil
	return d
}

func (d *decoder) free() { decoders.Put(d) }

// maxFaults limits the answer: a body can have thousands of faults in its metadata.
const maxFaults = 64

func (d *decoder) fault(pointer, code, detail string) {
	if len(d.faults) < maxFaults {
		d.faults = append(d.faults, fieldError{Pointer: pointer, Code: code, Detail: detail})
	}
}

// decode reads a body, which must be one object. It calls field at the value of each known name; field reads the
// value and reports faults. Unknown names are skipped and returned, but one that differs from a known name only in
// case is a fault, because other decoders accept it as the known name. finish runs after the last member.
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

// lookup finds a name among the known ones. If it differs from one only in case, lookup returns that one and false.
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

// refuseMisspelled rejects fields whose name is one letter off the name of an important field. If they were ignored,
// the request would be executed in another way than intended before the caller reads ignoredFields.
func (d *decoder) refuseMisspelled(deciding ...string) {
	d.ignored = slices.DeleteFunc(d.ignored, func(name string) bool {
		meant := spelling.Meant(name, deciding)
		if meant == "" || !slices.Contains(d.known, meant) {
			return false
		}
		d.fault("/"+pointerEscape.Replace(name), "misspelled", "unknown field "+name+"; did you mean "+meant+"?")
		return true
	})
}

// has reports whether the body has a field, even with a faulty value.
func (d *decoder) has(name string) bool { return slices.Contains(d.given, name) }

func (d *decoder) require(given bool, pointer string) {
	if !given {
		d.fault(pointer, "required", "is required")
	}
}

// text reads a string of 1 to limit characters. Anything else is a fault, and the result is empty.
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

// visibleText reads a name of up to maxText characters. It rejects invisible characters: two names must not look the
// same.
func (d *decoder) visibleText(pointer string) string {
	text := d.text(pointer, maxText)
	if code, detail := checkVisible(text); code != "" {
		d.fault(pointer, code, detail)
	}
	return text
}

// stringOf reads a string. Any other value is a fault, and ok is false. The string is valid until the next one is
// read.
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
