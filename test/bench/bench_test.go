package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"pawl/internal/pgembed"
	"pawl/test/assert"
	"pawl/test/bench/machine"
)

// shared is one private PostgreSQL for all tests of the package.
var shared *pgembed.Server

func TestMain(m *testing.M) {
	os.Exit(withCluster(m))
}

func withCluster(m *testing.M) int {
	folder, err := os.MkdirTemp("", "pawl-bench-test-")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(folder)
	if shared, err = machine.StartPostgres(context.Background(), folder, nil, 0); err != nil {
		panic(err)
	}
	defer shared.Stop(context.Background())
	return m.Run()
}

func testDatabase(t *testing.T) *database {
	t.Helper()
	name := strings.ReplaceAll(strings.ToLower(t.Name()), "/", "_")
	d, err := newDatabase(t.Context(), shared, name)
	assert.NoError(t, err)
	t.Cleanup(func() {
		assert.Succeeds(t, d.drop(t.Context()))
	})
	return d
}

func testTarget(t *testing.T, name string) target {
	t.Helper()
	built, err := targets{source: "../..", folder: t.TempDir()}.build(t.Context(), name)
	assert.NoError(t, err)
	return built
}

func TestBaselineDoesEachOrderOnce(t *testing.T) {
	t.Parallel()
	d := testDatabase(t)
	post := serveTarget(t, testTarget(t, "baseline"), d)
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			status, body := post(`{"orderId":"a","amount":99.99,"item":"x"}`)
			assert.True(t, status == http.StatusOK && strings.Contains(body, `"status":"completed"`), status, body)
		})
	}
	all.Wait()
	mismatch, err := d.check(t.Context(), 0, 1)
	assert.True(t, mismatch == "" && err == nil, mismatch, err)
	status, _ := post(`{"orderId":"a","amount":99.98,"item":"x"}`)
	assert.Equal(t, status, http.StatusConflict, "other amount", "want 409")
}

