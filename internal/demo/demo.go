// Package demo shows the service at work while things break: a database, two replicas, a simulated provider and callers, a
// fault every few seconds, and in the end the books of both sides, which balance. Its console has a lab, in which a person breaks
// things. What runs are commands of this same program, on this machine only. None of it is left behind.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"pawl/client"
	"pawl/internal/console"
	"pawl/internal/pg"
	"pawl/internal/pgembed"
)

// Options say what to show, and where.
type Options struct {
	Program string        // the file of this program
	Length  time.Duration // how long orders are sent, unless the lab is used; 0: until Run is ended, and all faults are made by hand
	Out     io.Writer     // is told what happens, a line for each event
	Live    bool          // Out is a terminal: its last line is kept up to date

	Dir                       string // a new or empty folder, which is kept; "" is one that is removed
	PostgresBin, PostgresUser string // as in pgembed.Config, and may be empty
}

// ErrNotEmpty says that there is something in Options.Dir. Whatever it is, it is not the demo's to change.
var ErrNotEmpty = errors.New("folder is not empty")

// Run shows it once. When ctx ends, no more orders are sent and the end comes early. It returns an error where an order did
// not come to its end, or the books do not balance.
func Run(ctx context.Context, opt Options) (err error) {
	s := &stage{Options: opt, restarted: make(chan restart), asked: make(chan asked), over: make(chan struct{}), watched: watched{prove: make(chan struct{}, 1)}}
	s.byHand.Store(opt.Length == 0)
	s.table = table{out: opt.Out, live: opt.Live, tally: &s.tally}
	defer func() { err = errors.Join(err, s.close()) }()
	if err := s.openFolder(); err != nil {
		return err
	}
	if err := s.start(ctx); err != nil {
		return err
	}
	if err := s.open(ctx); err != nil {
		return err
	}
	if err := errors.Join(s.play(ctx), s.closeConsole()); err != nil {
		return err
	}
	return s.balance()
}

// stage is what runs, and what is known of it.
type stage struct {
	Options
	temporary string // the folder to remove
	database  *pgembed.Server
	provider  *child
	tally     tally
	table     table
	struck    int          // faults so far
	starting  int          // replicas that are being started again
	restarted chan restart // hears from them

	front  *console.Local
	asked  chan asked    // what is asked for in the lab
	over   chan struct{} // closed when nothing can be asked for any more
	byHand atomic.Bool   // a person breaks things, and nothing breaks by itself

	mu       sync.Mutex
	replicas [2]replica
	rules    []string // of the provider, but for the usual ones

	watched
}

// openFolder makes the folder. Others may enter it: root's PostgreSQL runs as another user.
func (s *stage) openFolder() (err error) {
	if s.Dir == "" {
		if s.temporary, err = os.MkdirTemp("", "pawl-demo-"); err != nil {
			return fmt.Errorf("make folder: %w", err)
		}
		s.Dir = s.temporary
		return os.Chmod(s.Dir, 0o755)
	}
	if s.Dir, err = filepath.Abs(s.Dir); err != nil {
		return err
	}
	if err := os.MkdirAll(s.Dir, 0o755); err != nil {
		return fmt.Errorf("make folder: %w", err)
	}
	if entries, err := os.ReadDir(s.Dir); err != nil || len(entries) > 0 {
		return errors.Join(err, fmt.Errorf("%s: %w", s.Dir, ErrNotEmpty))
	}
	return nil
}

// policy has the provider do all steps. It is called until it answers: no order of a demo waits for a person.
const policy = `charge: {executor: simulator, url: %[1]q, timeout: 1s, retry: {initial: 50ms, cap: 500ms, maxRetries: 100, budget: 10m}}
reserve: {executor: simulator, url: %[1]q, timeout: 1s, retry: {initial: 50ms, cap: 500ms, maxRetries: 100, budget: 10m}}
confirm: {executor: simulator, url: %[1]q, timeout: 1s, retry: {initial: 50ms, cap: 500ms, maxRetries: 100, budget: 10m}}
`

// start starts everything but the callers.
func (s *stage) start(ctx context.Context) (err error) {
	s.table.note("starting PostgreSQL, a simulated provider and two replicas of the service")
	s.database, err = pgembed.Start(ctx, pgembed.Config{Dir: s.Dir, BinDir: s.PostgresBin, User: s.PostgresUser})
	if err != nil {
		return err
	}
	s.provider, err = s.launch(ctx, "simulate", "--port", "0", "--file", s.file("simulator.jsonl"), "--latency", "20ms")
	if err != nil {
		return err
	}
	if s.front, err = console.ListenLocal(0); err != nil {
		return err
	}
	if err := os.WriteFile(s.file("policy.yaml"), fmt.Appendf(nil, policy, s.provider.url), 0o600); err != nil {
		return fmt.Errorf("write policy: %w", err)
	}
	for i := range s.replicas {
		if err := s.startReplica(ctx, i); err != nil {
			return err
		}
	}
	return s.plan()
}

func (s *stage) file(name string) string { return filepath.Join(s.Dir, name) }

func (s *stage) databaseURL() string { return s.database.URL("postgres") }

// close ends what still runs, the one that others need last, and removes the folder.
func (s *stage) close() (err error) {
	err = s.closeConsole()
	for _, c := range []*child{s.replicas[0].child, s.replicas[1].child, s.provider} {
		if c != nil {
			c.end()
		}
	}
	if s.database != nil {
		ctx, cancel := context.WithTimeout(context.Background(), endLimit)
		defer cancel()
		err = errors.Join(err, s.database.Stop(ctx))
	}
	if s.temporary != "" {
		err = errors.Join(err, os.RemoveAll(s.temporary))
	}
	return err
}

// open opens the console, and the address under which the provider, and programs on this machine, reach a replica that serves.
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

// passOn leaves a request as it is: replicas are told under which name they are asked, and that there is a proxy before us.
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

// table tells what happens: a row for each event, with what the callers have seen so far.
type table struct {
	out   io.Writer
	live  bool
	tally *tally
	began time.Time
}

const (
	head   = "   time    orders  completed  failed  requests   slowest\n"
	format = "%6.1fs  %8d  %9d  %6d  %8d  %7dms  %s"

	startOfLine = "\r\x1b[K" // and what was there is gone
)

// note is a line before the table.
func (t *table) note(what string) { fmt.Fprintln(t.out, what) }

func (t *table) begin() {
	t.began = time.Now()
	fmt.Fprint(t.out, head)
}

func (t *table) row(what string) {
	fmt.Fprint(t.out, t.start(), t.line(t.tally.look(), what), "\n")
}

// draw shows how it is now, to a person: the next row takes the place of this one.
func (t *table) draw() {
	if t.live {
		fmt.Fprint(t.out, t.start(), t.line(t.tally.peek(), ""))
	}
}

func (t *table) start() string {
	if t.live {
		return startOfLine
	}
	return ""
}

func (t *table) line(c counts, what string) string {
	return fmt.Sprintf(format, time.Since(t.began).Seconds(), c.sent, c.completed, c.failed, c.requests, c.slowest.Milliseconds(), what)
}
