package client

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"reflect"
	"strconv"
	"strings"
	"time"
)

// request is made by the method of an operation: body is nil or a struct for JSON, and params is nil or the struct of its
// parameters, which are empty unless an option has them. Its tags say where each field goes.
type request struct {
	method, path string
	params, body any
}

// CallOption changes one call. It is WithResponse, or the parameters of the operation in the query and the headers: the
// struct with the name of the operation and Params, such as RefundOrderParams. Another operation rejects them.
type CallOption interface{ apply(e *exchange) }

type callOption func(*exchange)

func (o callOption) apply(e *exchange) { o(e) }

// WithResponse copies the status and headers of the answer, such as the ETag. The body is closed.
func WithResponse(into *http.Response) CallOption {
	return callOption(func(e *exchange) { e.response = into })
}

var retryForever callOption = func(e *exchange) { e.retryFor = forever }

// exchange is one call with all of its attempts.
type exchange struct {
	method, url string
	header      http.Header
	params      any // nil: the operation has none
	body        []byte
	retryFor    time.Duration
	response    *http.Response
	began       time.Time // since when there was no progress
	tries       int       // tries since then
}

// ErrNotModified is returned for a request with If-None-Match if nothing has changed.
var ErrNotModified = errors.New("not modified")

func call[T any](ctx context.Context, c *Client, r request, options []CallOption) (*T, error) {
	out := new(T)
	if err := c.do(ctx, r, out, options); err != nil {
		return nil, err
	}
	return out, nil
}

// do sends a request until there is an answer, and decodes it into out.
func (c *Client) do(ctx context.Context, r request, out any, options []CallOption) error {
	e, err := c.prepare(r, options)
	if err != nil {
		return fmt.Errorf("%s %s: %w", r.method, r.path, err)
	}
	return e.repeat(ctx, func() error { return c.attempt(ctx, e, out) })
}

