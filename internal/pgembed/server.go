package pgembed

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// errMemoryInUse means that a backend has outlived its killed server: PostgreSQL does not start beside it.
var errMemoryInUse = errors.New("a process of an earlier server is still running")

// initialize creates the data folder under another name and renames it, so that a folder named data is always complete.
func (s *Server) initialize(ctx context.Context) error {
	if err := s.removeAttempts(); err != nil {
		return err
	}
	fresh, err := os.MkdirTemp(s.folders.base, "data.new-")
	if err == nil {
		err = s.account.own(fresh)
	}
	if err != nil {
		return fmt.Errorf("make data folder: %w", err)
	}
	args := []string{"-D", fresh, "-U", superuser, "--auth-local=peer", "--auth-host=reject", "-E", "UTF8", "--locale=C",
		"--data-checksums", "--no-instructions"}
	if s.cfg.Settings["fsync"] == "off" {
		args = append(args, "--no-sync")
	}
	if printed, err := output(ctx, s.command(syscall.SIGKILL, "initdb", args...)); err != nil {
		return fmt.Errorf("run initdb: %w: %s", err, lastLines(strings.NewReader(printed)))
	}
	if err := os.Rename(fresh, s.folders.data); err != nil {
		return fmt.Errorf("rename data folder: %w", err)
	}
	return syncFolder(s.folders.base)
}

func (s *Server) removeAttempts() error {
	attempts, err := filepath.Glob(filepath.Join(s.folders.base, "data.new-*"))
	for _, dir := range attempts {
		err = errors.Join(err, os.RemoveAll(dir))
	}
	if err != nil {
		return fmt.Errorf("remove an unfinished data folder: %w", err)
	}
	return nil
}

// syncFolder makes a rename in dir durable (fsync(2)).
func syncFolder(dir string) error {
	d, err := os.Open(dir)
	if err == nil {
		err = errors.Join(d.Sync(), d.Close())
	}
	if err != nil {
		return fmt.Errorf("sync data folder: %w", err)
	}
	return nil
}

// run starts the server, repeatedly while processes of a killed predecessor are still ending.
func (s *Server) run(ctx context.Context) (version string, err error) {
	patience, cancel := context.WithTimeout(ctx, fastShutdownLimit)
	defer cancel()
	for err = s.runOnce(ctx); errors.Is(err, errMemoryInUse); err = s.runOnce(ctx) {
		select {
		case <-patience.Done():
			return "", err
		case <-time.After(50 * time.Millisecond):
		}
	}
	if err != nil {
		return "", err
	}
	if version, err = s.answer(ctx); err != nil {
		_ = s.process.stop(ctx)
	}
	return version, err
}

// runOnce starts the server and waits until it is ready.
func (s *Server) runOnce(ctx context.Context) error {
	messages, err := s.folders.openStartupLog()
	if err != nil {
		return err
	}
	defer messages.Close()
	cmd := s.command(syscall.SIGINT, "postgres", s.arguments()...)
	cmd.Stdout, cmd.Stderr = messages, messages
	if s.process, err = launch(cmd); err != nil {
		return fmt.Errorf("start PostgreSQL: %w", err)
	}
	if err := s.awaitReady(ctx); err != nil {
		if s.Err() == nil { // it runs, but ctx has ended
			_ = s.process.stop(ctx)
			return err
		}
		return s.explain(err, messages)
	}
	return nil
}

// awaitReady waits until postmaster.pid names our child and says ready. Connecting alone could reach a left-over
// server.
func (s *Server) awaitReady(ctx context.Context) error {
	tick := time.NewTicker(4 * time.Millisecond)
	defer tick.Stop()
	for {
		f, err := readPIDFile(s.folders.data)
		if err == nil && f.pid == s.PID() && f.status == "ready" {
			return nil
		}
		select {
		case <-s.process.exited:
			return fmt.Errorf("start PostgreSQL: %w", s.process.err)
		case <-ctx.Done():
			return fmt.Errorf("wait for PostgreSQL: %w", ctx.Err())
		case <-tick.C:
		}
	}
}

// explain adds what the server has printed, or the log file once the log collector runs.
func (s *Server) explain(err error, messages io.ReadSeeker) error {
	if _, seekErr := messages.Seek(0, io.SeekStart); seekErr != nil {
		return err
	}
	said := lastLines(messages)
	if strings.Contains(said, "shared memory block") {
		return fmt.Errorf("%w: %w: %s", err, errMemoryInUse, said)
	}
	if said == "" {
		said = "see " + s.folders.log
	}
	return fmt.Errorf("%w: %s", err, said)
}

