package faulttest

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

// proxy stands between the program and PostgreSQL. It names every statement that is executed, and can end the program
// before the server has seen a statement, or after the server has committed it and before its reply has arrived
// (PostgreSQL manual, chapter 55: frontend/backend protocol).
type proxy struct {
	url      string
	network  string
	address  string
	listener net.Listener
	wg       sync.WaitGroup

	mu       sync.Mutex
	links    map[*link]bool
	closed   bool
	executed []string // since watch
	watching bool
	fatal    int  // the number of the statement that ends the program, from 1 on; 0: none does
	after    bool // with its reply
	kill     func()
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

// watch lists the statements from now on. With a number, the statement of that number ends the program.
func (p *proxy) watch(fatal int, after bool, kill func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.watching, p.executed, p.fatal, p.after, p.kill = true, nil, fatal, after, kill
}

// statements lists what was executed since watch. What the program does by the clock does not count.
func (p *proxy) statements() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.executed
}

// verdict counts a statement: does the program end before it, or with its reply?
func (p *proxy) verdict(statement string) (before, after bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	byTheClock := strings.HasPrefix(statement, "Leases") || statement == "InstallationID"
	if !p.watching || statement == "" || byTheClock {
		return false, false
	}
	p.executed = append(p.executed, statement)
	hit := len(p.executed) == p.fatal
	return hit && !p.after, hit && p.after
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

	mu   sync.Mutex
	last bool // the next ReadyForQuery ends the program
}

func (l *link) close() {
	l.client.Close()
	l.server.Close()
}

// fromClient forwards whole exchanges: what the client sends until it waits for an answer.
func (l *link) fromClient() {
	defer l.close()
	exchange, err := readStartup(l.client)
	for statement := ""; err == nil; statement, exchange, err = l.exchange() {
		before, after := l.proxy.verdict(statement)
		if before {
			l.proxy.kill()
			return
		}
		l.mu.Lock()
		l.last = after
		l.mu.Unlock()
		if _, err := l.server.Write(exchange); err != nil {
			return
		}
	}
}

// fromServer forwards replies.
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
		l.mu.Lock()
		last := l.last
		l.mu.Unlock()
		if last {
			if kind == 'Z' { // ReadyForQuery: it has committed
				l.proxy.kill()
				return
			}
			continue
		}
		if _, err := l.client.Write(message); err != nil {
			return
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

// readStartup reads the first message, which alone has no type.
func readStartup(from io.Reader) ([]byte, error) {
	var size [4]byte
	if _, err := io.ReadFull(from, size[:]); err != nil {
		return nil, err
	}
	message := make([]byte, binary.BigEndian.Uint32(size[:]))
	copy(message, size[:])
	_, err := io.ReadFull(from, message[4:])
	return message, err
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
	text, _, _ := strings.Cut(string(query), "\x00")
	if rest, named := strings.CutPrefix(text, "-- name: "); named {
		name, _, _ := strings.Cut(rest, " ")
		return name
	}
	return text[:min(len(text), 30)]
}
