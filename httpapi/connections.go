package httpapi

import (
	"cmp"
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"pawl/internal/access"
)

// The time limits of a connection. readTimeout covers head and body together. A handler that waits removes it once the
// body has been read, because it would cancel the request's context. An answer has no limit as a whole, because some
// wait for an order; stallTimeout applies to each piece of it.
const (
	readHeaderTimeout = 5 * time.Second
	readTimeout       = 10 * time.Second
	stallTimeout      = 10 * time.Second
	idleTimeout       = 2 * time.Minute
	maxHeaderBytes    = 16 << 10
)

// DefaultConnections is the default of Listening.Connections.
const DefaultConnections = 4096

// Listening configures how a Server accepts connections.
type Listening struct {
	// Connections is the maximum number of open connections. Above it, idle ones are closed. Each address may have half
	// of them, except for this machine and the proxies. Zero means DefaultConnections.
	Connections int
	// Proxies are the networks of the reverse proxies.
	Proxies []netip.Prefix
	// TLS is the certificate to serve with. Nil means plain HTTP.
	TLS *tls.Config
	// Log receives errors of connections, at level debug because any caller can cause them. Nil: they are not logged.
	Log *slog.Logger
}

// Server is an http.Server that limits the number of connections, and how long each may keep it waiting.
type Server struct {
	*http.Server
	connections *connections
}

// NewServer returns a server with timeouts and limits for the handler of New: it ends slow, endless and oversized
// requests, but not those that wait for an order.
func NewServer(handler http.Handler, how Listening) *Server {
	if how.Connections == 0 {
		how.Connections = DefaultConnections
	}
	versions := new(http.Protocols)
	versions.SetHTTP1(true) // the limits are those of a connection, and HTTP/2 has hundreds of requests on one
	s := &Server{connections: newConnections(how.Connections, how.Proxies), Server: &http.Server{
		Handler: handler, Protocols: versions, TLSConfig: how.TLS,
		ReadHeaderTimeout: readHeaderTimeout, ReadTimeout: readTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes,
		ErrorLog:  slog.NewLogLogger(cmp.Or(how.Log, slog.New(slog.DiscardHandler)).Handler(), slog.LevelDebug),
		ConnState: noteState, ConnContext: withConnection,
	}}
	s.RegisterOnShutdown(s.connections.stop)
	return s
}

// Serve serves on a listener until the server is shut down. It may be called for more than one.
func (s *Server) Serve(listener net.Listener) error {
	bound := boundListener{listener, s.connections}
	if s.TLSConfig != nil {
		return s.ServeTLS(bound, "", "")
	}
	return s.Server.Serve(bound)
}

// connections limits the connections to a server, to save files and memory. If there are too many, the one that has
// been idle for the longest is closed. If none is idle, a few more are accepted as spares, which only serve supervisors
// and tell other callers to retry.
type connections struct {
	most, spare int            // normal ones, and spare ones
	each        int            // of one address, except this machine and proxies, which have many callers
	proxies     []netip.Prefix //
	stall       time.Duration  // how long a caller may take to read the next piece of an answer

	mu     sync.Mutex
	open   map[*connection]struct{} // the normal ones
	spares []*connection            // the oldest first
	of     map[netip.Addr]int       // normal ones by address

	waits places

	stopping context.Context //nolint:containedctx // of the server: it ends when the server is told to shut down
	stop     context.CancelFunc
}

// connection is an accepted connection.
type connection struct {
	net.Conn
	all      *connections
	peer     netip.Addr   // the address or network that it is counted under
	loopback bool         // accepted on an address that only this machine can reach
	spare    bool         // beyond the limit
	waiting  atomic.Int64 // since when it has been idle, in Unix nanoseconds; 0: it is not
	closing  sync.Once
}

func newConnections(most int, proxies []netip.Prefix) *connections {
	stopping, stop := context.WithCancel(context.Background())
	return &connections{
		stopping: stopping, stop: stop, most: most, each: (most + 1) / 2, spare: min(max(most/8, 4), 64), proxies: proxies, stall: stallTimeout,
		open: map[*connection]struct{}{}, of: map[netip.Addr]int{},
		waits: places{most: most * 3 / 4, each: (most + 1) / 2, of: map[string]int{}},
	}
}

// boundListener counts the connections that it accepts.
type boundListener struct {
	net.Listener
	all *connections
}

// Accept accepts the next connection. If that is one too many, it closes another one.
func (l boundListener) Accept() (net.Conn, error) {
	accepted, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &connection{
		Conn: accepted, all: l.all, peer: access.Network(addressOf(accepted.RemoteAddr().String())),
		loopback: addressOf(l.Addr().String()).IsLoopback(),
	}
	c.waiting.Store(time.Now().UnixNano())
	if tooMany := l.all.admit(c); tooMany != nil {
		_ = tooMany.Close()
	}
	return c, nil
}

// admit counts a connection, and returns the one to close for it.
func (a *connections) admit(c *connection) (victim *connection) {
	a.mu.Lock()
	defer a.mu.Unlock()
	crowded := !a.standsForMany(c.peer) && a.of[c.peer] >= a.each
	if crowded || len(a.open) >= a.most {
		victim = a.longestWaiting(c.peer, crowded)
		if victim == nil {
			return a.admitSpare(c)
		}
		a.remove(victim)
	}
	a.open[c] = struct{}{}
	a.of[c.peer]++
	return victim
}

