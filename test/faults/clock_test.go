package faults

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/jackc/pgx/v5"

	pawl "pawl/client"
	"pawl/internal/pgembed"
	"pawl/internal/simulator"
	"pawl/test/dbtest"
)

// deaf stands before the provider and keeps its answers to charges to itself. What is asked of the provider it does.
type deaf struct {
	provider http.Handler
	url      string

	mu      sync.Mutex
	calls   []string         // the keys of all charges and undos, in order
	signed  []time.Time      // when, as they say themselves
	swallow func(n int) bool // whether the answer to the n-th of them is lost
}

func (d *deaf) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	heard := w
	d.mu.Lock()
	d.calls = append(d.calls, r.URL.Path+" "+r.Header.Get("Idempotency-Key"))
	if at, err := strconv.ParseInt(r.Header.Get("Webhook-Timestamp"), 10, 64); err == nil {
		d.signed = append(d.signed, time.Unix(at, 0))
	}
	if d.swallow(len(d.calls)) {
		w = httptest.NewRecorder()
	}
	d.mu.Unlock()
	d.provider.ServeHTTP(w, r)
	if w != heard {
		heard.WriteHeader(http.StatusInternalServerError)
	}
}

func (d *deaf) seen() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]string{}, d.calls...)
}

// openDeafShop opens a shop whose charges go through one that is deaf, at an endpoint that can't be looked up. Keys are
// remembered for 24 hours, so they are sent for 23.
func openDeafShop(t *testing.T, retry string, swallow func(n int) bool) (*shop, *deaf) {
	t.Helper()
	s := openShop(t, blind, callLimit)
	d := &deaf{provider: s.provider, swallow: swallow}
	server := httptest.NewServer(d)
	t.Cleanup(server.Close)
	d.url = server.URL
	secret := filepath.Join(t.TempDir(), "secret")
	write(t, secret, "a secret of 16 bytes or more")
	s.write(fmt.Sprintf("charge: {executor: http, url: %[1]s/charge, undoUrl: %[1]s/charge/undo, keyRetention: 24h, secret: 'file:%[4]s', retry: {%[2]s}}\n"+
		"reserve: {executor: simulator, url: %[3]s}\nconfirm: {executor: simulator, url: %[3]s}\n", d.url, retry, s.url, secret))
	return s, d
}

// write makes another policy the shop's.
func (s *shop) write(policy string) {
	s.t.Helper()
	write(s.t, s.policy, policy)
}

func (s *shop) exec(sql string, args ...any) {
	s.t.Helper()
	conn, err := pgx.Connect(s.t.Context(), s.database.AdminURL)
	if err != nil {
		s.t.Fatal(err)
	}
	defer conn.Close(s.t.Context())
	if _, err := conn.Exec(s.t.Context(), sql, args...); err != nil {
		s.t.Fatal(err)
	}
}

// started is when a process started, as its log says.
func (p *process) started() time.Time {
	p.t.Helper()
	var line struct{ Time time.Time }
	if err := json.NewDecoder(strings.NewReader(p.stderr())).Decode(&line); err != nil {
		p.t.Fatal(err)
	}
	return line.Time
}

// late makes a replica look for orders that are due so seldom that it does not hear the time from the database by that
// while a test runs.
var late = []string{"--lease", "10m", "--recovery-interval", "10m"}

// TestWallClockStepsForward sets the clock of the machine a day ahead while the first call of a charge is under way, which
// gets no answer: the key is a second old, whatever that clock says.
func TestWallClockStepsForward(t *testing.T) {
	buildStepped(t)
	t.Parallel()
	clock := newWallClock(t)
	s, d := openDeafShop(t, "initial: 5ms, cap: 50ms", func(n int) bool {
		if n == 1 {
			clock.step(26 * time.Hour)
		}
		return n == 1
	})
	r := s.start(1, &replicas{t: t, database: s.database.URL, flags: late, clock: clock})
	a := s.client.process(t.Context(), r.addresses()[0], order{id: "one", amount: "9.99", item: "boat"}, "")
	if a.state() != "completed" {
		t.Errorf("%s\n%s", a, s.trace("one"))
	}
	if calls := d.seen(); len(calls) != 2 || calls[0] != calls[1] {
		t.Errorf("the charge was called for %q, want twice with one key", calls)
	}
	for _, at := range d.signed { // no call is under way any more
		if time.Since(at).Abs() > 5*time.Minute {
			t.Errorf("a call is signed as of %s", at)
		}
	}
	if len(d.signed) != 2 {
		t.Errorf("%d calls are signed", len(d.signed))
	}
	s.prove()
}

