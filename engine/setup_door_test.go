package engine_test

import (
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
)

// door stands before a provider and keeps calls waiting where a test says so: they are under way for as long as the test
// needs them to be, on any machine.
type door struct {
	behind http.Handler

	mu     sync.Mutex
	path   string
	opened chan struct{} // nil: it never was shut
	came   *atomic.Int32
}

// ServeHTTP implements http.Handler.
func (d *door) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	d.mu.Lock()
	path, opened, came := d.path, d.opened, d.came
	d.mu.Unlock()
	if opened != nil && r.URL.Path == path {
		came.Add(1)
		<-opened
	}
	d.behind.ServeHTTP(w, r)
}

// shut keeps calls to a path of a provider until open is called, at the latest by the end of the test. came counts them.
func (d *door) shut(t testing.TB, path string) (came *atomic.Int32, open func()) {
	t.Helper()
	opened := make(chan struct{})
	d.mu.Lock()
	d.path, d.opened, d.came = path, opened, &atomic.Int32{}
	came = d.came
	d.mu.Unlock()
	open = sync.OnceFunc(func() { close(opened) })
	t.Cleanup(open)
	return came, open
}