// candidates is how many idle connections are compared to find the one to close. Comparing all for each new connection
// took too much processor time.
const candidates = 16

// longestWaiting returns the longest idle connection of a random sample: of one address, or of the address with the most
// connections. It returns nil if none is idle.
func (a *connections) longestWaiting(peer netip.Addr, ofPeer bool) (longest *connection) {
	var since int64
	seen := 0
	for c := range a.open {
		waiting := c.waiting.Load()
		if waiting == 0 || ofPeer && c.peer != peer {
			continue
		}
		if longest == nil || a.of[c.peer] > a.of[longest.peer] || a.of[c.peer] == a.of[longest.peer] && waiting < since {
			longest, since = c, waiting
		}
		if seen++; seen == candidates {
			break
		}
	}
	return longest
}

// admitSpare counts a spare connection, and returns the oldest one if there are too many.
func (a *connections) admitSpare(c *connection) (victim *connection) {
	c.spare = true
	if len(a.spares) >= a.spare {
		victim, a.spares = a.spares[0], a.spares[1:]
	}
	a.spares = append(a.spares, c)
	return victim
}

// remove stops counting a connection. It may be called twice.
func (a *connections) remove(c *connection) {
	if c.spare {
		a.spares = slices.DeleteFunc(a.spares, func(other *connection) bool { return other == c })
		return
	}
	if _, counted := a.open[c]; !counted {
		return
	}
	delete(a.open, c)
	if a.of[c.peer]--; a.of[c.peer] == 0 {
		delete(a.of, c.peer)
	}
}

// places are held by requests that wait for an order, for events, or for their turn. Three quarters of the connections
// may wait, and half of them all for one principal; the rest is for requests that are answered at once. Places are
// counted by principal and not by address, because all callers behind a proxy may share an address.
type places struct {
	most, each int

	mu    sync.Mutex
	taken int
	of    map[string]int // by principal
}

// place is a place to wait. The zero place is none.
type place struct {
	*places
	principal string
}

// placeToWait takes a place for the request that w answers. It reports false if there is none.
func placeToWait(w http.ResponseWriter, r *http.Request) (place, bool) {
	c := connectionOf(r)
	if c == nil { // outside of a Server
		return place{}, true
	}
	p := place{&c.all.waits, principalOf(w).Name}
	return p, p.take()
}

// mayWait returns how long the request that w answers may wait: as long as it asks for, or 0 if no place is free. The
// caller must leave the place.
func mayWait(w http.ResponseWriter, r *http.Request, wanted time.Duration) (time.Duration, place) {
	if wanted == 0 {
		return 0, place{}
	}
	p, ok := placeToWait(w, r)
	if !ok {
		return 0, place{}
	}
	return wanted, p
}

func (p place) take() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.taken >= p.most || p.of[p.principal] >= p.each {
		return false
	}
	p.taken++
	p.of[p.principal]++
	return true
}

// leave gives the place back.
func (p place) leave() {
	if p.places == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken--
	if p.of[p.principal]--; p.of[p.principal] == 0 {
		delete(p.of, p.principal)
	}
}

// standsForMany reports whether an address has many callers, as a proxy does, or is this machine.
func (a *connections) standsForMany(peer netip.Addr) bool {
	return peer.IsLoopback() || contains(a.proxies, peer)
}

// Close closes the connection and stops counting it.
func (c *connection) Close() (err error) {
	c.closing.Do(func() {
		c.all.mu.Lock()
		c.all.remove(c)
		c.all.mu.Unlock()
		err = c.Conn.Close()
	})
	return err
}

// CloseWrite closes the sending side, so that a caller that sends more than is read still gets the answer.
func (c *connection) CloseWrite() error {
	if half, ok := c.Conn.(*net.TCPConn); ok {
		return half.CloseWrite()
	}
	return nil
}

// piece is how many bytes of an answer a caller has to read within stallTimeout.
const piece = 64 << 10

// Write sends an answer piece by piece. A caller that does not read one in time is disconnected, so that slow readers
// can't keep answers in memory.
func (c *connection) Write(b []byte) (sent int, err error) {
	for {
		if err := c.Conn.SetWriteDeadline(time.Now().Add(c.all.stall)); err != nil {
			return sent, err
		}
		n, err := c.Conn.Write(b[sent:min(sent+piece, len(b))])
		if sent += n; err != nil || sent == len(b) {
			return sent, err
		}
	}
}

// noteState records since when a connection has been idle.
func noteState(accepted net.Conn, state http.ConnState) {
	c := connectionIn(accepted)
	if c == nil {
		return
	}
	switch state { //nolint:exhaustive // the others begin or end it
	case http.StateActive:
		c.waiting.Store(0)
	case http.StateIdle:
		c.waiting.Store(time.Now().UnixNano())
	}
}

// connectionIn returns the connection of this package below others, such as TLS.
func connectionIn(accepted net.Conn) *connection {
	if layer, ok := accepted.(interface{ NetConn() net.Conn }); ok {
		accepted = layer.NetConn()
	}
	c, _ := accepted.(*connection)
	return c
}

type connectionKey struct{}

// withConnection stores the connection in the context of its requests.
func withConnection(ctx context.Context, accepted net.Conn) context.Context {
	return context.WithValue(ctx, connectionKey{}, connectionIn(accepted))
}

// connectionOf returns the connection of a request, or nil outside of a Server.
func connectionOf(r *http.Request) *connection {
	c, _ := r.Context().Value(connectionKey{}).(*connection)
	return c
}
