package dbtest

import (
	"io"
	"math"
	"net"
	"net/url"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
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
)

func (f Fate) String() string {
	return [...]string{"passes", "request lost", "reply lost", "client cut off", "request hushed", "reply hushed"}[f]
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
}

// NewProxy listens in front of the server of a database. It ends with the test.
func NewProxy(t testing.TB, databaseURL string) *Proxy {
	t.Helper()
	config, err := pgconn.ParseConfig(databaseURL)
	require(t, err)
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require(t, err)
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

// OnConnect asks admit about every new connection from now on: the connection ends when its client has sent so many bytes, with 0
// at once. Nil admits all.
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
