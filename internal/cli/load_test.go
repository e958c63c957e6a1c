package cli

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	neturl "net/url"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pawl/engine"
	"pawl/httpapi"
	"pawl/internal/pg"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

// runLoad runs the command against a service and returns what it printed.
func runLoad(t *testing.T, url string, more ...string) (string, error) {
	t.Helper()
	return execute(t, append([]string{"load", "--url", url}, more...)...)
}

func fakeService(t *testing.T, answer http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(answer)
	t.Cleanup(s.Close)
	return s.URL
}

func realService(t *testing.T, database *dbtest.Database) string {
	t.Helper()
	pool, err := pg.Open(t.Context(), database.URL, pg.Options{MaxConns: 4, Patience: 5 * time.Second})
	assert.NoError(t, err)
	t.Cleanup(pool.Close)
	orders := engine.New(pool, engine.Config{})
	orders.Start()
	t.Cleanup(func() {
		if err := orders.Stop(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return fakeService(t, httpapi.New(orders, httpapi.Config{ResponseTimeout: 30 * time.Second}).ServeHTTP)
}

func TestLoadSendsEachOrderOnce(t *testing.T) {
	t.Parallel()
	var mutex sync.Mutex
	seen := map[string]bool{}
	url := fakeService(t, func(w http.ResponseWriter, r *http.Request) {
		var order struct{ OrderID, Item string }
		if err := json.NewDecoder(r.Body).Decode(&order); err != nil {
			t.Error(err)
		}
		mutex.Lock()
		defer mutex.Unlock()
		seen[order.OrderID] = true
		assert.True(t, regexp.MustCompile(`^[0-9a-f]{32}$`).MatchString(order.OrderID) && strings.HasPrefix(order.Item, "item-"),
			"sent", order)
		_, _ = w.Write([]byte(`{"status":"completed"}`))
	})
	out, err := runLoad(t, url, "--orders", "500", "--concurrency", "7", "--items", "3")
	assert.NoError(t, err)
	assert.True(t, len(seen) == 500 && strings.Contains(out, "200 OK completed: 500\n") && strings.Contains(out, "orders     500 in"),
		len(seen), "orders seen; printed", out)
}

func TestLoadFailsWhenARequestFails(t *testing.T) {
	t.Parallel()
	overloaded := fakeService(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = w.Write([]byte(`{"code":"overloaded","status":503}`))
	})
	for url, says := range map[string]string{overloaded: "503 Service Unavailable overloaded: 10\n", "http://127.0.0.1:1": "none: 10\n"} {
		out, err := runLoad(t, url, "--orders", "10", "--concurrency", "2")
		assert.True(t, err != nil && strings.Contains(err.Error(), "10 of 10 requests failed") && strings.Contains(out, says),
			"error", err, "printed", out)
	}
}

func TestLoadProvesTheBooks(t *testing.T) {
	t.Parallel()
	database := dbtest.New(t)
	url := realService(t, database)
	send := []string{"--orders", "300", "--concurrency", "16", "--items", "3", "--database-url", database.URL}
	out, err := runLoad(t, url, send...)
	assert.Require(t, err == nil && strings.Contains(out, "books      right") && strings.Contains(out, "200 OK completed: 300\n"),
		"error", err, "printed", out)
	if _, err := database.Pool.Exec(t.Context(), "SET LOCAL session_replication_role = replica; DELETE FROM charges WHERE order_no = (SELECT min(order_no) FROM charges)"); err != nil {
		t.Fatal(err)
	}
	out, err = runLoad(t, url, send...)
	assert.True(t, err != nil && strings.Contains(out, "WRONG  completed"), "a lost charge went unseen: error", err, "printed", out)
}

// TestLoadClaimsNothingAboutOrdersItDoesNotFind: the books of another database are in order, too.
func TestLoadClaimsNothingAboutOrdersItDoesNotFind(t *testing.T) {
	t.Parallel()
	database, other := dbtest.New(t), dbtest.New(t)
	url := realService(t, database)
	out, err := runLoad(t, url, "--orders", "50", "--database-url", other.URL)
	if exitCode(err) != exitUnavailable || !strings.Contains(err.Error(), "has none of these orders") || strings.Contains(out, "right") {
		t.Errorf("another database: error %v; printed:\n%s", err, out)
	}
	service, err := neturl.Parse(url)
	assert.NoError(t, err)
	real, calls := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(service) }}, atomic.Int64{}
	forgetful := fakeService(t, func(w http.ResponseWriter, r *http.Request) {
		if calls.Add(1)%10 == 0 {
			_, _ = w.Write([]byte(`{"status":"completed"}`))
			return
		}
		r.Header["X-Forwarded-For"] = nil // without a token nothing is done for callers of a proxy
		real.ServeHTTP(w, r)
	})
	out, err = runLoad(t, forgetful, "--orders", "50", "--database-url", database.URL)
	if exitCode(err) != exitFailure || !strings.Contains(err.Error(), "only 45 of the 50 orders") || strings.Contains(out, "right") {
		t.Errorf("orders are lost: error %v; printed:\n%s", err, out)
	}
	if out, err = runLoad(t, url, "--orders", "50"); err != nil || !strings.Contains(out, "books      not checked") {
		t.Errorf("no database: error %v; printed:\n%s", err, out)
	}
}

func TestLoadRefusesSenselessFlags(t *testing.T) {
	t.Parallel()
	for _, flags := range [][]string{{"--orders", "0"}, {"--concurrency", "-1"}, {"--items", "0"}, {"--url", "localhost:3000"}} {
		out, err := runLoad(t, "http://127.0.0.1:1", flags...)
		assert.Equal(t, exitCode(err), exitUsage, flags, err, "a usage error; printed", out)
	}
}
