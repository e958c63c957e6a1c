package httpapi

import (
	"bytes"
	"errors"
	"io"
	"regexp"
	"strconv"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// maxDepth is how deep objects and arrays may be nested, the body itself counted.
const maxDepth = 16

// tokens reads one JSON text token by token. The grammar is that of jsontext, which refuses
// what other readers could understand in another way: a name given twice in one object, and
// a lone surrogate escape (many decoders turn any of them into U+FFFD, so two ids become
// one). Added to it are the limit of depth, and errors that are ours.
//
// The first error ends the text: it is kept in err, and from then on every method returns
// the zero value and reads nothing. So callers look at err once, at the end.
type tokens struct {
	data     []byte
	source   bytes.Buffer // over data
	json     jsontext.Decoder
	unquoted []byte // the string that was read last
	at       string // the field that is being read: its pointer without the first slash, for err
	err      *malformed
}

func (t *tokens) reset(data []byte) {
	t.data, t.at, t.err = data, "", nil
	t.source = *bytes.NewBuffer(data)
	t.json.Reset(&t.source)
}

// kind looks at the next token. Numbers have kind '0'; at the end of the text, and where
// no token can be, it is KindInvalid.
func (t *tokens) kind() jsontext.Kind {
	if t.err != nil {
		return jsontext.KindInvalid
	}
	kind := t.json.PeekKind()
	if kind == jsontext.KindInvalid { // to read it tells why
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

// scalar reads a name or a value that is no object or array. It returns the text, as part
// of data.
func (t *tokens) scalar() []byte {
	if t.err != nil {
		return nil
	}
	value, err := t.json.ReadValue()
	end := int(t.json.InputOffset())
	if err == nil && value[len(value)-1] == '0' && digits(t.data[end:]) > 0 {
		err = errLeadingZero // jsontext reads a zero, and finds something behind it
	}
	if err != nil {
		t.fail(err)
		return nil
	}
	return t.data[end-len(value) : end]
}

// string reads a string or a name, with its escapes resolved. It is valid until the next one.
func (t *tokens) string() []byte {
	text := t.scalar()
	if t.err != nil {
		return nil
	}
	if bytes.IndexByte(text, '\\') < 0 { // as nearly always
		return text[1 : len(text)-1]
	}
	t.unquoted, _ = jsontext.AppendUnquote(t.unquoted[:0], text) // scalar has refused what it refuses
	return t.unquoted
}

// skip reads a value of any kind, and returns its text.
func (t *tokens) skip() []byte {
	from, depth := t.json.InputOffset(), t.json.StackDepth()
	for t.next(); t.err == nil && t.json.StackDepth() > depth; t.next() {
	}
	return bytes.TrimLeft(t.data[from:t.json.InputOffset()], whiteSpace+":,")
}

// members reads an object and calls visit at each value with its name; visit has to read
// the value. Name is valid until visit reads a string.
func (t *tokens) members(visit func(name []byte)) {
	for t.next(); t.more('}'); {
		name := t.string()
		if !bytes.HasPrefix(t.rest(), []byte{':'}) {
			t.kind() // fails now, so that the object is what is malformed, not the field
		}
		visit(name)
	}
	t.next()
}

// more reports whether another element stands before the closing bracket.
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

// text says what is wrong, and where.
func (m *malformed) text() string {
	return m.detail + " at byte " + strconv.Itoa(m.offset)
}

var (
	errTooDeep     = errors.New("nested deeper than " + strconv.Itoa(maxDepth) + " levels")
	errLeadingZero = errors.New("a number has a leading zero")
	errTrailing    = errors.New("unexpected data after the value")
	surrogate      = regexp.MustCompile(`^\\u[dD][89a-fA-F][0-9a-fA-F]{2}`)
)

// invalidAt is where a text stops being UTF-8.
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

// fail keeps an error of jsontext's in our words: its own words quote the text, and an
// answer must not repeat what was sent, except names.
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
