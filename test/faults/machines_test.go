package faults

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"pawl/internal/pgembed"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

// machine is a node of docs/operations/failover.md: etcd, Patroni and PostgreSQL, in a network of its own that has the
// addresses of the page. Whatever happens to a machine happens to all of its processes, or to its cable.
type machine struct {
	t       *testing.T
	name    string
	address string
	dir     string // of its disk
	dog     *watchdog
	env     []string // of docs/operations/patroni/node.env
	boots   int
}

// network is where the machines are. It is another one than that of the machine that the test runs on.
const network = "192.0.2."

// connectMachines makes a switch, and a machine at each of three ports.
func connectMachines(t *testing.T) (all []*machine) {
	t.Helper()
	assert.NoError(t, os.MkdirAll("/run/netns", 0o755))
	shell(t, `mount -t tmpfs none /run/netns; ip link set lo up; ip link add switch type bridge;
		ip address add `+network+`1/24 dev switch; ip link set switch up`)
	for i := range 3 {
		m := &machine{t: t, name: fmt.Sprint("node", i+1), address: fmt.Sprint(network, 11+i), dir: dbtest.Folder(t)}
		assert.NoError(t, os.Chmod(m.dir, 0o777)) //nolint:gosec // the programs run as another user
		shell(t, strings.ReplaceAll(`ip netns add NODE; ip link add NODE type veth peer name eth0 netns NODE; ip link set NODE master switch up;
			ip -n NODE address add `+m.address+`/24 dev eth0; ip -n NODE link set eth0 up; ip -n NODE link set lo up`, "NODE", m.name))
		m.install()
		all = append(all, m)
	}
	return all
}

func shell(t testing.TB, commands string) string {
	t.Helper()
	said, err := exec.CommandContext(context.WithoutCancel(t.Context()), "sh", "-ec", commands).CombinedOutput()
	assert.NoError(t, err, commands, said)
	return string(said)
}

// install writes the files of the page to the disk. What differs are its folders, and that the watchdog is a pipe.
func (m *machine) install() {
	m.t.Helper()
	m.dog = openWatchdog(m)
	config := page(m.t, "patroni/patroni.yml")
	config = strings.NewReplacer("/var/lib/postgresql", m.dir, "/var/run/postgresql", m.dir, "/usr/lib/postgresql/15/bin", postgresPrograms(m.t),
		"device: /dev/watchdog", "device: "+m.dog.pipe+"\n  driver: testing").Replace(config)
	assert.NoError(m.t, os.WriteFile(filepath.Join(m.dir, "patroni.yml"), []byte(config), 0o644))
	for line := range strings.Lines(page(m.t, "patroni/node.env")) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		if name == "" || strings.HasPrefix(name, "#") {
			continue
		}
		if name != "ETCD_INITIAL_CLUSTER" {
			value = strings.NewReplacer("node1", m.name, network+"11", m.address, "/var/lib/etcd", m.dir+"/etcd").Replace(value)
		}
		m.env = append(m.env, name+"="+value)
	}
	assert.NoError(m.t, os.Mkdir(filepath.Join(m.dir, "etcd"), 0o777))
	assert.NoError(m.t, os.Chmod(filepath.Join(m.dir, "etcd"), 0o777)) //nolint:gosec // see above
}

// page is a file of docs/operations.
func page(t testing.TB, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../docs/operations", name))
	assert.NoError(t, err)
	return string(text)
}

