package campaign

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"pawl/internal/pgembed"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

// unflushedLog notes what is in a file of PostgreSQL's log before it is overwritten: name, position, length, bytes. A flush
// of the log ends the notes. PostgreSQL does both under one lock, and flushes a file before it goes on to the next one. While
// the notes are locked, a flush waits.
const unflushedLog = `
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

static int notes = -1;

static const char *log_file(int fd) {
	static char path[PATH_MAX];
	char link[40];
	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	ssize_t n = readlink(link, path, sizeof path - 1);
	path[n < 0 ? 0 : n] = 0;
	char *folder = strstr(path, "/pg_wal/");
	if (!folder || strlen(folder) != 8 + 24) return 0;
	if (notes < 0 && (notes = open(getenv("UNFLUSHED"), O_RDWR | O_APPEND | O_CLOEXEC)) < 0) abort();
	return folder + 8;
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
	static ssize_t (*next)(int, const void *, size_t, off_t);
	if (!next) next = (ssize_t (*)(int, const void *, size_t, off_t))dlsym(RTLD_NEXT, "pwrite");
	const char *name = log_file(fd);
	if (name) {
		char *note = malloc(40 + size);
		memcpy(note, name, 24), memcpy(note + 24, &at, 8), memcpy(note + 32, &size, 8);
		if (pread(fd, note + 40, size, at) != size || write(notes, note, 40 + size) != 40 + size) abort();
		free(note);
	}
	return next(fd, data, size, at);
}

int fdatasync(int fd) {
	static int (*next)(int);
	if (!next) next = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
	if (!log_file(fd)) return next(fd);
	while (flock(notes, LOCK_SH)) if (errno != EINTR) abort();
	int failed = next(fd);
	if (!failed && ftruncate(notes, 0) || flock(notes, LOCK_UN)) abort();
	return failed;
}
`

func noCompiler() string {
	if _, err := exec.LookPath("gcc"); err != nil {
		return "it takes gcc to make a PostgreSQL that can lose its power"
	}
	return ""
}

// withPower starts a server that can lose its power. Only the commits that wait for the log flush it, so that as much as
// possible is lost.
func withPower(f *field) {
	f.server = f.template.copyTo(f.t, dbtest.Folder(f.t), map[string]string{
		"wal_sync_method": "fdatasync", "wal_writer_delay": "10s", "wal_writer_flush_after": "1GB"})
	f.server.canLosePower()
	f.server.start()
	f.t.Cleanup(f.server.stop)
	f.server.provePower(f.t)
}

// canLosePower makes the programs of a server that notes what it has not flushed. The environment comes by a script: pgembed
// passes none on.
func (p *postgres) canLosePower() {
	p.t.Helper()
	p.programs, p.unflushed = filepath.Join(p.folder, "bin"), filepath.Join(p.folder, "unflushed")
	usual, err := pgembed.Look(p.t.Context(), pgembed.Config{Dir: p.folder})
	assert.NoError(p.t, err)
	source, library := filepath.Join(p.folder, "unflushed.c"), filepath.Join(p.folder, "unflushed.so")
	script := fmt.Sprintf("#!/bin/sh\nUNFLUSHED='%s' LD_PRELOAD='%s' exec '%s' \"$@\"\n", p.unflushed, library, filepath.Join(usual.Dir, "postgres"))
	for name, text := range map[string]string{source: unflushedLog, p.unflushed: "", filepath.Join(p.programs, "postgres"): script} {
		assert.NoError(p.t, os.MkdirAll(p.programs, 0o755))
		assert.NoError(p.t, os.WriteFile(name, []byte(text), 0o755))
	}
	if err := os.Chmod(p.unflushed, 0o666); err != nil { // the server may be another user's
		p.t.Fatal(err)
	}
	said, err := exec.CommandContext(p.t.Context(), "gcc", "-shared", "-fPIC", "-o", library, source, "-ldl").CombinedOutput()
	assert.NoError(p.t, err, "compile", said)
	for _, program := range []string{"initdb", "pg_ctl", "psql", "pg_controldata"} {
		assert.NoError(p.t, os.Symlink(filepath.Join(usual.Dir, program), filepath.Join(p.programs, program)))
	}
}

