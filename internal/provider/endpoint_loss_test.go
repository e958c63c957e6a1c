package provider_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pawl/fsm"
	"pawl/internal/provider"
	"pawl/test/assert"
)

// nobody is an address without a listener.
func nobody(t *testing.T) string {
	t.Helper()
	gone := httptest.NewServer(done)
	defer gone.Close()
	return gone.URL
}

// talk is a server that does on each of its connections, in turn, what it is told, and
// closes it. There is no connection more.
func talk(t *testing.T, connections ...func(*bufio.ReadWriter)) (url string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	assert.NoError(t, err)
	over := make(chan struct{})
	go func() {
		defer close(over)
		defer listener.Close()
		for _, do := range connections {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			both := bufio.NewReadWriter(bufio.NewReader(connection), bufio.NewWriter(connection))
			do(both)
			_ = both.Flush() // the client may have left
			connection.Close()
		}
	}()
	t.Cleanup(func() {
		listener.Close()
		<-over
	})
	return "http://" + listener.Addr().String()
}

// hears reads a whole request.
func hears(b *bufio.ReadWriter) {
	if r, err := http.ReadRequest(b.Reader); err == nil {
		_, _ = io.Copy(io.Discard, r.Body)
	}
}

// answering hears a request for each text and writes it.
func answering(texts ...string) func(*bufio.ReadWriter) {
	return func(b *bufio.ReadWriter) {
		for _, text := range texts {
			hears(b)
			_, _ = b.WriteString(text)
			_ = b.Flush() // the client may have left
		}
	}
}

const (
	wholeDone = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
	tooMany   = "HTTP/1.1 429 Too Many Requests\r\nContent-Length: 0\r\n\r\n"
)

func TestAnswerThatIsNotWhole(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"nothing":                                 "",
		"half a header":                           "HTTP/1.1 200 OK\r\nContent-Le",
		"another protocol":                        "SSH-2.0-pm_card_visa\r\n",
		"an endless header":                       "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 80<<10) + "\r\n\r\n",
		"half a body":                             "HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n{\"reference\":",
		"half a body of a refusal":                "HTTP/1.1 402 Payment Required\r\nContent-Length: 40\r\n\r\n{\"outcome\":",
		"half a body in chunks":                   "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n",
		"an empty body that only the end ends":    "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n",
		"no length and half an object":            "HTTP/1.0 200 OK\r\n\r\n{\"reference\":\"ch_1\"",
		"another protocol after the first answer": "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n{}",
		"a packed body":                           "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n\x1f\x8b",
	} {
		t.Run(name+" is unknown", func(t *testing.T) {
			t.Parallel()
			r := atURL(talk(t, answering(text)), fsm.Charge, "").Do(t.Context(), aCall(fsm.Charge))
			u, ok := r.(provider.Unknown)
			assert.True(t, ok && u.Code != "" && !strings.Contains(u.Detail, "pm_card"), r)
		})
	}
}

func TestAnswerThatEndsWithItsConnection(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]provider.Result{
		"HTTP/1.0 200 OK\r\n\r\n{\"reference\":\"1\"}":                                          provider.Done{Reference: "1"},
		"HTTP/1.0 204 No Content\r\n\r\n":                                                       provider.Done{},
		"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n":          provider.Done{},
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n":                        provider.Done{},
		"HTTP/1.0 402 Payment Required\r\n\r\n":                                                 provider.Refused{Code: "payment_required"},
		"HTTP/1.1 429 Too Many Requests\r\nConnection: close\r\n\r\n":                           provider.Retry{Code: "too_many_requests"},
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;x=y\r\n{}\r\n0\r\nA: b\r\n\r\n": provider.Done{},
	} {
		got := atURL(talk(t, answering(text)), fsm.Charge, "").Do(t.Context(), aCall(fsm.Charge))
		assert.Equal(t, fmt.Sprint(got), fmt.Sprint(want), text, got)
	}
}

