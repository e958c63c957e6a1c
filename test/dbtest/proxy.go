package dbtest

import (
	"bytes"
	"encoding/binary"
	"io"
	"math"
	"net"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"pawl/test/assert"
)

// Fate is what becomes of a statement on its way.
type Fate int

const (
	// Passes is the usual one.
	Passes Fate = iota
	// LoseRequest: the connection ends before the server sees the statement.
	LoseRequest
	// LoseReply: the server has executed and committed it; then the connection ends.
	LoseReply
	// LoseClient: the server gets it after its client was cut off.
	LoseClient
	// HushRequest: the statement does not arrive, and the connection stays open without another word.
	HushRequest
	// HushReply: the server has executed and committed it; then the connection stays open without another word.
	HushReply
	// RouteRequest: the statement does not arrive, and the client gets a router's error. The connection goes on.
	RouteRequest
	// RouteReply: the server has executed and committed it, and the client gets a router's error instead of the reply.
	RouteReply
)

func (f Fate) String() string {
	return [...]string{"passes", "request lost", "reply lost", "client cut off", "request hushed", "reply hushed",
		"request refused by a router", "reply replaced by a router"}[f]
}

// Proxy stands between a client and the server and decides the fate of every statement. It knows the protocol well enough
// to tell where a statement ends: a cut is before or after it, never in the middle (PostgreSQL manual, chapter 55:
// frontend/backend protocol).
type Proxy struct {
	// URL is the database, through the proxy.
	URL string

	network  string
	address  string
	listener net.Listener
	wg       sync.WaitGroup

	mu     sync.Mutex
	decide func(statement string) Fate
	admit  func() int64
	lost   func()
	links  map[*link]bool
	closed bool
	routed int // errors of a router so far
}

// NewProxy listens in front of the server of a database. It ends with the test.
func NewProxy(t testing.TB, databaseURL string) *Proxy {
	t.Helper()
	config, err := pgconn.ParseConfig(databaseURL)
	assert.NoError(t, err)
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	assert.NoError(t, err)
	p := &Proxy{listener: listener, links: map[*link]bool{}, lost: func() {}}
	p.network, p.address = pgconn.NetworkAddress(config.Host, config.Port)
	user := url.User(config.User)
	if config.Password != "" {
		user = url.UserPassword(config.User, config.Password)
	}
	p.URL = (&url.URL{Scheme: "postgres", User: user, Host: listener.Addr().String(), Path: "/" + config.Database, RawQuery: "sslmode=disable"}).String()
	p.wg.Go(p.accept)
	t.Cleanup(p.close)
	return p
}

// On asks decide about every statement from now on, by the name that sqlc gave it, else its first words. It is called by
// many goroutines, and while it blocks the statement waits in the wire. Nil lets all pass.
func (p *Proxy) On(decide func(statement string) Fate) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.decide = decide
}

// Unlimited is what OnConnect's admit answers for a connection that lasts.
const Unlimited = math.MaxInt64

// OnConnect asks admit about every new connection from now on: the connection ends when its client has sent so many
// bytes, with 0 at once. Nil admits all.
func (p *Proxy) OnConnect(admit func() (bytes int64)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.admit = admit
}

func (p *Proxy) admits() int64 {
	p.mu.Lock()
	admit := p.admit
	p.mu.Unlock()
	if admit == nil {
		return Unlimited
	}
	return admit()
}

// Cut closes all connections.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.close()
	}
}

// OnLost calls do for every request or reply that is lost from now on, before its client can learn of it; where the client
// was cut off, when the server has answered.
func (p *Proxy) OnLost(do func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lost = do
}

func (p *Proxy) fateOf(statement string) Fate {
	p.mu.Lock()
	decide := p.decide
	p.mu.Unlock()
	if decide == nil {
		return Passes
	}
	return decide(statement)
}