func TestBaselineNeverOversells(t *testing.T) {
	t.Parallel()
	d := testDatabase(t)
	post := serveTarget(t, testTarget(t, "baseline"), d)
	assert.NoError(t, assert.Err(d.conn.Exec(t.Context(), "INSERT INTO inventory (item, on_hand, tracked) VALUES ('x', 3, true)")))
	var all sync.WaitGroup
	for n := range 20 {
		all.Go(func() { post(`{"orderId":"o` + string(rune('a'+n)) + `","amount":1,"item":"x"}`) })
	}
	all.Wait()
	var completed, failed, refunded, reserved, onHand int
	err := d.conn.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM orders WHERE status = 'completed'),
		(SELECT count(*) FROM orders WHERE status = 'failed'), (SELECT count(*) FROM charges WHERE refunded_at IS NOT NULL),
		reserved, on_hand FROM inventory`).Scan(&completed, &failed, &refunded, &reserved, &onHand)
	assert.True(t, err == nil && completed == 3 && failed == 17 && refunded == 17 && reserved == 0 && onHand == 0,
		"completed", completed, "failed", failed, "refunded", refunded, "reserved", reserved, "on hand", onHand, err)
}

func TestMeasureCountsWhatWasDone(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"baseline", "pawl"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := run{setup: setup{Target: name, Callers: 4, Items: 10}, target: testTarget(t, name), database: testDatabase(t),
				folder: t.TempDir(), window: window{warmUp: 100 * time.Millisecond, length: 500 * time.Millisecond}}
			out, err := r.measure(t.Context())
			assert.NoError(t, err)
			if out.Orders == 0 || out.Errors != 0 || out.BooksMismatch != "" || out.Max < out.P50 ||
				out.ServiceCPU <= 0 || out.PostgresCPU <= 0 || out.WALPerOrder <= 0 || out.MemoryMiB < 1 || out.HOTShare <= 0 {
				t.Errorf("result %+v", out)
			}
		})
	}
}

// serveTarget starts the target for the test and returns how to send it an order.
func serveTarget(t *testing.T, built target, d *database) func(body string) (int, string) {
	t.Helper()
	s, err := built.start(t.Context(), d.url, t.TempDir())
	assert.NoError(t, err)
	t.Cleanup(func() { _ = s.stop() })
	return func(body string) (int, string) {
		response, err := http.Post("http://"+s.address+"/api/orders/process", "application/json", strings.NewReader(body))
		if err != nil {
			t.Error(err)
			return 0, ""
		}
		defer response.Body.Close()
		text, _ := io.ReadAll(response.Body)
		return response.StatusCode, string(text)
	}
}

func TestStoredOrdersAreAsTheServiceLeavesThem(t *testing.T) {
	t.Parallel()
	d := testDatabase(t)
	service := testTarget(t, "pawl")
	start := func() *server {
		s, err := service.start(t.Context(), d.url, t.TempDir())
		assert.NoError(t, err)
		return s
	}
	if err := start().stop(); err != nil { // it has made its schema
		t.Fatal(err)
	}
	for range 2 { // the second time, some events have numbers
		assert.NoError(t, d.fill(t.Context(), 1000, fillSQL, 10, false))
	}
	mismatch, err := d.check(t.Context(), 0, 2000)
	assert.True(t, mismatch == "" && err == nil, mismatch, err)
	var events, numbered int
	err = d.conn.QueryRow(t.Context(), "SELECT count(*), max(event_no) FROM events").Scan(&events, &numbered)
	assert.True(t, err == nil && events == 4*2000 && numbered == events, events, "events, the last is number", numbered, err)
	s := start()
	t.Cleanup(func() { _ = s.stop() })
	// The service works on them, and its own proof of the books holds.
	w := newWire(s.address, s.token, false, 0)
	defer w.close()
	for range 200 {
		assert.NoError(t, w.process(10, false))
	}
	out, err := exec.CommandContext(t.Context(), service.binary, "verify", "--database-url", d.url).CombinedOutput()
	assert.True(t, err == nil, err, out)
}

func TestTreeTimeCountsChildrenThatHaveEnded(t *testing.T) {
	t.Parallel()
	before, err := machine.TreeTime(os.Getpid())
	assert.NoError(t, err)
	child := exec.Command("sh", "-c", "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done")
	assert.NoError(t, child.Run())
	used := child.ProcessState.UserTime() + child.ProcessState.SystemTime()
	after, err := machine.TreeTime(os.Getpid())
	assert.NoError(t, err)
	assert.True(t, after-before >= used-2*machine.Tick, "tree used", after-before, "more, the child alone", used)
}

func TestPeakMemoryIsOfTheProcess(t *testing.T) {
	t.Parallel()
	peak, err := peakMemory(os.Getpid())
	assert.True(t, err == nil && peak >= 1<<20, "peak", peak, err)
}

func TestMeasureRemoteCountsWhatTheProviderDid(t *testing.T) {
	t.Parallel()
	built := map[string]target{"pawl": testTarget(t, "pawl"), "baseline": testTarget(t, "baseline")}
	for name, s := range map[string]setup{
		"at a rate":    {Target: "pawl", Items: 10, Rate: 100},
		"with callers": {Target: "pawl", Items: 10, Callers: 20},
		"the baseline": {Target: "baseline", Items: 10, Callers: 20},
		"the provider": {Target: providerName, Items: 10, Rate: 100},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := run{setup: s, target: built[s.Target], database: testDatabase(t), folder: t.TempDir(),
				window:   window{warmUp: 300 * time.Millisecond, length: time.Second},
				provider: newProvider(built["pawl"].binary, 50*time.Millisecond, nil)}
			out, err := r.measureRemote(t.Context())
			assert.NoError(t, err)
			if out.Orders == 0 || out.Errors != 0 || out.BooksMismatch != "" || out.P50 < 150 || out.ProviderCPU <= 0 ||
				out.Provider.Requests < 3*out.Answered || out.Provider.Steps["confirm"].Effects != out.Answered {
				t.Errorf("result %+v, provider %+v", out, out.Provider)
			}
		})
	}
}

// Where the provider fails, loses answers and refuses, the baseline does each step once, and undoes what is refused.
func TestRemoteBaselineDoesEachStepOnce(t *testing.T) {
	t.Parallel()
	d, provider := testDatabase(t), newProvider(testTarget(t, "pawl").binary, 5*time.Millisecond, nil)
	for _, fault := range []string{"error2@charge,fraction=0.3", "error-after2@reserve,fraction=0.3", "decline@confirm,fraction=0.3"} {
		provider.target.args = append(provider.target.args, "--fault", fault)
	}
	var err error
	provider.server, err = provider.target.start(t.Context(), "", t.TempDir())
	assert.NoError(t, err)
	t.Cleanup(func() {
		assert.Succeeds(t, provider.server.stop())
	})
	baseline := testTarget(t, "baseline")
	baseline.env = []string{"PROVIDER=http://" + provider.server.address}
	post := serveTarget(t, baseline, d)
	var all sync.WaitGroup
	for n := range 60 {
		all.Go(func() {
			status, body := post(fmt.Sprintf(`{"orderId":"o%d","amount":1,"item":"x"}`, n/2))
			assert.Equal(t, status, http.StatusOK, body)
		})
	}
	all.Wait()
	var completed, failed, charged, refunded, reserved, released, confirmed int
	err = d.conn.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM orders WHERE status = 'completed'),
		(SELECT count(*) FROM orders WHERE status = 'failed'), (SELECT count(*) FROM charges),
		(SELECT count(refunded_at) FROM charges), (SELECT count(*) FROM reservations), (SELECT count(released_at) FROM reservations),
		(SELECT count(*) FROM confirmations)`).Scan(&completed, &failed, &charged, &refunded, &reserved, &released, &confirmed)
	if err != nil || completed+failed != 30 || failed == 0 || charged != 30 || reserved != 30 || refunded != failed || released != failed ||
		confirmed != completed {
		t.Errorf("completed %d failed %d, charged %d refunded %d, reserved %d released %d, confirmed %d, %v",
			completed, failed, charged, refunded, reserved, released, confirmed, err)
	}
	books, err := provider.summary(t.Context())
	assert.True(t, err == nil && books.mismatch(0, false) == "" && books.Steps["confirm"].Effects == completed,
		"provider", books, err)
}

