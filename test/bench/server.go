package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/procfs"

	"pawl/internal/load"
	"pawl/test/bench/machine"
)

// target is a program to be measured.
type target struct {
	binary string
	args   []string
	env    []string
	ready  string // path of a GET that is answered with 200 when it is ready; "" = /health
	token  bool   // callers send a token
}

// targets are built from the sources of the repository.
type targets struct {
	source string // the module of the service
	folder string // where the binaries go
	pawl   string // a binary to use instead of building one; "" = build

	earlier string // binary of an earlier version of the service
}

var targetNames = []string{"pawl", providerName, "baseline", "earlier", "token", keyedName, streamName, troubledName}

// keyedName is the service, whose callers send an Idempotency-Key with each order.
const keyedName = "keyed"

// providerName is the provider of --remote alone, to which callers make the three calls of an order themselves.
const providerName = "provider"

// troubledName is the service with --remote, while 300 orders wait for a charge at a provider that takes 30 s, and 300
// are for one that answers 500 to all. These have routes of their own.
const troubledName = "troubled"

func (t targets) build(ctx context.Context, name string) (target, error) {
	switch name {
	case providerName:
		return target{}, nil
	case "pawl", keyedName, streamName, troubledName:
		return t.service(ctx)
	case "earlier":
		return target{binary: t.earlier, args: []string{"serve"}}, nil
	case "token":
		built, err := t.service(ctx)
		built.token = true
		return built, err
	}
	binary, err := t.compile(ctx, ".", "./baseline", name)
	return target{binary: binary}, err
}

func (t targets) service(ctx context.Context) (target, error) {
	binary, err := t.pawl, error(nil)
	if binary == "" {
		binary, err = t.compile(ctx, t.source, ".", "pawl")
	}
	return target{binary: binary, args: []string{"serve"}}, err
}

// makeToken creates a token that may send orders, which closes the service.
func (t target) makeToken(ctx context.Context, databaseURL string) (string, error) {
	cmd := exec.CommandContext(ctx, t.binary, "token", "create", "bench", "--roles", "submit", "--database-url", databaseURL)
	cmd.Env = machine.Inherited()
	token, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("make token: %w", err)
	}
	return strings.TrimSpace(string(token)), nil
}

func (t targets) compile(ctx context.Context, folder, path, name string) (string, error) {
	binary := filepath.Join(t.folder, name)
	cmd := exec.CommandContext(ctx, "go", "build", "-o", binary, path)
	cmd.Dir = folder
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w: %s", name, err, out)
	}
	return binary, nil
}

// server is a running target.
type server struct {
	address string
	token   string // that callers must send, if any
	*machine.Process
}

// start runs the target on a free port and waits until it is ready.
func (t target) start(ctx context.Context, databaseURL, folder string) (*server, error) {
	port := machine.FreePort()
	// The baseline has no flags, and the simulator reads no PORT.
	cmd := exec.Command(t.binary, append(slices.Clone(t.args), "--port", strconv.Itoa(port))...)
	cmd.Env = append(machine.Inherited(), "DATABASE_URL="+databaseURL, "PAWL_LISTEN=127.0.0.1", "PORT="+strconv.Itoa(port))
	cmd.Env = append(cmd.Env, t.env...)
	var err error
	s := &server{address: net.JoinHostPort("127.0.0.1", strconv.Itoa(port))}
	ctx, cancel := context.WithTimeout(ctx, serverLimit)
	defer cancel()
	if s.Process, err = machine.Start(ctx, cmd, folder, machine.Answers("http://"+s.address+cmp.Or(t.ready, "/health"))); err != nil {
		return nil, err
	}
	return s, nil
}

// serverLimit is how long a server may take to start, and to stop.
const serverLimit = 30 * time.Second

func (s *server) stop() error { return s.Stop(serverLimit) }

// anything accepts any kind of answer.
const anything = "*/*"

