package simulator

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
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

// promise is a promise to answer a request later.
func (q *request) promise() *promise {
	p := &promise{URL: q.body.CallbackURL, From: time.Now().UTC(), Delay: q.rule.Delay, Times: 1, Code: q.rule.Code}
	if q.rule.Fault == CallbackTwice {
		p.Times = 2
	}
	return p
}

// promised takes a do on and leaves the decision to a job; mu is held.
func (s *Simulator) promised(q *request, e *entry) reply {
	ev := q.event(eventPending)
	ev.Reference, ev.Promise = s.state.name(prefixes[q.step][0]), q.promise()
	s.record(ev)
	a := e.answer()
	a.then = func() { s.fulfil(ev.Promise, s.keeping(e)) }
	return a
}

// calling is the answer of a decided do, which callbacks may replace.
func (s *Simulator) calling(q *request, e *entry) reply {
	a := e.answer()
	if !slices.Contains(byCallback, q.rule.Fault) {
		return a
	}
	promised, told := e.promised(), s.told(q.body.CallbackURL, e)
	tell := func() { s.call(told, 1) }
	switch q.rule.Fault {
	case AnswerTwice:
		a.then = tell
		return a
	case CallbackBefore:
		promised.before = tell
	case CallbackLate:
		promised.then = func() {
			if s.pause(q.rule.Delay) {
				tell()
			}
		}
	default: // callback_never
	}
	return promised
}

// fulfil keeps a promise when its time has come: keep, under mu, decides unless something
// else has, and says what there is to tell.
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

// keeping decides a pending key, unless an undo was there first.
func (s *Simulator) keeping(e *entry) func() message {
	return func() message {
		if e.State == Pending {
			ev := event{Event: eventDone, Key: e.Key, Body: e.body}
			if e.promise.Code != "" {
				ev.Event, ev.Code, ev.Detail = eventRefused, e.promise.Code, "declined by the fault plan"
			}
			s.record(ev)
		}
		return s.told(e.promise.URL, e)
	}
}

// resume goes on with what was promised before the start.
func (s *Simulator) resume() {
	for _, e := range s.state.entries {
		if e.State == Pending && e.promise != nil {
			s.start(func() { s.fulfil(e.promise, s.keeping(e)) })
		}
	}
	for _, i := range maps.Clone(s.state.intents) { // keeping a promise changes it
		if i.Promise != nil {
			s.start(func() { s.fulfil(i.Promise, s.keepingIntent(i.ID)) })
		}
	}
}
