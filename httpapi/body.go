package httpapi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"pawl/internal/spelling"
	"pawl/internal/webhooks"
)

// maxBody is the maximum length of a body, in bytes.
const maxBody = 64 << 10

// buffer is memory for one body, of a request or an answer.
type buffer struct {
	bytes.Buffer
	limit io.LimitedReader
}

var buffers = sync.Pool{New: func() any { return &buffer{} }}

func newBuffer() *buffer {
	b, _ := buffers.Get().(*buffer)
	b.Reset()
	return b
}

func (b *buffer) free() {
	b.limit.R = nil // it belongs to a request
	buffers.Put(b)
}

// read reads the whole body of a request. It removes the read deadline of the connection, which would end a request
// that waits.
func (b *buffer) read(w http.ResponseWriter, r *http.Request) error {
	err := b.fill(r)
	recordOf(w).length += int64(b.Len())
	_ = huma.SetReadDeadline(w, time.Time{}) // not every writer has a connection
	if err != nil {
		w.Header().Set("Connection", "close") // the rest of the body is not read
		return err
	}
	if b.Len() > 0 {
		return checkMediaType(r.Header, jsonMedia)
	}
	return nil
}

func (b *buffer) fill(r *http.Request) error {
	if r.ContentLength > maxBody {
		return newProblem("body_too_large", "")
	}
	if r.ContentLength > smallBody { // the share covers exactly this; a growing buffer could take twice as much
		b.Grow(int(r.ContentLength) + bytes.MinRead)
	}
	b.limit = io.LimitedReader{R: r.Body, N: maxBody + 1}
	_, err := b.ReadFrom(&b.limit)
	switch {
	case b.Len() > maxBody:
		return newProblem("body_too_large", "")
	case errors.Is(err, os.ErrDeadlineExceeded):
		return newProblem("request_timeout", "")
	case err != nil:
		return malformedJSON(&malformed{code: "incomplete", detail: "the body ends", offset: b.Len()})
	}
	return nil
}

// checkMediaType accepts the media type, types that end in +json if it is JSON, and bodies without a type.
func checkMediaType(h http.Header, taken string) error {
	if encoding := h.Get("Content-Encoding"); encoding != "" && !strings.EqualFold(encoding, "identity") {
		return newProblem("unsupported_media_type", "", fieldError{Header: "Content-Encoding", Code: "unsupported",
			Detail: "is not supported; send the body uncompressed"})
	}
	given := h.Get("Content-Type")
	if given == taken || given == "" {
		return nil
	}
	media, parameters, err := mime.ParseMediaType(given)
	fits := media == taken || taken == jsonMedia && strings.HasPrefix(media, "application/") && strings.HasSuffix(media, "+json")
	charset, named := parameters["charset"]
	if err != nil || !fits || named && !strings.EqualFold(charset, "utf-8") {
		return newProblem("unsupported_media_type", "", fieldError{Header: "Content-Type", Code: "unsupported",
			Detail: "must be " + taken + " in UTF-8"})
	}
	return nil
}

// VerbBody is the body of a request that only states why, and on whose behalf, it is made. It is exported because
// huma skips unexported embedded types.
type VerbBody struct {
	OnBehalfOf string `json:"onBehalfOf,omitempty" minLength:"1" maxLength:"255" doc:"For whom the request is made; recorded beside the caller. Requires the role delegate."`
	Reason     string `json:"reason,omitempty" minLength:"1" maxLength:"1000" doc:"Why; recorded with the change."`
	RequestID  string `json:"requestId,omitempty" minLength:"1" maxLength:"255" doc:"A name for this request, so that it is done once."`
}

// asks returns the common part of a body. A body whose reason is required has its own Reason, which hides the one
// here.
func (b VerbBody) asks() VerbBody { return b }

// Keyed documents the headers of most requests with a body. It is exported because huma skips unexported embedded
// types.
type Keyed[B any] struct {
	IdempotencyKey string `header:"Idempotency-Key" doc:"The requestId, if the body has none; quoted or not."`
	Prefer         string `header:"Prefer" doc:"handling=strict rejects unknown fields (RFC 7240)."`
	Body           B
}