// prepare builds the part that all attempts of a call share. If the operation takes an Idempotency-Key, and neither the
// caller nor the body identifies the request, it makes one: attempts with different keys could be done twice.
func (c *Client) prepare(r request, options []CallOption) (*exchange, error) {
	e := &exchange{
		method: r.method, header: http.Header{"Accept": {"application/json"}}, params: r.params, retryFor: c.retryFor,
		response: new(http.Response),
	}
	for _, option := range options {
		option.apply(e)
	}
	if reflect.TypeOf(e.params) != reflect.TypeOf(r.params) {
		return nil, fmt.Errorf("%T are the parameters of another operation", e.params)
	}
	query := url.Values{}
	takesKey := e.addParams(query)
	e.url = c.base + r.path
	if len(query) > 0 {
		e.url += "?" + query.Encode()
	}
	if c.token != "" {
		e.header.Set("Authorization", "Bearer "+c.token)
	}
	if body, ok := r.body.(ProcessBody); ok && body.OrderID != "" {
		e.header.Set("Pawl-Order", url.PathEscape(body.OrderID)) // for a proxy in front of cells
	}
	if takesKey && e.header.Get(keyHeader) == "" && !hasOwnID(r.body) {
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

// hasOwnID reports whether a body has an orderId or requestId, by which the service recognizes a repetition. Such a
// request needs no Idempotency-Key.
func hasOwnID(body any) bool {
	if body == nil {
		return false
	}
	value := reflect.Indirect(reflect.ValueOf(body))
	for _, name := range []string{"OrderID", "RequestID"} {
		if field := value.FieldByName(name); field.IsValid() && !field.IsZero() {
			return true
		}
	}
	return false
}

// addParams adds the given parameters, and reports whether the operation takes an Idempotency-Key.
func (e *exchange) addParams(query url.Values) (takesKey bool) {
	if e.params == nil {
		return false
	}
	params := reflect.ValueOf(e.params)
	for i := range params.NumField() {
		tag := params.Type().Field(i).Tag
		name, _, _ := strings.Cut(tag.Get("json"), ",")
		takesKey = takesKey || name == keyHeader
		switch {
		case params.Field(i).IsZero():
		case tag.Get("form") != "": // only parameters of the query have this tag
			query.Set(name, paramText(params.Field(i)))
		default:
			e.header.Set(name, paramText(params.Field(i)))
		}
	}
	return takesKey
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

// lostError says that there was no answer, so the outcome is unknown.
type lostError struct{ error }

func (e lostError) Unwrap() error { return e.error }

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
	if raw, ok := out.(*[]byte); ok {
		*raw = text
		return nil
	}
	if err := json.Unmarshal(text, out); err != nil {
		return fmt.Errorf("decode answer %s: %w", answer.Status, err)
	}
	return nil
}

// Pauses between attempts, unless the service says how long.
const (
	firstPause = 100 * time.Millisecond
	mostPause  = 5 * time.Second
)

// repeat makes attempts until one should not be retried, or the next one would be too late.
func (e *exchange) repeat(ctx context.Context, attempt func() error) error {
	e.began = time.Now()
	for e.tries = 1; ; e.tries++ {
		err := attempt()
		if err == nil || !retryable(err) || ctx.Err() != nil {
			return e.lastly(err)
		}
		pause := pauseAfter(err, e.tries)
		end, limited := ctx.Deadline()
		late := limited && time.Until(end) < pause || time.Since(e.began)+pause > e.retryFor
		if late || !sleep(ctx, pause) {
			return fmt.Errorf("%w (tried %d times in %s)", err, e.tries, time.Since(e.began).Round(time.Millisecond))
		}
	}
}

// lastly returns success if there is nothing to delete, because an earlier attempt may have deleted it.
func (e *exchange) lastly(err error) error {
	problem, ok := errors.AsType[*Problem](err)
	if ok && problem.Status == http.StatusNotFound && e.method == http.MethodDelete && e.tries > 1 {
		return nil
	}
	return err
}

// retryable reports whether the same request may succeed: the service asks for a retry, or the connection was lost.
// Because of the key, it does not matter whether the request was done.
func retryable(err error) bool {
	if problem, ok := errors.AsType[*Problem](err); ok {
		switch problem.Status {
		case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
			return true
		}
	}
	_, lost := errors.AsType[lostError](err)
	_, uncertified := errors.AsType[*tls.CertificateVerificationError](err)
	return lost && !uncertified
}

// pauseAfter is how long to wait: at least Retry-After, with jitter, so that not all callers return at once.
func pauseAfter(err error, tries int) time.Duration {
	if problem, ok := errors.AsType[*Problem](err); ok && problem.RetryAfter > 0 {
		return problem.RetryAfter + rand.N(firstPause)
	}
	pause := min(firstPause<<min(tries-1, 10), mostPause)
	return pause/2 + rand.N(pause/2)
}

// sleep waits, and reports whether ctx has not ended.
func sleep(ctx context.Context, pause time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(pause):
		return true
	}
}

// Problem is the error of a call that was answered without success. If a proxy has answered, there is no Code.
type Problem struct {
	ProblemBody
	// RequestID identifies the request in the logs of the service.
	RequestID string
	// RetryAfter is when to retry, if the answer says so.
	RetryAfter time.Duration
}

// Error has status, code and what is wrong with which field.
func (p *Problem) Error() string {
	text := strings.TrimSpace(fmt.Sprintf("%d %s", p.Status, p.Code)) + ": " + p.Title
	if p.Detail != "" {
		text += " " + p.Detail
	}
	for _, field := range p.Errors {
		text += fmt.Sprintf(" %s%s%s %s.", field.Pointer, field.Parameter, field.Header, field.Detail)
	}
	if p.RequestID != "" {
		text += " (request " + p.RequestID + ")"
	}
	return text
}

func problemOf(answer *http.Response, text []byte) *Problem {
	p := &Problem{RequestID: answer.Header.Get("X-Request-Id"), RetryAfter: retryAfter(answer.Header.Get("Retry-After"))}
	if json.Unmarshal(text, &p.ProblemBody) != nil || p.Code == "" { // a proxy's own page
		p.ProblemBody = ProblemBody{Title: http.StatusText(answer.StatusCode) + "."}
	}
	p.Status = int64(answer.StatusCode)
	return p
}

// retryAfter parses seconds or a date (RFC 9110, 10.2.3); anything else is 0.
func retryAfter(header string) time.Duration {
	if seconds, err := strconv.ParseUint(header, 10, 31); err == nil {
		return time.Duration(seconds) * time.Second
	}
	if at, err := http.ParseTime(header); err == nil {
		return max(time.Until(at), 0)
	}
	return 0
}
