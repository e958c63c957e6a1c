package simulator_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"pawl/internal/simulator"
	"pawl/test/assert"
)

// known is the books without what is only counted since the start.
func known(sim *simulator.Simulator) string {
	var out strings.Builder
	for _, e := range sim.Books("") {
		e.Requests = 0
		fmt.Fprintf(&out, "%+v\n", e)
	}
	return out.String()
}

// history makes a file with one key of every kind.
func history(t *testing.T) *provider {
	t.Helper()
	p := start(t, simulator.Config{File: write(t, nil)})
	p.answers(call{key: "live"}, "200 ch_1")
	p.answers(call{key: "refused", item: "decline"}, "402 refused card_declined")
	p.answers(call{key: "stock", order: "other", step: "reserve"}, "200 rs_2")
	p.answers(call{key: "unstock", order: "other", undo: "stock", step: "reserve"}, "200 released rl_3")
	p.answers(call{key: "pending", item: "async:1h", callback: "http://127.0.0.1:1/"}, "202 ch_4")
	p.answers(call{key: "void", undo: "voided"}, "200 voided")
	return p
}

func TestFile(t *testing.T) {
	t.Parallel()
	t.Run("tells after an unclean stop what was answered", func(t *testing.T) {
		t.Parallel()
		p := history(t)
		q := start(t, simulator.Config{File: crash(t, p.file)})
		if got, want := known(q.Simulator), known(p.Simulator); got != want || strings.Count(got, "\n") != 5 {
			t.Errorf("%s\nwant\n%s", got, want)
		}
		q.answers(call{key: "live"}, "200 ch_1 again")
		q.answers(call{key: "live", amount: "1"}, "422 idempotency_mismatch")
		q.answers(call{key: "refused", item: "decline"}, "402 refused card_declined again")
		q.answers(call{key: "stock", order: "other", step: "reserve"}, "402 refused voided again")
		q.answers(call{key: "unstock", order: "other", undo: "stock", step: "reserve"}, "200 released rl_3 again")
		q.answers(call{key: "unstock", order: "other", undo: "live", step: "reserve"}, "422 idempotency_mismatch")
		q.answers(call{key: "pending", item: "async:1h", callback: "http://127.0.0.1:1/"}, "202 ch_4 again")
		q.answers(call{key: "voided"}, "402 refused voided")
		q.answers(call{key: "new", order: "new"}, "200 ch_5")
	})
}

func TestTornFile(t *testing.T) {
	t.Parallel()
	t.Run("loses nothing but the part of a line, wherever it was torn", func(t *testing.T) {
		t.Parallel()
		p := history(t)
		whole, err := os.ReadFile(p.file)
		assert.NoError(t, err)
		last := bytes.LastIndexByte(whole[:len(whole)-1], '\n') + 1
		file := write(t, nil)
		for end := last; end < len(whole); end += 7 {
			assert.NoError(t, os.WriteFile(file, whole[:end], 0o600))
			sim, err := simulator.Open(simulator.Config{File: file})
			assert.NoError(t, err, "torn at", end)
			books := sim.Books("")
			if err := sim.Close(); err != nil || len(books) != 4 {
				t.Errorf("torn at %d: %v, %+v", end, err, books)
			}
			if text, err := os.ReadFile(file); err != nil || !bytes.Equal(text, whole[:last]) {
				t.Errorf("torn at %d: %v, %q is left", end, err, text)
			}
		}
	})
	t.Run("holds whatever was answered while others are written", func(t *testing.T) {
		t.Parallel()
		p := start(t, simulator.Config{File: write(t, nil)})
		var mu sync.Mutex
		var answered, before []string
		var file string
		var all sync.WaitGroup
		for i := range 20 {
			all.Go(func() {
				for n := range 10 {
					key := fmt.Sprintf("%d-%d", i, n)
					p.answered(t, key)
					mu.Lock()
					answered = append(answered, key)
					if len(answered) == 100 {
						before, file = slices.Clone(answered), crash(t, p.file)
					}
					mu.Unlock()
				}
			})
		}
		all.Wait()
		q := start(t, simulator.Config{File: file})
		for _, key := range before {
			q.stands(key, "live 1")
		}
	})
}

func TestBadFile(t *testing.T) {
	t.Parallel()
	t.Run("that is damaged is refused, and the place named", func(t *testing.T) {
		t.Parallel()
		for text, want := range map[string]string{
			"{\"entries\":[{\"key\":\"a\"}]}\n{\"en\n{\"forgot\":\"a\"}\n": "line 2: read record",
			"{\"entries\":[{\"key\":\"a\",\"number\":2}]}\n":               "line 1: entry 2 comes before entry 1",
		} {
			if _, err := simulator.Open(simulator.Config{File: write(t, []byte(text))}); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%q: %v", text, err)
			}
		}
	})
	t.Run("is for one simulator at a time", func(t *testing.T) {
		t.Parallel()
		p := start(t, simulator.Config{File: write(t, nil)})
		if _, err := simulator.Open(simulator.Config{File: p.file}); err == nil || !strings.Contains(err.Error(), "another simulator") {
			t.Error(err)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		start(t, simulator.Config{File: p.file})
	})
	t.Run("that can't be made is an error", func(t *testing.T) {
		t.Parallel()
		if _, err := simulator.Open(simulator.Config{File: filepath.Join(t.TempDir(), "none", "file")}); err == nil {
			t.Error("opened")
		}
	})
	t.Run("that can't be written is an unknown outcome", func(t *testing.T) {
		t.Parallel()
		if _, err := os.Stat("/dev/full"); err != nil {
			t.Skip("no /dev/full")
		}
		// What says that it was done must be on disk: no answer of it may leave.
		p := start(t, simulator.Config{File: write(t, nil)})
		p.BreakFile("/dev/full")
		p.answers(call{}, "500 storage")
		p.answers(call{}, "500 storage")
		p.answers(call{key: "undo", undo: "key"}, "500 storage")
		if n := p.Unwritten(); n > 0 {
			t.Errorf("%d bytes are kept that will never be written", n)
		}
	})
}

func (p *provider) answered(t *testing.T, key string) {
	t.Helper()
	if got, err := p.send(call{key: key, order: key}); err != nil || !strings.HasPrefix(got, "200 ch_") {
		t.Errorf("%s: %s %v", key, got, err)
	}
}

func TestClose(t *testing.T) {
	t.Parallel()
	p := start(t, simulator.Config{})
	hung := make(chan struct{})
	go func() {
		defer close(hung)
		p.sees(call{item: "timeout-after"}, dropped)
	}()
	p.awaits(t, "key", "done")
	for range 2 {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
	<-hung
	p.answers(call{key: "late"}, "503 not_done closed")
	p.stands("key", "live 1")
	p.stands("late", "")
}