// losePower stops the server and takes back what it has written to its log and not flushed.
func (p *postgres) losePower() {
	p.end(syscall.SIGQUIT)
	notes, err := os.ReadFile(p.unflushed)
	assert.NoError(p.t, err)
	type note struct {
		file string
		at   int64
		was  []byte
	}
	var all []note
	for len(notes) >= 40 {
		name, at, size := notes[:24], binary.NativeEndian.Uint64(notes[24:]), binary.NativeEndian.Uint64(notes[32:])
		if uint64(len(notes)) < 40+size {
			break // it ended in the middle of a note, and has not written
		}
		all = append(all, note{filepath.Join(p.folder, "data", "pg_wal", string(name)), int64(at), notes[40 : 40+size]})
		notes = notes[40+size:]
	}
	for _, n := range slices.Backward(all) {
		file, err := os.OpenFile(n.file, os.O_WRONLY, 0)
		if err == nil {
			_, err = file.WriteAt(n.was, n.at)
			file.Close()
		}
		assert.NoError(p.t, err)
	}
	assert.NoError(p.t, os.Truncate(p.unflushed, 0))
}

// provePower fails the test unless what was written and not flushed is there after a crash, and is not after the power was lost.
func (p *postgres) provePower(t *testing.T) {
	t.Helper()
	for name, lose := range map[string]func(){"a crash": func() { p.end(syscall.SIGQUIT) }, "the loss of power": p.losePower} {
		p.exec("CREATE TABLE IF NOT EXISTS power (); TRUNCATE power; CHECKPOINT; SELECT pg_switch_wal()")
		conn, err := p.session(t.Context())
		assert.NoError(t, err)
		do := func(statements ...string) {
			for _, statement := range statements {
				assert.NoError(t, assert.Err(conn.Exec(t.Context(), statement)))
			}
		}
		// The first time that the process which writes the log has something to write, it flushes it, too.
		before := p.ask(t.Context(), "SELECT (pg_current_wal_flush_lsn() - '0/0')::bigint")
		do("SET synchronous_commit = off", "SELECT pg_logical_emit_message(true, 'power', repeat('x', 100000))")
		if !await(t.Context(), startLimit, func() bool {
			return p.ask(t.Context(), "SELECT (pg_current_wal_flush_lsn() - '0/0')::bigint") > before+50000
		}) {
			t.Fatal("nobody flushes the log")
		}
		// The second statement fills the buffers of the log, so that what the first has committed is written out.
		do("INSERT INTO power DEFAULT VALUES", "SELECT pg_logical_emit_message(false, 'power', repeat('x', 8000000))")
		lose()
		p.start()
		rows := p.ask(t.Context(), "SELECT count(*) FROM power")
		assert.Require(t, (rows == 1) == (name == "a crash"), "after", name, "there are", rows, "rows")
	}
	p.exec("DROP TABLE power")
}

// holdFlush lets all commits that wait for the log go on waiting, until it is released.
func (p *postgres) holdFlush() (release func()) {
	notes, err := os.Open(p.unflushed)
	if err == nil {
		err = syscall.Flock(int(notes.Fd()), syscall.LOCK_EX)
	}
	assert.NoError(p.t, err)
	return func() { notes.Close() }
}

// crashes are the ways in which PostgreSQL ends, and forgets commits that nobody has waited for. More of those gather while no
// flush ends. Processes that survive the first one would still flush.
var crashes = []struct {
	name    string
	end     func(*field)
	flushes bool
}{
	{"killed processes", killProcess, false},
	{"kills", func(f *field) { f.server.end(syscall.SIGKILL) }, true},
	{"immediate stops", func(f *field) { f.server.end(syscall.SIGQUIT) }, false},
	{"losses of power", func(f *field) { f.server.losePower() }, false},
	{"fast stops", func(f *field) { f.server.stop() }, true}, // nothing is lost, and the numbers must be renewed all the same
}