// TestWallClockStepsBack sets the clock back while a key grows too old to be sent again, which the provider has forgotten
// then: to send it would charge twice.
func TestWallClockStepsBack(t *testing.T) {
	buildStepped(t)
	t.Parallel()
	clock := newWallClock(t)
	s, d := openDeafShop(t, "initial: 5m, cap: 5m", func(int) bool { return true })
	r := s.start(1, &replicas{t: t, database: s.database.URL, flags: late, clock: clock})
	s.order("one")
	const held = `SELECT count(*) FROM books.orders AS o WHERE o.hold = $1`
	eventually(t, patience, "the charge got no answer", func() bool { return count(t, s.database.URL, held, "retry") == 1 })
	first := len(d.seen())
	clock.step(-3 * time.Hour)
	s.exec(`UPDATE orders SET in_doubt_since = in_doubt_since - interval '24 hours'`)
	s.exec(`UPDATE step_calls SET started_at = started_at - interval '24 hours', finished_at = finished_at - interval '24 hours'`)
	var problem *pawl.Problem
	_, err := s.api(r.addresses()[0]).RetryOrder(t.Context(), "one", nil, pawl.RetryBody{OnBehalfOf: "test", Reason: "test"})
	if !errors.As(err, &problem) || problem.Code != pawl.ProblemCodeOutcomeUnknown {
		t.Errorf("retry: %v", err)
	}
	s.exec(`UPDATE orders SET due_at = now()`)
	heir := s.start(1, &replicas{t: t, database: s.database.URL, clock: clock}) // takes it up, and was born with the wrong clock
	if said := heir.all[0].started(); time.Since(said).Round(time.Hour) != 3*time.Hour {
		t.Errorf("the clock was not set back: the log begins at %s", said)
	}
	eventually(t, patience, "it waits for a person", func() bool { return count(t, s.database.URL, held, "attention") == 1 })
	if calls := d.seen(); len(calls) != first {
		t.Errorf("a key that may be forgotten was sent: %q\n%s", calls, s.trace("one"))
	}
	if o := s.outcomes()["one"]; o.Status != "charging" || !strings.HasPrefix(o.Reason, "outcome_unknown") {
		t.Error(o)
	}
}