// lastLines joins the last few lines for use in an error.
func lastLines(r io.Reader) string {
	var lines []string
	for scan := bufio.NewScanner(r); scan.Scan(); {
		if line := strings.TrimSpace(scan.Text()); line != "" {
			lines = append(lines, line)
		}
		lines = slices.Delete(lines, 0, max(0, len(lines)-4))
	}
	return strings.Join(lines, " / ")
}

// arguments are the arguments of postgres. They include the settings, so that each start uses those of this version and
// for the memory of this machine.
func (s *Server) arguments() []string {
	settings := map[string]string{
		"listen_addresses":        "",
		"unix_socket_directories": s.folders.socket,
		"unix_socket_permissions": "0700",

		"fsync":              "on",
		"synchronous_commit": "on",
		"full_page_writes":   "on",

		"shared_buffers":  strconv.FormatInt(sharedBuffers(memory())/mebibyte, 10) + "MB",
		"max_wal_size":    "4GB",
		"wal_compression": "on",
		"max_connections": "100",
		"jit":             "off", // compiling takes longer than any statement of the service
		"timezone":        "UTC",

		"log_timezone":             "UTC",
		"log_min_messages":         "warning",
		"logging_collector":        "on",
		"log_directory":            s.folders.log,
		"log_filename":             "postgres-%a.log", // one file per weekday, emptied a week later
		"log_rotation_age":         "1d",
		"log_rotation_size":        "0",
		"log_truncate_on_rotation": "on",
	}
	maps.Copy(settings, s.cfg.Settings)
	args := []string{"-D", s.folders.data, "-p", port}
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		args = append(args, "-c", name+"="+settings[name])
	}
	return args
}

const mebibyte = 1 << 20

// sharedBuffers is a quarter of the memory, as the PostgreSQL manual recommends (19.4.1), between 32 and 512 MiB,
// because the service is on the same machine.
func sharedBuffers(memory int64) int64 {
	return min(max(memory/4, 32*mebibyte), 512*mebibyte)
}

// memory is how many bytes this process may use: those of the machine or, if less, of the control group. If neither can
// be read (macOS), it is assumed to be plenty.
func memory() int64 {
	size := int64(math.MaxInt64)
	if text, err := os.ReadFile("/proc/meminfo"); err == nil {
		var kib int64
		if _, err := fmt.Sscanf(string(text), "MemTotal: %d kB", &kib); err == nil {
			size = kib << 10
		}
	}
	for _, limit := range []string{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"} {
		text, _ := os.ReadFile(limit)
		if n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil {
			size = min(size, n)
		}
	}
	return size
}

// Who may connect (PostgreSQL manual, 21.1 and 21.2). The kernel tells the server which user is at the other end of the
// socket. Other roles need passwords. There is no line for TCP.
const (
	hbaFile = `# Written at each start: changes are lost.
local  all  %[1]s  peer  map=%[1]s
local  all  all    scram-sha-256
`
	identFile = "# Written at each start: changes are lost.\n"
)

// writeAccess lets root and the current user connect as the superuser. Root could do so anyway, as any user. The user
// of the server may only if it is the current one, because other programs may run as it.
func (s *Server) writeAccess() error {
	ident := identFile
	for _, uid := range slices.Compact([]int{0, os.Geteuid()}) {
		name, err := userName(uid)
		if err != nil {
			return fmt.Errorf("write access rules: %w", err)
		}
		ident += fmt.Sprintf("%s  %s  %s\n", superuser, quoted(name), superuser)
	}
	for name, text := range map[string]string{"pg_hba.conf": fmt.Sprintf(hbaFile, superuser), "pg_ident.conf": ident} {
		if err := replaceOwned(s.folders.data, name, []byte(text), s.account); err != nil {
			return fmt.Errorf("write access rules: %w", err)
		}
	}
	return nil
}

// userName is the name of a user for the server. A program that is built without cgo knows only local users.
func userName(uid int) (string, error) {
	if u, err := user.LookupId(strconv.Itoa(uid)); err == nil {
		return u.Username, nil
	}
	id, err := findProgram("id")
	if err != nil {
		return "", err
	}
	printed, err := exec.Command(id, "-un").Output()
	if err != nil {
		return "", fmt.Errorf("user %d has no name: %w", uid, err)
	}
	return strings.TrimSpace(string(printed)), nil
}

