package httpapi

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"pawl/db"
	"pawl/engine"
	"pawl/internal/access"
)

// listen serves the API on a real connection, with a short time for requests to arrive.
func listen(t *testing.T, api http.Handler, arrive time.Duration) (address string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := NewServer(api, Listening{})
	server.ReadHeaderTimeout, server.ReadTimeout = arrive, arrive
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		if err := server.Shutdown(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	return listener.Addr().String()
}

// dial opens a connection that gives up before the test does.
func dial(t *testing.T, address string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	return conn
}

func write(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
}

func readAnswer(t *testing.T, r *bufio.Reader) answer {
	t.Helper()
	response, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
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
		if a := readAnswer(t, bufio.NewReader(conn)); a.status != 202 {
			t.Errorf("%d %s", a.status, a.body)
		}
	})
	t.Run("a reader who waits gets the order when it has ended", func(t *testing.T) {
		t.Parallel()
		later := fmt.Sprintf(`{"orderId":"later","amount":1,"item":"i","startAt":%q}`, time.Now().Add(arrive+time.Second).UTC().Format(time.RFC3339Nano))
		b.process(t, later, "Prefer", "respond-async").wantStatus(t, 202)
		conn := dial(t, address)
		write(t, conn, "GET /api/orders/later?wait=30 HTTP/1.1\r\nHost: localhost\r\n\r\n")
		if a := readAnswer(t, bufio.NewReader(conn)); a.status != 200 || !strings.Contains(a.body, `"status":"completed"`) {
			t.Errorf("%d %s", a.status, a.body)
		}
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
			if a := readAnswer(t, r); a.status != 200 || !strings.Contains(a.body, `"orderId":"`+id+`"`) {
				t.Errorf("%s: %d %s", id, a.status, a.body)
			}
		}
	})
	t.Run("HTTP/1.0 is understood", func(t *testing.T) {
		t.Parallel()
		conn := dial(t, address)
		write(t, conn, strings.Replace(request("old", ""), "HTTP/1.1", "HTTP/1.0", 1))
		if a := readAnswer(t, bufio.NewReader(conn)); a.status != 200 {
			t.Error(a)
		}
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
		if rest, err := io.ReadAll(conn); err != nil || strings.Contains(string(rest), " 200 ") {
			t.Errorf("%s %v", rest, err)
		}
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
		if a.wantProblem(t, 413, "body_too_large"); a.header.Get("Connection") != "close" {
			t.Error(a.header)
		}
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
		if a := readAnswer(t, bufio.NewReader(conn)); a.status != http.StatusRequestHeaderFieldsTooLarge {
			t.Error(a)
		}
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
			if a := readAnswer(t, r); a.status != http.StatusOK {
				t.Fatal(a)
			}
			write(t, conn, "POST /api/orders/process HTTP/"+c.version+"\r\nHost: localhost\r\n"+c.head+"\r\n"+c.body+hidden)
			var got []int
			for {
				if _, err := r.Peek(1); err != nil {
					if !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
						t.Errorf("the connection is left open: %v", err)
					}
					break
				}
				got = append(got, readAnswer(t, r).status)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("answers %d, want %d", got, c.want)
			}
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
		if err := conn.Close(); err != nil {
			t.Fatal(err)
		}
	}
	b.process(t, ask("cut")).wantStatus(t, 200)
	if n := b.count(t, `SELECT count(*) FROM charges`); n != 1 {
		t.Errorf("%d charges", n)
	}
}

func TestACallerWhoHangsUpWhileWaiting(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	b := setupWith(t, engine.Config{}, Config{ResponseTimeout: patience, Registerer: registry})
	b.elsewhere(t, "theirs")
	address := listen(t, b.api, patience)
	conn := dial(t, address)
	write(t, conn, request("theirs", ""))
	waiting := func() bool { return inFlight(t, registry, "POST /api/orders/process") == 1 }
	eventually(t, "the request is in flight", waiting)
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the request has ended", func() bool { return !waiting() })
	eventually(t, "it is counted as one whose caller has gone", func() bool { return codesOf(t, registry, "POST /api/orders/process") == "499" })
	if n := b.count(t, `SELECT count(*) FROM orders WHERE stop_requested IS NULL`); n != 1 {
		t.Error("the order did not go on")
	}
}

