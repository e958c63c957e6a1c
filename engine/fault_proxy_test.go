package engine_test

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

// fate is what becomes of a statement on its way.
type fate int

const (
	passes      fate = iota
	loseRequest      // the connection ends before the server sees the statement
	loseReply        // the server has executed and committed it; then the connection ends
	loseClient       // the server gets it after its client was cut off
)

func (f fate) String() string {
	return [...]string{"passes", "request lost", "reply lost", "client cut off"}[f]
}

// proxy stands between a pool and the server and decides the fate of every statement. It knows the protocol well enough
// to tell where a statement ends: a cut is before or after it, never in the middle.
type proxy struct {
	url      string
	network  string
	address  string
	listener net.Listener
	wg       sync.WaitGroup

	mu     sync.Mutex
	decide func(statement string) fate
	links  map[*link]bool
	closed bool
}

// newProxy listens in front of the server of a database. It ends with the test.
func newProxy(t testing.TB, databaseURL string) *proxy {
	t.Helper()
	config, err := pgconn.ParseConfig(databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listener: listener, links: map[*link]bool{}}
	p.network, p.address = pgconn.NetworkAddress(config.Host, config.Port)
	user := url.User(config.User)
	if config.Password != "" {
		user = url.UserPassword(config.User, config.Password)
	}
	p.url = (&url.URL{Scheme: "postgres", User: user, Host: listener.Addr().String(), Path: "/" + config.Database, RawQuery: "sslmode=disable"}).String()
	p.wg.Go(p.accept)
	t.Cleanup(p.close)
	return p
}

// on asks decide about every statement from now on; it is called by many goroutines, and while it blocks the statement
// waits in the wire. Nil lets all pass.
func (p *proxy) on(decide func(statement string) fate) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.decide = decide
}

// cut loses the statements from the first-th to the last-th and tells their names. What an engine does by the clock
// (looking for due orders, renewing leases) passes and does not count.
func (p *proxy) cut(first, last int, f fate) (lost func() []string) {
	var mu sync.Mutex
	var names []string
	count := 0
	p.on(func(statement string) fate {
		if strings.HasPrefix(statement, "LeasesDue") || statement == "LeasesRenew" {
			return passes
		}
		mu.Lock()
		defer mu.Unlock()
		if count++; count < first || count > last {
			return passes
		}
		names = append(names, statement)
		return f
	})
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return names
	}
}

// stall keeps the statements that match in the wire until release is called, at the latest by the end of the test.
// arrived tells how many came.
func (p *proxy) stall(t testing.TB, match func(statement string) bool) (arrived *atomic.Int32, release func()) {
	t.Helper()
	gate := make(chan struct{})
	arrived = &atomic.Int32{}
	p.on(func(statement string) fate {
		if match(statement) {
			arrived.Add(1)
			<-gate
		}
		return passes
	})
	release = sync.OnceFunc(func() { close(gate) })
	t.Cleanup(release)
	return arrived, release
}

// named matches the statement of that name; everything matches all.
func named(name string) func(string) bool { return func(s string) bool { return s == name } }

func everything(string) bool { return true }

func (p *proxy) fateOf(statement string) fate {
	p.mu.Lock()
	decide := p.decide
	p.mu.Unlock()
	if decide == nil {
		return passes
	}
	return decide(statement)
}

func (p *proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial(p.network, p.address)
		if err != nil {
			client.Close()
			continue
		}
		l := &link{proxy: p, client: client, server: server, prepared: map[string]string{}}
		p.mu.Lock()
		p.links[l] = true
		if p.closed {
			l.close()
		}
		p.mu.Unlock()
		p.wg.Go(l.fromClient)
		p.wg.Go(l.fromServer)
	}
}

func (p *proxy) close() {
	p.on(nil)
	p.listener.Close()
	p.mu.Lock()
	p.closed = true
	for l := range p.links {
		l.close()
	}
	p.mu.Unlock()
	p.wg.Wait()
}

