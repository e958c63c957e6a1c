// Package client is the Go client of Pawl's API. It retries a call until there is an answer, under one idempotency key,
// so that nothing is done twice. Besides the operations of the API it waits for orders, iterates over lists and events,
// and verifies webhook signatures.
//
// The operations and their types are generated from the API description (generated.go). Amounts are decimals in
// strings. Optional values that are absent are zero.
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

// Options of a client. The zero value works with a service that is open.
type Options struct {
	// Token is sent with every request: one from `pawl token create`, or from the OpenID Connect issuer.
	Token string
	// HTTPClient sends the requests. Nil: a client that follows no redirects.
	HTTPClient *http.Client
	// Timeout is the limit for one attempt. 0: 90 s, which is longer than a request can wait for its order.
	Timeout time.Duration
	// RetryFor is how long a call is retried. 0: a minute. Negative: never.
	RetryFor time.Duration
}

const (
	defaultTimeout  = 90 * time.Second
	defaultRetryFor = time.Minute
	forever         = 1 << 62 * time.Nanosecond
)

// Client calls one service. Its methods are safe for concurrent use.
type Client struct {
	base              string
	token             string
	http              *http.Client
	timeout, retryFor time.Duration
}

// New returns a client for the service at an http or https URL, which may have a path. It sends nothing.
func New(address string, options Options) (*Client, error) {
	base, err := url.Parse(address)
	switch {
	case err != nil:
		return nil, fmt.Errorf("URL of the service: %w", err)
	case base.Scheme != "http" && base.Scheme != "https" || base.Host == "":
		return nil, fmt.Errorf("URL of the service must begin with http:// or https:// and a host, not %q", address)
	case base.RawQuery != "" || base.Fragment != "" || base.User != nil:
		return nil, errors.New("URL of the service must have no user, query or fragment")
	}
	c := &Client{
		base: strings.TrimSuffix(base.String(), "/"), token: options.Token, http: options.HTTPClient,
		timeout: options.Timeout, retryFor: cmp.Or(options.RetryFor, defaultRetryFor),
	}
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
	transport.MaxIdleConnsPerHost = transport.MaxIdleConns // all are for one service
	return &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// NewID returns a unique ID for an order or a request: a UUID of version 7, which sorts by time.
func NewID() string { return uuid.Must(uuid.NewV7()).String() }
