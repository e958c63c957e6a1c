package faults

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"pawl/internal/pgembed"
	"pawl/test/assert"
	"pawl/test/clocks"
	"pawl/test/dbtest"
)

const (
	startLimit = 60 * time.Second // on a busy machine, with a database to make
	endLimit   = 60 * time.Second
)

// process is a run of the program. It ends with its test at the latest.
type process struct {
	t      testing.TB
	cmd    *exec.Cmd
	dir    string          // holds what it prints
	exited <-chan struct{} // closed when it has ended
}

// launch starts the program. Settings of the machine do not reach it: env is added to an environment without any.
func launch(t testing.TB, env []string, args ...string) *process {
	t.Helper()
	return launchProgram(t, program(), env, args...)
}

// launchProgram starts a build of the program.
func launchProgram(t testing.TB, path string, env []string, args ...string) *process {
	t.Helper()
	p := &process{t: t, dir: t.TempDir()}
	p.cmd = exec.Command(path, args...)
	p.cmd.Env = append(dbtest.Neutral(), env...)
	p.cmd.Dir = p.dir
	out, errs := p.create("stdout"), p.create("stderr")
	defer out.Close()
	defer errs.Close()
	p.cmd.Stdout, p.cmd.Stderr = out, errs
	var err error
	p.exited, err = pgembed.Launch(p.cmd)
	assert.NoError(t, err)
	t.Cleanup(p.cleanup)
	return p
}

func (p *process) create(name string) *os.File {
	p.t.Helper()
	file, err := os.Create(filepath.Join(p.dir, name))
	assert.NoError(p.t, err)
	return file
}

// never are words that the log must not hold, whatever happens: GOFLAGS=-race builds a program that can say the last.
var never = []string{`"level":"ERROR"`, "panic", "DATA RACE"}

func (p *process) cleanup() {
	p.kill()
	said := p.stderr()
	for _, words := range never {
		assert.True(p.t, !strings.Contains(said, words), "process", p.cmd.Process.Pid, "logged", words)
	}
	if p.t.Failed() {
		p.t.Logf("process %d (%s) said:\n%s", p.cmd.Process.Pid, p.cmd.ProcessState, said[max(0, len(said)-3000):])
	}
}

func (p *process) stdout() string { return p.read("stdout") }
func (p *process) stderr() string { return p.read("stderr") }

func (p *process) read(name string) string {
	text, err := os.ReadFile(filepath.Join(p.dir, name))
	assert.True(p.t, err == nil, err)
	return string(text)
}

func (p *process) signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) }

// kill ends the process as the out-of-memory killer does.
func (p *process) kill() {
	p.signal(syscall.SIGKILL)
	<-p.exited
}

// running tells whether the process has not ended yet.
func (p *process) running() bool {
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// exitCode waits for the end of the process. It is -1 after a signal.
func (p *process) exitCode() int {
	p.t.Helper()
	select {
	case <-p.exited:
	case <-time.After(endLimit):
		p.t.Fatalf("process %d does not end", p.cmd.Process.Pid)
	}
	return p.cmd.ProcessState.ExitCode()
}

// terminate asks the process to end and returns its exit code.
func (p *process) terminate() int {
	p.t.Helper()
	p.signal(syscall.SIGTERM)
	return p.exitCode()
}

// announcement is a line of the log: standard error is no terminal, so the log is JSON.
var announcement = regexp.MustCompile(`"msg":"pawl serves","url":"([^"]+)","docs":"[^"]+","data":"([^"]+)"`)

// url waits until the process says that it serves, and where.
func (p *process) url() string {
	p.t.Helper()
	url, _ := p.announced()
	return url
}

func (p *process) announced() (url, place string) {
	p.t.Helper()
	var match []string
	eventually(p.t, startLimit, "the program serves", func() bool {
		running := p.running()
		match = announcement.FindStringSubmatch(p.stderr())
		if match == nil && !running {
			p.t.Fatalf("the program has ended: %s\n%s", p.cmd.ProcessState, p.stderr())
		}
		return match != nil
	})
	return match[1], match[2]
}

// run runs a command of the program to its end.
func run(t testing.TB, args ...string) (code int, output string) {
	t.Helper()
	return runProgram(t, program(), args...)
}

func runProgram(t testing.TB, path string, args ...string) (code int, output string) {
	t.Helper()
	p := launchProgram(t, path, nil, args...)
	code = p.exitCode()
	return code, p.stdout() + p.stderr()
}

// hasty are the settings of a replica that notices soon when another one has gone. A busy machine may keep a process
// from renewing its leases for a second. Few connections are enough for the orders of a test, and each of them plans
// every statement.
var hasty = []string{"--lease", "2s", "--recovery-interval", "250ms", "--grace", "10s", "--max-conns", "5"}

// replicas are processes that serve one database. Callers know them by their last addresses, those of dead ones too,
// as a balancer does for a while.
type replicas struct {
	t        testing.TB
	database string
	flags    []string
	clock    *clocks.Wall // of their machine; nil: it is right
	program  string       // empty: the one under test

	mu      sync.Mutex
	all     []*process
	urls    []string
	started int
}

func startReplicas(t testing.TB, n int, databaseURL string, flags ...string) *replicas {
	t.Helper()
	r := &replicas{t: t, database: databaseURL, flags: flags}
	r.start(n)
	return r
}

func (r *replicas) start(n int) {
	r.t.Helper()
	r.all, r.urls = make([]*process, n), make([]string, n)
	for i := range n {
		r.all[i] = r.launch()
	}
	for i := range n {
		r.serves(i, r.all[i])
	}
}

// launch starts another process and does not wait for it.
func (r *replicas) launch() *process {
	r.t.Helper()
	r.started++
	database, err := url.Parse(r.database)
	assert.NoError(r.t, err)
	query := database.Query()
	query.Set("application_name", fmt.Sprintf("%p-%d", r, r.started)) // for sign
	database.RawQuery = query.Encode()
	// The databases of the tests run with fsync off: our faults end processes, not the machine.
	args := append([]string{"serve", "--database-url", database.String(), "--listen", "127.0.0.1", "--port", "0", "--allow-data-loss", "--secrets-dir", os.TempDir()}, r.flags...)
	if r.clock != nil {
		return launchProgram(r.t, stepped(), r.clock.Env(), args...)
	}
	return launchProgram(r.t, cmp.Or(r.program, program()), nil, args...)
}

// serves waits until a process serves as the i-th replica.
func (r *replicas) serves(i int, p *process) {
	r.t.Helper()
	address := p.url()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all[i], r.urls[i] = p, address
}

// replace starts a process in the place of the i-th, which has ended.
func (r *replicas) replace(i int) {
	r.t.Helper()
	r.serves(i, r.launch())
}

// addresses returns what the callers know.
func (r *replicas) addresses() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.urls)
}

// any is a balancer without a health check.
func (r *replicas) any(random *rand.Rand) string {
	urls := r.addresses()
	return urls[random.IntN(len(urls))]
}

// stock is fewer than will be asked for.
const stock = 40

// spared waits until another end or two of processes can't get an order held: three in a row that end before they move it
// are taken for its victims. On a busy machine kills can come as fast as that, and hundreds of orders may wait for calls.
func spared(t *testing.T, url string) {
	t.Helper()
	eventually(t, 3*patience, "orders that were taken over twice have moved", func() bool {
		return count(t, url, `SELECT count(*) FROM orders AS o WHERE o.take_overs >= 2 AND o.ended_as IS NULL AND o.hold IS DISTINCT FROM 'attention'`) == 0
	})
}
