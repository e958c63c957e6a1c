// Package demo runs the demonstration: a database, two replicas, a simulated provider and callers, a fault every few
// seconds, and at the end a comparison of both books. Its console has a lab, in which a person causes faults.
// Everything is a command of this program, runs on this machine only, and is removed at the end.
package demo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httputil"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/govalues/decimal"

	"pawl/client"
	"pawl/internal/console"
	"pawl/internal/load"
	"pawl/internal/pg"
	"pawl/internal/pgembed"
)

// Options configures Run.
type Options struct {
	Program string        // the file of this program
	Length  time.Duration // how long to send orders, unless the lab is used; 0: until ctx ends, with faults only from the lab
	Out     io.Writer     // gets a line for each event
	Live    bool          // Out is a terminal: its last line is kept up to date

	Dir                       string // a new or empty folder, which is kept; "": a temporary one
	PostgresBin, PostgresUser string // as in pgembed.Config; may be empty
}

// ErrNotEmpty is the error if Options.Dir has files.
var ErrNotEmpty = errors.New("folder is not empty")

// Run runs the demonstration. When ctx ends, it sends no more orders and ends early. It returns an error if an order
// did not end, or the books do not balance.
func Run(ctx context.Context, opt Options) (err error) {
	s := &stage{Options: opt, table: table{out: opt.Out, live: opt.Live}}
	s.table.tally = &s.tally
	s.byHand.Store(opt.Length == 0)
	ctx, s.stop = context.WithCancel(ctx)
	defer s.stop()
	defer func() { err = errors.Join(err, s.close()) }()
	for _, part := range []func(context.Context) error{s.openFolder, s.start, s.openConsole, s.play, s.conclude} {
		if err := part(ctx); err != nil {
			return err
		}
	}
	return nil
}

type stage struct {
	Options
	temporary string // folder to remove
	database  *pgembed.Server
	provider  *process
	front     *console.Local
	pool      *pg.Pool
	tally     tally
	restarts  sync.WaitGroup
	stop      context.CancelFunc // ends orders and faults
	byHand    atomic.Bool        // the lab was used: all faults come from there

	// acting is held while a fault begins or ends, and guards:
	acting sync.Mutex
	table  table
	struck int   // faults so far
	over   bool  // no more faults may begin
	failed error // why the demonstration ended early

	mu       sync.Mutex // guards:
	replicas [2]replica
	rules    []string // of the provider, without usual
	proof    console.LabProof
	proving  bool
	ended    int64     // orders, when the lab last looked
	endedAt  time.Time // when there were fewer
	lookedAt time.Time
	last     *console.LabState // with the verdict; nil: the demonstration goes on

	proveNext  time.Time
	proofs     context.Context
	stopProofs context.CancelFunc
	provers    sync.WaitGroup
}

func (s *stage) fail(err error) {
	s.failed = errors.Join(s.failed, err)
	s.stop()
}

// openFolder makes the folder. Other users may enter it, because root runs PostgreSQL as another user.
func (s *stage) openFolder(context.Context) (err error) {
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

// policy has the provider run all steps. It retries until the provider answers, so that no order waits for a person.
const policy = `charge: {executor: simulator, url: %[1]q, timeout: 1s, retry: {initial: 50ms, cap: 500ms, maxRetries: 100, budget: 10m}}
reserve: {executor: simulator, url: %[1]q, timeout: 1s, retry: {initial: 50ms, cap: 500ms, maxRetries: 100, budget: 10m}}
confirm: {executor: simulator, url: %[1]q, timeout: 1s, retry: {initial: 50ms, cap: 500ms, maxRetries: 100, budget: 10m}}
`

// start starts everything except the callers.
func (s *stage) start(ctx context.Context) (err error) {
	fmt.Fprintln(s.Out, "starting PostgreSQL, a simulated provider and two replicas of the service")
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

// openConsole opens the console, and a proxy by which the provider and programs on this machine reach a replica that
// serves.
func (s *stage) openConsole(ctx context.Context) (err error) {
	if s.pool, err = pg.Open(ctx, s.databaseURL(), pg.Options{MaxConns: 1}); err != nil {
		return fmt.Errorf("open books: %w", err)
	}
	s.proofs, s.stopProofs = context.WithCancel(context.WithoutCancel(ctx))
	replicas := &steady{stage: s}
	asking := &http.Client{Transport: replicas}
	lab := &console.Lab{State: s.look, Do: s.act}
	pages := console.New(console.Config{Lab: lab, Client: func(*http.Request) (*client.Client, error) {
		if _, _, err := s.serving(); err != nil {
			return nil, err
		}
		return client.New(s.front.Address(), client.Options{HTTPClient: asking, RetryFor: readLimit})
	}})
	mux := http.NewServeMux()
	mux.Handle("/console", s.front.Private(pages))
	mux.Handle("/console/", s.front.Private(pages))
	quiet := slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)
	mux.Handle("/", &httputil.ReverseProxy{Transport: replicas, Rewrite: passOn, ErrorLog: quiet})
	fmt.Fprintln(s.Out, "console, with a lab to cause faults yourself: "+s.front.Link("/console/lab"))
	s.table.begin()
	s.table.row(fmt.Sprintf("%d callers send orders", callers))
	s.front.Start(mux)
	return nil
}

// passOn keeps the Host and the forwarding headers of a request.
func passOn(r *httputil.ProxyRequest) {
	r.Out.URL.Scheme, r.Out.URL.Host, r.Out.Host = "http", r.In.Host, r.In.Host
	for _, name := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"} {
		if values, ok := r.In.Header[name]; ok {
			r.Out.Header[name] = values
		}
	}
}

