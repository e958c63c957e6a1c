package httpapi

import (
	"net/http"
	"time"
)

// The limits of a connection. ReadTimeout is for head and body together; a
// handler that waits lifts it once the body has been read, because it would end
// the request's context otherwise.
const (
	readHeaderTimeout = 5 * time.Second
	readTimeout       = 10 * time.Second
	writeTimeout      = maxWait + 2*readTimeout
	idleTimeout       = 2 * time.Minute
	maxHeaderBytes    = 16 << 10
)

// NewServer returns a server with time-outs and limits that fit the handler of
// New: slow, endless and oversized requests end, callers who wait do not.
func NewServer(addr string, handler http.Handler) *http.Server {
	return &http.Server{
		Addr: addr, Handler: handler,
		ReadHeaderTimeout: readHeaderTimeout, ReadTimeout: readTimeout,
		WriteTimeout: writeTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes,
	}
}