// withoutPolicy has the ledger do all steps: only those of its orders can be lost.
func withoutPolicy(f *field) {
	for i := range f.posts {
		f.posts[i].flags = f.posts[i].flags[2:]
	}
}

// crash lets the server crash in one way or another, and come back.
func crash(ctx context.Context, f *field) {
	times := make([]int, len(crashes))
	for i := 0; pause(ctx, f.soon(i, 1500*time.Millisecond)); i++ {
		kind := f.dice.IntN(len(crashes))
		times[kind]++
		f.away(func() {
			var doomed []admission
			if !crashes[kind].flushes && f.dice.chance(75) {
				release := f.server.holdFlush()
				doomed = f.admittedSoon(ctx)
				crashes[kind].end(f)
				release()
				f.held++
			} else {
				crashes[kind].end(f)
			}
			if f.server.ended() {
				f.server.start()
			}
			ctx := context.WithoutCancel(ctx)
			await(ctx, startLimit, func() bool { return f.server.ask(ctx, "SELECT 1") == 1 })
			for _, a := range doomed {
				f.lost += 1 - f.server.ask(ctx, fmt.Sprintf("SELECT count(*) FROM books.orders WHERE order_id = '%s' AND created_at = '%s'", a.OrderID, a.at()))
			}
		})
	}
	var kinds []string
	for i, c := range crashes {
		kinds = append(kinds, fmt.Sprintf("%d %s", times[i], c.name))
	}
	f.what = "crashes (" + strings.Join(kinds, ", ") + ")"
}

// admission is an order as somebody sees it who does not wait for the disk.
type admission struct {
	OrderID   string
	CreatedAt time.Time
}

func (a admission) at() string { return a.CreatedAt.UTC().Format(time.RFC3339Nano) }

// admittedSoon waits a moment for orders that are admitted while no flush ends, and so are not durable. One that waits for the
// disk holds up those behind it.
func (f *field) admittedSoon(ctx context.Context) (list []admission) {
	query := "SELECT order_id, created_at FROM books.orders WHERE created_at > '" + admission{CreatedAt: time.Now()}.at() + "' LIMIT 20"
	await(ctx, 300*time.Millisecond, func() bool {
		list = rows[admission](f, query)
		return len(list) > 0
	})
	return list
}

// killProcess kills a process that serves a connection. The server ends all others, and recovers.
func killProcess(f *field) {
	ctx := context.WithoutCancel(f.t.Context())
	conn, err := f.server.session(ctx)
	assert.NoError(f.t, err)
	defer conn.Close(ctx)
	var pid int
	const others = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() ORDER BY random() LIMIT 1"
	if err := conn.QueryRow(ctx, others).Scan(&pid); err != nil {
		pid = int(conn.PgConn().PID())
	}
	_ = syscall.Kill(pid, syscall.SIGKILL)
	for err == nil { // until it has noticed, and ends this session
		_, err = conn.Exec(ctx, "SELECT pg_sleep(0.01)")
	}
}

// countLost says how many admissions were certainly lost, and done again. A campaign that has lost none has shown nothing. The
// replicas live, so no caller lost its connection.
func countLost(f *field) (broken []string) {
	for _, a := range f.callers.answers {
		if a.code == "connection lost" || a.code == "no connection" {
			broken = append(broken, fmt.Sprintf("order %s: %s", a.orderID, a.code))
		}
	}
	f.what += fmt.Sprintf("; %d admissions or more lost, %d jumps of the order numbers", f.lost, f.witness.jumps)
	if f.lost == 0 && f.held > 3 {
		broken = append(broken, "no crash has taken back an admission: that nobody was told of one is not shown")
	}
	return broken
}
