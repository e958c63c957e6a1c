package provider

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"pawl/fsm"
	"pawl/policy"
)

// endpoint is an Executor that posts to URLs of the shop's own.
type endpoint struct {
	transport *http.Transport
	signature signature
	urls      map[Operation]string // confirm has none for Undo
}

// newHTTP makes an executor of a step from its URLs. It is a Looker if and only if it has
// a LookupURL.
func newHTTP(s *policy.Step, of fsm.Step) (Executor, error) {
	e := endpoint{transport: newTransport(s.InFlight), signature: signature{s.Secret}, urls: map[Operation]string{Do: s.URL}}
	if s.UndoURL != "" || of != fsm.Confirm {
		e.urls[Undo] = s.UndoURL
	}
	for _, op := range []Operation{Do, Undo} {
		if text, ok := e.urls[op]; ok {
			if _, err := policy.ParseURL(text); err != nil {
				return nil, fmt.Errorf("%s of %s: %w", op, of, err)
			}
		}
	}
	if s.LookupURL == "" {
		return &e, nil
	}
	lookup, err := policy.ParseURL(s.LookupURL)
	if err != nil {
		return nil, fmt.Errorf("lookup of %s: %w", of, err)
	}
	return &lookEndpoint{endpoint: e, lookup: *lookup}, nil
}

// dialTimeout ends a dial that its call has given up: it goes on, to serve the next call.
const dialTimeout = 10 * time.Second

// newTransport returns a transport that talks to the host of a URL and to nobody else: no
// proxy of the environment, and nothing here follows a redirect.
func newTransport(inFlight int) *http.Transport {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true) // one connection per call: its end says whose answer was lost
	return &http.Transport{
		DialContext:            (&net.Dialer{Timeout: dialTimeout}).DialContext,
		TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout:    dialTimeout,
		MaxIdleConnsPerHost:    cmp.Or(inFlight, 256),
		IdleConnTimeout:        90 * time.Second,
		MaxResponseHeaderBytes: maxAnswer,
		DisableCompression:     true, // the limit of an answer counts what comes over the wire
		Protocols:              protocols,
	}
}

// Do posts the call.
func (e *endpoint) Do(ctx context.Context, c *Call) Result { return e.post(ctx, c, Do) }

// Undo posts the call to the undo URL, with a key of its own and that of the Do as undoKey.
func (e *endpoint) Undo(ctx context.Context, c *Call) Result { return e.post(ctx, c, Undo) }

func (e *endpoint) post(ctx context.Context, c *Call, op Operation) Result {
	target, ok := e.urls[op]
	if !ok {
		return Unknown{Code: "no_undo", Detail: "a " + string(c.Step) + " can't be undone"}
	}
	body, err := c.body(op)
	if err != nil {
		return unsent("call_unusable", err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, target, bytes.NewReader(body))
	if err != nil {
		return unsent("call_unusable", err)
	}
	key := c.Key(op)
	request.Header["Content-Type"] = []string{"application/json"}
	// net/http sends a request with this header again when the other side closes a kept
	// connection on it. The same key makes that harmless, and exchange counts it.
	request.Header["Idempotency-Key"] = []string{key}
	request.Header["Fencing-Token"] = []string{strconv.FormatInt(c.Fence, 10)}
	a, err := e.exchange(c, request, message{key, body})
	if err != nil {
		return unsent("secret_unusable", err)
	}
	return a.result(op)
}

// unsent is the result of a call that failed before anything could be sent. It counts:
// it does not go away by itself, so a person must be asked in the end.
func unsent(code string, err error) Result {
	return Retry{Code: code, Detail: cut(clean(err.Error())), Counts: true}
}

// message is what a signature covers.
type message struct {
	id   string
	body []byte
}

// userAgent is `pawl/` and the version of this program.
var userAgent = func() string {
	version := "devel"
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		version = strings.Trim(info.Main.Version, "()")
	}
	return "pawl/" + version
}()
