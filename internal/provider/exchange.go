package provider

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"sync/atomic"
	"time"

	"pawl/internal/egress"
	"pawl/internal/version"
)

const (
	handshakeTimeout = 10 * time.Second
	maxHeader        = 64 << 10 // bytes of an answer's header
	connectionBuffer = 1 << 10  // bytes; enough for most requests and answers, and kept for each connection
)

// NewTransport returns a transport for this many concurrent calls (0: 256). It connects only to the host of a URL: it
// uses no proxy from the environment and follows no redirects. It connects to private addresses only if private is set.
func NewTransport(inFlight int, private bool) *http.Transport {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true) // one connection per call, so that its end tells which answer was lost
	return &http.Transport{
		DialContext:            egress.Dialer(private).DialContext,
		TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout:    handshakeTimeout,
		MaxIdleConnsPerHost:    cmp.Or(inFlight, 256),
		ReadBufferSize:         connectionBuffer,
		WriteBufferSize:        connectionBuffer,
		IdleConnTimeout:        90 * time.Second,
		MaxResponseHeaderBytes: maxHeader,
		DisableCompression:     true, // the limit of an answer counts what comes over the wire
		Protocols:              protocols,
	}
}

// UserAgent is `pawl/` and the version of this program.
const UserAgent = "pawl/" + version.Number

// Exchange is the outcome of one HTTP request: an answer or an error.
type Exchange struct {
	Status   int         // of the answer; 0: there is none
	Header   http.Header // of the answer
	Err      error       // there is no answer, or only a part
	Ended    error       // how the call had ended by the time of Err, if it had
	Sent     int         // on how many connections the request may have been written
	Received time.Time   // when the answer arrived, by the clock of the call
	Private  []string    // texts that no result may repeat: see Secrets
}

// Perform makes the request of a call. send must send it with the context that it gets, read the answer, and set Status
// and Header. From then on, the given secrets (which may be empty) and those of the call are masked.
func (x *Exchange) Perform(ctx context.Context, c *Call, secrets []string, send func(context.Context) error) {
	if c.secrets != nil {
		*c.secrets = append(*c.secrets, secrets...)
	}
	x.Private = c.private(secrets)
	var sent atomic.Int32
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		// Called before the first byte on every connection that is tried, even one that turns out to be closed: later
		// it is impossible to know what was sent on it.
		GotConn: func(httptrace.GotConnInfo) { sent.Add(1) },
	})
	if x.Err = send(ctx); x.Err != nil {
		x.Ended = ctx.Err()
	}
	x.Sent, x.Received = int(sent.Load()), c.Now()
}

// Lost is the result of a request without a complete answer: Retry if no connection was tried, because only then it
// certainly had no effect, and Unknown otherwise.
func (x *Exchange) Lost() Result {
	switch {
	case x.Sent == 0:
		return x.unconnected()
	case errors.Is(x.Ended, context.DeadlineExceeded):
		return Unknown{Code: "timeout", Detail: "no answer in time"}
	case x.Ended != nil:
		return Unknown{Code: "canceled", Detail: "canceled before the answer"}
	}
	detail := "the connection ended without a complete HTTP answer" // the error of net/http may quote the answer
	if network, ok := errors.AsType[*net.OpError](x.Err); ok {
		detail = network.Error()
	}
	return Unknown{Code: "connection_lost", Detail: x.Text(detail), After: x.RetryAfter()}
}

// Reason says in words why there is no complete answer.
func (x *Exchange) Reason() string {
	switch r := x.Lost().(type) {
	case Unknown:
		return r.Detail
	case Retry:
		return r.Detail
	}
	return ""
}

// unconnected counts as a retry if the server answered but can't be trusted, because that does not pass like an outage.
func (x *Exchange) unconnected() Result {
	var dial *net.OpError
	var lookUp *net.DNSError
	switch {
	case errors.Is(x.Err, egress.ErrRefused): // counts, because neither the address nor the setting changes by itself
		return Retry{Code: "address_refused", Detail: x.Text(x.Err.Error()), Counts: true}
	case errors.As(x.Err, &lookUp):
		return Retry{Code: "connection_failed", Detail: x.Text(lookUpFailed(lookUp))}
	case errors.As(x.Err, &dial) && dial.Op == "dial":
		return Retry{Code: "connection_failed", Detail: x.Text(x.Err.Error())}
	case errors.Is(x.Ended, context.DeadlineExceeded):
		return Retry{Code: "connection_failed", Detail: "no connection in time"}
	case x.Ended != nil:
		return Retry{Code: "canceled", Detail: "canceled before there was a connection"}
	}
	return Retry{Code: "tls_failed", Detail: x.Text(x.Err.Error()), Counts: true}
}

// lookUpFailed says why a name was not found. Unlike the text of the error, it omits the addresses of name servers.
func lookUpFailed(e *net.DNSError) string {
	why := "the name servers failed"
	switch {
	case e.IsNotFound:
		why = "no such host"
	case e.IsTimeout:
		why = "no answer from the name servers in time"
	}
	return "look up " + e.Name + ": " + why
}

// Secrets are what no text from this answer may repeat. Most answers are done, and have none.
func (x *Exchange) Secrets() Secrets { return NewSecrets(x.Private...) }

// Text is the function Text for parts of this answer, with secrets masked.
func (x *Exchange) Text(words string) string { return x.Secrets().Text(words) }

// maxRetryAfter bounds Retry-After, so that it fits a duration.
const maxRetryAfter = 365 * 24 * time.Hour

// RetryAfter returns the value of Retry-After (RFC 9110, section 10.2.3), up to a year. A date is compared with the Date
// header, or else with the clock of the call. 0: none, or invalid.
func (x *Exchange) RetryAfter() time.Duration {
	text := x.Header.Get("Retry-After")
	if text == "" {
		return 0
	}
	if seconds, err := strconv.ParseUint(text, 10, 32); err == nil {
		return min(time.Duration(seconds)*time.Second, maxRetryAfter)
	}
	at, err := http.ParseTime(text)
	if err != nil {
		return 0
	}
	now, err := http.ParseTime(x.Header.Get("Date"))
	if err != nil {
		now = x.Received
	}
	return min(max(at.Sub(now), 0), maxRetryAfter)
}
