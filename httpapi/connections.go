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

// The limits of a connection. readTimeout is for head and body together; a
// handler that waits lifts it once the body has been read, because it would end
// the request's context otherwise. An answer has no limit as a whole, because some wait
// for an order: stallTimeout is for each piece of it.
const (
	readHeaderTimeout = 5 * time.Second
	readTimeout       = 10 * time.Second
	stallTimeout      = 10 * time.Second
	idleTimeout       = 2 * time.Minute
	maxHeaderBytes    = 16 << 10
)

// DefaultConnections is how many connections a Server takes if it is not told.
const DefaultConnections = 4096

// Listening is how a Server takes connections.
type Listening struct {
	// Connections is how many callers may have at one time. Above it, those go that wait for their next request.
	// Each address may have half of them, except for this machine and the proxies. Zero means DefaultConnections.
	Connections int
	// Proxies are the networks of the reverse proxies.
	Proxies []netip.Prefix
	// TLS is the certificate to serve with. Nil means plain HTTP.
	TLS *tls.Config
	// Log takes errors of connections, at debug, because any caller can cause them. Nil means that they are not logged.
	Log *slog.Logger
}

// Server is an http.Server whose connections are limited, in number and in what they may keep it waiting for.
type Server struct {
	*http.Server
	connections *connections
}

// NewServer returns a server with time-outs and limits that fit the handler of
// New: slow, endless and oversized requests end, callers who wait do not.
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

// connections are the connections to a server, kept below a limit so that files and memory are left for the work. If there are
// too many, the one that has been idle for the longest is closed. If none is idle, a few more are accepted as spare ones:
// supervisors are answered there, and other callers are told to retry.
type connections struct {
	most, spare int            // normal ones, and spare ones
	each        int            // of one address, but for this machine and proxies: they stand for many callers
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

// connection is one that was accepted.
type connection struct {
	net.Conn
	all      *connections
	peer     netip.Addr   // what of its address it is counted under
	loopback bool         // it was accepted where only this machine can reach us
	spare    bool         // beyond the limit
	waiting  atomic.Int64 // since when it has waited for a request, in Unix nanoseconds; 0: it has one
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

// Accept takes the next connection, and closes another where it is one too many.
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

// admit counts a connection, and returns the one that has to go for it.
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

// candidates is among how many connections that wait the one to close is looked for. Looking at all of them for each
// that comes took the time that those needed who were served.
const candidates = 16

// longestWaiting is the connection that has waited for a request for the longest, of some that wait: of those of one address,
// or of the address that has most of them. A map begins anywhere. Nil: none waits.
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

// admitSpare counts a connection beyond the limit, and returns the oldest of those if they are too many as well.
func (a *connections) admitSpare(c *connection) (victim *connection) {
	c.spare = true
	if len(a.spares) >= a.spare {
		victim, a.spares = a.spares[0], a.spares[1:]
	}
	a.spares = append(a.spares, c)
	return victim
}

// remove forgets a connection. It may have been forgotten before.
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

// places are held by requests that wait: for an order, for events, or for their turn. Three quarters of the connections may
// wait, and half of all for one principal; the rest is for requests that are answered at once. Principals count and not
// addresses, because behind a proxy all callers can have the same one.
type places struct {
	most, each int

	mu    sync.Mutex
	taken int
	of    map[string]int // by principal
}

// place is one of them. The zero place is none.
type place struct {
	*places
	principal string
}

// placeToWait takes a place for the request that is answered with w. It reports false if there is none.
func placeToWait(w http.ResponseWriter, r *http.Request) (place, bool) {
	c := connectionOf(r)
	if c == nil { // outside of a Server
		return place{}, true
	}
	p := place{&c.all.waits, principalOf(w).Name}
	return p, p.take()
}

// mayWait is for how long the request that is answered with w may wait: for as long as it wants to, or if there is no place
// for it not at all. The place must be left.
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

// standsForMany reports whether the connections of an address belong to many callers (a proxy), or to this machine.
func (a *connections) standsForMany(peer netip.Addr) bool {
	return peer.IsLoopback() || contains(a.proxies, peer)
}

// Close closes the connection and counts it no longer.
func (c *connection) Close() (err error) {
	c.closing.Do(func() {
		c.all.mu.Lock()
		c.all.remove(c)
		c.all.mu.Unlock()
		err = c.Conn.Close()
	})
	return err
}

// CloseWrite ends what we send, so that a caller who sends more than is read gets the answer before the connection ends.
func (c *connection) CloseWrite() error {
	if half, ok := c.Conn.(*net.TCPConn); ok {
		return half.CloseWrite()
	}
	return nil
}

// piece is how much of an answer a caller has to read within the time for it, in bytes.
const piece = 64 << 10

// Write sends an answer piece by piece. A caller who does not read one in time is cut off: however long the whole
// answer may take, what it holds in memory can't be kept for nothing.
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

// noteState remembers since when a connection waits for a request.
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

// connectionIn finds ours, also below TLS.
func connectionIn(accepted net.Conn) *connection {
	if layer, ok := accepted.(interface{ NetConn() net.Conn }); ok {
		accepted = layer.NetConn()
	}
	c, _ := accepted.(*connection)
	return c
}

type connectionKey struct{}

// withConnection lets handlers find the connection of a request.
func withConnection(ctx context.Context, accepted net.Conn) context.Context {
	return context.WithValue(ctx, connectionKey{}, connectionIn(accepted))
}

// connectionOf is what a request came by, nil outside of a Server.
func connectionOf(r *http.Request) *connection {
	c, _ := r.Context().Value(connectionKey{}).(*connection)
	return c
}