// lose reports a loss.
func (p *Proxy) lose() {
	p.mu.Lock()
	lost := p.lost
	p.mu.Unlock()
	lost()
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		most := p.admits()
		if most == 0 {
			client.Close()
			continue
		}
		server, err := net.Dial(p.network, p.address)
		if err != nil {
			client.Close()
			continue
		}
		l := &link{proxy: p, client: client, server: server, heard: io.LimitReader(client, most), prepared: map[string]string{}}
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

func (p *Proxy) close() {
	p.On(nil)
	p.listener.Close()
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.Cut()
	p.wg.Wait()
}

// link is one connection through the proxy.
type link struct {
	proxy          *Proxy
	client, server net.Conn
	heard          io.Reader         // what the client sends, as far as it is let through
	prepared       map[string]string // name of the prepared statement → name of the query
	deaf           atomic.Bool       // no reply goes to the client any more
	hushed         atomic.Bool       // deaf, and the client is not to learn of it
	replaced       atomic.Bool       // deaf to one reply: the client gets a router's error instead
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
	if _, err := io.ReadFull(l.heard, startup[:]); err != nil {
		l.close()
		return
	}
	rest := make([]byte, binary.BigEndian.Uint32(startup[:])-4)
	if _, err := io.ReadFull(l.heard, rest); err != nil || binary.BigEndian.Uint32(rest) == cancelRequest {
		l.close()
		return
	}
	exchange := append(startup[:], rest...)
	for f := Passes; ; {
		if f == LoseRequest {
			l.proxy.lose()
			l.close()
			return
		}
		if f == HushRequest || f == HushReply {
			l.hushed.Store(true)
			l.proxy.lose()
		}
		if f == HushRequest {
			_, _ = io.Copy(io.Discard, l.client)
			l.close()
			return
		}
		l.replaced.Store(f == RouteReply)
		l.deaf.Store(f == LoseReply || f == LoseClient || f == HushReply || f == RouteReply)
		if _, err := l.server.Write(exchange); err != nil || f == LoseClient {
			l.client.Close() // and the server's side when its answer is there
			return
		}
		statement, next, err := l.exchange()
		if err != nil {
			l.close()
			return
		}
		exchange, f = next, Passes
		if statement != "" {
			f = l.proxy.fateOf(statement)
		}
		if f == RouteRequest {
			exchange = nil
			l.refuse()
		}
	}
}

// exchange reads messages up to one that is answered. It names the statement if one is executed.
func (l *link) exchange() (statement string, exchange []byte, err error) {
	bound := ""
	for {
		kind, body, message, err := readMessage(l.heard)
		if err != nil {
			return "", nil, err
		}
		exchange = append(exchange, message...)
		switch kind {
		case 'P': // Parse: statement, query
			name, query, _ := bytes.Cut(body, []byte{0})
			query, _, _ = bytes.Cut(query, []byte{0})
			l.prepared[string(name)] = QueryName(string(query))
		case 'B': // Bind: portal, statement
			_, name, _ := bytes.Cut(body, []byte{0})
			name, _, _ = bytes.Cut(name, []byte{0})
			bound = l.prepared[string(name)]
		case 'E': // Execute
			statement = bound
		case 'Q': // Query
			query, _, _ := bytes.Cut(body, []byte{0})
			return QueryName(string(query)), exchange, nil
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
			if kind != 'Z' || l.hushed.Load() { // ReadyForQuery: committed or rolled back
				continue
			}
			if !l.replaced.Load() {
				l.proxy.lose()
				return
			}
			l.deaf.Store(false)
			l.refuse()
			continue
		}
		if _, err := l.client.Write(message); err != nil {
			return
		}
	}
}

// routerCodes are those of routers: their own, and those of PostgreSQL, which routers use for what they like.
var routerCodes = []string{"SPQRD", "23505", "58000", "22023", "40P01", "P0001", "42601", "08P01", "55P03", "26000"}

// refuse answers a statement with an error as routers send it: it does not name a function of PostgreSQL.
func (l *link) refuse() {
	l.proxy.mu.Lock()
	code := routerCodes[l.proxy.routed%len(routerCodes)]
	l.proxy.routed++
	l.proxy.mu.Unlock()
	l.proxy.lose()
	message := "SERROR\x00VERROR\x00C" + code + "\x00Mthe shard does not answer\x00\x00"
	answer := binary.BigEndian.AppendUint32([]byte{'E'}, uint32(4+len(message)))
	answer = append(append(answer, message...), 'Z', 0, 0, 0, 5, 'I')
	_, _ = l.client.Write(answer) // a client that has gone needs none
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

// QueryName is the name that sqlc writes above a query, or else its first words.
func QueryName(query string) string {
	if rest, named := strings.CutPrefix(query, "-- name: "); named {
		name, _, _ := strings.Cut(rest, " ")
		return name
	}
	return query[:min(len(query), 30)]
}
