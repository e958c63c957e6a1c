package faults

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"

	api "pawl/client"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

// TestStockMove moves units between two cells whose callers buy all the time, and kills the command at each moment:
// before and after each of its two changes is done. Until the command is repeated, the units are in transit; repeated
// again, it does nothing. The second cell sells exactly what it got, and no unit is lost.
func TestStockMove(t *testing.T) {
	build(t)
	t.Parallel()
	const units, moved = 100_000, 7
	var cells [2]*replicas
	var doors [2]*door
	for i := range cells {
		cells[i] = startReplicas(t, 1, dbtest.New(t).URL, append([]string{"--cell", fmt.Sprintf("%d/2", i)}, hasty...)...)
		doors[i] = openDoor(t, cells[i].addresses()[0])
	}
	stockUp(t, cells[0].addresses()[0], "boat", units)
	stockUp(t, cells[1].addresses()[0], "boat", 0)
	stop := buyAlways(t, cells[0].addresses()[0], cells[1].addresses()[0])

	// What is in neither cell, after the callers' purchases.
	missing := func() int64 {
		left := int64(units)
		for _, cell := range cells {
			left -= count(t, cell.database, `SELECT on_hand + sold FROM pawl.inventory WHERE item = 'boat'`)
		}
		return left
	}
	total := int64(0)
	for n, moment := range []struct {
		cell    int
		done    bool
		transit int64
	}{{0, false, 0}, {0, true, moved}, {1, false, moved}, {1, true, 0}} {
		move := []string{"stock", "move", "boat", fmt.Sprint(moved), "--from", doors[0].URL, "--to", doors[1].URL, "--request-id", fmt.Sprint("move ", n)}
		halt, dropped := doors[moment.cell].holdNext(moment.done)
		p := launch(t, nil, move...)
		<-halt
		p.kill()
		close(dropped)
		assert.Equal(t, missing(), moment.transit, "killed at cell", moment.cell, "done", moment.done, "units are in transit")
		total += moved
		for range 2 {
			code, said := run(t, move...)
			assert.True(t, code == 0 && missing() == 0, "repeated: exit code", code, missing(), "units are missing", said)
		}
	}
	// What is not a move of these units changes nothing.
	for _, wrong := range []struct{ from, to, units, id, says string }{
		{doors[0].URL, doors[0].URL, "1", "move 9", "two cells"},
		{doors[1].URL, doors[0].URL, fmt.Sprint(moved), "move 0", "idempotency_key_reused"}, // back, under the same request id
		{doors[0].URL, doors[1].URL, "1", "move 0", "idempotency_key_reused"},
		{doors[1].URL, doors[0].URL, "1000", "move 9", "stock_too_low"},
		{doors[0].URL, "http://127.0.0.1:1", "1", "move 9", "nothing was moved"},
	} {
		code, said := run(t, "stock", "move", "boat", wrong.units, "--from", wrong.from, "--to", wrong.to, "--request-id", wrong.id)
		assert.True(t, code != 0 && strings.Contains(said, wrong.says) && missing() == 0,
			wrong, "exit code", code, missing(), "units are missing", said)
	}

	const sold = `SELECT count(*) FROM pawl.orders WHERE ended_as = 'completed'`
	eventually(t, patience, "the second cell has sold what it got", func() bool { return count(t, cells[1].database, sold) == total })
	stop()
	code, said := run(t, "holds", "--all", "--url", cells[0].addresses()[0]+" "+cells[1].addresses()[0])
	assert.True(t, code == 0 && strings.Contains(said, "\ncell 1/2, "), "holds --all", code, said)
	for _, cell := range cells {
		settle(t, cell.database, patience)
		verify(t, cell.database)
	}
	left := count(t, cells[0].database, `SELECT on_hand FROM pawl.inventory WHERE item = 'boat'`)
	first, second := count(t, cells[0].database, sold), count(t, cells[1].database, sold)
	assert.True(t, left+first == units-total && second == total, left, "left", first, "and", second, "sold, of", units)
}

// buyAlways has callers who buy a boat, again and again, in the cell of each order, until stop.
func buyAlways(t *testing.T, addresses ...string) (stop func()) {
	t.Helper()
	shop, err := api.NewCells(addresses, api.Options{})
	assert.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var callers sync.WaitGroup
	for caller := range 4 {
		callers.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				id := fmt.Sprintf("buyer-%d-%d", caller, n)
				order, err := shop.For(id).Process(ctx, api.ProcessBody{OrderID: id, Amount: "9.99", Item: "boat"})
				assert.True(t, ctx.Err() != nil || err == nil && (order.Status == api.StatusCompleted || order.Failure.Code == "out_of_stock"),
					id, order, err)
			}
		})
	}
	stop = func() { cancel(); callers.Wait() }
	t.Cleanup(stop)
	return stop
}

// door is a proxy in front of a service, which can hold up a change of stock.
type door struct {
	*httptest.Server
	mu   sync.Mutex
	next *held
}

type held struct {
	done          bool // the service has done it when the caller is held up
	halt, dropped chan struct{}
}

func openDoor(t *testing.T, address string) *door {
	t.Helper()
	target, err := url.Parse(address)
	assert.NoError(t, err)
	d := &door{}
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }}
	d.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if h := d.take(r); h != nil {
			if h.done {
				proxy.ServeHTTP(httptest.NewRecorder(), r)
			}
			close(h.halt)
			<-h.dropped
			panic(http.ErrAbortHandler)
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(d.Close)
	return d
}

// holdNext holds up the next change of stock, before or after the service has done it. halt is closed when it is held,
// and the test closes dropped to end it without an answer.
func (d *door) holdNext(done bool) (halt <-chan struct{}, dropped chan<- struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.next = &held{done, make(chan struct{}), make(chan struct{})}
	return d.next.halt, d.next.dropped
}

func (d *door) take(r *http.Request) (h *held) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/adjustments") {
		h, d.next = d.next, nil
	}
	return h
}
