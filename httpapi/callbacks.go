package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"

	"github.com/danielgtaylor/huma/v2"

	"pawl/engine"
)

var callbackOperation = failing(huma.Operation{
	OperationID: "answerStep", Method: http.MethodPost, Path: "/api/callbacks/{token}", Tags: []string{"providers"},
	Summary: "Answer a step that was called for",
	Description: "For providers that answered a call with 202: the callbackUrl of the call is such a path. The token is the only credential. " +
		"An answer may come before that 202 was recorded, late, and more than once. The first one counts: another one than that is answered with accepted: false. " +
		"An effect that is reported too late for the order is undone. An unknown token stores nothing.",
}, "cross_origin", "malformed_json", "request_timeout", "body_too_large", "unsupported_media_type", "invalid_input",
	"not_found", "stopping", "unavailable", "internal")

// callbackRequest documents what callback reads.
type callbackRequest struct {
	Token string `path:"token" doc:"The last segment of the callbackUrl."`
	Body  callbackBody
}

type callbackBody struct {
	_         struct{} `additionalProperties:"true"`
	Outcome   string   `json:"outcome" enum:"done,refused,not_done" doc:"done: the effect is there. refused: it is not, and never will be under this key. not_done: nothing was done, and the step may be called for again."`
	Reference string   `json:"reference,omitempty" maxLength:"255" doc:"Your name for the effect, kept on the order."`
	Code      string   `json:"code,omitempty" doc:"Why it was refused or not done, for programs."`
	Detail    string   `json:"detail,omitempty" doc:"The same for people. Cut after 200 characters, like code."`
	Data      object   `json:"data,omitempty" doc:"What to keep with the effect: an object of up to 16 KiB."`
}

type callbackAnswer struct {
	Body receipt
}

// receipt says what became of an answer.
type receipt struct {
	Accepted bool   `json:"accepted" doc:"It is the answer of the step."`
	Reason   string `json:"reason,omitempty" doc:"Why it is not."`
}

// callback takes no authentication but the token.
func (s *server) callback(w http.ResponseWriter, r *http.Request) error {
	told, err := readCallback(w, r)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(r.Context(), readLimit)
	defer cancel()
	got, err := s.engine.Answer(ctx, r.PathValue("token"), told)
	var unfit *engine.BadWords
	switch {
	case errors.As(err, &unfit):
		return newProblem("invalid_input", unfit.Error()+".")
	case err != nil:
		return err
	}
	return writeReceipt(w, receipt{got.Accepted, got.Reason})
}

func writeReceipt(w http.ResponseWriter, a receipt) error {
	body, err := json.Marshal(a)
	if err != nil {
		return err
	}
	w.Header()["Content-Type"] = jsonType
	w.Write(body) //nolint:errcheck // the caller has gone
	return nil
}

func readCallback(w http.ResponseWriter, r *http.Request) (told engine.Told, err error) {
	body := newBuffer()
	defer body.free()
	if err := body.read(w, r); err != nil {
		return told, err
	}
	err = decodeCallback(body.bytes, &told)
	return told, err
}

var callbackNames = []string{"outcome", "reference", "code", "detail", "data"}

func decodeCallback(data []byte, told *engine.Told) error {
	given := false
	return decode(data, callbackNames, func(d *decoder, name string) (err error) {
		switch name {
		case "outcome":
			given = true
			told.Outcome, err = d.word("/outcome", "done", "refused", "not_done")
		case "reference":
			told.Reference, err = d.words("/reference")
		case "code":
			told.Code, err = d.words("/code")
		case "detail":
			told.Detail, err = d.words("/detail")
		case "data":
			told.Data, err = d.raw()
		}
		return err
	}, func(d *decoder) { d.require(given, "/outcome") })
}

// word reads one of some strings.
func (d *decoder) word(pointer string, known ...string) (string, error) {
	raw, ok, err := d.stringOf(pointer)
	if ok && !slices.Contains(known, string(raw)) {
		d.fault(pointer, "unknown_word", "must be one of those documented")
	}
	return string(raw), err
}

// words reads any string, or null for none: a provider that answers must not be turned
// away for how it fills in what is not needed.
func (d *decoder) words(pointer string) (string, error) {
	if d.peek() == 'n' {
		return "", d.skip()
	}
	raw, _, err := d.stringOf(pointer)
	return string(raw), err
}

// raw reads any value and returns its text.
func (d *decoder) raw() ([]byte, error) {
	d.peek()
	from := d.pos
	err := d.skip()
	return slices.Clone(d.data[from:d.pos]), err
}
