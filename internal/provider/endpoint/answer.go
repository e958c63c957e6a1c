package endpoint

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"pawl/internal/provider"
)

// maxAnswer is how many bytes of an answer's body are read.
const maxAnswer = 64 << 10

// answer is the outcome of a request.
type answer struct {
	provider.Exchange
	body    []byte
	tooLong bool
	unended bool // only the end of the connection ends the body
}

// read reads a response, and frees its connection.
func (a *answer) read(response *http.Response) error {
	defer response.Body.Close()
	a.Status, a.Header = response.StatusCode, response.Header
	if a.Status < http.StatusOK { // the connection was switched to another protocol
		return nil
	}
	var err error
	a.body, err = io.ReadAll(io.LimitReader(response.Body, maxAnswer+1))
	if len(a.body) > maxAnswer {
		a.body, a.tooLong, err = nil, true, nil
	}
	a.unended = response.ContentLength < 0 && len(response.TransferEncoding) == 0
	return err
}

// reply is the JSON object in the body of an answer. Other members, and those of other operations, are ignored.
type reply struct {
	Outcome   verdict         `json:"outcome"`
	State     verdict         `json:"state"`
	Code      word            `json:"code"`
	Detail    word            `json:"detail"`
	Reference string          `json:"reference"`
	Data      json.RawMessage `json:"data"`
	Action    json.RawMessage `json:"action"`
}

// verdict is a string on which money depends. A value that is not a string, or two different values, are invalid.
type verdict string

// UnmarshalJSON implements json.Unmarshaler; it never fails.
func (v *verdict) UnmarshalJSON(text []byte) error {
	var s verdict
	if json.Unmarshal(text, (*string)(&s)) != nil || *v != "" && *v != s {
		s = "?"
	}
	*v = s
	return nil
}

// word is a string, or empty if the value has another type, as a numeric code in an error of a proxy.
type word string

// UnmarshalJSON implements json.Unmarshaler; it never fails.
func (w *word) UnmarshalJSON(text []byte) error {
	var s string
	if json.Unmarshal(text, &s) == nil {
		*w = word(s)
	}
	return nil
}

// reply reads the body, which may be empty. It returns the valid parts even with an error: a refusal with an invalid
// reference is still a refusal.
func (a *answer) reply() (r reply, err error) {
	body := bytes.TrimSpace(a.body)
	switch {
	case a.tooLong:
		return r, errors.New("the answer is longer than 64 KiB")
	case len(body) == 0 && a.unended && a.Status != http.StatusNoContent:
		return r, errors.New("the answer is empty and may have been cut")
	case len(body) == 0:
		return r, nil
	case body[0] != '{' || !json.Valid(body):
		return r, errors.New("the answer is not a JSON object")
	}
	if json.Unmarshal(body, &r) != nil {
		return r, errors.New("a member of the answer has the wrong type")
	}
	if err := provider.CheckReference(r.Reference); err != nil {
		r.Reference = ""
		return r, fmt.Errorf("the %w", err)
	}
	return r, nil
}

// result interprets the answer to an operation: by the outcome that it names, or else by its status. Anything ambiguous
// is Unknown. With 409 or 422, the first request with the key may still be running; with 408 or 5xx, the money may have
// been taken.
func (a *answer) result(op provider.Operation) provider.Result {
	if a.Err != nil {
		return a.Lost()
	}
	r, unreadable := a.reply()
	switch {
	case r.Outcome == "not_done":
		return a.notDone(&r, "not_done")
	case a.Status >= 300 && a.Status < 400:
		return provider.Unknown{Code: "redirect", Detail: a.statusText() + " is not followed", After: a.RetryAfter(), Status: a.Status}
	case r.Outcome == "refused" && a.Status >= 400 && a.Status < 500:
		return a.refused(&r, "refused")
	case r.Outcome == "" && a.Status == http.StatusPaymentRequired:
		return a.refused(&r, "payment_required")
	case r.Outcome == "" && a.Status == http.StatusTooEarly:
		return a.notDone(&r, "too_early")
	case r.Outcome == "" && a.Status == http.StatusTooManyRequests:
		return a.notDone(&r, "too_many_requests")
	case a.Status < 200 || a.Status >= 300:
		return a.inDoubt(&r, "http_"+strconv.Itoa(a.Status), a.statusText())
	case unreadable != nil:
		return a.unreadable(unreadable)
	case a.Status == http.StatusAccepted:
		return a.accepted(&r, op)
	}
	return a.done(&r)
}

func (a *answer) done(r *reply) provider.Result {
	if r.Outcome != "" && r.Outcome != "done" {
		return a.contradiction(r)
	}
	data, err := provider.StorableData(r.Data)
	if err != nil {
		return a.unreadable(fmt.Errorf("data %w", err))
	}
	return provider.Done{Reference: r.Reference, Data: data}
}

// accepted is the result of a 202. An undo has no callback, so it is repeated.
func (a *answer) accepted(r *reply, op provider.Operation) provider.Result {
	if op == provider.Undo {
		return provider.Unknown{Code: "undo_pending", Detail: a.Text(string(r.Detail)), After: a.RetryAfter()}
	}
	if r.Outcome != "" && r.Outcome != "waiting" {
		return a.contradiction(r)
	}
	action, err := provider.StorableData(r.Action)
	if err != nil {
		return a.unreadable(fmt.Errorf("action %w", err))
	}
	return provider.Waiting{Reference: r.Reference, Action: action}
}

func (a *answer) refused(r *reply, code string) provider.Result {
	return provider.Refused{Code: a.code(r, code), Detail: a.Text(string(r.Detail))}
}

// notDone is the result of an answer that says that nothing was done. If the request went out on several connections,
// this answers only the last one, so the step is in doubt.
func (a *answer) notDone(r *reply, code string) provider.Result {
	if a.Sent > 1 {
		return a.inDoubt(r, code, "sent again after a lost connection")
	}
	return provider.Retry{Code: a.code(r, code), Detail: a.Text(string(r.Detail)), After: a.RetryAfter(),
		Counts: a.Status != http.StatusTooManyRequests}
}

// inDoubt is an unknown result, with the code of the reply if it has one. Its detail begins with ours.
func (a *answer) inDoubt(r *reply, code, detail string) provider.Result {
	if r.Detail != "" {
		detail += ": " + string(r.Detail)
	}
	return provider.Unknown{Code: a.code(r, code), Detail: a.Text(detail), After: a.RetryAfter(), Status: a.Status}
}

func (a *answer) contradiction(r *reply) provider.Result {
	detail := a.statusText() + " with outcome " + strconv.Quote(string(r.Outcome))
	return provider.Unknown{Code: "answer_contradictory", Detail: a.Text(detail), After: a.RetryAfter()}
}

func (a *answer) unreadable(why error) provider.Result {
	return provider.Unknown{Code: "answer_unreadable", Detail: why.Error(), After: a.RetryAfter()}
}

// code is the code of a reply, or otherwise if it has none that can be shown.
func (a *answer) code(r *reply, otherwise string) string {
	return cmp.Or(a.Secrets().Code(string(r.Code)), otherwise)
}

func (a *answer) statusText() string {
	return strings.TrimSpace("HTTP " + strconv.Itoa(a.Status) + " " + http.StatusText(a.Status))
}
