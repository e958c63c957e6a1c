// Command peers takes the same orders through Pawl, a service written by hand, and four engines and libraries for such
// work, each in turn and as its documentation tunes it, on one PostgreSQL. It measures them, and kills them.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"pawl/test/bench/machine"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx, os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "peers:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 2 && args[0] == "code" { // as startCode starts it
		i := slices.IndexFunc(peers, func(p peer) bool { return p.name == args[1] })
		return peers[i].code(context.Background())
	}
	p, err := parse(args)
	if err != nil {
		return err
	}
	if p.prepare {
		return prepare(ctx, p.tools)
	}
	if err := p.ready(); err != nil {
		return fmt.Errorf("%w; go run . --prepare makes what is needed", err)
	}
	if err := build(ctx, p.tools); err != nil {
		return err
	}
	err = p.all(ctx)
	p.report.print(os.Stdout)
	return err
}

// plan is what to do, from the flags.
type plan struct {
	prepare         bool
	tools           string // folder of what prepare makes
	peers           []peer
	callers, commit []int // commit in milliseconds
	rounds          int
	window          window
	kills           int
	report          report
}

const help = `Takes the same orders through Pawl, a service by hand, DBOS, River, Restate and Temporal.

  go run . --prepare   # download and build, once
  go run .             # everything, a quarter of an hour; prints tables in Markdown

It needs Linux, PostgreSQL, gcc (for slower commits) and strace (for Restate's). Flags:
`

func parse(args []string) (*plan, error) {
	p := &plan{peers: peers, callers: []int{1, 64}, commit: []int{0, 1, 3}}
	cache, err := os.UserCacheDir()
	if err != nil {
		return nil, err
	}
	flags := flag.NewFlagSet("peers", flag.ContinueOnError)
	flags.Usage = func() { fmt.Fprint(flags.Output(), help); flags.PrintDefaults() }
	flags.BoolVar(&p.prepare, "prepare", false, "download and build what the peers need, and end")
	flags.StringVar(&p.tools, "folder", filepath.Join(cache, "pawl-peers"), "where that is")
	flags.Func("callers", "numbers of callers (default 1,64); slower commits are measured with the last one", numbers(&p.callers))
	flags.Func("commit", "milliseconds to add to each flush of a log, in turn (default 0,1,3)", numbers(&p.commit))
	flags.IntVar(&p.rounds, "rounds", 3, "how often to measure each peer, in turn")
	flags.DurationVar(&p.window.length, "window", 5*time.Second, "how long to measure")
	flags.DurationVar(&p.window.warmUp, "warmup", 2*time.Second, "how long to send orders before that")
	flags.IntVar(&p.kills, "kills", 1, "how often to kill each peer")
	flags.Func("only", "names of peers, with commas between (default all)", func(list string) error {
		p.peers = nil
		for name := range strings.SplitSeq(list, ",") {
			i := slices.IndexFunc(peers, func(p peer) bool { return strings.ReplaceAll(p.name, ",", "") == name })
			if i < 0 {
				return fmt.Errorf("no peer %q", name)
			}
			p.peers = append(p.peers, peers[i])
		}
		return nil
	})
	return p, flags.Parse(args)
}

func numbers(into *[]int) func(string) error {
	return func(list string) error {
		*into = nil
		for word := range strings.SplitSeq(list, ",") {
			n, err := strconv.Atoi(word)
			if err != nil || n < 0 {
				return fmt.Errorf("%q is not a number", word)
			}
			*into = append(*into, n)
		}
		return nil
	}
}

// ready looks for what prepare makes, and for strace.
func (p *plan) ready() error {
	for _, file := range []string{restateServer, temporalServer, temporalTool} {
		if _, err := os.Stat(filepath.Join(p.tools, file)); err != nil {
			return err
		}
	}
	_, err := exec.LookPath("strace")
	return err
}

func (p *plan) all(ctx context.Context) error {
	var failed error
	for i, ms := range p.commit {
		failed = errors.Join(failed, p.withCommits(ctx, time.Duration(ms)*time.Millisecond, i == 0))
		if ctx.Err() != nil {
			break
		}
	}
	return failed
}

// withCommits measures all peers on a server whose flushes take longer by a latency. The first server also sees them
// killed, and different numbers of callers.
func (p *plan) withCommits(ctx context.Context, latency time.Duration, first bool) (err error) {
	folder, err := os.MkdirTemp("", "pawl-peers-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	cluster, err := machine.StartPostgres(ctx, folder, nil, latency)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cluster.Stop(context.WithoutCancel(ctx))) }()
	if err := machine.Age(ctx, cluster); err != nil {
		return err
	}
	callers := p.callers
	if !first {
		callers = callers[len(callers)-1:]
	}
	var failed error // of a peer, which leaves the others to be measured
	for round := range p.rounds {
		for i := range p.peers {
			if round%2 == 1 { // other work of the machine then affects all of them
				i = len(p.peers) - 1 - i
			}
			s := &site{peer: p.peers[i], cluster: cluster, tools: p.tools, latency: latency}
			failed = errors.Join(failed, s.visit(ctx, folder, func() error { return p.measure(ctx, s, callers) }))
			if ctx.Err() != nil {
				return failed
			}
		}
	}
	if !first {
		return failed
	}
	for i := range p.kills * len(p.peers) {
		peer := p.peers[i%len(p.peers)]
		s := &site{peer: peer, cluster: cluster, tools: p.tools, latency: latency}
		failed = errors.Join(failed, s.visit(ctx, folder, func() error { return p.killed(ctx, s) }))
		if ctx.Err() != nil {
			return failed
		}
	}
	return failed
}

// visit does something with a running peer.
func (s *site) visit(ctx context.Context, folder string, do func() error) (err error) {
	if s.folder, err = os.MkdirTemp(folder, "peer-"); err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "%s, commits +%s:", s.name, s.latency)
	defer fmt.Fprintln(os.Stderr)
	defer func() { err = errors.Join(err, s.stop(ctx), os.RemoveAll(s.folder)) }()
	if err = s.start(ctx); err == nil {
		err = do()
	}
	if err != nil {
		return fmt.Errorf("%s: %w", s.name, err)
	}
	return nil
}

func (p *plan) measure(ctx context.Context, s *site, callers []int) error {
	all := 0
	for _, n := range callers {
		out, answered, err := s.measure(ctx, n, p.window)
		if err != nil {
			return err
		}
		all += answered
		fmt.Fprintf(os.Stderr, " %d callers %.0f orders/s (others %.0f %%)", n, out.perSecond, 100*out.others)
		p.report.results = append(p.report.results, out)
	}
	p.report.postgres = s.conn.PgConn().ParameterStatus("server_version")
	return s.check(ctx, all)
}

func (p *plan) killed(ctx context.Context, s *site) error {
	out, err := s.kill(ctx)
	if err == nil {
		fmt.Fprintf(os.Stderr, " killed: %+v", out)
		p.report.killed = append(p.report.killed, out)
	}
	return err
}