// play sends orders and causes a fault every few seconds, until the time is over or ctx ends. It returns when all
// orders have ended and all replicas serve again.
func (s *stage) play(ctx context.Context) error {
	sent := make(chan error, 1)
	go func() {
		defer s.stop()
		sent <- s.send(ctx)
	}()
	pause := min(max(s.Length/time.Duration(len(faults)+1), time.Second), 4*time.Second)
	end := time.Now().Add(s.Length)
	next, redraw := time.NewTicker(pause), time.NewTicker(200*time.Millisecond)
	defer next.Stop()
	defer redraw.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-next.C:
			if time.Until(end) > pause/2 {
				s.strike()
			}
		case <-redraw.C:
			if !s.byHand.Load() && !time.Now().Before(end) {
				s.stop()
			}
			s.draw()
		}
	}
	s.mend()
	var err error
	for waiting := true; waiting; {
		select {
		case err = <-sent:
			waiting = false
		case <-redraw.C:
			s.draw()
		}
	}
	s.restarts.Wait()
	if c := s.tally.look(false); c.sent == c.completed+c.failed {
		s.table.row("every order has ended")
	}
	return errors.Join(s.failed, err)
}

func (s *stage) draw() {
	s.acting.Lock()
	defer s.acting.Unlock()
	s.table.draw()
}

// lastLook is how long an open lab has to load the end: longer than it takes until it loads again.
const lastLook = 3 * time.Second

// conclude balances the books, and shows the verdict in the terminal and in an open lab.
func (s *stage) conclude(ctx context.Context) (err error) {
	s.mu.Lock()
	watched := time.Since(s.lookedAt) < stallAfter
	s.mu.Unlock()
	last := console.LabState{Books: s.readBooks(context.WithoutCancel(ctx))}
	if last.Verdict, err = s.balance(&last.Books); err != nil {
		last.Wrong = err.Error()
	}
	s.mu.Lock()
	s.last = &last
	s.mu.Unlock()
	if watched {
		time.Sleep(lastLook)
	}
	return err
}

// balance compares the books of both sides, and prints the verdict, which it returns, and the totals.
func (s *stage) balance(b *console.LabBooks) (verdict string, err error) {
	fmt.Fprintln(s.Out, "pawl verify compares the books of the service with those of the provider")
	proof := s.prove(context.Background())
	if why := cmp.Or(proof.Wrong, strings.Join(proof.Broken, "; ")); why != "" {
		return "", errors.New("pawl verify: " + why)
	}
	s.provider.end()
	if !s.provider.cmd.ProcessState.Success() {
		return "", errors.New("the provider did something twice: " + s.provider.out.String())
	}
	c := s.tally.look(false)
	waiting := ""
	if lost := c.sent - c.completed - c.failed; lost > 0 && s.byHand.Load() {
		waiting = fmt.Sprintf(", %s are waiting for a person", console.Count(lost))
	} else if lost > 0 {
		return "", fmt.Errorf("%d of %d orders have not ended", lost, c.sent)
	}
	verdict = fmt.Sprintf("%s orders through %d faults: %s completed, %s failed and were undone%s. None was lost or charged twice.",
		console.Count(c.sent), s.struck, console.Count(c.completed), console.Count(c.failed), waiting)
	fmt.Fprintf(s.Out, "\n%s\nThe books balance, on both sides. All %d checks hold.\n\n", verdict, proof.Checks)
	if b.Wrong == "" {
		row := func(what string, ours, theirs any) {
			fmt.Fprintf(s.Out, "%14s %14s  %s\n", console.Count(ours), console.Count(theirs), what)
		}
		fmt.Fprintf(s.Out, "%14s %14s\n", "Pawl", "provider")
		row("charges, less undone", b.Charges, b.ChargesThere)
		row(b.Currency+", less undone and refunded", b.Kept, b.KeptThere)
		fmt.Fprintf(s.Out, "%29s  requests sent again, and done once\n%29s  lost answers, found by asking\n", console.Count(b.Repeated), console.Count(b.Found))
	}
	if s.temporary == "" {
		fmt.Fprintf(s.Out, "The data is kept: pawl verify --data-dir %s\n", s.Dir)
	}
	return verdict, nil
}

