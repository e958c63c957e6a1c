package faults

import (
	"context"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"pawl/internal/pgembed"
	"pawl/test/dbtest"
)

// postgres is a server of one test. It keeps what it commits (fsync is on): that is what the test is about.
type postgres struct {
	t        testing.TB
	dir      string
	bin      string // the folder of its programs; empty: the one that is installed
	settings map[string]string
	url      string
	server   *pgembed.Server
}

// startPostgres starts a server. Settings are names and values in turn.
func startPostgres(t testing.TB, settings ...string) *postgres {
	t.Helper()
	return startPostgresFrom(t, "", settings...)
}

func startPostgresFrom(t testing.TB, bin string, settings ...string) *postgres {
	t.Helper()
	s := &postgres{t: t, dir: dbtest.Folder(t), bin: bin, settings: map[string]string{}}
	for pair := range slices.Chunk(settings, 2) {
		s.settings[pair[0]] = pair[1]
	}
	s.start()
	t.Cleanup(func() {
		s.signal(syscall.SIGCONT) // a stopped process hears nothing else
		if err := s.server.Stop(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	s.url = s.server.URL("postgres")
	return s
}

// start starts the server, after its end as well, and returns when it answers. Processes that were killed may still be
// on their way out: then it is tried again.
func (s *postgres) start() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), startLimit)
	defer cancel()
	eventually(s.t, startLimit, "PostgreSQL starts", func() bool {
		server, err := pgembed.Start(ctx, pgembed.Config{Dir: s.dir, BinDir: s.bin, Settings: s.settings})
		if err != nil {
			s.t.Log(err)
		}
		s.server = server
		return err == nil
	})
}

// ended waits for the end of the server, and gives its folder free.
func (s *postgres) ended() {
	s.t.Helper()
	select {
	case <-s.server.Exited():
	case <-time.After(endLimit):
		s.t.Fatal("PostgreSQL does not end")
	}
	if err := s.server.Stop(s.t.Context()); err != nil {
		s.t.Error(err)
	}
}

// kill ends all processes of the server at once, as the loss of its machine does.
func (s *postgres) kill() {
	s.t.Helper()
	s.all(syscall.SIGKILL)
	s.ended()
}

// immediate is pg_ctl stop -m immediate: no checkpoint, no goodbye.
func (s *postgres) immediate() {
	s.t.Helper()
	s.signal(syscall.SIGQUIT)
	s.ended()
}

// signal sends a signal to the first process of the server.
func (s *postgres) signal(sig syscall.Signal) { _ = syscall.Kill(s.server.PID(), sig) }

// all sends a signal to all processes of the server, also to those that have just begun and that it does not list itself
// yet: one that is forgotten waits for ever for a lock of those that were killed, and no server starts beside it. The first
// process is stopped before one looks, so that none is added.
func (s *postgres) all(sig syscall.Signal) (pids []int) {
	s.t.Helper()
	first := strconv.Itoa(s.server.PID())
	s.signal(syscall.SIGSTOP)
	eventually(s.t, patience, "the server is stopped", func() bool { return strings.HasPrefix(s.ps("-o", "stat=", "-p", first), "T") })
	for line := range strings.Lines(s.ps("-A", "-o", "ppid=,pid=")) {
		if ids := strings.Fields(line); ids[0] == first {
			pid, err := strconv.Atoi(ids[1])
			if err != nil {
				s.t.Fatal(err)
			}
			pids = append(pids, pid)
		}
	}
	pids = append(pids, s.server.PID())
	send(sig, pids)
	return pids
}

func (s *postgres) ps(arguments ...string) string {
	s.t.Helper()
	said, err := exec.CommandContext(s.t.Context(), "ps", arguments...).Output()
	if err != nil {
		s.t.Fatalf("ps %v: %v", arguments, err)
	}
	return string(said)
}

// freeze stops all processes of the server until thaw is called: connections stay, without an answer.
func (s *postgres) freeze() (thaw func()) {
	s.t.Helper()
	pids := s.all(syscall.SIGSTOP)
	thaw = func() { send(syscall.SIGCONT, pids) }
	s.t.Cleanup(thaw)
	return thaw
}

func send(sig syscall.Signal, pids []int) {
	for _, pid := range pids {
		_ = syscall.Kill(pid, sig)
	}
}