// link is one connection through the proxy.
type link struct {
	proxy          *proxy
	client, server net.Conn
	prepared       map[string]string // name of the prepared statement → name of the query
	deaf           atomic.Bool       // no reply goes to the client any more
}

func (l *link) close() {
	l.client.Close()
	l.server.Close()
}

// cancelRequest begins a request to cancel a statement, which pgx sends when a connection ends under it. It is lost like
// the connection.
const cancelRequest = 80877102

// fromClient forwards whole exchanges: what the client sends until it waits for an answer.
func (l *link) fromClient() {
	var startup [4]byte
	if _, err := io.ReadFull(l.client, startup[:]); err != nil {
		l.close()
		return
	}
	rest := make([]byte, binary.BigEndian.Uint32(startup[:])-4)
	if _, err := io.ReadFull(l.client, rest); err != nil || binary.BigEndian.Uint32(rest) == cancelRequest {
		l.close()
		return
	}
	exchange := append(startup[:], rest...)
	for f := passes; ; {
		if f == loseRequest {
			l.close()
			return
		}
		l.deaf.Store(f == loseReply || f == loseClient)
		if _, err := l.server.Write(exchange); err != nil || f == loseClient {
			l.client.Close() // and the server's side when its answer is there
			return
		}
		statement, next, err := l.exchange()
		if err != nil {
			l.close()
			return
		}
		exchange, f = next, passes
		if statement != "" {
			f = l.proxy.fateOf(statement)
		}
	}
}

// exchange reads messages up to one that is answered. It names the statement if one is executed.
func (l *link) exchange() (statement string, exchange []byte, err error) {
	bound := ""
	for {
		kind, body, message, err := readMessage(l.client)
		if err != nil {
			return "", nil, err
		}
		exchange = append(exchange, message...)
		switch kind {
		case 'P': // Parse: statement, query
			name, query, _ := bytes.Cut(body, []byte{0})
			l.prepared[string(name)] = queryName(query)
		case 'B': // Bind: portal, statement
			_, name, _ := bytes.Cut(body, []byte{0})
			name, _, _ = bytes.Cut(name, []byte{0})
			bound = l.prepared[string(name)]
		case 'E': // Execute
			statement = bound
		case 'Q': // Query
			return queryName(body), exchange, nil
		case 'S', 'X', 'H', 'p': // Sync, Terminate, Flush, Password
			return statement, exchange, nil
		}
	}
}

// fromServer forwards replies, until the client is not to hear them: then it waits for the end of the statement.
func (l *link) fromServer() {
	defer func() {
		l.close()
		l.proxy.mu.Lock()
		delete(l.proxy.links, l)
		l.proxy.mu.Unlock()
	}()
	for {
		kind, _, message, err := readMessage(l.server)
		if err != nil {
			return
		}
		if l.deaf.Load() {
			if kind == 'Z' { // ReadyForQuery: committed or rolled back
				return
			}
			continue
		}
		if _, err := l.client.Write(message); err != nil {
			return
		}
	}
}

func readMessage(from io.Reader) (kind byte, body, message []byte, err error) {
	var head [5]byte
	if _, err := io.ReadFull(from, head[:]); err != nil {
		return 0, nil, nil, err
	}
	message = make([]byte, 1+binary.BigEndian.Uint32(head[1:]))
	copy(message, head[:])
	_, err = io.ReadFull(from, message[5:])
	return head[0], message[5:], message, err
}

// queryName is the name that sqlc writes above a query, or else its first words.
func queryName(query []byte) string {
	text := strings.TrimRight(string(query), "\x00")
	if i := strings.IndexByte(text, 0); i >= 0 {
		text = text[:i]
	}
	if rest, named := strings.CutPrefix(text, "-- name: "); named {
		name, _, _ := strings.Cut(rest, " ")
		return name
	}
	return text[:min(len(text), 30)]
}
