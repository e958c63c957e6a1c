package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"reflect"
	"strings"
	"time"
)

// request is what a method of an operation hands over: a body is nil or a struct that becomes JSON, and params is nil or points to a
// struct, itself perhaps nil, whose tags say where each field goes.
type request struct {
	method, path string
	params, body any
}

// CallOption changes one call.
type CallOption func(*exchange)

// WithResponse copies what came with the answer to a call: status and header, such as the ETag. The body was read.
func WithResponse(into *http.Response) CallOption {
	return func(e *exchange) { e.response = into }
}

// retryForever tries until the context of the call ends.
func retryForever(e *exchange) { e.retryFor = forever }

// exchange is one call with all of its attempts.
type exchange struct {
	method, url string
	header      http.Header
	body        []byte
	retryFor    time.Duration
	response    *http.Response
}

// ErrNotModified is returned where the request had If-None-Match and nothing has changed.
var ErrNotModified = errors.New("not modified")

func call[T any](ctx context.Context, c *Client, r request, options []CallOption) (*T, error) {
	out := new(T)
	if err := c.do(ctx, r, out, options); err != nil {
		return nil, err
	}
	return out, nil
}

// do sends a request until there is an answer, and reads it into out.
func (c *Client) do(ctx context.Context, r request, out any, options []CallOption) error {
	e, err := c.prepare(r)
	if err != nil {
		return fmt.Errorf("%s %s: %w", r.method, r.path, err)
	}
	for _, option := range options {
		option(e)
	}
	return e.repeat(ctx, func() error { return c.attempt(ctx, e, out) })
}

// prepare makes what is the same in all attempts. That includes the idempotency key.
func (c *Client) prepare(r request) (*exchange, error) {
	e := &exchange{method: r.method, header: http.Header{"Accept": {"application/json"}}, retryFor: c.retryFor, response: new(http.Response)}
	query := url.Values{}
	keyed := e.addParams(r.params, query)
	e.url = c.base + r.path
	if len(query) > 0 {
		e.url += "?" + query.Encode()
	}
	if c.token != "" {
		e.header.Set("Authorization", "Bearer "+c.token)
	}
	if keyed && e.header.Get(keyHeader) == "" && !named(r.body) {
		e.header.Set(keyHeader, NewID())
	}
	if r.body == nil {
		return e, nil
	}
	e.header.Set("Content-Type", "application/json")
	var err error
	e.body, err = json.Marshal(r.body)
	return e, err
}

const keyHeader = "Idempotency-Key"

// named says whether a body names the request itself, so that it needs no key.
func named(body any) bool {
	value := reflect.ValueOf(body)
	if body == nil {
		return false
	}
	for _, name := range []string{"OrderID", "RequestID"} {
		if field := value.FieldByName(name); field.IsValid() && !field.IsZero() {
			return true
		}
	}
	return false
}

// addParams adds the parameters that are given. It says whether an Idempotency-Key is among those that could be.
func (e *exchange) addParams(params any, query url.Values) (keyed bool) {
	if params == nil {
		return false
	}
	pointer := reflect.ValueOf(params)
	kind := pointer.Type().Elem()
	for i := range kind.NumField() {
		tag := kind.Field(i).Tag
		name, _, _ := strings.Cut(tag.Get("json"), ",")
		keyed = keyed || name == keyHeader
		switch {
		case pointer.IsNil() || pointer.Elem().Field(i).IsZero():
		case tag.Get("form") != "": // the generator gives parameters of the query one tag more than those of the header
			query.Set(name, paramText(pointer.Elem().Field(i)))
		default:
			e.header.Set(name, paramText(pointer.Elem().Field(i)))
		}
	}
	return keyed
}

func paramText(value reflect.Value) string {
	if at, ok := value.Interface().(time.Time); ok {
		return at.Format(time.RFC3339Nano)
	}
	if value.Kind() != reflect.Slice {
		return fmt.Sprint(value.Interface())
	}
	parts := make([]string, value.Len())
	for i := range parts {
		parts[i] = fmt.Sprint(value.Index(i).Interface())
	}
	return strings.Join(parts, ",")
}

// lostError says that there was no answer, so that nobody knows whether the request was done.
type lostError struct{ error }

func (e lostError) Unwrap() error { return e.error }

// attempt sends the request once.
func (c *Client) attempt(ctx context.Context, e *exchange, out any) error {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	sent, err := http.NewRequestWithContext(ctx, e.method, e.url, bytes.NewReader(e.body))
	if err != nil {
		return err
	}
	sent.Header = e.header.Clone()
	answer, err := c.http.Do(sent)
	if err != nil {
		return lostError{err}
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return lostError{fmt.Errorf("read answer: %w", err)}
	}
	*e.response = *answer
	return read(answer, text, out)
}

func read(answer *http.Response, text []byte, out any) error {
	switch {
	case answer.StatusCode == http.StatusNotModified:
		return ErrNotModified
	case answer.StatusCode/100 != 2:
		return problemOf(answer, text)
	case len(text) == 0:
		return nil
	}
	if err := json.Unmarshal(text, out); err != nil {
		return fmt.Errorf("decode answer %s: %w", answer.Status, err)
	}
	return nil
}
