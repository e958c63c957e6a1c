package endpoint

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"pawl/internal/provider"
)

// maxAnswer is how many bytes of an answer's body are read.
const maxAnswer = 64 << 10

// answer is what came of a request.
type answer struct {
	provider.Exchange
	body    []byte
	tooLong bool
	unended bool // nothing but the end of the connection ends the body
}

// read takes in a response, and frees its connection.
func (a *answer) read(response *http.Response) error {
	defer response.Body.Close()
	a.Status, a.Header = response.StatusCode, response.Header
	if a.Status < http.StatusOK { // the rest of a connection that was switched to something else
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

// reply is the JSON object in the body of an answer; what is not for the operation at
// hand is ignored, and so are members that are not named here.
type reply struct {
	Outcome   verdict         `json:"outcome"`
	State     verdict         `json:"state"`
	Code      word            `json:"code"`
	Detail    word            `json:"detail"`
	Reference string          `json:"reference"`
	Data      json.RawMessage `json:"data"`
	Action    json.RawMessage `json:"action"`
}

// verdict is a string on which money depends. A value that is no string, or is given twice with different
// contents, is invalid.
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

// word is a string that may be something else in an error that is not made for us, such
// as a numeric code: then it is empty.
type word string

// UnmarshalJSON implements json.Unmarshaler; it never fails.
func (w *word) UnmarshalJSON(text []byte) error {
	var s string
	if json.Unmarshal(text, &s) == nil {
		*w = word(s)
	}
	return nil
}

// reply reads the body, which may be empty. What could be read of it is returned with the
// error too: a refusal with a strange reference is still a refusal.
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
