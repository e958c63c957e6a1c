package pgembed

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
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

// errMemoryInUse is what a backend that outlives its killed server causes: PostgreSQL lets nobody start beside it.
var errMemoryInUse = errors.New("a process of an earlier server still runs")

// initialise makes the data folder under another name and renames it: a folder named data is always whole, however
// an earlier attempt ended.
func (s *Server) initialise(ctx context.Context) error {
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
	cmd := s.command("initdb", args...)
	if s.cfg.withoutDeathSignal {
		dieWithParent(cmd.SysProcAttr, 0)
	}
	if printed, err := output(ctx, cmd); err != nil {
		return fmt.Errorf("run initdb: %w: %s", err, lastLines(strings.NewReader(printed)))
	}
	if err := os.Rename(fresh, s.folders.data); err != nil {
		return fmt.Errorf("put data folder in place: %w", err)
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

// run starts the server, again and again while processes of a killed predecessor are on their way out.
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
	cmd := s.command("postgres", s.arguments()...)
	cmd.Stdout, cmd.Stderr = messages, messages
	dieWithParent(cmd.SysProcAttr, syscall.SIGINT)
	if s.cfg.withoutDeathSignal {
		dieWithParent(cmd.SysProcAttr, 0)
	}
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

// awaitReady waits until postmaster.pid names our child and says ready. Merely connecting could greet a left-over
// server that is about to refuse our child the folder.
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

// explain adds what the server said: on its standard error, and once its log collector runs, in the log file.
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

// arguments are the command line of the server. Settings stand there rather than in postgresql.conf so that each start
// has those of this version and of this machine's memory.
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
		"jit":             "off", // to compile a statement takes longer than any of the service's statements
		"timezone":        "UTC",

		"log_timezone":             "UTC",
		"log_min_messages":         "warning",
		"logging_collector":        "on",
		"log_directory":            s.folders.log,
		"log_filename":             "postgres-%a.log", // a week of files, each emptied when its day comes round again
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

// sharedBuffers is a quarter of the memory, as the PostgreSQL manual advises (19.4.1), between 32 and 512 MiB: the
// service shares the machine.
func sharedBuffers(memory int64) int64 {
	return min(max(memory/4, 32*mebibyte), 512*mebibyte)
}

// memory is what this process may use in bytes: the machine's or, if less, the control group's. Where neither can be read
// (macOS) it is taken to be plenty.
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

// Who may connect (PostgreSQL manual, 21.1 and 21.2). The kernel tells the server whose
// process is at the other end of the socket. Roles that people make have passwords. There is no line for TCP.
const (
	hbaFile = `# Written at each start: changes are lost.
local  all  %[1]s  peer  map=%[1]s
local  all  all    scram-sha-256
`
	identFile = "# Written at each start: changes are lost.\n"
)

// writeAccess lets root and ourselves in as the superuser. Root could come in anyway, as any user. The server's own account
// is let in only if it is us: it may be shared with other programs.
func (s *Server) writeAccess() error {
	ident := identFile
	for _, uid := range slices.Compact([]int{0, os.Geteuid()}) {
		name, err := userName(uid)
		if err != nil {
			return fmt.Errorf("say who may connect: %w", err)
		}
		ident += fmt.Sprintf("%s  %s  %s\n", superuser, quoted(name), superuser)
	}
	for name, text := range map[string]string{"pg_hba.conf": fmt.Sprintf(hbaFile, superuser), "pg_ident.conf": ident} {
		if err := replaceOwned(s.folders.data, name, []byte(text), s.account); err != nil {
			return fmt.Errorf("say who may connect: %w", err)
		}
	}
	return nil
}

// userName is the name by which the server knows root or us. A program that was built without cgo knows local users only.
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

// quoted is one word of pg_ident.conf, whatever the name.
func quoted(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

const (
	fastShutdownLimit      = 20 * time.Second
	immediateShutdownLimit = 10 * time.Second
)

// process is a child and the goroutine that waits for it. err and asked are valid once exited is closed.
type process struct {
	cmd      *exec.Cmd
	exited   chan struct{}
	err      error // what Wait returned
	asked    bool  // the end came after a call of stop
	stopping atomic.Bool
}

// command prepares a program of the server. Its environment is a short list: PG* variables would redirect it, and the
// secrets in ours are none of its business. It gets its own process group, because ^C in a terminal must not
// stop the database before the service has drained, and starts in /, because the server's user may not enter our folder.
func (s *Server) command(name string, args ...string) *exec.Cmd {
	return command(filepath.Join(s.bin.dir, name), s.account, args...)
}

func command(path string, a *account, args ...string) *exec.Cmd {
	cmd := exec.Command(path, args...)
	cmd.Dir = "/"
	cmd.Env = append(environment("PATH", "HOME", "TZ", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"), "LC_ALL=C")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: a.credential()}
	dieWithParent(cmd.SysProcAttr, syscall.SIGKILL)
	return cmd
}

// Launch starts a program of ours in a process group of its own, so that ^C in a terminal reaches us alone. On Linux it dies
// with this process, however that ends. exited is closed when the program has ended; cmd.ProcessState then says how.
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
// keeps its thread until the child is gone, and the thread ends with it.
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

// output runs cmd to its end, or kills it at the end of ctx, and returns what it printed.
func output(ctx context.Context, cmd *exec.Cmd) (string, error) {
	var printed bytes.Buffer
	cmd.Stdout, cmd.Stderr = &printed, &printed
	cmd.WaitDelay = 10 * time.Second // a grandchild that outlives cmd keeps the pipe open; a busy machine takes seconds to read it
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

// stop ends a server as Server.Stop says. It is nil if the process has ended before.
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
	return fmt.Errorf("stop PostgreSQL: process %d was ended before its checkpoint, the next start recovers", p.cmd.Process.Pid)
}

// signal leaves out the error: it can only be that the process has ended, which exited tells.
func (p *process) signal(sig syscall.Signal) { _ = p.cmd.Process.Signal(sig) }
