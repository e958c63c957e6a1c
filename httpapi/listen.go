package httpapi

import (
	"cmp"
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"time"
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
	// Log takes what goes wrong with connections, at debug: anybody can cause it, as often as he likes. Nil means nobody.
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
	return &Server{connections: newConnections(how.Connections, how.Proxies), Server: &http.Server{
		Handler: handler, Protocols: versions, TLSConfig: how.TLS,
		ReadHeaderTimeout: readHeaderTimeout, ReadTimeout: readTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes,
		ErrorLog:  slog.NewLogLogger(cmp.Or(how.Log, slog.New(slog.DiscardHandler)).Handler(), slog.LevelDebug),
		ConnState: noteState, ConnContext: withConnection,
	}}
}

// Serve serves on a listener until the server is shut down. It may be called for more than one.
func (s *Server) Serve(listener net.Listener) error {
	bound := boundListener{listener, s.connections}
	if s.TLSConfig != nil {
		return s.ServeTLS(bound, "", "")
	}
	return s.Server.Serve(bound)
}
