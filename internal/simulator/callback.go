package simulator

import (
	"bytes"
	"fmt"
	"io"
	"maps"
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

// newClient returns the client for callbacks. It uses no proxy, because callers choose the addresses, and a proxy could
// reach forbidden ones.
func newClient(publicOnly bool) *http.Client {
	return &http.Client{
		Timeout: callbackTimeout,
		Transport: &http.Transport{DialContext: egress.Dialer(!publicOnly).DialContext, TLSHandshakeTimeout: callbackTimeout,
			MaxIdleConnsPerHost: 16, IdleConnTimeout: 90 * time.Second},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// message is a callback or an event. Without a URL it is not sent.
type message struct {
	url, id string
	body    []byte
	sign    func(header http.Header, at time.Time)
}

// told is the callback about a do, signed as in Standard Webhooks if there is a secret. Its ID is the key of the do, so
// that it can't be replayed for another one.
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

// call sends a message some times. Each time, it retries a few times if there is no answer, or a 5xx.
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
				s.cfg.Log.Warn("callback was not accepted", "id", told.id, "attempts", attempt, "error", err)
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

// promise returns the promise to answer a request later.
func (q *request) promise() *promise {
	p := &promise{URL: q.body.CallbackURL, From: time.Now().UTC(), Delay: q.rule.Delay, Times: 1, Code: q.rule.Code}
	if q.rule.Fault == CallbackTwice {
		p.Times = 2
	}
	return p
}

// telling sends a message after the answer, or as the fault requires.
func (s *Simulator) telling(q *request, told message, a reply) reply {
	times, delay := 1, time.Duration(0)
	switch q.rule.Fault {
	case AnswerTwice:
		if q.stripe {
			times = 2 // the answer of Stripe's API is no event
		}
	case CallbackLate:
		delay = q.rule.Delay
	case CallbackNever:
		times = 0
	case CallbackBefore:
		a.before = func() { s.call(told, 1) }
		return a
	default:
	}
	a.then = func() {
		if s.pause(delay) {
			s.call(told, times)
		}
	}
	return a
}

// fulfil keeps a promise when it is due. keep, under mu, decides if it is still open, and returns what to send.
func (s *Simulator) fulfil(p *promise, keep func() message) {
	if s.journal.sync() != nil || !s.pause(time.Until(p.From.Add(p.Delay))) {
		return
	}
	s.mu.Lock()
	told := keep()
	s.mu.Unlock()
	if s.journal.sync() == nil {
		s.call(told, p.Times)
	}
}

// keeping decides a pending key, unless it was undone.
func (s *Simulator) keeping(e *entry) func() message {
	return func() message {
		if e.State == Pending {
			now := *e
			if e.Promise.Code != "" {
				now.refuse(e.Promise.Code, byPlan)
			} else {
				now.State, now.Effects = Live, e.Effects+1
			}
			s.record(record{Entries: []*entry{&now}})
		}
		return s.told(e.Promise.URL, e)
	}
}

// resume keeps the promises from before the start.
func (s *Simulator) resume() {
	for _, e := range s.state.entries {
		if e.State == Pending && e.Promise != nil {
			promise := e.Promise
			s.start(func() { s.fulfil(promise, s.keeping(e)) })
		}
	}
	for _, i := range maps.Clone(s.state.intents) { // keeping a promise changes it
		if i.Promise != nil {
			promise := i.Promise
			s.start(func() { s.fulfil(promise, s.keepingIntent(i.ID)) })
		}
	}
}
