package cli

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"pawl/httpapi"
	"pawl/internal/events"
)

// edge has the listeners of the service: for callers, and for operations if they have their own address.
type edge struct {
	callers, operations []net.Listener
	servers             []*httpapi.Server
	tail                *events.Tail // answers its listeners until it stops; may be nil
}

// openEdge begins to listen. Callers wait until serve.
func openEdge(ctx context.Context, cfg *config) (_ *edge, err error) {
	e := &edge{}
	if e.callers, err = listenAll(ctx, cfg.hosts(), strconv.Itoa(cfg.Port)); err != nil {
		return nil, err
	}
	if cfg.OpsListen != "" {
		host, port, _ := net.SplitHostPort(cfg.OpsListen) // checked by validate
		if e.operations, err = listenAll(ctx, []string{host}, port); err != nil {
			e.close()
			return nil, err
		}
	}
	return e, nil
}

// listening reads the certificate and tries to listen, before a database is started or created. It stops listening,
// because callers would wait until the service is ready.
func listening(ctx context.Context, cfg *config, log *slog.Logger) (how httpapi.Listening, err error) {
	if (cfg.TLSCert == "") != (cfg.TLSKey == "") {
		return how, configError{errors.New("tls-cert and tls-key must be set together")}
	}
	if cfg.TLSCert != "" {
		if how.TLS, err = tlsConfig(cfg.TLSCert, cfg.TLSKey, log); err != nil {
			return how, configError{err}
		}
	}
	how.Connections, how.Proxies, how.Log = connections(cfg, log), cfg.proxies, log
	trial, err := openEdge(ctx, cfg)
	if err != nil {
		return how, err
	}
	trial.close()
	return how, nil
}

// loopbackHosts are both addresses of localhost: programs differ in which one they use.
var loopbackHosts = []string{"127.0.0.1", "::1"}

// listenAll listens on a port of several addresses. Only the first must exist on this machine. If the port is picked
// for the first, the others are left out, because it may be taken there.
func listenAll(ctx context.Context, hosts []string, port string) (listeners []net.Listener, err error) {
	for i, host := range hosts {
		if i > 0 && port == "0" {
			break
		}
		listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(host, port))
		if i > 0 && (errors.Is(err, syscall.EADDRNOTAVAIL) || errors.Is(err, syscall.EAFNOSUPPORT)) {
			continue
		}
		if errors.Is(err, syscall.EADDRINUSE) {
			err = fmt.Errorf("another program uses %s; choose another port", net.JoinHostPort(host, port))
		}
		if err != nil {
			closeAll(listeners)
			return nil, fmt.Errorf("listen: %w", err)
		}
		listeners = append(listeners, listener)
	}
	return listeners, nil
}

func closeAll(listeners []net.Listener) {
	for _, listener := range listeners {
		_ = listener.Close()
	}
}

// close stops listening if the edge does not serve.
func (e *edge) close() { closeAll(append(e.callers, e.operations...)) }

// serve answers requests until Shutdown. The channel gets the error of a server that ends earlier.
func (e *edge) serve(api, forOperations http.Handler, how httpapi.Listening) <-chan error {
	if e.tail != nil {
		e.tail.Start()
	}
	failed := make(chan error, len(e.callers)+len(e.operations))
	e.start(httpapi.NewServer(api, how), e.callers, failed)
	if len(e.operations) > 0 {
		how.Connections = operationsConnections
		if onLoopback(e.operations) {
			how.TLS = nil // the certificate does not cover it
		}
		e.start(httpapi.NewServer(forOperations, how), e.operations, failed)
	}
	return failed
}

func (e *edge) start(server *httpapi.Server, listeners []net.Listener, failed chan<- error) {
	e.servers = append(e.servers, server)
	for _, listener := range listeners {
		go func() { failed <- server.Serve(listener) }()
	}
}

// Shutdown waits for requests in progress, until ctx ends.
func (e *edge) Shutdown(ctx context.Context) (err error) {
	var listeners sync.WaitGroup
	if e.tail != nil {
		listeners.Go(func() { e.tail.Stop(ctx) })
		defer listeners.Wait()
	}
	for _, server := range e.servers {
		err = errors.Join(err, server.Shutdown(ctx))
	}
	return err
}

// Close disconnects all callers.
func (e *edge) Close() (err error) {
	for _, server := range e.servers {
		err = errors.Join(err, server.Close())
	}
	return err
}

func (e *edge) address() net.Addr { return e.callers[0].Addr() }

func onLoopback(listeners []net.Listener) bool {
	for _, listener := range listeners {
		if at, ok := listener.Addr().(*net.TCPAddr); !ok || !at.IP.IsLoopback() {
			return false
		}
	}
	return true
}

// operationsConnections is the limit of the address for operations, for supervisors and Prometheus.
const operationsConnections = 32

// fewestConnections is the limit if the process may open only a few files.
const fewestConnections = 16

// connections is how many callers may connect. It leaves a quarter of the open files, and those of the database, for
// calls to providers and the rest.
func connections(cfg *config, log *slog.Logger) int {
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil {
		return cfg.MaxConnections
	}
	possible := int(min(files.Cur, 1<<30)*3/4) - cfg.MaxConns
	if cfg.OpsListen != "" {
		possible -= operationsConnections
	}
	if possible >= cfg.MaxConnections {
		return cfg.MaxConnections
	}
	possible = max(possible, fewestConnections)
	log.Warn("the open file limit is too low for the configured number of connections",
		"files", files.Cur, "configured", cfg.MaxConnections, "connections", possible)
	return possible
}

// tlsConfig reads the certificate, and again when its files change.
func tlsConfig(certFile, keyFile string, log *slog.Logger) (*tls.Config, error) {
	pair := &keyPair{certFile: certFile, keyFile: keyFile, log: log}
	if _, err := pair.certificate(nil); err != nil {
		return nil, err
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: pair.certificate}, nil
}

// keyPair is a certificate and its key, in files that are replaced now and then.
type keyPair struct {
	certFile, keyFile string
	log               *slog.Logger

	mu     sync.Mutex
	loaded *tls.Certificate
	read   [2]fileState // the files when they were last read, valid or not
}

// fileState tells whether a file was replaced.
type fileState struct {
	changed time.Time
	size    int64
}

// certificate checks the files before each handshake, which takes a hundred times as long. If they are not valid, for
// example because only one was replaced, it returns the previous certificate.
func (k *keyPair) certificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	var now [2]fileState
	for i, file := range []string{k.certFile, k.keyFile} {
		if info, err := os.Stat(file); err == nil {
			now[i] = fileState{info.ModTime(), info.Size()}
		}
	}
	if k.loaded != nil && now == k.read {
		return k.loaded, nil
	}
	pair, err := tls.LoadX509KeyPair(k.certFile, k.keyFile)
	switch {
	case err != nil && k.loaded == nil:
		return nil, fmt.Errorf("read certificate: %w", err)
	case err != nil:
		k.log.Warn("the new certificate is not valid; keeping the previous one", "file", k.certFile, "error", err)
	default:
		if k.loaded != nil {
			k.log.Info("the certificate was replaced", "file", k.certFile, "until", pair.Leaf.NotAfter)
		}
		k.loaded = &pair
	}
	k.read = now
	return k.loaded, nil
}
