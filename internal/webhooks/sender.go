package webhooks

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync/atomic"
	"time"

	"pawl/db"
	"pawl/internal/provider"
	"pawl/internal/signing"
)

const (
	attemptLimit = 15 * time.Second // from the dial to the last byte of the answer
	maxAnswer    = 1 << 10          // bytes of an answer that are stored
	maxRead      = 2 * maxAnswer    // bytes of an answer that are read
)

// Attempt is the result of one request to an endpoint.
type Attempt struct {
	Entry
	RetryAfter time.Duration // 0: not specified
}

// Delivered reports whether the receiver answered with 2xx.
func (a *Attempt) Delivered() bool { return a.Status >= 200 && a.Status < 300 }

// mostAtOnce is the maximum number of concurrent requests of a replica, to one endpoint or to all.
const (
	mostAtOnce  = 64
	mostOverall = 1024
)

// sender sends messages to endpoints. Its methods are safe for concurrent use.
type sender struct{ *http.Transport }

// newSender returns a sender. It connects to private addresses only if private is set, and follows no redirects.
func newSender(private bool) *sender {
	return &sender{provider.NewTransport(mostAtOnce, private)}
}

// send sends a message to an endpoint, signed with its current secrets. The stored part of the answer is masked, so
// that it contains none of them.
func (s *sender) send(ctx context.Context, e *db.WebhookEndpoint, m signing.Message, now time.Time) Attempt {
	began := time.Now()
	a := Attempt{Entry: Entry{At: now}}
	if err := s.exchange(ctx, e, m, &a); err != nil {
		a.Error = err.Error()
	}
	a.LatencyMs = time.Since(began).Milliseconds()
	a.mask(secretsOf(e, now))
	return a
}

// exchange sends the request and reads the answer into a.
func (s *sender) exchange(ctx context.Context, e *db.WebhookEndpoint, m signing.Message, a *Attempt) error {
	ctx, cancel := context.WithTimeout(ctx, attemptLimit)
	defer cancel()
	var sent atomic.Int32
	request, err := http.NewRequestWithContext(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { sent.Add(1) },
	}), http.MethodPost, e.Url, bytes.NewReader(m.Body))
	if err != nil {
		return errors.New("the URL can't be used") // the cause would repeat it
	}
	secrets := secretsOf(e, a.At)
	keys := make([][]byte, len(secrets))
	for i, secret := range secrets {
		if keys[i], err = signing.Key(secret); err != nil {
			return err
		}
	}
	request.Header["Content-Type"] = []string{"application/json"}
	request.Header["User-Agent"] = []string{provider.UserAgent}
	signing.Sign(request.Header, m, a.At, keys...)
	response, err := s.RoundTrip(request)
	if err != nil {
		x := provider.Exchange{Err: err, Ended: ctx.Err(), Sent: int(sent.Load())}
		return errors.New(x.Reason())
	}
	a.read(response)
	return nil
}

// read reads the beginning of an answer. If there is more, the connection is closed.
func (a *Attempt) read(response *http.Response) {
	defer response.Body.Close()
	a.Status = response.StatusCode
	x := provider.Exchange{Header: response.Header, Received: a.At}
	a.RetryAfter = x.RetryAfter()
	text, _ := io.ReadAll(io.LimitReader(response.Body, maxRead)) // only the status matters
	a.Answer = string(text)
}

// mask makes an answer safe to store and show: printable, short, and without secrets.
func (a *Attempt) mask(secrets []string) {
	var keys []string
	for _, secret := range secrets {
		keys = append(keys, strings.TrimPrefix(secret, signing.Prefix))
	}
	hidden := provider.NewSecrets(keys...)
	cut := len(a.Answer) >= maxRead
	if a.Answer = hidden.Mask(a.Answer); cut && len(hidden) > 0 { // it may end within a secret; the longest one comes first
		a.Answer = a.Answer[:max(0, len(a.Answer)-len(hidden[0]))]
	}
	a.Answer = clip(strings.TrimSpace(provider.Printable(a.Answer)), maxAnswer)
	a.Error = clip(hidden.Mask(provider.Printable(a.Error)), maxAnswer)
}

// clip truncates a text to a number of bytes, between two characters.
func clip(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "")
}