func TestProviderMismatchIsNamed(t *testing.T) {
	t.Parallel()
	s := &summary{RepeatedEffects: 1, Requests: 9}
	if got := s.mismatch(2, false); got != "0 orders with two live charges, 0 effects beside a live one, 1 keys with more than one effect" {
		t.Error(got)
	}
	got := s.mismatch(2, true)
	assert.True(t, strings.HasSuffix(got, "; 2 orders answered, but confirm was done 0 times"), got)
	assert.Equal(t, (&summary{}).mismatch(0, true), "")
}

// Two cells do what one does: every order once, in the cell that it belongs to. The death of one is no error of the other.
func TestCellsAreMeasuredTogether(t *testing.T) {
	t.Parallel()
	folder, err := os.MkdirTemp("", "pawl-bench-test-")
	if err == nil {
		err = os.Chmod(folder, 0o711) // the user of the second PostgreSQL must be able to enter it
	}
	assert.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	p := &plan{cluster: shared, folder: folder, built: map[string]target{"pawl": testTarget(t, "pawl")}}
	p.cells, p.callers, p.items, p.rates, p.rounds = []int{1, 2}, []int{8}, []int{10}, []int{20}, 1
	p.window = window{warmUp: 200 * time.Millisecond, length: time.Second}
	assert.NoError(t, p.withCells(t.Context()))
	var text strings.Builder
	p.report.print(&text)
	for _, x := range p.report.Results {
		assert.True(t, x.Orders != 0 && x.Errors == 0 && x.BooksMismatch == "" && x.Callers == 8 && x.PostgresCPU > 0, "result", x)
	}
	if len(p.report.Results) != 2 || !strings.Contains(text.String(), "cells: 2, against one cell: CPU per order ") ||
		strings.Count(text.String(), ", errors in all 0") != 2 {
		t.Error(&text)
	}
}
