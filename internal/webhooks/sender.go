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
	"unicode"

	"pawl/db"
	"pawl/internal/provider"
	"pawl/internal/signing"
)

const (
	attemptLimit = 15 * time.Second // for an answer, from the dial to its last byte
	maxAnswer    = 1 << 10          // bytes of an answer that are kept
	maxRead      = 2 * maxAnswer    // and that are read
)

// Attempt is one request to an endpoint and what came back.
type Attempt struct {
	Entry
	RetryAfter time.Duration // what the answer asked for; 0: nothing
}

// Delivered reports whether the receiver has taken the message: it answered with 2xx, and nothing else counts.
func (a *Attempt) Delivered() bool { return a.Status >= 200 && a.Status < 300 }

// mostAtOnce is how many requests to one endpoint are made at one time, and a replica makes that many to all.
const (
	mostAtOnce  = 64
	mostOverall = 1024
)

// Sender sends messages to endpoints. Its methods are safe for concurrent use.
type Sender struct{ transport *http.Transport }

// NewSender returns a sender that talks to private addresses only with private. It follows no redirect.
func NewSender(private bool) *Sender {
	return &Sender{provider.NewTransport(mostAtOnce, private)}
}

// Close closes the idle connections.
func (s *Sender) Close() { s.transport.CloseIdleConnections() }

// Send sends a message to an endpoint, signed at a time with the secrets that it has then. What is kept of the answer has no
// secret of the endpoint in it.
func (s *Sender) Send(ctx context.Context, e *db.WebhookEndpoint, m signing.Message, now time.Time) Attempt {
	began := time.Now()
	a := Attempt{Entry: Entry{At: now}}
	if err := s.exchange(ctx, e, m, &a); err != nil {
		a.Error = err.Error()
	}
	a.LatencyMs = time.Since(began).Milliseconds()
	a.mask(secretsOf(e, now))
	return a
}

// exchange makes the request and reads the answer into a.
func (s *Sender) exchange(ctx context.Context, e *db.WebhookEndpoint, m signing.Message, a *Attempt) error {
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
	response, err := s.transport.RoundTrip(request)
	if err != nil {
		x := provider.Exchange{Err: err, Ended: ctx.Err(), Sent: int(sent.Load())}
		return errors.New(x.Reason())
	}
	a.read(response)
	return nil
}

// read reads the beginning of an answer. The end of one that goes on is left, and the connection with it.
func (a *Attempt) read(response *http.Response) {
	defer response.Body.Close()
	a.Status = response.StatusCode
	x := provider.Exchange{Header: response.Header, Received: a.At}
	a.RetryAfter = x.RetryAfter()
	text, _ := io.ReadAll(io.LimitReader(response.Body, maxRead)) // the status has come: what it says beside that is no matter
	a.Answer = string(text)
}

// mask makes what came back fit to be stored and shown: printable, short, and without what it was signed with.
func (a *Attempt) mask(secrets []string) {
	var withheld []string
	for _, secret := range secrets {
		withheld = append(withheld, strings.TrimPrefix(secret, signing.Prefix))
	}
	hidden := provider.WithheldOf(withheld...)
	cut := len(a.Answer) >= maxRead
	if a.Answer = hidden.Hide(a.Answer); cut && len(hidden) > 0 { // it may end within a secret, of which the longest is the first
		a.Answer = a.Answer[:max(0, len(a.Answer)-len(hidden[0]))]
	}
	a.Answer = clip(printable(a.Answer), maxAnswer)
	a.Error = clip(hidden.Hide(printable(a.Error)), maxAnswer)
}

func printable(text string) string {
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, strings.ToValidUTF8(text, "?")))
}

// clip cuts a text at a number of bytes, between two characters.
func clip(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "")
}
