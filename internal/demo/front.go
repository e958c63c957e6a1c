package demo

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httputil"

	"pawl/client"
	"pawl/internal/console"
	"pawl/internal/pg"
)

// open opens the console, and the address under which the provider, and anybody on this machine, reaches a replica that serves.
func (s *stage) open(ctx context.Context) (err error) {
	if s.pool, err = pg.Open(ctx, s.databaseURL(), pg.Options{MaxConns: 1}); err != nil {
		return fmt.Errorf("open books: %w", err)
	}
	proving, stop := context.WithCancel(context.WithoutCancel(ctx))
	s.proven, s.stopProving = make(chan struct{}), stop
	go s.prover(proving)

	replicas := &steady{stage: s}
	asking := &http.Client{Transport: replicas}
	pages := console.New(console.Config{Lab: s.lab(), Client: func(*http.Request) (*client.Client, error) {
		if _, _, err := s.serving(); err != nil {
			return nil, err
		}
		return client.New(s.front.Address(), client.Options{HTTPClient: asking, RetryFor: readLimit})
	}})
	mux := http.NewServeMux()
	mux.Handle("/console", s.front.Private(pages))
	mux.Handle("/console/", s.front.Private(pages))
	mux.Handle("/", &httputil.ReverseProxy{Transport: replicas, Rewrite: passOn, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)})
	s.front.Start(mux)
	s.table.note("the console, with a lab where you break things yourself: " + s.front.Link("/console/lab"))
	return nil
}

// passOn leaves a request as it is: replicas are told under which name they are asked, and that somebody stands before us.
func passOn(r *httputil.ProxyRequest) {
	r.Out.URL.Scheme, r.Out.URL.Host, r.Out.Host = "http", r.In.Host, r.In.Host
	for _, name := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"} {
		if values, ok := r.In.Header[name]; ok {
			r.Out.Header[name] = values
		}
	}
}

// closeConsole ends the console. It may be called again.
func (s *stage) closeConsole() (err error) {
	s.closing.Do(func() {
		if s.front != nil {
			err = s.front.Close()
		}
		if s.pool != nil {
			s.stopProving()
			<-s.proven
			s.pool.Close()
		}
	})
	return err
}
