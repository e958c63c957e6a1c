package httpapi

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"pawl/db"
	"pawl/internal/access"
	"pawl/test/assert"
)

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
	assert.NoError(t, err)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		_ = server.Close()
		assert.ErrorIs(t, <-served, http.ErrServerClosed)
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
			a := readAnswer(t, bufio.NewReader(conn))
			assert.Require(t, a.status == 200, a)
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
		a := readAnswer(t, bufio.NewReader(conn))
		assert.Require(t, a.status == 200 && a.header.Get("Connection") == "close", a)
		conn = dial(t, address)
		write(t, conn, request("o", ""))
		readAnswer(t, bufio.NewReader(conn)).wantProblem(t, 503, "overloaded")
		dial(t, address) // and says nothing
	}
	free()
	for _, r := range busy {
		a := readAnswer(t, r)
		assert.Equal(t, a.status, 200, a)
	}
	conn := dial(t, address)
	write(t, conn, askLivez)
	a := readAnswer(t, bufio.NewReader(conn))
	assert.True(t, a.status == 200 && a.header.Get("Connection") != "close", "when it is over", a)
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
		{"of addresses with as many, the one that waits for the longest",
			[]string{"192.0.2.1!", "192.0.2.2", "192.0.2.3", "192.0.2.4"}, "192.0.2.5", 1, false},
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
				assert.Require(t, all.admit(open[i]) == nil, "no room at the beginning")
			}
			comes := from(all, c.comes, len(open))
			victim := all.admit(comes)
			assert.True(t, (victim == nil) == (c.goes < 0) && (c.goes < 0 || victim == open[c.goes]) && comes.spare == c.isSpare,
				victim, "goes, spare", comes.spare)
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
	err := <-ended
	assert.True(t, err != nil, "all was sent to somebody who reads nothing")
	conn = dial(t, address)
	write(t, conn, askLivez)
	a := readAnswer(t, bufio.NewReader(conn))
	assert.True(t, a.status == 200 && len(a.body) == size, a.status, len(a.body), "bytes")
	assert.NoError(t, <-ended)
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
		assert.NoError(t, err, who)
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
		assert.True(t, err != nil, "one caller has more than half")
	case <-time.After(time.Second / 10):
	}
	held[0]()
	assert.NoError(t, <-waiting)
	held[1]()
	held[1]() // again changes nothing
	held[3]()
	assert.True(t, all.all.TryAcquire(4) && len(all.of) == 0, "something was not given back", all.of)
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
		assert.NoError(t, err)
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
		a := readAnswer(t, bufio.NewReader(send("greedy", wait(target))))
		assert.Equal(t, a.status, 200, target, a)
	}
	known := request("o", "Prefer: wait=60\r\n")
	for range 2 {
		waiting = append(waiting, send("other", known))
	}
	eventually(t, "three quarters wait", func() bool { return taken() == 6 })
	a := readAnswer(t, bufio.NewReader(send("other", known)))
	assert.True(t, a.status == 202 && a.header.Get("Preference-Applied") == "wait=0", "an order that is not waited for", a)
	a = readAnswer(t, bufio.NewReader(send("other", request("new", "Prefer: wait=60\r\n"))))
	assert.True(t, a.status == 202 || a.status == 200, "a new order", a)
	verb := "POST /api/orders/held/cancel HTTP/1.1\r\nHost: localhost\r\nPrefer: wait=60\r\nContent-Length: 0\r\n\r\n"
	a = readAnswer(t, bufio.NewReader(send("other", verb)))
	assert.True(t, a.status/100 == 2 || a.status == 409, "a verb", a)
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
	a := readAnswer(t, bufio.NewReader(conn))
	assert.Equal(t, a.status, 503, a)
}
