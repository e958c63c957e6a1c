package console

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"pawl/client"
)

// Local serves a console without login on this machine (pawl console, pawl demo), to the person who sees its address in
// the terminal. Other users of the machine and web pages in its browsers can reach it, too. So its address has a key,
// which the browser keeps in a cookie, and requests with another Host are rejected.
type Local struct {
	address  string // http://127.0.0.1 and the port
	key      string
	listener net.Listener
	server   *http.Server
	served   chan error
	end      context.CancelFunc // ends the contexts of all requests
}

// ListenLocal listens on a port of this machine; 0 picks one. Close ends it.
func ListenLocal(port int) (*Local, error) {
	listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	address := "http://" + listener.Addr().String()
	return &Local{address: address, key: rand.Text(), listener: listener, served: make(chan error, 1)}, nil
}

// Address is its URL, without a path.
func (l *Local) Address() string { return l.address }

// Link is the URL of a page, with the key.
func (l *Local) Link(path string) string { return l.address + path + "?key=" + l.key }

// Start serves a handler until Close.
func (l *Local) Start(handler http.Handler) {
	var requests context.Context
	requests, l.end = context.WithCancel(context.Background())
	l.server = &http.Server{
		BaseContext: func(net.Listener) context.Context { return requests },
		Handler:     thisMachine(handler), ReadHeaderTimeout: 5 * time.Second, IdleTimeout: 2 * time.Minute,
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug), // the terminal is for the command's own output
	}
	go func() { l.served <- l.server.Serve(l.listener) }()
}

// Failed receives the error of a server that ends by itself.
func (l *Local) Failed() <-chan error { return l.served }

// Close ends the server and the streams of its pages. It waits for requests, but not for long.
func (l *Local) Close() error {
	if l.server == nil {
		return l.listener.Close()
	}
	l.end()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	err := l.server.Shutdown(ctx)
	if err != nil {
		err = l.server.Close()
	}
	if served := <-l.served; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	return err
}

// thisMachine rejects requests with another Host, which may belong to a web page (DNS rebinding).
func thisMachine(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := (&url.URL{Host: r.Host}).Hostname()
		address, err := netip.ParseAddr(host)
		if !strings.EqualFold(host, "localhost") && (err != nil || !address.IsLoopback()) {
			http.Error(w, "Use the name localhost or 127.0.0.1.", http.StatusMisdirectedRequest)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// keyless shows the page for people without the key.
var keyless = &console{assets: newAssets(), Config: Config{
	Client: func(*http.Request) (*client.Client, error) { return nil, errNoKey },
}}

var errNoKey = newProblem(http.StatusForbidden, "Open the address with its key.",
	"The command printed it in the terminal. The key keeps other users of this machine out.")

// Private requires the key. The handler sees neither key nor cookie.
func (l *Local) Private(next http.Handler) http.Handler {
	_, port, _ := net.SplitHostPort(l.listener.Addr().String())
	name := "pawl-console-" + port // browsers don't tell ports apart
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		if given := r.URL.Query().Get("key"); given != "" && r.Method == http.MethodGet && l.opens(given) {
			http.SetCookie(w, &http.Cookie{Name: name, Value: l.key, Path: "/", HttpOnly: true, SameSite: http.SameSiteLaxMode})
			w.Header().Set("Referrer-Policy", "no-referrer")
			http.Redirect(w, r, r.URL.EscapedPath(), http.StatusSeeOther)
			return
		}
		if cookie, err := r.Cookie(name); err != nil || !l.opens(cookie.Value) {
			if r.Method == http.MethodGet && strings.HasPrefix(r.URL.Path, "/console/static/") {
				next.ServeHTTP(w, r) // the style of this page
				return
			}
			secured(keyless.answered(func(*visit) error { return errNoKey })).ServeHTTP(w, r)
			return
		}
		w.Header().Del("Cache-Control")
		r = r.Clone(r.Context())
		r.Header.Del("Cookie")
		next.ServeHTTP(w, r)
	})
}

func (l *Local) opens(key string) bool {
	return subtle.ConstantTimeCompare([]byte(key), []byte(l.key)) == 1
}