func inFlight(t *testing.T, registry *prometheus.Registry, route string) float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		for _, metric := range family.Metric {
			if family.GetName() == "http_server_requests_in_flight" && labelsOf(metric)["route"] == route {
				return metric.GetGauge().GetValue()
			}
		}
	}
	return 0
}

// eventually looks until something is so.
func eventually(t *testing.T, what string, so func() bool) {
	t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !so() {
		select {
		case <-deadline:
			t.Fatalf("not so: %s", what)
		case <-tick.C:
		}
	}
}

// crowded serves with few connections and returns where, and what frees the requests to /slow.
func crowded(t *testing.T, most int) (address string, server *Server, free func()) {
	t.Helper()
	gate := make(chan struct{})
	free = sync.OnceFunc(func() { close(gate) })
	t.Cleanup(free)
	s, _ := testServer(t, Config{})
	s.mux.HandleFunc("/slow", func(w http.ResponseWriter, _ *http.Request) { <-gate })
	server = NewServer(s, Listening{Connections: most})
	return serveOn(t, server), server, free
}

func serveOn(t *testing.T, server *Server) (address string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		_ = server.Close()
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	return listener.Addr().String()
}

const askLivez = "GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"

// TestTooManyIdleConnections has more callers connected than there may be: whoever waits for nothing makes room.
func TestTooManyIdleConnections(t *testing.T) {
	t.Parallel()
	address, server, _ := crowded(t, 8)
	var idle []net.Conn
	for i := range 40 {
		conn := dial(t, address)
		if i%2 == 0 { // the others never say anything
			write(t, conn, askLivez)
			if a := readAnswer(t, bufio.NewReader(conn)); a.status != 200 {
				t.Fatal(a)
			}
		}
		// It has its answer before the server takes it for idle, and until then it does not make room.
		eventually(t, "it waits", func() bool { return waitingIn(server.connections) == min(i+1, 8) })
		idle = append(idle, conn)
	}
	for _, conn := range idle[:32] {
		if _, err := io.ReadAll(conn); err != nil { // the end of it
			t.Errorf("an old connection: %v", err)
		}
	}
	server.connections.mu.Lock()
	defer server.connections.mu.Unlock()
	if n := len(server.connections.open); n != 8 || server.connections.of[addr("127.0.0.1")] != 8 || len(server.connections.spares) != 0 {
		t.Errorf("%d connections are open", n)
	}
}

// TestTooManyRequests has every connection busy: supervisors are answered still, others are told to come back.
func TestTooManyRequests(t *testing.T) {
	t.Parallel()
	const most = 8
	address, server, free := crowded(t, most)
	var busy []*bufio.Reader
	for range most {
		conn := dial(t, address)
		write(t, conn, "GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n")
		busy = append(busy, bufio.NewReader(conn))
	}
	eventually(t, "all connections are there, and busy", func() bool { return busyIn(server.connections) == most })
	for range 3 * server.connections.spare {
		conn := dial(t, address)
		write(t, conn, askLivez)
		if a := readAnswer(t, bufio.NewReader(conn)); a.status != 200 || a.header.Get("Connection") != "close" {
			t.Fatal(a)
		}
		conn = dial(t, address)
		write(t, conn, request("o", ""))
		readAnswer(t, bufio.NewReader(conn)).wantProblem(t, 503, "overloaded")
		dial(t, address) // and says nothing
	}
	free()
	for _, r := range busy {
		if a := readAnswer(t, r); a.status != 200 {
			t.Error(a)
		}
	}
	conn := dial(t, address)
	write(t, conn, askLivez)
	if a := readAnswer(t, bufio.NewReader(conn)); a.status != 200 || a.header.Get("Connection") == "close" {
		t.Errorf("when it is over: %v", a)
	}
}

// busyIn is how many connections have a request. One that is not accepted yet is not among them.
func busyIn(all *connections) (n int) {
	all.mu.Lock()
	open := len(all.open)
	all.mu.Unlock()
	return open - waitingIn(all)
}

// waitingIn is how many connections wait for a request.
func waitingIn(all *connections) (n int) {
	all.mu.Lock()
	defer all.mu.Unlock()
	for c := range all.open {
		if c.waiting.Load() != 0 {
			n++
		}
	}
	return n
}