// close ends the console and all processes, the database last, and removes the folder.
func (s *stage) close() (err error) {
	if s.front != nil {
		err = s.front.Close()
	}
	if s.pool != nil {
		s.stopProofs()
		s.provers.Wait()
		s.pool.Close()
	}
	for _, p := range []*process{s.replicas[0].process, s.replicas[1].process, s.provider} {
		if p != nil {
			p.end()
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

const (
	callers  = 16
	patience = 2 * time.Minute // how long callers wait at the end; unfinished orders then count as lost

	// The lab may be used for hours. So callers send only what a small machine can store, and at the end, an order may be
	// waiting for a person.
	pauseByHand    = 1200 * time.Millisecond // longest pause between two orders of a caller
	patienceByHand = 20 * time.Second
)

// send runs the callers, which send one order after the other until ctx ends. It returns when their orders have ended.
func (s *stage) send(ctx context.Context) error {
	replicas := &balancer{stage: s, transport: http.Transport{MaxIdleConnsPerHost: callers}}
	defer replicas.transport.CloseIdleConnections()
	shop, err := client.New(s.front.Address(), client.Options{
		HTTPClient: &http.Client{Transport: replicas}, Timeout: 2 * time.Second, RetryFor: 1000 * time.Hour})
	if err != nil {
		return err
	}
	waiting, giveUp := context.WithCancel(context.WithoutCancel(ctx))
	defer giveUp()
	running := load.Load{Callers: callers, Caller: func(int) (send func(int) error, end func()) {
		return func(int) error {
			s.order(waiting, shop)
			if s.byHand.Load() {
				pg.Sleep(ctx, rand.N(pauseByHand))
			}
			return nil
		}, func() {}
	}}.Start()
	<-ctx.Done()
	running.Halt()
	limit := patience
	if s.byHand.Load() {
		limit = patienceByHand
	}
	defer time.AfterFunc(limit, giveUp).Stop()
	running.Wait()
	return nil
}

// order sends a new order and waits for its end. If it does not end, it is missing from the totals.
func (s *stage) order(ctx context.Context, shop *client.Client) {
	s.tally.add(func(c *counts) { c.sent++ })
	began := time.Now()
	order, err := shop.ProcessAndWait(ctx, basket())
	if err != nil {
		return
	}
	s.tally.add(func(c *counts) {
		if order.Status == client.StatusCompleted {
			c.completed++
		} else {
			c.failed++
		}
		c.slowest = max(c.slowest, time.Since(began))
	})
}

// goods are what the callers order, with prices in cents.
var goods = []struct {
	item  string
	cents int
}{
	{"teapot", 5490}, {"cup", 1250}, {"saucer", 690}, {"kettle", 7900}, {"strainer", 850}, {"tray", 2400}, {"spoon", 390},
	{"assam", 1420}, {"darjeeling", 1890}, {"sencha", 1650}, {"rooibos", 980}, {"honey", 740},
}

// basket is an order of up to four items, with shipping, tax, and sometimes a discount.
func basket() client.ProcessBody {
	var lines []client.LineInput
	total := 0
	add := func(item string, kind client.LineInputKind, quantity, cents int) {
		total += cents
		lines = append(lines, client.LineInput{Item: item, Kind: kind, Quantity: &quantity, Amount: money(cents)})
	}
	for _, i := range rand.Perm(len(goods))[:1+rand.IntN(4)] {
		quantity := 1 + rand.IntN(3)
		add(goods[i].item, "", quantity, quantity*goods[i].cents)
	}
	if rand.IntN(5) == 0 {
		add("WELCOME10", client.LineInputKindDiscount, 1, -total/10)
	}
	add("parcel", client.LineInputKindShipping, 1, 490)
	add("VAT 20%", client.LineInputKindTax, 1, total/5)
	return client.ProcessBody{Amount: money(total), Lines: lines}
}

func money(cents int) string { return decimal.MustNew(int64(cents), 2).String() }

// tally counts the results of the callers.
type tally struct {
	mu     sync.Mutex
	counts counts
}

type counts struct {
	sent, completed, failed int           // orders
	slowest                 time.Duration // order since the last row
}

// look returns the counts. A row resets the slowest order.
func (t *tally) look(row bool) (c counts) {
	t.add(func(now *counts) {
		c = *now
		if row {
			now.slowest = 0
		}
	})
	return c
}

func (t *tally) add(change func(*counts)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	change(&t.counts)
}

// table has a row for each event, with the counts so far. On a terminal, its last line shows the current ones.
type table struct {
	out   io.Writer
	live  bool
	tally *tally
	began time.Time
}

func (t *table) begin() {
	t.began = time.Now()
	fmt.Fprint(t.out, "   time    orders  completed  failed   slowest\n")
}

func (t *table) row(what string) { t.print(t.tally.look(true), what+"\n") }

func (t *table) draw() {
	if t.live {
		t.print(t.tally.look(false), "")
	}
}

func (t *table) print(c counts, what string) {
	begin := ""
	if t.live {
		begin = "\r\x1b[K" // over the last line
	}
	slowest := "–" // none has ended since the last row
	if c.slowest > 0 {
		slowest = console.Count(c.slowest.Milliseconds()) + "ms"
	}
	fmt.Fprintf(t.out, "%s%6.1fs  %8s  %9s  %6s  %8s  %s",
		begin, time.Since(t.began).Seconds(), console.Count(c.sent), console.Count(c.completed), console.Count(c.failed), slowest, what)
}