// net/http sends a request again when a kept connection turns out to be closed. The other
// side may have done it before it closed.
func TestRequestSentTwiceIsInDoubt(t *testing.T) {
	t.Parallel()
	heard := func(b *bufio.ReadWriter) { // a request on a kept connection, and no answer
		answering(wholeDone)(b)
		hears(b)
	}
	for name, v := range map[string]struct {
		then []func(*bufio.ReadWriter)
		want provider.Result
	}{
		"answered 429": {[]func(*bufio.ReadWriter){answering(tooMany)}, provider.Unknown{Code: "too_many_requests", Status: 429}},
		"refused for good": {[]func(*bufio.ReadWriter){answering("HTTP/1.1 402 No\r\nContent-Length: 0\r\n\r\n")},
			provider.Refused{Code: "payment_required"}},
		"done":          {[]func(*bufio.ReadWriter){answering(wholeDone)}, provider.Done{}},
		"not connected": {nil, provider.Unknown{Code: "connection_lost"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := atURL(talk(t, append([]func(*bufio.ReadWriter){heard}, v.then...)...), fsm.Charge, "")
			r := e.Do(t.Context(), aCall(fsm.Charge))
			assert.Require(t, kind(r) == "done", r)
			got := withoutDetail(e.Do(t.Context(), aCall(fsm.Charge)))
			assert.Equal(t, fmt.Sprintf("%#v", got), fmt.Sprintf("%#v", v.want), got, v.want)
		})
	}
}

func TestRedirectsAreNotFollowed(t *testing.T) {
	t.Parallel()
	elsewhere, target := lay(t, done)
	for _, status := range []int{301, 302, 303, 307, 308} {
		for _, op := range []provider.Operation{provider.Do, provider.Undo} {
			r, ok := answered(t, op, says(status, "", "Location", target)).(provider.Unknown)
			assert.True(t, ok && r.Code == "redirect" && !strings.Contains(r.Detail, target), status, r)
		}
		looker := lookerAt(t, mustLay(t, says(status, "", "Location", target)))
		r := looker.Lookup(t.Context(), aCall(fsm.Charge))
		assert.Equal(t, kind(r), "unknown", status, r)
	}
	assert.Equal(t, len(elsewhere.seen()), 0, "requests went elsewhere")
}

func mustLay(t *testing.T, provider http.Handler) string {
	t.Helper()
	_, url := lay(t, provider)
	return url
}

func TestTLSThatFailsDidNothingAndCounts(t *testing.T) {
	t.Parallel()
	var served atomic.Int32
	serve := func() *httptest.Server {
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served.Add(1) }))
		server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError) // they are what is wanted
		return server
	}
	stranger, old, plain := serve(), serve(), serve()
	stranger.StartTLS()
	old.TLS = &tls.Config{MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}
	old.StartTLS()
	plain.Start()
	for name, server := range map[string]*httptest.Server{
		"an unknown certificate": stranger, "an old version": old, "no TLS at all": plain,
	} {
		t.Cleanup(server.Close)
		url := strings.Replace(server.URL, "http://", "https://", 1)
		r, ok := atURL(url, fsm.Charge, "").Do(t.Context(), aCall(fsm.Charge)).(provider.Retry)
		assert.True(t, ok && r.Code == "tls_failed" && r.Counts && r.Detail != "", name, r)
	}
	assert.Equal(t, served.Load(), 0, "a request was served")
}

// What accepts a connection and never shakes hands has had no request either.
func TestNoConnectionInTimeDidNothing(t *testing.T) {
	t.Parallel()
	url := talk(t, func(*bufio.ReadWriter) { <-t.Context().Done() })
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	r := atURL(strings.Replace(url, "http://", "https://", 1), fsm.Charge, "").Do(ctx, aCall(fsm.Charge))
	if r, ok := r.(provider.Retry); !ok || r.Counts || r.Code != "connection_failed" {
		t.Errorf("%#v", r)
	}
}

// An answer that never ends is cut off by the end of the call.
func TestEndlessAnswersEndWithTheCall(t *testing.T) {
	t.Parallel()
	over := late{t.Context(), make(chan struct{})}
	_, url := lay(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, `{"reference":`)
		_ = http.NewResponseController(w).Flush()
		close(over.passed)
		<-r.Context().Done()
	}))
	r := withoutDetail(atURL(url, fsm.Charge, "").Do(over, aCall(fsm.Charge)))
	assert.True(t, r == (provider.Unknown{Code: "timeout"}), r)
}