// quoted quotes a name for pg_ident.conf.
func quoted(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

const (
	fastShutdownLimit      = 20 * time.Second
	immediateShutdownLimit = 10 * time.Second
)

// process is a child. err and asked are valid once exited is closed.
type process struct {
	cmd      *exec.Cmd
	exited   chan struct{}
	err      error // what Wait returned
	asked    bool  // it ended after a call of stop
	stopping atomic.Bool
}

// command prepares a program of the server. Its environment is a short list, because PG* variables would redirect it
// and it must not see our secrets. It has its own process group, because ^C in a terminal must not stop the database
// before the service has finished. It starts in /, because its user may not be able to enter our folder. When this
// process dies, it gets the signal death.
func (s *Server) command(death syscall.Signal, name string, args ...string) *exec.Cmd {
	cmd := command(filepath.Join(s.bin.dir, name), s.account, args...)
	if s.cfg.withoutDeathSignal {
		death = 0
	}
	dieWithParent(cmd.SysProcAttr, death)
	return cmd
}

func command(path string, a *account, args ...string) *exec.Cmd {
	cmd := exec.Command(path, args...)
	cmd.Dir = "/"
	cmd.Env = append(environment("PATH", "HOME", "TZ", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"), "LC_ALL=C")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: a.credential()}
	dieWithParent(cmd.SysProcAttr, syscall.SIGKILL)
	return cmd
}

// Launch starts a program of ours in its own process group, so that ^C in a terminal reaches only this process. On
// Linux it dies with this process. exited is closed when the program has ended; cmd.ProcessState then says how.
func Launch(cmd *exec.Cmd) (exited <-chan struct{}, err error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	dieWithParent(cmd.SysProcAttr, syscall.SIGKILL)
	p, err := launch(cmd)
	if err != nil {
		return nil, err
	}
	return p.exited, nil
}

// launch starts cmd. The kernel sends the death signal when the *thread* that started the child ends, so the goroutine
// keeps its thread until the child has ended.
func launch(cmd *exec.Cmd) (*process, error) {
	p := &process{cmd: cmd, exited: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer close(p.exited)
		err := cmd.Start()
		started <- err
		if err == nil {
			p.err = cmd.Wait()
			p.asked = p.stopping.Load()
		}
	}()
	if err := <-started; err != nil {
		<-p.exited
		return nil, err
	}
	return p, nil
}

// output runs cmd, until the end of ctx, and returns what it printed.
func output(ctx context.Context, cmd *exec.Cmd) (string, error) {
	var printed bytes.Buffer
	cmd.Stdout, cmd.Stderr = &printed, &printed
	cmd.WaitDelay = 10 * time.Second // a grandchild may keep the pipe open; reading it may take seconds on a busy machine
	p, err := launch(cmd)
	if err != nil {
		return "", err
	}
	select {
	case <-p.exited:
		return printed.String(), p.err
	case <-ctx.Done():
		cmd.Process.Kill()
		<-p.exited
		return printed.String(), ctx.Err()
	}
}

// stop ends a server as described at Server.Stop. It returns nil if the process has already ended.
func (p *process) stop(ctx context.Context) error {
	p.stopping.Store(true)
	limited, cancel := context.WithTimeout(ctx, fastShutdownLimit)
	defer cancel()
	p.signal(syscall.SIGINT)
	select {
	case <-p.exited:
		return nil
	case <-limited.Done():
	}
	p.signal(syscall.SIGQUIT)
	defer time.AfterFunc(immediateShutdownLimit, func() { p.signal(syscall.SIGKILL) }).Stop()
	<-p.exited
	return fmt.Errorf("stop PostgreSQL: process %d was stopped before its checkpoint; the next start recovers",
		p.cmd.Process.Pid)
}

// signal ignores the error, which can only mean that the process has ended.
func (p *process) signal(sig syscall.Signal) { _ = p.cmd.Process.Signal(sig) }

// pidFile is PostgreSQL's postmaster.pid (src/include/utils/pidfile.h): line 1 is the process ID, line 8 the status.
type pidFile struct {
	pid    int
	status string
	lines  []string
}

func pidPath(data string) string { return filepath.Join(data, "postmaster.pid") }

func readPIDFile(data string) (pidFile, error) {
	text, err := readOwned(pidPath(data))
	if err != nil {
		return pidFile{}, err
	}
	f := pidFile{lines: strings.Split(string(text), "\n")}
	if f.pid, err = strconv.Atoi(strings.TrimSpace(f.lines[0])); err != nil {
		return pidFile{}, err
	}
	if len(f.lines) >= 8 {
		f.status = strings.TrimSpace(f.lines[7])
	}
	return f, nil
}

// stopLeftover ends a server that outlived the process that started it. The lock keeps others from doing so.
func (s *Server) stopLeftover(ctx context.Context) error {
	f, err := readPIDFile(s.folders.data)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read postmaster.pid: %w", err)
	}
	if !s.serves(f.pid) {
		return s.replacePID(f)
	}
	s.cfg.Log.Warn("stopping the PostgreSQL server of an earlier run", "pid", f.pid, "data", s.folders.data)
	for _, step := range []struct {
		sig   syscall.Signal
		limit time.Duration
	}{{syscall.SIGINT, fastShutdownLimit}, {syscall.SIGQUIT, immediateShutdownLimit}} {
		if err := syscall.Kill(f.pid, step.sig); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("stop the PostgreSQL server %d of an earlier run: %w", f.pid, err)
		}
		if gone, err := s.awaitGone(ctx, f.pid, step.limit); gone || err != nil {
			return err
		}
	}
	return fmt.Errorf("the PostgreSQL server %d of an earlier run still uses %s: end it and start again", f.pid, s.folders.data)
}

func (s *Server) awaitGone(ctx context.Context, pid int, limit time.Duration) (gone bool, err error) {
	for end := time.Now().Add(limit); time.Now().Before(end); {
		if !s.serves(pid) {
			return true, nil
		}
		select {
		case <-ctx.Done():
			return false, fmt.Errorf("stop the PostgreSQL server %d of an earlier run: %w", pid, ctx.Err())
		case <-time.After(5 * time.Millisecond):
		}
	}
	return false, nil
}

// serves reports whether pid is a live server on our data folder, by its command line. The process ID alone proves
// nothing, because it may have been reused, and a zombie has no command line.
func (s *Server) serves(pid int) bool {
	line, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	if err != nil {
		if ps, err := findProgram("ps"); err == nil {
			line, _ = exec.Command(ps, "-ww", "-o", "command=", "-p", strconv.Itoa(pid)).Output()
		}
	}
	words := strings.ReplaceAll(strings.TrimSpace(string(line)), "\x00", " ") + " "
	return strings.Contains(words, "postgres") && strings.Contains(words, " "+s.folders.data+" ")
}

// replacePID handles a process ID that now belongs to another program, which PostgreSQL would take for a live server
// and not start, unless the process is its own parent, which is this process. The other lines of the file are kept: by
// the shared memory in them PostgreSQL notices backends that outlived their server, which could corrupt the data.
func (s *Server) replacePID(f pidFile) error {
	if taken := syscall.Kill(f.pid, 0) == nil; !taken {
		return nil // PostgreSQL handles that
	}
	f.lines[0] = strconv.Itoa(os.Getpid())
	err := replaceOwned(s.folders.data, "postmaster.pid", []byte(strings.Join(f.lines, "\n")), s.account)
	if err != nil {
		return fmt.Errorf("replace postmaster.pid: %w", err)
	}
	return nil
}

// Running finds the server that runs on a base folder, and returns the connection string of its database postgres. ok
// is false if no server accepts connections there, or if we can't see it: only root and the user of the server can open
// its folders.
func Running(dir string) (databaseURL string, ok bool) {
	f, err := readPIDFile(filepath.Join(dir, "data"))
	if err != nil || f.status != "ready" {
		return "", false
	}
	// The file outlives a server that was killed.
	conn, err := net.DialTimeout("unix", filepath.Join(f.socket(), ".s.PGSQL."+f.port()), time.Second)
	if err != nil {
		return "", false
	}
	conn.Close()
	return socketURL(f.socket(), f.port(), "postgres"), true
}

// port and socket are lines 4 and 5, which exist when the server is ready.
func (f pidFile) port() string   { return strings.TrimSpace(f.lines[3]) }
func (f pidFile) socket() string { return strings.TrimSpace(f.lines[4]) }

func socketURL(socket, port, database string) string {
	query := url.Values{"host": {socket}, "port": {port}}
	encoded := strings.ReplaceAll(query.Encode(), "+", "%20") // libpq and pgx do not read a plus as a space
	u := url.URL{Scheme: "postgres", User: url.User(superuser), Path: "/" + database, RawQuery: encoded}
	return u.String()
}