// TestWhoMakesRoom is the choice of the connection that goes.
func TestWhoMakesRoom(t *testing.T) {
	t.Parallel()
	proxy := netip.MustParsePrefix("10.0.0.0/8")
	for _, c := range []struct {
		name    string
		open    []string // by address, the oldest first; with ! at the end: busy
		comes   string
		goes    int // which of them; -1: none
		isSpare bool
	}{
		{"there is room", []string{"192.0.2.1", "192.0.2.2"}, "192.0.2.3", -1, false},
		{"the address that has most", []string{"192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.2"}, "192.0.2.4", 1, false},
		{"of addresses with as many, the one that waits for the longest", []string{"192.0.2.1!", "192.0.2.2", "192.0.2.3", "192.0.2.4"}, "192.0.2.5", 1, false},
		{"nobody waits", []string{"192.0.2.1!", "192.0.2.2!", "192.0.2.3!", "192.0.2.4!"}, "192.0.2.5", -1, true},
		{"an address that has its half", []string{"192.0.2.2", "192.0.2.1", "192.0.2.1"}, "192.0.2.1", 1, false},
		{"an address that has its half and works with all of it", []string{"192.0.2.2", "192.0.2.1!", "192.0.2.1!"}, "192.0.2.1", -1, true},
		{"one caller of IPv6", []string{"2001:db8::1", "2001:db8::2"}, "2001:db8::3", 0, false},
		{"this machine may have all", []string{"127.0.0.1", "127.0.0.1", "127.0.0.1"}, "127.0.0.1", -1, false},
		{"a proxy may have all", []string{"10.1.1.1", "10.1.1.1", "10.1.1.1"}, "10.1.1.1", -1, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			all := newConnections(4, []netip.Prefix{proxy})
			var open []*connection
			for i, text := range c.open {
				open = append(open, from(all, text, i))
				if victim := all.admit(open[i]); victim != nil {
					t.Fatal("no room at the beginning")
				}
			}
			comes := from(all, c.comes, len(open))
			victim := all.admit(comes)
			if (victim == nil) != (c.goes < 0) || c.goes >= 0 && victim != open[c.goes] || comes.spare != c.isSpare {
				t.Errorf("%v goes, spare %v", victim, comes.spare)
			}
		})
	}
}

func from(all *connections, text string, since int) *connection {
	busy := text[len(text)-1] == '!'
	c := &connection{all: all, peer: access.Network(addr(string(bytes.TrimSuffix([]byte(text), []byte("!")))))}
	if !busy {
		c.waiting.Store(int64(since) + 1)
	}
	return c
}

