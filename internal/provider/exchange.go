package provider

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/http/httptrace"
	"runtime/debug"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"pawl/internal/egress"
)

const (
	handshakeTimeout = 10 * time.Second
	maxHeader        = 64 << 10 // bytes of an answer's header
)

// NewTransport returns a transport for this many calls at a time (0: 256). It talks to the host of a URL
// alone: it uses no proxy of the environment and follows no redirect. Only with private it talks to private addresses.
func NewTransport(inFlight int, private bool) *http.Transport {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true) // one connection per call: its end says whose answer was lost
	return &http.Transport{
		DialContext:            egress.Dialer(private).DialContext,
		TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout:    handshakeTimeout,
		MaxIdleConnsPerHost:    cmp.Or(inFlight, 256),
		IdleConnTimeout:        90 * time.Second,
		MaxResponseHeaderBytes: maxHeader,
		DisableCompression:     true, // the limit of an answer counts what comes over the wire
		Protocols:              protocols,
	}
}

// UserAgent is `pawl/` and the version of this program.
var UserAgent = func() string {
	version := "devel"
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		version = strings.Trim(info.Main.Version, "()")
	}
	return "pawl/" + version
}()

// Exchange is what came of one HTTP request: an answer, or the error that stood in its place.
type Exchange struct {
	Status   int         // of the answer; 0: there is none
	Header   http.Header // of the answer
	Err      error       // there is no answer, or not all of it
	Ended    error       // how the call had ended, if it had when Err came
	Sent     int         // on how many connections the request may have been written
	Received time.Time   // when the answer was there, by the clock of the call
	Withheld Withheld    // what must not get into a text
}

// Perform makes the request of a call. send sends it under the context it gets, reads the answer, and sets Status and
// Header. The secrets, which may be empty, and what else the call withholds are withheld from now on.
func (x *Exchange) Perform(ctx context.Context, c *Call, secrets []string, send func(context.Context) error) {
	if c.secrets != nil {
		*c.secrets = append(*c.secrets, secrets...)
	}
	x.Withheld = c.Withheld(secrets...)
	var sent atomic.Int32
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		// Called before the first byte, for every connection the request is put on, also for
		// one that turns out to be closed: later there is no telling what it carried.
		GotConn: func(httptrace.GotConnInfo) { sent.Add(1) },
	})
	if x.Err = send(ctx); x.Err != nil {
		x.Ended = ctx.Err()
	}
	x.Sent, x.Received = int(sent.Load()), c.Now()
}

// Lost is the result of a request without a whole answer: Retry if it was put on no connection, because only then it has
// certainly done nothing, else Unknown.
func (x *Exchange) Lost() Result {
	switch {
	case x.Sent == 0:
		return x.unconnected()
	case errors.Is(x.Ended, context.DeadlineExceeded):
		return Unknown{Code: "timeout", Detail: "no answer in time"}
	case x.Ended != nil:
		return Unknown{Code: "canceled", Detail: "canceled before the answer"}
	}
	detail := "the connection ended without a whole HTTP answer" // not what net/http quotes of an answer that it can't read
	if network, ok := errors.AsType[*net.OpError](x.Err); ok {
		detail = network.Error()
	}
	return Unknown{Code: "connection_lost", Detail: x.Text(detail), After: x.RetryAfter()}
}

// Reason is why there is no whole answer, in words.
func (x *Exchange) Reason() string {
	switch r := x.Lost().(type) {
	case Unknown:
		return r.Detail
	case Retry:
		return r.Detail
	}
	return ""
}

// unconnected counts when the other side answered but can't be trusted: that does not go away like an outage.
func (x *Exchange) unconnected() Result {
	var dial *net.OpError
	var lookUp *net.DNSError
	switch {
	case errors.Is(x.Err, egress.ErrRefused): // it counts: neither the address nor the setting goes away like an outage
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

// lookUpFailed says why a name was not found, without the addresses of name servers, which its own text has.
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

// Text is the function Text for this answer, which may repeat what is withheld.
func (x *Exchange) Text(words string) string { return x.Withheld.Text(words) }

// maxRetryAfter bounds what an answer may ask for, so that it fits a duration.
const maxRetryAfter = 365 * 24 * time.Hour

// RetryAfter is how long the answer asks to wait (RFC 9110, section 10.2.3), up to a year: seconds, or a date, read by the
// clock of the one who wrote it, else by the clock of the call. 0: nothing that can be read.
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
