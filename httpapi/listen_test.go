package httpapi

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"pawl/engine"
	"pawl/test/assert"
)

// listen serves the API on a real connection, with a short time for requests to arrive.
func listen(t *testing.T, api http.Handler, arrive time.Duration) (address string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	assert.NoError(t, err)
	server := NewServer(api, Listening{})
	server.ReadHeaderTimeout, server.ReadTimeout = arrive, arrive
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		assert.Succeeds(t, server.Shutdown(context.WithoutCancel(t.Context())))
		assert.ErrorIs(t, <-served, http.ErrServerClosed)
	})
	return listener.Addr().String()
}

// dial opens a connection that gives up before the test does.
func dial(t *testing.T, address string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	assert.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	assert.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
	return conn
}

func write(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	assert.NoError(t, assert.Err(io.WriteString(conn, text)))
}

func readAnswer(t *testing.T, r *bufio.Reader) answer {
	t.Helper()
	response, err := http.ReadResponse(r, nil)
	assert.NoError(t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	assert.NoError(t, err)
	if response.Close { // the header is taken off by ReadResponse
		response.Header.Set("Connection", "close")
	}
	return answer{response.StatusCode, response.Header, string(body)}
}

// request is a process request as it goes over the wire.
func request(orderID, extra string) string {
	body := ask(orderID)
	return fmt.Sprintf("POST /api/orders/process HTTP/1.1\r\nHost: localhost\r\n%sContent-Length: %d\r\n\r\n%s", extra, len(body), body)
}

func TestConnections(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const arrive = 2 * time.Second
	address := listen(t, b.api, arrive)

	t.Run("a caller who waits longer than a request may take to arrive gets an answer", func(t *testing.T) {
		t.Parallel()
		b.elsewhere(t, "theirs")
		conn := dial(t, address)
		write(t, conn, request("theirs", "Prefer: wait=3\r\n"))
		if a := readAnswer(t, bufio.NewReader(conn)); a.status != 202 {
			t.Errorf("%d %s", a.status, a.body)
		}
		conn = dial(t, address)
		write(t, conn, "POST /api/orders/theirs/cancel HTTP/1.1\r\nHost: localhost\r\nPrefer: wait=3\r\n\r\n")
		a := readAnswer(t, bufio.NewReader(conn))
		assert.Equal(t, a.status, 202, a.body)
	})
	t.Run("a reader who waits gets the order when it has ended", func(t *testing.T) {
		t.Parallel()
		later := fmt.Sprintf(`{"orderId":"later","amount":1,"item":"i","startAt":%q}`, time.Now().Add(arrive+time.Second).UTC().Format(time.RFC3339Nano))
		b.process(t, later, "Prefer", "respond-async").wantStatus(t, 202)
		conn := dial(t, address)
		write(t, conn, "GET /api/orders/later?wait=30 HTTP/1.1\r\nHost: localhost\r\n\r\n")
		a := readAnswer(t, bufio.NewReader(conn))
		assert.True(t, a.status == 200 && strings.Contains(a.body, `"status":"completed"`), a.status, a.body)
		for _, wait := range []string{"-1", "61", "x", "20ss", "1m", "s"} {
			b.get(t, "/api/orders/later?wait="+wait).wantProblem(t, 422, "invalid_parameter")
		}
	})
	t.Run("requests sent without waiting for answers are answered in order", func(t *testing.T) {
		t.Parallel()
		conn := dial(t, address)
		write(t, conn, request("p1", "")+request("p2", "")+"GET /api/orders/p1 HTTP/1.1\r\nHost: localhost\r\n\r\n")
		r := bufio.NewReader(conn)
		for _, id := range []string{"p1", "p2", "p1"} {
			a := readAnswer(t, r)
			assert.True(t, a.status == 200 && strings.Contains(a.body, `"orderId":"`+id+`"`), id, a.status, a.body)
		}
	})
	t.Run("HTTP/1.0 is understood", func(t *testing.T) {
		t.Parallel()
		conn := dial(t, address)
		write(t, conn, strings.Replace(request("old", ""), "HTTP/1.1", "HTTP/1.0", 1))
		a := readAnswer(t, bufio.NewReader(conn))
		assert.Equal(t, a.status, 200, a)
	})
	t.Run("a body that does not arrive is 408", func(t *testing.T) {
		t.Parallel()
		conn := dial(t, address)
		write(t, conn, strings.TrimSuffix(request("slow", ""), "}"))
		readAnswer(t, bufio.NewReader(conn)).wantProblem(t, 408, "request_timeout")
	})
	t.Run("a head that does not arrive ends the connection", func(t *testing.T) {
		t.Parallel()
		conn := dial(t, address)
		write(t, conn, "POST /api/orders/process HTTP/1.1\r\nHost:")
		rest, err := io.ReadAll(conn)
		assert.True(t, err == nil && !strings.Contains(string(rest), " 200 "), rest, err)
	})
}

func TestConnectionsWithTooMuch(t *testing.T) {
	t.Parallel()
	address := listen(t, withoutEngine().api, patience)
	t.Run("a body without end is 413, and not read", func(t *testing.T) {
		t.Parallel()
		conn := dial(t, address)
		write(t, conn, "POST /api/orders/process HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
		go func() { // until the other side has had enough
			chunk := fmt.Sprintf("%x\r\n%s\r\n", 8192, strings.Repeat(" ", 8192))
			for {
				if _, err := io.WriteString(conn, chunk); err != nil {
					return
				}
			}
		}()
		r := bufio.NewReader(conn)
		a := readAnswer(t, r)
		a.wantProblem(t, 413, "body_too_large")
		assert.Equal(t, a.header.Get("Connection"), "close", a.header)
	})
	t.Run("a length over the limit is 413 before anything is sent", func(t *testing.T) {
		t.Parallel()
		conn := dial(t, address)
		write(t, conn, "POST /api/orders/process HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 10000000000\r\n\r\n")
		readAnswer(t, bufio.NewReader(conn)).wantProblem(t, 413, "body_too_large")
	})
	t.Run("a head without end is refused", func(t *testing.T) {
		t.Parallel()
		conn := dial(t, address)
		write(t, conn, "GET /livez HTTP/1.1\r\nHost: localhost\r\n")
		go func() {
			for i := 0; ; i++ {
				if _, err := fmt.Fprintf(conn, "X-%d: y\r\n", i); err != nil {
					return
				}
			}
		}()
		a := readAnswer(t, bufio.NewReader(conn))
		assert.Equal(t, a.status, http.StatusRequestHeaderFieldsTooLarge, a)
	})
}

// What follows a request whose end a proxy may see elsewhere is no request: it could be one that somebody hid in a body, and
// would be answered as the next caller's.
func TestRequestsWithAnUnclearEnd(t *testing.T) {
	t.Parallel()
	address := listen(t, withoutEngine().api, patience)
	const hidden = "GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
	length := "Content-Length: " + strconv.Itoa(len("0\r\n\r\n"+hidden)) + "\r\n"
	const chunked, chunks = "Transfer-Encoding: chunked\r\n", "0\r\n\r\n"
	for _, c := range []struct {
		name, version, head, body string
		want                      []int // the answers, from that to the request on
	}{
		{"a length", "1.1", "Content-Length: 2\r\n", "{}", []int{422, 200}},
		{"the same length twice", "1.1", "Content-Length: 2\r\nContent-Length: 2\r\n", "{}", []int{422, 200}},
		{"a length and chunks", "1.1", length + chunked, chunks, []int{400}},
		{"chunks and a length", "1.1", chunked + length, chunks, []int{400}},
		{"a length and chunks, folded", "1.1", length + "transfer-encoding:\r\n  Chunked\r\n", chunks, []int{400}},
		{"a length and chunks, by bare line feeds", "1.1", "Content-Length: 2\nTransfer-Encoding: chunked\n", chunks, []int{400}},
		{"chunks", "1.1", chunked, chunks, []int{400}},
		{"two lengths", "1.1", "Content-Length: 2\r\nContent-Length: 3\r\n", "{} ", []int{400}},
		{"two lengths in one line", "1.1", "Content-Length: 2, 2\r\n", "{}", []int{400}},
		{"a length with a sign", "1.1", "Content-Length: +2\r\n", "{}", []int{400}},
		{"a length before a blank", "1.1", "Content-Length : 2\r\n", "{}", []int{400}},
		{"chunks twice", "1.1", length + "Transfer-Encoding: chunked, chunked\r\n", chunks, []int{501}},
		{"chunks in two lines", "1.1", length + chunked + chunked, chunks, []int{501}},
		{"an unknown encoding", "1.1", length + "Transfer-Encoding: \vchunked\r\n", chunks, []int{400}},
		{"no encoding", "1.1", "Content-Length: 2\r\nTransfer-Encoding: identity\r\n", "{}", []int{501}},
		{"chunks behind a blank", "1.1", length + "Transfer-Encoding : chunked\r\n", chunks, []int{400}},
		{"an old version with chunks", "1.0", "Connection: keep-alive\r\n" + chunked, "2\r\n{}\r\n" + chunks, []int{400}},
		{"an old version with both", "1.0", "Connection: keep-alive\r\nContent-Length: 2\r\n" + chunked, "{}", []int{422}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			conn := dial(t, address)
			r := bufio.NewReader(conn)
			write(t, conn, "GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n") // it is one that was used before
			a := readAnswer(t, r)
			assert.Require(t, a.status == http.StatusOK, a)
			write(t, conn, "POST /api/orders/process HTTP/"+c.version+"\r\nHost: localhost\r\n"+c.head+"\r\n"+c.body+hidden)
			var got []int
			for {
				if _, err := r.Peek(1); err != nil {
					assert.True(t, errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET),
						"the connection is left open", err)
					break
				}
				got = append(got, readAnswer(t, r).status)
			}
			assert.Equal(t, got, c.want, "answers")
		})
	}
}