// TestReadersWhoStall has callers that do not read what they asked for, and one that is only slow.
func TestReadersWhoStall(t *testing.T) {
	t.Parallel()
	const size = 64 << 20 // more than the kernel takes
	ended := make(chan error, 1)
	server := NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, err := w.Write(make([]byte, size))
		ended <- err
	}), Listening{})
	server.connections.stall = 2 * time.Second
	address := serveOn(t, server)
	conn := dial(t, address)
	write(t, conn, askLivez)
	if err := <-ended; err == nil {
		t.Error("all was sent to somebody who reads nothing")
	}
	conn = dial(t, address)
	write(t, conn, askLivez)
	if a := readAnswer(t, bufio.NewReader(conn)); a.status != 200 || len(a.body) != size {
		t.Errorf("%d, %d bytes", a.status, len(a.body))
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestShares is about a caller who takes all it can get, and another one.
func TestShares(t *testing.T) {
	t.Parallel()
	all := newShares(4)
	greedy, other := payer{address: addr("192.0.2.1")}, payer{principal: "token:other"}
	take := func(who payer) (func(), error) { return all.acquire(t.Context(), who, 1) }
	var held []func()
	for _, who := range []payer{greedy, greedy, other, other} {
		free, err := take(who)
		if err != nil {
			t.Fatalf("%v: %v", who, err)
		}
		held = append(held, free)
	}
	waiting := make(chan error, 1)
	go func() {
		free, err := take(greedy)
		if err == nil {
			defer free()
		}
		waiting <- err
	}()
	held[2]() // of somebody else
	select {
	case err := <-waiting:
		if err == nil {
			t.Error("one caller has more than half")
		}
	case <-time.After(time.Second / 10):
	}
	held[0]()
	if err := <-waiting; err != nil {
		t.Error(err)
	}
	held[1]()
	held[1]() // again changes nothing
	held[3]()
	if !all.all.TryAcquire(4) || len(all.of) != 0 {
		t.Errorf("something was not given back: %v", all.of)
	}
}

// placesOf is how many places are taken.
func placesOf(server *Server) int {
	waits := &server.connections.waits
	waits.mu.Lock()
	defer waits.mu.Unlock()
	return waits.taken
}

// TestPlacesToWait has a token ask for more waits than it has places for, in each way in which a request waits: beyond them the
// answer comes at once. Another token waits still, until three quarters of the connections do.
func TestPlacesToWait(t *testing.T) {
	t.Parallel()
	b := setup(t)
	tokens := map[string]string{}
	for _, name := range []string{"greedy", "other"} {
		issued, err := access.Create(t.Context(), db.New(b.Pool), access.Template{Name: name, Roles: access.AllRoles, Lifetime: time.Hour, Actor: "test"})
		if err != nil {
			t.Fatal(err)
		}
		tokens[name] = "Bearer " + issued.Token
	}
	b.api = New(b.engine, Config{Access: b.guard(t), ResponseTimeout: patience, Events: b.tail})
	b.held(t, "held", nil)
	b.elsewhere(t, "o")
	server := NewServer(b.api, Listening{Connections: 8})
	address := serveOn(t, server)
	send := func(name, text string) net.Conn {
		conn := dial(t, address)
		write(t, conn, strings.Replace(text, "Host: localhost\r\n", "Host: localhost\r\nAuthorization: "+tokens[name]+"\r\n", 1))
		return conn
	}
	wait := func(target string) string { return "GET " + target + " HTTP/1.1\r\nHost: localhost\r\n\r\n" }
	taken := func() int { return placesOf(server) }
	const forever = "/api/orders/o?wait=60"
	var waiting []net.Conn
	for range 4 {
		waiting = append(waiting, send("greedy", wait(forever)))
	}
	eventually(t, "a token has its half", func() bool { return taken() == 4 })
	for _, target := range []string{forever, "/api/events?after=latest&wait=60"} {
		if a := readAnswer(t, bufio.NewReader(send("greedy", wait(target)))); a.status != 200 {
			t.Errorf("%s: %v", target, a)
		}
	}
	known := request("o", "Prefer: wait=60\r\n")
	for range 2 {
		waiting = append(waiting, send("other", known))
	}
	eventually(t, "three quarters wait", func() bool { return taken() == 6 })
	a := readAnswer(t, bufio.NewReader(send("other", known)))
	if a.status != 202 || a.header.Get("Preference-Applied") != "wait=0" {
		t.Errorf("an order that is not waited for: %v", a)
	}
	if a := readAnswer(t, bufio.NewReader(send("other", request("new", "Prefer: wait=60\r\n")))); a.status != 202 && a.status != 200 {
		t.Errorf("a new order: %v", a)
	}
	verb := "POST /api/orders/held/cancel HTTP/1.1\r\nHost: localhost\r\nPrefer: wait=60\r\nContent-Length: 0\r\n\r\n"
	if a := readAnswer(t, bufio.NewReader(send("other", verb))); a.status/100 != 2 && a.status != 409 {
		t.Errorf("a verb: %v", a)
	}
	eventually(t, "the new order ends all the same", func() bool {
		return b.count(t, `SELECT count(*) FROM orders WHERE order_id = 'new' AND status = 'completed'`) == 1
	})
	for _, conn := range waiting {
		conn.Close()
	}
	eventually(t, "all places are free", func() bool { return taken() == 0 && len(server.connections.waits.of) == 0 })
}

// TestTurnsTakePlaces has lists wait for their turn: who has no place to wait is told to come back.
func TestTurnsTakePlaces(t *testing.T) {
	t.Parallel()
	all := newShares(2)
	server := NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rec := &Recorder{ResponseWriter: w}
		release, err := all.take(r.Context(), rec, r, 1)
		if err != nil {
			w.WriteHeader(problemOf(err).Status)
			return
		}
		defer release()
		<-r.Context().Done()
	}), Listening{Connections: 4})
	address := serveOn(t, server)
	taken := func() int { return placesOf(server) }
	for n := range 3 { // one has its turn, two wait for theirs
		write(t, dial(t, address), askLivez)
		eventually(t, "it waits", func() bool { return busyIn(server.connections) == n+1 && taken() == n })
	}
	conn := dial(t, address)
	write(t, conn, askLivez)
	if a := readAnswer(t, bufio.NewReader(conn)); a.status != 503 {
		t.Error(a)
	}
}