// get sends a GET for a media type, and returns the body of the answer, which must be a 200.
func (s *server) get(ctx context.Context, path, accept string) (io.ReadCloser, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.address+path, http.NoBody)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept", accept)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		response.Body.Close()
		return nil, errors.New(response.Status)
	}
	return response.Body, nil
}

// peakMemory is the peak resident memory of a process, in bytes.
func peakMemory(pid int) (uint64, error) {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return 0, err
	}
	status, err := p.NewStatus()
	return status.VmHWM, err
}

// provider does the remote steps: pawl simulate in a process of its own, with its books in memory. At the end it
// reports how often each step was done.
type provider struct {
	target  target
	latency time.Duration
	server  *server // during a run
}

// troubles are currencies, and what happens to charges in them.
var troubles = map[string]string{"EUR": "slow:30s@charge,order=EUR", "GBP": "error:500@charge,order=GBP"}

const troubled = 300 // orders in each of these currencies

func newProvider(binary string, latency time.Duration, faults []string) *provider {
	args := []string{"simulate", "--file", "", "--latency", latency.String()}
	for _, fault := range troubles {
		args = append(args, "--fault", fault)
	}
	for _, fault := range faults {
		args = append(args, "--fault", fault)
	}
	return &provider{latency: latency, target: target{binary: binary, args: args, ready: "/summary"}}
}

// trouble sends the service the orders that the provider does not charge. Nobody waits for them.
func (s *server) trouble(ctx context.Context) error {
	for currency := range troubles {
		for i := range troubled {
			body := fmt.Sprintf(`{"orderId":"%s%d","amount":1,"currency":%[1]q,"item":"troubled"}`, currency, i)
			request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+s.address+"/api/orders/process", strings.NewReader(body))
			if err != nil {
				return err
			}
			request.Header.Set("Content-Type", "application/json")
			request.Header.Set("Prefer", "respond-async")
			response, err := http.DefaultClient.Do(request)
			if err != nil {
				return err
			}
			response.Body.Close()
			if response.StatusCode != http.StatusAccepted {
				return fmt.Errorf("send an order in %s: %s", currency, response.Status)
			}
		}
	}
	return nil
}

// policy writes a policy with the default limit of calls under way, unless the provider is so slow that it needs more.
func (p *provider) policy(folder string) (string, error) {
	var text strings.Builder
	inFlight := 256 // the default
	if p.latency >= time.Second {
		inFlight = remoteMost
	}
	executor := fmt.Sprintf("executor: simulator, url: \"http://%s\", inFlight: %d", p.server.address, inFlight)
	fmt.Fprintln(&text, "charge:")
	for currency := range troubles {
		fmt.Fprintf(&text, "- {name: %s, currency: %s, %s}\n", strings.ToLower(currency), currency, executor)
	}
	fmt.Fprintf(&text, "- {name: main, %s}\nreserve: {%[1]s}\nconfirm: {%[1]s}\n", executor)
	file := filepath.Join(folder, "remote.yaml")
	return file, os.WriteFile(file, []byte(text.String()), 0o644)
}

var steps = []string{"charge", "reserve", "confirm"}

// summary is the simulator's summary of its books (docs/simulator.md).
type summary struct {
	Steps map[string]struct {
		Effects int `json:"effects"`
	} `json:"steps"`
	DoubleLive      int `json:"doubleLive"`
	Overlaps        int `json:"overlaps"`
	RepeatedEffects int `json:"repeatedEffects"`
	Requests        int `json:"requests"`
}

func (p *provider) summary(ctx context.Context) (*summary, error) {
	body, err := p.server.get(ctx, "/summary", anything)
	if err != nil {
		return nil, fmt.Errorf("read summary of provider: %w", err)
	}
	defer body.Close()
	var s summary
	if err := json.NewDecoder(body).Decode(&s); err != nil {
		return nil, fmt.Errorf("read summary of provider: %w", err)
	}
	return &s, nil
}

