// Package client is the Go client of Pawl's API. A call is sent until there is an answer, under one idempotency key, so
// that nothing is done twice. Beyond the operations of the API it waits for the ends of orders, goes through lists and
// events, and checks the signatures of webhooks.
//
// The operations and their types are generated from the description of the API (generated.go). Amounts are decimals in
// strings. What is optional is the zero value where it is absent.
package client

//go:generate go tool -modfile=../test/tools/go.mod oapi-codegen -config codegen.yaml ../httpapi/openapi.yaml

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/google/uuid"
)

// Options of a client. The zero value is good for a service that is open.
type Options struct {
	// Token is sent with every request: one of `pawl token create`, or of the OpenID Connect issuer.
	Token string
	// HTTPClient sends the requests; its Transport may be any. Nil: one of the client's own, which follows no redirects.
	HTTPClient *http.Client
	// Timeout is for one attempt, with its answer. 0: 90 s, which is longer than the service lets a caller wait.
	Timeout time.Duration
	// RetryFor is how long a call is tried again, from its beginning on. 0: a minute. Below 0: it is tried once.
	RetryFor time.Duration
}

const (
	defaultTimeout  = 90 * time.Second
	defaultRetryFor = time.Minute
	forever         = 1 << 62 * time.Nanosecond
)

// Client calls one service. It may be used by many goroutines at a time.
type Client struct {
	base              string
	token             string
	http              *http.Client
	timeout, retryFor time.Duration
}

// New returns a client of the service at an http or https address, which may have a path. It sends nothing yet.
func New(address string, options Options) (*Client, error) {
	base, err := url.Parse(address)
	switch {
	case err != nil:
		return nil, fmt.Errorf("address of the service: %w", err)
	case base.Scheme != "http" && base.Scheme != "https" || base.Host == "":
		return nil, fmt.Errorf("address of the service %q: must begin with http:// or https:// and a host", address)
	case base.RawQuery != "" || base.Fragment != "" || base.User != nil:
		return nil, errors.New("address of the service: must have no user, query or fragment")
	}
	c := &Client{base: strings.TrimSuffix(base.String(), "/"), token: options.Token, http: options.HTTPClient, timeout: options.Timeout,
		retryFor: cmp.Or(options.RetryFor, defaultRetryFor)}
	if c.http == nil {
		c.http = newHTTPClient()
	}
	if c.timeout <= 0 {
		c.timeout = defaultTimeout
	}
	return c, nil
}

func newHTTPClient() *http.Client {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = transport.MaxIdleConns // all of them are for one service
	return &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// NewID returns a UUID of version 7: a name for an order or a request that nobody else uses, and that sorts by time.
func NewID() string { return uuid.Must(uuid.NewV7()).String() }