// TestWallClockAndLeases has the clocks of two replicas hours apart. Who lives keeps its orders, for longer than a lease
// lasts; what the dead leave is taken over when the database says so.
func TestWallClockAndLeases(t *testing.T) {
	buildStepped(t)
	t.Parallel()
	s := openShop(t, looking, overlong)
	const lease, calls = 8 * time.Second, 3 * time.Second
	// One call at a time: the other orders wait in the memory of their replica, some for longer than a lease.
	s.write(fmt.Sprintf("charge: {executor: simulator, url: %[1]s, timeout: 20s, inFlight: 1}\n"+
		"reserve: {executor: simulator, url: %[1]s}\nconfirm: {executor: simulator, url: %[1]s}\n", s.url))
	s.faults(simulator.Rule{Fault: simulator.Slow, Delay: calls, Step: "charge"})
	clock, others := newWallClock(t), newWallClock(t)
	drives := s.start(1, &replicas{t: t, database: s.database.URL, flags: []string{"--lease", lease.String()}, clock: clock})
	send := func(of string) {
		t.Helper()
		for n := range 4 {
			o := order{id: fmt.Sprint(of, n), amount: "9.99", item: "boat"}
			if a := s.client.process(t.Context(), drives.addresses()[0], o, "respond-async"); a.code != http.StatusAccepted {
				t.Fatal(a)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		if _, err := s.provider.Await(ctx, func(r simulator.Request) bool { return strings.HasPrefix(r.OrderID, of) }); err != nil {
			t.Fatal(err)
		}
	}
	const takenOver = `SELECT count(DISTINCT t.order_id) FROM books.transitions AS t WHERE t.verb = 'take_over'`

	send("alive")
	clock.step(-5 * time.Hour)
	others.step(26 * time.Hour)
	s.start(1, &replicas{t: t, database: s.database.URL, flags: []string{"--lease", lease.String()}, clock: others})
	s.settle(3 * patience)
	if n := count(t, s.database.URL, takenOver); n != 0 {
		t.Errorf("%d orders were taken from a replica that drove them\n%s", n, s.trace("alive3"))
	}

	send("dead")
	others.step(-5 * time.Hour)
	drives.all[0].kill()
	killed := query[time.Time](t, s.database.URL, `SELECT now()`)[0]
	s.settle(3 * patience)
	for n := range 4 {
		id := fmt.Sprint("dead", n)
		const when = `SELECT count(*) FROM books.transitions AS t WHERE t.order_id = $1 AND t.verb = 'take_over' AND t.at < $2`
		if count(t, s.database.URL, when, id, killed.Add(patience)) == 0 {
			t.Errorf("order %s was not taken over in time\n%s", id, s.trace(id))
		}
	}
	for id, o := range s.outcomes() {
		if o.Status != "completed" {
			t.Errorf("order %s: %s\n%s", id, o, s.trace(id))
		}
	}
	s.prove()
}

// TestDatabaseClockStepsBack sets the clock of the database back by three hours while a replica drives orders and numbers events,
// and kills the replica: the other one takes its orders up, and numbers what happens, when the leases would have ended.
func TestDatabaseClockStepsBack(t *testing.T) {
	build(t)
	t.Parallel()
	clock := newDatabaseClock(t)
	server := startPostgresFrom(t, clock.bin)
	const held = 20
	r := startReplicas(t, 1, server.url, hasty...)
	dies := r.all[0]
	stockUp(t, r.addresses()[0], scarce, stock)
	unlock := lockStock(t, server.url)
	c := newClient(1, false)
	for n := range held {
		o := order{id: fmt.Sprint("held ", n), amount: "9.99", item: scarce}
		if a := c.process(t.Context(), r.addresses()[0], o, "respond-async"); a.code != http.StatusAccepted {
			t.Fatal(a)
		}
	}
	eventually(t, patience, "the orders wait for their stock", func() bool { return unfinished(t, server.url) == held })
	startReplicas(t, 1, server.url, hasty...)
	before := query[time.Time](t, server.url, `SELECT now()`)[0]
	clock.step(-3 * time.Hour)
	if now := query[time.Time](t, server.url, `SELECT now()`)[0]; before.Sub(now) < 2*time.Hour {
		t.Fatalf("the clock was not set back: it was %s, and is %s", before, now)
	}
	dies.kill()
	unlock()
	settle(t, server.url, patience)
	if n := takeOvers(t, server.url); n != held {
		t.Errorf("%d orders were taken over", n)
	}
	const unnumbered = `SELECT (SELECT count(*) FROM pawl.transitions) + (SELECT count(*) FROM pawl.stock_movements)
		- (SELECT coalesce(max(b.last_event_no), 0) FROM pawl.event_batches AS b)`
	eventually(t, patience, "all events have numbers", func() bool { return count(t, server.url, unnumbered) == 0 })
}

// wallClock is the wall clock of a machine, which a test can set. Replicas on such a machine are the program as it is, but
// linked with another time.Now: what intercepts the calls of C programs does nothing to those of Go. The monotonic clock,
// and with it timers, time-outs and durations, goes on as if nothing had happened, as it does on a real machine.
type wallClock struct {
	path  string
	wrong *atomic.Int64 // by so many seconds; memory that the file is mapped to, here and in the replicas
}

// newWallClock makes a clock that is right. buildStepped belongs before t.Parallel.
func newWallClock(t testing.TB) *wallClock {
	t.Helper()
	return newWallClockIn(t, t.TempDir())
}

func newWallClockIn(t testing.TB, folder string) *wallClock {
	t.Helper()
	file, err := os.Create(filepath.Join(folder, "wall-clock"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := file.Truncate(8); err != nil {
		t.Fatal(err)
	}
	memory, err := syscall.Mmap(int(file.Fd()), 0, 8, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Munmap(memory) })
	return &wallClock{file.Name(), (*atomic.Int64)(unsafe.Pointer(&memory[0]))}
}

// step sets the clock to be wrong by so much, to the second.
func (c *wallClock) step(by time.Duration) { c.wrong.Store(int64(by / time.Second)) }

func (c *wallClock) env() []string { return []string{stepVariable + "=" + c.path} }

// stepVariable names the file of a clock.
const stepVariable = "PAWL_FAULT_WALL_CLOCK"

// Package time reads the clocks by a function of the runtime, and calls it by the first name. In the program it calls the
// second one, which is as long: what is compiled can be changed so, and nothing that uses package time is compiled anew.
const (
	clockRead   = "time.runtimeNow"
	steppedRead = "main.runtimeNow"
)

// steppedSource is added to the program. The runtime calls time.Now for timers where no system call may be made, so the
// file is not read: it is mapped once.
const steppedSource = `package main

import (
	"os"
	"syscall"
	"unsafe"
)

var (
	right int64
	step  = &right
)

//go:linkname machineNow time.runtimeNow
func machineNow() (sec int64, nsec int32, mono int64)

//go:norace
func runtimeNow() (sec int64, nsec int32, mono int64) {
	sec, nsec, mono = machineNow()
	return sec + *step, nsec, mono
}

func init() {
	file, err := os.Open(os.Getenv("` + stepVariable + `"))
	if err != nil {
		panic(err)
	}
	defer file.Close()
	memory, err := syscall.Mmap(int(file.Fd()), 0, 8, syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		panic(err)
	}
	step = (*int64)(unsafe.Pointer(&memory[0]))
}
`

// useStepped runs a tool of the go command. The linker is told last where package time is, and goes by that.
const useStepped = `for word; do
	case "$word" in */importcfg.link) echo "packagefile time=%s" >>"$word" ;; esac
done
exec "$@"
`

// buildStepped makes the program available as build does, and with a wall clock that can be set as well.
func buildStepped(t *testing.T) {
	t.Helper()
	build(t)
	built.Lock()
	defer built.Unlock()
	if built.stepped == "" {
		built.stepped = filepath.Join(filepath.Dir(built.path), "pawl-stepped")
		linkStepped(t, built.stepped)
	}
}

// stepped is where buildStepped put it.
func stepped() string {
	built.Lock()
	defer built.Unlock()
	return built.stepped
}

func linkStepped(t testing.TB, path string) {
	t.Helper()
	archive := strings.TrimSpace(command(t, "go", "list", "-export", "-f", "{{.Export}}", "time"))
	compiled, err := os.ReadFile(archive)
	if err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(compiled, []byte(clockRead)); n != 1 {
		t.Fatalf("%s names %s %d times: look how time.Now reads the clock", archive, clockRead, n)
	}
	module, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	patched, source, overlay, tool := filepath.Join(dir, "time.a"), filepath.Join(dir, "step.go"), filepath.Join(dir, "overlay.json"), filepath.Join(dir, "tool")
	added, err := json.Marshal(map[string]any{"Replace": map[string]string{filepath.Join(module, "step.go"): source}})
	if err != nil {
		t.Fatal(err)
	}
	write(t, patched, strings.Replace(string(compiled), clockRead, steppedRead, 1))
	write(t, source, steppedSource)
	write(t, overlay, string(added))
	write(t, tool, fmt.Sprintf(useStepped, patched))
	command(t, "go", "build", "-ldflags=-s -w -checklinkname=0", "-overlay", overlay, "-toolexec", "sh "+tool, "-o", path, "pawl")
}

func command(t testing.TB, name string, arguments ...string) (printed string) {
	t.Helper()
	said, err := exec.CommandContext(t.Context(), name, arguments...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", name, arguments, err, said)
	}
	return string(said)
}

func write(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// databaseClock is the wall clock of a PostgreSQL server, which a test can set. The server is run with a library before the one of C.
type databaseClock struct {
	*wallClock
	bin string // the folder of its programs
}

// newDatabaseClock makes a clock that is right.
func newDatabaseClock(t testing.TB) *databaseClock {
	t.Helper()
	bin := dbtest.Folder(t) // where the user of the server can read it
	c := &databaseClock{newWallClockIn(t, bin), bin}
	source, library := filepath.Join(t.TempDir(), "clock.c"), filepath.Join(c.bin, "clock.so")
	write(t, source, fmt.Sprintf(databaseClockSource, c.path))
	if out, err := exec.CommandContext(t.Context(), "cc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	installed, err := pgembed.Look(t.Context(), pgembed.Config{Dir: t.TempDir()})
	if err != nil || installed.Dir == "" {
		t.Fatalf("no PostgreSQL is installed: %v", err)
	}
	for _, program := range []string{"postgres", "initdb"} {
		script := fmt.Sprintf("#!/bin/sh\nLD_PRELOAD='%s' exec '%s' \"$@\"\n", library, filepath.Join(installed.Dir, program))
		if err := os.WriteFile(filepath.Join(c.bin, program), []byte(script), 0o755); err != nil { //nolint:gosec // it is to be run
			t.Fatal(err)
		}
	}
	return c
}

// databaseClockSource asks for the time by the system call, and adds what the file says. The other clocks are left as they are.
const databaseClockSource = `
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile long *wrong;

__attribute__((constructor)) static void begin(void) {
	int file = open("%s", O_RDONLY);
	void *memory = file < 0 ? MAP_FAILED : mmap(0, 8, PROT_READ, MAP_SHARED, file, 0);
	if (memory == MAP_FAILED) _exit(99);
	close(file);
	wrong = memory;
}

int clock_gettime(clockid_t id, struct timespec *at) {
	long failed = syscall(SYS_clock_gettime, id, at);
	if (!failed && id == CLOCK_REALTIME && wrong) at->tv_sec += *wrong;
	return failed;
}

int gettimeofday(struct timeval *at, void *zone) {
	struct timespec now;
	if (clock_gettime(CLOCK_REALTIME, &now)) return -1;
	at->tv_sec = now.tv_sec;
	at->tv_usec = now.tv_nsec / 1000;
	return 0;
}

time_t time(time_t *at) {
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	if (at) *at = now.tv_sec;
	return now.tv_sec;
}
`
