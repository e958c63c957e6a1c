package httpapi

import (
	"context"
	"net/http"
	"reflect"

	"github.com/danielgtaylor/huma/v2"

	"pawl/internal/webhooks"
)

// Keyed documents what most requests with a body say beside it. It is exported because huma passes over embedded types that
// are not.
type Keyed[B any] struct {
	IdempotencyKey string `header:"Idempotency-Key" doc:"Another way to give the requestId; in quotes or without."`
	Prefer         string `header:"Prefer" doc:"handling=strict refuses fields that are not known (RFC 7240)."`
	Body           B
}

// form is how a body is read.
type form struct {
	schema   *huma.Schema
	check    func(*decoder, fields) // looks at what the schema does not say; nil: there is nothing
	optional bool                   // no body at all is an empty one
}

// formOf is the form of the bodies that I documents: of a pointer, where they may be left out.
func formOf[I any](check func(*decoder, fields)) form {
	body, _ := reflect.TypeFor[I]().FieldByName("Body")
	return form{schemaOf(body.Type), check, body.Type.Kind() == reflect.Pointer}
}

// read reads the body of a request, as strictly as the caller prefers.
func (f form) read(w http.ResponseWriter, r *http.Request) (fields, error) {
	text := newBuffer()
	defer text.free()
	if err := text.read(w, r); err != nil {
		return nil, err
	}
	return f.fields(text.Bytes(), r.Header)
}

func (f form) fields(text []byte, header http.Header) (fields, error) {
	if len(text) == 0 && f.optional {
		text = []byte("{}")
	}
	got, err := readFields(text, f.schema, f.check)
	return got, preferenceOf(header["Prefer"], 0).judge(got.ignored(), err)
}

// formHandler answers a request whose body was read.
type formHandler func(w http.ResponseWriter, r *http.Request, body fields) error

// then is a handler that reads the body for another one.
func (f form) then(h formHandler) handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		body, err := f.read(w, r)
		if err != nil {
			return err
		}
		return h(w, r, body)
	}
}

// postForm is post for an operation whose body is read by the type that documents it.
func postForm[I, O any](s *server, op huma.Operation, check func(*decoder, fields), h formHandler) {
	post[I, O](s, op, formOf[I](check).then(h))
}

// asked is a request for a change: its body, and who asks for what.
type asked struct {
	*http.Request
	fields
	by     webhooks.By
	answer http.Header
}

// postChange is postForm for a change by whoever asks. It answers with what change returns, and what change says in
// headers.
func postChange[I, O any](s *server, op huma.Operation, check func(*decoder, fields), change func(context.Context, *asked) (any, error)) {
	postForm[I, O](s, op, check, func(w http.ResponseWriter, r *http.Request, got fields) (err error) {
		q := &asked{Request: r, fields: got, by: webhooks.By{OnBehalfOf: got.text("onBehalfOf"), Reason: got.text("reason")}, answer: w.Header()}
		if q.by.Actor, err = actorOf(w, q.by.OnBehalfOf); err != nil {
			return err
		}
		if q.by.RequestID, err = requestIDOf(r, got.text("requestId")); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(r.Context(), readLimit)
		defer cancel()
		out, err := change(ctx, q)
		if err != nil {
			return err
		}
		return answerJSON(w, out)
	})
}