// sent is a request whose body was read.
type sent[B any] struct {
	*http.Request
	body    B
	ignored []string // unknown names in the body
	by      webhooks.By
	answer  http.Header
}

// postBody is post for an operation whose body is a B. check, if not nil, checks what the type does not express.
func postBody[I, O, B any](s *server, op huma.Operation, check func(*decoder, *B), answer func(http.ResponseWriter, *sent[B]) error) {
	post[I, O](s, op, func(w http.ResponseWriter, r *http.Request) error {
		q, err := readBody(w, r, check)
		if err != nil {
			return err
		}
		return answer(w, q)
	})
}

// postChange is postBody for a change that is recorded with its actor. It answers with the result of change, and with
// the headers that change sets.
func postChange[I, O any, B interface{ asks() VerbBody }](s *server, op huma.Operation, check func(*decoder, *B),
	change func(context.Context, *sent[B]) (any, error)) {
	postBody[I, O](s, op, check, func(w http.ResponseWriter, q *sent[B]) (err error) {
		asks := q.body.asks()
		q.by, q.answer = webhooks.By{OnBehalfOf: asks.OnBehalfOf, Reason: asks.Reason}, w.Header()
		if q.by.Actor, err = actorOf(w, asks.OnBehalfOf); err != nil {
			return err
		}
		if q.by.RequestID, err = requestIDOf(q.Request, asks.RequestID); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(q.Context(), readLimit)
		defer cancel()
		out, err := change(ctx, q)
		if err != nil {
			return err
		}
		return answerJSON(w, out)
	})
}

// readBody reads the body of a request as strictly as the caller prefers. An empty body is read as {}.
func readBody[B any](w http.ResponseWriter, r *http.Request, check func(*decoder, *B)) (*sent[B], error) {
	text := newBuffer()
	defer text.free()
	if err := text.read(w, r); err != nil {
		return nil, err
	}
	return decodeBody(r, text.Bytes(), check)
}

func decodeBody[B any](r *http.Request, text []byte, check func(*decoder, *B)) (*sent[B], error) {
	if len(text) == 0 {
		text = []byte("{}")
	}
	q := &sent[B]{Request: r}
	var err error
	q.ignored, err = decodeFields(text, &q.body, check)
	return q, preferenceOf(r.Header["Prefer"], 0).judge(q.ignored, err)
}

// decodeFields reads the fields of a body, and returns the unknown names. check may be nil.
func decodeFields[B any](text []byte, body *B, check func(*decoder, *B)) (ignored []string, err error) {
	into, known := reflect.ValueOf(body).Elem(), fieldsOf(reflect.TypeFor[B]())
	return decode(text, known.names, func(d *decoder, name string) {
		d.given = append(d.given, name)
		field := known.named[name]
		switch v, pointer := into.FieldByIndex(field.index), field.pointer; name {
		case "orderId", "item":
			v.SetString(d.name(pointer))
		case "requestId", "onBehalfOf", "customerId", "concurrencyKey": // names, like an id
			v.SetString(d.visibleText(pointer))
		default:
			d.value(pointer, field.schema, v)
		}
	}, func(d *decoder) {
		for _, name := range known.required {
			d.require(d.has(name), "/"+name)
		}
		if check != nil {
			check(d, body)
		}
	})
}

// fields are the fields of a struct that documents an object, by their JSON names.
type fields struct {
	named    map[string]field
	names    []string
	required []string
}

type field struct {
	index   []int
	pointer string // in the object
	schema  *huma.Schema
}

// reader is a type that reads itself.
type reader interface {
	read(d *decoder, pointer string)
}

// fieldsByType caches fieldsOf.
var fieldsByType sync.Map

// fieldsOf derives from the schemas that huma makes for the document how the fields of a struct are read.
func fieldsOf(t reflect.Type) *fields {
	if known, ok := fieldsByType.Load(t); ok {
		f, _ := known.(*fields)
		return f
	}
	registry := huma.NewMapRegistry("#/components/schemas/", huma.DefaultSchemaNamer)
	resolved := func(s *huma.Schema) *huma.Schema {
		if s != nil && s.Ref != "" {
			return registry.SchemaFromRef(s.Ref)
		}
		return s
	}
	object := resolved(registry.Schema(t, true, ""))
	f := &fields{named: map[string]field{}, required: object.Required}
	for _, at := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(at.Tag.Get("json"), ",")
		if schema := resolved(object.Properties[name]); schema != nil {
			schema.Items = resolved(schema.Items)
			f.named[name] = field{at.Index, "/" + name, schema}
			f.names = append(f.names, name)
		}
	}
	fieldsByType.Store(t, f)
	return f
}