// mismatch describes what the provider must not have seen, or nothing. The effects are compared only if the number of
// orders is known.
func (s *summary) mismatch(orders int, known bool) string {
	var wrong []string
	if s.DoubleLive != 0 || s.Overlaps != 0 || s.RepeatedEffects != 0 {
		wrong = append(wrong, fmt.Sprintf("%d orders with two live charges, %d effects beside a live one, %d keys with more than one effect",
			s.DoubleLive, s.Overlaps, s.RepeatedEffects))
	}
	for _, step := range steps {
		if effects := s.Steps[step].Effects; known && effects != orders {
			wrong = append(wrong, fmt.Sprintf("%d orders answered, but %s was done %d times", orders, step, effects))
		}
	}
	return strings.Join(wrong, "; ")
}

const (
	remoteItems = 10_000
	remoteMost  = 10_000 // calls of a step under way, as policies allow
)

// remoteWarmUp is longer: callers that begin at the same moment make their steps in lockstep at first, and connections
// to the provider must be made.
const remoteWarmUp = 5 * time.Second

// withProvider measures with every step at a provider: with orders offered at a rate, and with callers that wait.
func (p *plan) withProvider(ctx context.Context) error {
	var loads []setup
	for _, rate := range p.rates {
		loads = append(loads, setup{Rate: float64(rate * p.replicas), Replicas: p.replicas})
	}
	for _, callers := range p.callers {
		loads = append(loads, setup{Callers: callers, Replicas: p.replicas})
	}
	w := p.window
	w.warmUp = max(w.warmUp, remoteWarmUp)
	for _, s := range loads {
		for round := range p.rounds {
			for _, s.Target = range inTurn(p.only, round) {
				if s.Target == providerName && s.Rate == 0 {
					continue // it would be busier than behind any service
				}
				s.Items = remoteItems
				if err := p.do(ctx, run{setup: s, window: w, provider: newProvider(p.built["pawl"].binary, p.latency, p.faults)}); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// measureRemote is measure with a provider that begins with empty books, and is asked
// what it did after the service has ended.
func (r run) measureRemote(ctx context.Context) (out result, err error) {
	if r.provider.server, err = r.provider.target.start(ctx, "", r.folder); err != nil {
		return out, fmt.Errorf("start provider: %w", err)
	}
	defer func() { err = errors.Join(err, r.provider.server.stop()) }()
	if r.Target == providerName {
		return r.measureProvider(ctx)
	}
	if r.Target == "baseline" {
		r.target.env = []string{"PROVIDER=http://" + r.provider.server.address}
	} else {
		policy, err := r.provider.policy(r.folder)
		if err != nil {
			return out, err
		}
		r.target.args = append(slices.Clone(r.target.args), "--policy", policy, "--max-connections", strconv.Itoa(2*max(remoteMost, r.Callers)))
	}
	if out, err = r.measure(ctx); err != nil {
		return out, err
	}
	if out.Provider, err = r.provider.summary(ctx); err != nil {
		return out, err
	}
	wrong := []string{out.BooksMismatch, out.Provider.mismatch(out.Answered, out.Errors == 0 && r.Target != troubledName)}
	out.BooksMismatch = strings.Join(slices.DeleteFunc(wrong, func(s string) bool { return s == "" }), "; ")
	return out, nil
}

// measureProvider measures the provider alone.
func (r run) measureProvider(ctx context.Context) (out result, err error) {
	out.setup = r.setup
	l := load.Load{Rate: r.Rate, Caller: func(int) (send func(int) error, end func()) {
		w := newWire(r.provider.server.address, "", false, 0)
		return func(int) error { return w.allSteps(r.Items) }, w.close
	}}.Start()
	from, to, err := r.watch(ctx, nil, l)
	l.Halt()
	l.Wait()
	if err != nil {
		return out, err
	}
	out.fill(l.Outcome(from.at, to.at), from, to)
	out.Provider, err = r.provider.summary(ctx)
	return out, err
}
