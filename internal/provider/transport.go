package provider

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptrace"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/net/http/httpguts"

	"pawl/internal/egress"
)

const (
	handshakeTimeout = 10 * time.Second
	maxHeader        = 64 << 10 // bytes of an answer's header
	mostInformed     = 5        // answers such as 103 before the answer
	readBuffer       = 1 << 10  // bytes; enough for most answers, and kept for each connection
	idleLimit        = 90 * time.Second
)

// Transport sends requests over connections that it keeps, by HTTP/1.1: one connection per call, so that its end tells
// which answer was lost. The goroutine of the call writes and reads, on a stack of 4 KiB. http.Transport has two more
// goroutines for each connection. With thousands of calls under way, they took a sixth of the service's CPU time.
//
// It connects only to the host of a URL: it uses no proxy and follows no redirects. If a kept connection turns out to be
// closed before the first byte of an answer, it sends a GET, or a request with an Idempotency-Key, again. Its methods
// are safe for concurrent use.
type Transport struct {
	TLS *tls.Config // of connections to https URLs; must not be changed after the first request

	dial     func(ctx context.Context, network, address string) (net.Conn, error)
	mostIdle int // connections to a host

	mu       sync.Mutex
	idle     map[string][]*connection // by scheme and address, those used last at the end
	sweeping bool                     // a timer will close those that are idle for too long
}

// NewTransport returns a transport for this many concurrent calls to a host (0: 256). It connects to private addresses
// only if private is set.
func NewTransport(inFlight int, private bool) *Transport {
	return &Transport{
		TLS:  &tls.Config{MinVersion: tls.VersionTLS12},
		dial: egress.Dialer(private).DialContext, mostIdle: cmp.Or(inFlight, 256), idle: map[string][]*connection{},
	}
}

// connection is a connection of a transport. It belongs to one request at a time.
type connection struct {
	net.Conn
	place   string        // in Transport.idle
	tcp     net.Conn      // Conn, or below it
	reader  *bufio.Reader // of limited
	limited io.LimitedReader
	kept    bool      // it has had a request before
	since   time.Time // idle
}

// RoundTrip implements http.RoundTripper. The caller must read the body to its end, or close it.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body != nil {
		defer r.Body.Close()
	}
	for {
		c, err := t.connect(r)
		if err != nil {
			return nil, err
		}
		if trace := httptrace.ContextClientTrace(r.Context()); trace != nil && trace.GotConn != nil {
			trace.GotConn(httptrace.GotConnInfo{Conn: c.Conn, Reused: c.kept})
		}
		response, err := t.exchange(c, r)
		ended := c.kept && errors.Is(err, errNoAnswer) // closed before the request
		if !ended || !repeatable(r) || r.Context().Err() != nil {
			return response, err
		}
		if r, err = again(r); err != nil {
			return nil, err
		}
	}
}

// repeatable reports whether a request may be sent again.
func repeatable(r *http.Request) bool {
	return (r.Method == http.MethodGet || len(r.Header["Idempotency-Key"]) > 0) && (r.Body == nil || r.Body == http.NoBody || r.GetBody != nil)
}

func again(r *http.Request) (*http.Request, error) {
	next := *r
	if r.GetBody != nil {
		var err error
		if next.Body, err = r.GetBody(); err != nil {
			return nil, err
		}
	}
	return &next, nil
}

// connect returns an idle connection to the host of a request, or a new one.
func (t *Transport) connect(r *http.Request) (*connection, error) {
	port := cmp.Or(r.URL.Port(), map[string]string{"http": "80", "https": "443"}[r.URL.Scheme])
	address, err := httpguts.PunycodeHostPort(net.JoinHostPort(r.URL.Hostname(), port))
	if err != nil || port == "" || r.URL.Hostname() == "" {
		return nil, errors.New("the URL has no host that can be called")
	}
	place := r.URL.Scheme + "/" + address
	for c := t.takeIdle(place); c != nil; c = t.takeIdle(place) {
		if c.quiet() {
			return c, nil
		}
		c.Close()
	}
	tcp, err := t.dial(r.Context(), "tcp", address)
	if err != nil {
		return nil, err
	}
	c := &connection{Conn: tcp, tcp: tcp, place: place}
	if r.URL.Scheme == "https" {
		if c.Conn, err = t.secure(r.Context(), tcp, address); err != nil {
			tcp.Close()
			return nil, err
		}
	}
	c.limited.R = c.Conn
	c.reader = bufio.NewReaderSize(&c.limited, readBuffer)
	return c, nil
}

func (t *Transport) secure(ctx context.Context, tcp net.Conn, address string) (net.Conn, error) {
	config := t.TLS.Clone()
	config.ServerName, _, _ = net.SplitHostPort(address)
	secured := tls.Client(tcp, config)
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	return secured, secured.HandshakeContext(ctx)
}

// quiet reports whether an idle connection is open, and has nothing to read: that would be taken for the answer to the
// next request.
func (c *connection) quiet() bool {
	raw, err := c.tcp.(syscall.Conn).SyscallConn()
	if err != nil {
		return false
	}
	var one [1]byte
	var reading error
	err = raw.Read(func(fd uintptr) bool {
		_, reading = syscall.Read(int(fd), one[:])
		return true // don't wait
	})
	return err == nil && (errors.Is(reading, syscall.EAGAIN) || errors.Is(reading, syscall.EINTR))
}

