package simulator

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"time"

	"pawl/internal/egress"
	"pawl/internal/signing"
)

const (
	callbackAttempts = 5
	callbackBackoff  = 100 * time.Millisecond // doubled after each attempt
	callbackTimeout  = 10 * time.Second
)

// newClient returns the client of callbacks. Requests name where they go: so they use no proxy, which would call an address
// that we may not.
func newClient(publicOnly bool) *http.Client {
	return &http.Client{
		Timeout: callbackTimeout,
		Transport: &http.Transport{DialContext: egress.Dialer(!publicOnly).DialContext, TLSHandshakeTimeout: callbackTimeout,
			MaxIdleConnsPerHost: 16, IdleConnTimeout: 90 * time.Second},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// message is something to be told to an address; without one, nobody is told.
type message struct {
	url, id string
	body    []byte
	sign    func(header http.Header, at time.Time)
}

// told is the answer to a do as it is told by callback, signed by Standard Webhooks if there is a secret. Its id is the key
// that it is about: so nobody can send it for another one.
func (s *Simulator) told(url string, e *entry) message {
	id, body := e.Key, encode(e.says())
	return message{url, id, body, func(header http.Header, at time.Time) {
		if s.key == nil {
			header["Webhook-Id"] = []string{id}
			return
		}
		signing.Sign(header, signing.Message{ID: id, Body: body}, at, s.key)
	}}
}

// call tells a message, as often as asked. Who can't be reached, or answers 5xx, is
// called again some times.
func (s *Simulator) call(told message, times int) {
	if told.url == "" {
		return
	}
	for range times {
		backoff := callbackBackoff
		for attempt := 1; ; attempt++ {
			err := s.callOnce(told)
			if err == nil {
				break
			}
			if attempt == callbackAttempts || !s.pause(backoff) {
				s.cfg.Log.Warn("callback was not taken", "id", told.id, "attempts", attempt, "error", err)
				return
			}
			backoff *= 2
		}
	}
}

func (s *Simulator) callOnce(told message) error {
	r, err := http.NewRequestWithContext(s.closing, http.MethodPost, told.url, bytes.NewReader(told.body))
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
