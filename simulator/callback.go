package simulator

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"
)

// callback is how an answer is told later.
type callback struct {
	Outcome   string          `json:"outcome"` // done or refused
	Reference string          `json:"reference,omitempty"`
	Data      json.RawMessage `json:"data,omitempty"`
	Code      string          `json:"code,omitempty"`
	Detail    string          `json:"detail,omitempty"`

	id string // webhook-id: the same whenever the same is told
}

func (e *entry) callback() callback {
	told := callback{id: "msg_" + e.Key}
	switch e.State {
	case Live:
		told.Outcome, told.Reference, told.Data = "done", e.Reference, e.data()
	case Refused:
		told.Outcome, told.Code, told.Detail = "refused", e.Code, e.Detail
	default:
		told.Outcome, told.Code, told.Detail = "refused", "voided", "the key was undone"
	}
	return told
}

const (
	callbackAttempts = 5
	callbackBackoff  = 100 * time.Millisecond // doubled after each attempt
	callbackTimeout  = 10 * time.Second
)

func newClient() *http.Client {
	return &http.Client{
		Timeout:       callbackTimeout,
		Transport:     http.DefaultTransport.(*http.Transport).Clone(),
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// message is something to be told to an address.
type message struct {
	url, id string
	body    []byte
	sign    func(header http.Header, at time.Time)
}

// told is a callback as it is sent, signed by Standard Webhooks if there is a secret.
func (s *Simulator) told(url string, told callback) message {
	body, err := json.Marshal(told)
	if err != nil {
		panic(err) // our own type
	}
	return message{url, told.id, body, func(header http.Header, at time.Time) {
		timestamp := strconv.FormatInt(at.Unix(), 10)
		header.Set("webhook-id", told.id)
		header.Set("webhook-timestamp", timestamp)
		if s.secret != nil {
			header.Set("webhook-signature", s.secret.sign(told.id, timestamp, body))
		}
	}}
}

// call tells a message, as often as asked. Who can't be reached, or answers 5xx, is
// called again some times.
func (s *Simulator) call(told message, times int) {
	for range times {
		backoff := callbackBackoff
		for attempt := 1; ; attempt++ {
			err := s.callOnce(told)
			if err == nil {
				break
			}
			if attempt == callbackAttempts || !s.pause(backoff) {
				s.log.Warn("callback was not taken", "id", told.id, "attempts", attempt, "error", err)
				return
			}
			backoff *= 2
		}
	}
}

func (s *Simulator) callOnce(told message) error {
	ctx, cancel := context.WithTimeout(s.closing, callbackTimeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, told.url, bytes.NewReader(told.body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	told.sign(r.Header, time.Now())
	response, err := s.client.Do(r)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	_, _ = io.CopyN(io.Discard, response.Body, maxBody)
	if response.StatusCode >= http.StatusInternalServerError {
		return fmt.Errorf("answered %s", response.Status)
	}
	return nil
}