// errNoAnswer is the error of a connection that ended before the first byte of an answer.
var errNoAnswer = errors.New("the connection ended without an answer")

var requests = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// exchange sends a request and reads the header of its answer. Then the connection belongs to the body, or is closed.
func (t *Transport) exchange(c *connection, r *http.Request) (*http.Response, error) {
	stop := context.AfterFunc(r.Context(), func() { _ = c.SetDeadline(time.Unix(1, 0)) }) // ends what is read or written
	b := requests.Get().(*bytes.Buffer)
	defer requests.Put(b)
	b.Reset()
	var response *http.Response
	var written error
	err := write(b, r)
	if err == nil {
		_, written = c.Write(b.Bytes())
		response, err = c.receive(r)
	}
	if err != nil { // an answer that came before the end of the request is one
		stop()
		c.Close()
		return nil, err
	}
	body := &answerBody{Reader: response.Body, t: t, c: c, stop: stop, last: written != nil || response.Close || response.StatusCode < http.StatusOK}
	if response.Body == http.NoBody {
		body.end(true)
	}
	response.Body = body
	return response, nil
}

// write writes a request as http.Request.Write does, which sorts the header, and takes a larger stack.
func write(b *bytes.Buffer, r *http.Request) error {
	host, err := httpguts.PunycodeHostPort(cmp.Or(r.Host, r.URL.Host))
	if err != nil || !httpguts.ValidHostHeader(host) {
		return errors.New("the URL has no valid host")
	}
	b.WriteString(r.Method)
	b.WriteByte(' ')
	b.WriteString(r.URL.RequestURI())
	b.WriteString(" HTTP/1.1\r\n")
	writeField(b, "Host", host)
	for name, values := range r.Header {
		for _, value := range values {
			if !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(value) {
				return errors.New("the field " + name + " is not valid")
			}
			writeField(b, name, value)
		}
	}
	if r.Method != http.MethodGet {
		writeField(b, "Content-Length", strconv.FormatInt(r.ContentLength, 10))
	}
	b.WriteString("\r\n")
	if r.Body == nil {
		return nil
	}
	if n, err := b.ReadFrom(r.Body); err != nil || n != r.ContentLength {
		return cmp.Or(err, errors.New("the body has another length"))
	}
	return nil
}

func writeField(b *bytes.Buffer, name, value string) {
	b.WriteString(name)
	b.WriteString(": ")
	b.WriteString(value)
	b.WriteString("\r\n")
}

// receive reads the header of an answer.
func (c *connection) receive(r *http.Request) (*http.Response, error) {
	c.limited.N = maxHeader
	if _, err := c.reader.Peek(1); err != nil {
		return nil, fmt.Errorf("%w: %w", errNoAnswer, err)
	}
	for range mostInformed + 1 {
		response, err := http.ReadResponse(c.reader, r)
		if err != nil {
			return nil, err
		}
		if response.StatusCode >= http.StatusOK || response.StatusCode == http.StatusSwitchingProtocols {
			c.limited.N = math.MaxInt64
			return response, nil
		}
	}
	return nil, errors.New("too many answers before the answer")
}

// answerBody gives the connection back at its end, or closes it.
type answerBody struct {
	io.Reader
	t    *Transport
	c    *connection // nil: given back, or closed
	stop func() bool
	last bool // answer of the connection
}

// Read implements io.Reader.
func (b *answerBody) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if err != nil {
		b.end(errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF))
	}
	return n, err
}

// Close implements io.Closer.
func (b *answerBody) Close() error {
	b.end(false)
	return nil
}

func (b *answerBody) end(whole bool) {
	c := b.c
	if c == nil {
		return
	}
	b.c = nil
	if !b.stop() || !whole || b.last || c.reader.Buffered() > 0 || !b.t.keep(c) {
		c.Close()
	}
}

func (t *Transport) takeIdle(place string) *connection {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := t.idle[place]
	if len(all) == 0 {
		return nil
	}
	c := all[len(all)-1]
	all[len(all)-1] = nil
	t.idle[place] = all[:len(all)-1]
	return c
}

// keep keeps an idle connection, and reports whether there was room for it.
func (t *Transport) keep(c *connection) bool {
	c.kept, c.since = true, time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.idle[c.place]) >= t.mostIdle {
		return false
	}
	t.idle[c.place] = append(t.idle[c.place], c)
	if !t.sweeping {
		t.sweeping = true
		time.AfterFunc(idleLimit, t.sweep)
	}
	return true
}

// sweep closes the connections that have been idle for too long.
func (t *Transport) sweep() {
	t.closeIdle(time.Now().Add(-idleLimit))
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.sweeping = len(t.idle) > 0; t.sweeping {
		time.AfterFunc(idleLimit, t.sweep)
	}
}

// CloseIdleConnections closes the connections that are idle now.
func (t *Transport) CloseIdleConnections() { t.closeIdle(time.Now()) }

func (t *Transport) closeIdle(before time.Time) {
	for _, c := range t.takeUnused(before) {
		c.Close() // for https, this may wait
	}
}

// takeUnused takes the connections that were not used after a time.
func (t *Transport) takeUnused(since time.Time) (unused []*connection) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for place, all := range t.idle {
		n := 0
		for n < len(all) && !all[n].since.After(since) {
			n++
		}
		unused = append(unused, all[:n]...)
		if t.idle[place] = slices.Delete(all, 0, n); len(all) == n {
			delete(t.idle, place)
		}
	}
	return unused
}