// boot starts the programs of a machine, also after its end.
func (m *machine) boot() {
	m.t.Helper()
	m.boots++
	for _, program := range []string{"etcd", "patroni " + m.dir + "/patroni.yml"} {
		name, _, _ := strings.Cut(program, " ")
		log, err := os.OpenFile(filepath.Join(m.dir, name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		assert.NoError(m.t, err)
		args := append([]string{"netns", "exec", m.name, "setpriv", "--reuid", "postgres", "--regid", "postgres", "--clear-groups"}, strings.Fields(program)...)
		cmd := exec.Command("ip", args...)
		cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr = append(dbtest.Neutral(), m.env...), m.dir, log, log
		_, err = pgembed.Launch(cmd)
		log.Close()
		assert.NoError(m.t, err)
	}
}

// pids are the processes of the machine.
func (m *machine) pids() (pids []int) {
	m.t.Helper()
	for line := range strings.Lines(shell(m.t, "ip netns pids "+m.name)) {
		pid, err := strconv.Atoi(strings.TrimSpace(line))
		assert.NoError(m.t, err)
		pids = append(pids, pid)
	}
	return pids
}

// kill is a loss of power.
func (m *machine) kill() {
	m.t.Helper()
	eventually(m.t, patience, "all processes of a machine have ended", func() bool {
		pids := m.pids()
		send(syscall.SIGKILL, pids)
		return len(pids) == 0
	})
	m.dog.disarm()
}

// stop stops the machine, until goOn is called. Its watchdog goes on, unless it is stopped as well, as when a
// hypervisor pauses a virtual machine.
func (m *machine) stop() (goOn func()) {
	m.t.Helper()
	var stopped []int
	eventually(m.t, patience, "all processes of a machine are stopped", func() bool {
		pids := m.pids()
		send(syscall.SIGSTOP, pids)
		more := len(pids) > len(stopped)
		stopped = pids
		return !more
	})
	return func() { send(syscall.SIGCONT, stopped) }
}

// unplug cuts the machine off: nothing that is sent arrives, and nobody is told.
func (m *machine) unplug() (plug func()) {
	m.t.Helper()
	shell(m.t, "ip link set "+m.name+" down")
	return func() { shell(m.t, "ip link set "+m.name+" up") }
}

// url is of the machine's PostgreSQL alone.
func (m *machine) url() string {
	return "postgres://postgres:change-me@" + m.address + ":5432/postgres?connect_timeout=1&sslmode=disable"
}

// ask asks the machine's PostgreSQL whether something is so. Without an answer, it is not.
func (m *machine) ask(question string) (yes bool) {
	ctx, cancel := context.WithTimeout(m.t.Context(), time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, m.url())
	if err != nil {
		return false
	}
	defer conn.Close(ctx)
	return conn.QueryRow(ctx, "SELECT "+question).Scan(&yes) == nil && yes
}

// leads tells whether the machine's PostgreSQL is the primary and has a synchronous standby: then commits end.
func (m *machine) leads() bool {
	return m.ask("NOT pg_is_in_recovery() AND EXISTS (SELECT FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum'))")
}

// log is the end of what a program of the machine said.
func (m *machine) log(name string) string {
	text, _ := os.ReadFile(filepath.Join(m.dir, name+".log"))
	return string(text[max(0, len(text)-3000):])
}

// watchdog does to a machine what /dev/watchdog does: without a sign of life it resets the machine. Patroni tells it by
// a pipe what it would tell the device: its driver "testing" is for this.
type watchdog struct {
	machine *machine
	pipe    string

	mu     sync.Mutex
	limit  time.Duration // 0: it is not armed
	last   time.Time     // sign of life
	paused bool          // with its machine
	bites  int
}

func openWatchdog(m *machine) *watchdog {
	m.t.Helper()
	w := &watchdog{machine: m, pipe: filepath.Join(m.dir, "watchdog")}
	assert.NoError(m.t, syscall.Mkfifo(w.pipe, 0o666))
	assert.NoError(m.t, os.Chmod(w.pipe, 0o666))                  // whatever the umask is
	pipe, err := os.OpenFile(w.pipe, os.O_RDWR, os.ModeNamedPipe) // does not end with its writer
	assert.NoError(m.t, err)
	var running sync.WaitGroup
	running.Go(func() { w.listen(bufio.NewReader(pipe)) })
	running.Go(func() { w.watch(m.t.Context()) })
	m.t.Cleanup(func() {
		pipe.Close()
		running.Wait()
	})
	return w
}

// listen follows Patroni: Ctimeout=N arms, 1 is a sign of life, V disarms.
func (w *watchdog) listen(pipe *bufio.Reader) {
	for {
		sign, err := pipe.ReadByte()
		if err != nil {
			return
		}
		seconds := 0
		if sign == 'C' {
			line, _ := pipe.ReadString('\n')
			_, _ = fmt.Sscanf(line, "timeout=%d", &seconds)
		}
		w.mu.Lock()
		switch w.last = time.Now(); {
		case seconds > 0:
			w.limit = time.Duration(seconds) * time.Second
		case sign == 'V':
			w.limit = 0
		}
		w.mu.Unlock()
	}
}

func (w *watchdog) watch(ctx context.Context) {
	for tick := time.NewTicker(50 * time.Millisecond); ; {
		select {
		case <-ctx.Done():
			tick.Stop()
			return
		case <-tick.C:
		}
		if w.bitesNow() {
			w.machine.kill()
		}
	}
}

func (w *watchdog) bitesNow() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.limit == 0 || w.paused || time.Since(w.last) < w.limit {
		return false
	}
	w.limit = 0
	w.bites++
	return true
}

func (w *watchdog) disarm() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.limit = 0
}

// pause stops it until goOn is called, and the time that it counts.
func (w *watchdog) pause() (goOn func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.paused = true
	left := time.Since(w.last)
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.paused, w.last = false, time.Now().Add(-left)
	}
}

func (w *watchdog) bitten() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.bites
}
