package faults

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"pawl/test/assert"
	"pawl/test/dbtest"
)

// alone is the program with nothing but a place for its data.
func alone(t *testing.T, dir string, flags ...string) *process {
	t.Helper()
	return launch(t, nil, append([]string{"--data-dir", dir, "--listen", "127.0.0.1", "--port", "0"}, flags...)...)
}

// TestOwnDatabase runs the program on a machine without a database.
func TestOwnDatabase(t *testing.T) {
	build(t)
	t.Parallel()
	t.Run("survives restarts, and tells who else wants its data", func(t *testing.T) {
		t.Parallel()
		dir := filepath.Join(dbtest.Folder(t), "pawl")
		first := order{id: "first", amount: "99.99", item: "widget"}
		firstStart(t, dir, first)
		restart(t, dir, first)
		company(t, dir)
	})
	t.Run("lives in any folder", func(t *testing.T) {
		t.Parallel()
		firstStart(t, filepath.Join(dbtest.Folder(t), "it's 100 %+ mine"), order{id: "first", amount: "99.99", item: "widget"})
	})
	t.Run("killed under load, and its PostgreSQL with it", func(t *testing.T) {
		t.Parallel()
		killAlone(t)
	})
	t.Run("a database that ends takes the program with it", func(t *testing.T) {
		t.Parallel()
		orphan(t)
	})
}

// firstStart makes a database, and takes the first order ever.
func firstStart(t *testing.T, dir string, o order) {
	t.Helper()
	p := alone(t, dir)
	url, place := p.announced()
	assert.True(t, place == dir && p.stdout() == "", "names", place, "want", dir, "and printed", p.stdout())
	newClient(1, false).completes(t, url, o)
	assert.Equal(t, p.terminate(), 0, "ended with")
	_, err := os.Stat(filepath.Join(dir, "data", "postmaster.pid"))
	assert.True(t, os.IsNotExist(err), "PostgreSQL was not shut down", err)
}

// restart starts on the same data, and ends by Ctrl-C.
func restart(t *testing.T, dir string, o order) {
	t.Helper()
	p := alone(t, dir)
	newClient(1, false).completes(t, p.url(), o)
	assert.Equal(t, count(t, socketURL(dir), `SELECT count(*) FROM books.charges`), 1, "charges")
	p.signal(syscall.SIGINT)
	assert.Equal(t, p.exitCode(), 0, "ended with")
}

// company starts others on the same data.
func company(t *testing.T, dir string) {
	t.Helper()
	p := alone(t, dir)
	p.url()
	second := alone(t, dir)
	code, said := second.exitCode(), second.stderr()
	assert.True(t, code == 69 && strings.Contains(said, "in use") && strings.Contains(said, dir) &&
		strings.Contains(said, fmt.Sprint(p.cmd.Process.Pid)), "a second copy ends with", code, "and says", said)
	for _, args := range [][]string{{"verify"}, {"migrate", "status"}} {
		code, said := run(t, append(args, "--data-dir", dir)...)
		assert.Equal(t, code, 0, args, "beside the service ends with", said)
	}
	if !p.running() {
		t.Errorf("the first copy has ended: %s", p.stderr())
	}
}

// killAlone kills the program under load, again and again. The kernel, or the next start, ends its PostgreSQL.
func killAlone(t *testing.T) {
	t.Helper()
	s := seed(t)
	dir := filepath.Join(dbtest.Folder(t), "pawl")
	r := &replicas{t: t, all: make([]*process, 1), urls: make([]string, 1)}
	start := func() { r.serves(0, alone(t, dir, hasty...)) }
	start()
	stockUp(t, r.urls[0], scarce, stock)
	load := &traffic{url: r.any, cuts: true, callers: 24, seed: s, order: smallOrders("alone")}
	load.start(t)
	for round := range rounds(t, 1) {
		load.flows(100)
		spared(t, socketURL(dir))
		if round == 0 { // later ones end at any moment
			holdOrders(t, socketURL(dir), 10)
		}
		r.all[0].kill()
		start()
	}
	load.flows(100)
	load.finish()
	url := socketURL(dir)
	settle(t, url, patience)
	prove(t, url, load)
	proveStock(t, url, scarce, stock)
	seen := load.seen()
	t.Logf("%d orders; %s; %d take-overs", len(load.orders), seen, takeOvers(t, url))
	assert.True(t, seen.suppressed != 0, "the fault did not bite")
}

// socketURL is how psql gets at the program's own database.
func socketURL(dir string) string {
	return "postgres://pawl@/postgres?host=" + filepath.Join(dir, "run")
}

// orphan takes its PostgreSQL away from the program, under load.
func orphan(t *testing.T) {
	t.Helper()
	dir := filepath.Join(dbtest.Folder(t), "pawl")
	r := &replicas{t: t, all: make([]*process, 1), urls: make([]string, 1)}
	r.serves(0, alone(t, dir, append(slices.Clone(hasty), "--grace", "10m")...))
	stockUp(t, r.urls[0], scarce, stock)
	load := &traffic{url: r.any, cuts: true, once: true, callers: 24, seed: seed(t), order: smallOrders("orphan")}
	load.start(t)
	load.flows(100)
	killDatabase(t, dir)
	began := time.Now()
	code := r.all[0].exitCode()
	took := time.Since(began)
	load.finish()
	if code != 70 { // it does not wait for orders that can't end, or would for ten minutes
		t.Errorf("ended with %d after %s", code, took)
	}
	r.serves(0, alone(t, dir, hasty...))
	url := socketURL(dir)
	settle(t, url, patience)
	heard(t, url, load)
	prove(t, url, load)
	t.Logf("%d orders; %s; ended in %s; %d take-overs", len(load.orders), load.seen(), took, takeOvers(t, url))
}

// killDatabase kills the PostgreSQL server of a data folder.
func killDatabase(t *testing.T, dir string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "data", "postmaster.pid"))
	assert.NoError(t, err)
	var pid int
	assert.NoError(t, assert.Err(fmt.Sscan(string(text), &pid)))
	assert.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
}