func TestACallerWhoHangsUpAtAnyByte(t *testing.T) {
	t.Parallel()
	b := setup(t)
	address := listen(t, b.api, patience)
	whole := request("cut", "")
	for n := range len(whole) {
		conn := dial(t, address)
		write(t, conn, whole[:n])
		assert.NoError(t, conn.Close())
	}
	b.process(t, ask("cut")).wantStatus(t, 200)
	assert.Equal(t, b.count(t, `SELECT count(*) FROM charges`), 1, "charges")
}

func TestACallerWhoHangsUpWhileWaiting(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	b := setupWith(t, engine.Config{Lease: lease}, Config{ResponseTimeout: patience, Registerer: registry})
	b.elsewhere(t, "theirs")
	address := listen(t, b.api, patience)
	conn := dial(t, address)
	write(t, conn, request("theirs", ""))
	waiting := func() bool { return inFlight(t, registry, "POST /api/orders/process") == 1 }
	eventually(t, "the request is in flight", waiting)
	assert.NoError(t, conn.Close())
	eventually(t, "the request has ended", func() bool { return !waiting() })
	eventually(t, "it is counted as one whose caller has gone", func() bool { return codesOf(t, registry, "POST /api/orders/process") == "499" })
	assert.Equal(t, b.count(t, `SELECT count(*) FROM orders WHERE stop_requested IS NULL`), 1, "the order did not go on")
}

func inFlight(t *testing.T, registry *prometheus.Registry, route string) float64 {
	t.Helper()
	families, err := registry.Gather()
	assert.NoError(t, err)
	for _, family := range families {
		for _, metric := range family.Metric {
			if family.GetName() == "http_server_requests_in_flight" && labelsOf(metric)["route"] == route {
				return metric.GetGauge().GetValue()
			}
		}
	}
	return 0
}

var eventually = assert.Eventually