// value reads a value by its schema. It knows the schemas of the types in this package.
func (d *decoder) value(pointer string, s *huma.Schema, v reflect.Value) {
	if v.Kind() == reflect.Pointer {
		v.Set(reflect.New(v.Type().Elem()))
		v = v.Elem()
	}
	if own, ok := v.Addr().Interface().(reader); ok {
		own.read(d, pointer)
		return
	}
	switch {
	case len(s.Enum) > 0:
		v.SetString(d.word(pointer, s.Enum))
	case s.Format == "date-time":
		v.Set(reflect.ValueOf(d.time(pointer)))
	case s.Type == huma.TypeString && s.MinLength != nil:
		v.SetString(d.text(pointer, *s.MaxLength))
	case s.Type == huma.TypeString:
		v.SetString(d.anyText(pointer))
	case s.Type == huma.TypeBoolean:
		v.SetBool(d.boolean(pointer))
	case s.Type == huma.TypeInteger:
		v.SetInt(d.integer(pointer, int64(*s.Minimum), int64(*s.Maximum)))
	case s.Type == huma.TypeArray:
		d.list(pointer, s, v)
	case v.Kind() == reflect.Struct:
		d.object(pointer, v)
	default:
		v.SetBytes(bytes.Clone(d.skip())) // decoded by its user
	}
}

// word reads one of the known strings.
func (d *decoder) word(pointer string, known []any) string {
	raw, ok := d.stringOf(pointer)
	word := string(raw)
	if ok && !slices.Contains(known, any(word)) {
		words := strings.Fields(strings.Trim(fmt.Sprint(known), "[]"))
		d.fault(pointer, "unknown_word", mustBeOneOf+strings.Join(words, ", ")+spelling.Suggestion(word, words))
	}
	return word
}

func (d *decoder) boolean(pointer string) bool {
	text := string(d.skip())
	if text != "true" && text != "false" {
		d.fault(pointer, "wrong_type", "must be true or false")
	}
	return text == "true"
}

// anyText reads any string, or null as an empty one: the answer of a provider must not be rejected for a field that
// is not needed.
func (d *decoder) anyText(pointer string) string {
	if d.kind() == 'n' {
		d.skip()
		return ""
	}
	raw, _ := d.stringOf(pointer)
	return string(raw)
}

func (d *decoder) list(pointer string, s *huma.Schema, v reflect.Value) {
	if d.kind() != '[' {
		d.fault(pointer, "wrong_type", "must be an array")
		d.skip()
		return
	}
	n := 0
	for d.next(); d.more(']'); n++ {
		entry := reflect.New(v.Type().Elem()).Elem()
		d.value(pointer+"/"+strconv.Itoa(n), s.Items, entry)
		v.Set(reflect.Append(v, entry))
	}
	d.next()
	if n < *s.MinItems || n > *s.MaxItems {
		d.fault(pointer, "out_of_range", fmt.Sprintf("must have from %d to %d entries, not %d", *s.MinItems, *s.MaxItems, n))
	}
}

// object reads an object within the body. Unknown names in it are faults.
func (d *decoder) object(pointer string, v reflect.Value) {
	if d.kind() != '{' {
		d.fault(pointer, "wrong_type", "must be a JSON object")
		d.skip()
		return
	}
	known := fieldsOf(v.Type())
	given := make([]string, 0, 4)
	d.members(func(raw []byte) {
		name := string(raw)
		given = append(given, name)
		if field, ok := known.named[name]; ok {
			d.value(pointer+field.pointer, field.schema, v.FieldByIndex(field.index))
			return
		}
		d.fault(pointer+"/"+pointerEscape.Replace(name), unknownField, "is not a known field")
		d.skip()
	})
	for _, name := range known.required {
		d.require(slices.Contains(given, name), pointer+"/"+name)
	}
}
