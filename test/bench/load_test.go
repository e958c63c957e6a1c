package main

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"pawl/test/assert"
)

// serve answers every order with handle and returns a wire to it.
func serve(t *testing.T, handle http.HandlerFunc) *wire {
	t.Helper()
	s := httptest.NewServer(handle)
	t.Cleanup(s.Close)
	w := newWire(strings.TrimPrefix(s.URL, "http://"), "pawl_1", true, 0)
	t.Cleanup(w.close)
	assert.NoError(t, w.open())
	return w
}

func TestWireSendsOrders(t *testing.T) {
	t.Parallel()
	type order struct {
		OrderID, Item string
		Amount        json.Number
	}
	var seen []order
	keys := map[string]bool{}
	w := serve(t, func(w http.ResponseWriter, r *http.Request) {
		assert.Equal(t, r.Header.Get("Authorization"), "Bearer pawl_1", "sent", r.Header)
		var o order
		assert.Succeeds(t, json.NewDecoder(r.Body).Decode(&o))
		seen = append(seen, o)
		keys[r.Header.Get("Idempotency-Key")] = true
		_, _ = w.Write([]byte(`{"status":"completed"}`))
	})
	ids := map[string]bool{}
	for range 100 {
		w.next(3, false)
		assert.NoError(t, w.send())
	}
	for _, o := range seen {
		ids[o.OrderID] = true
		if !regexp.MustCompile(`^[0-9a-f]{32}$`).MatchString(o.OrderID) || o.Amount != "99.99" ||
			!regexp.MustCompile(`^item-0000[012]$`).MatchString(o.Item) {
			t.Errorf("sent %+v", o)
		}
	}
	assert.True(t, len(ids) == 100 && len(keys) == 100, len(ids), "different ids and", len(keys), "keys, want 100")
}

func TestWireReadsAnswers(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		handle  http.HandlerFunc
		refused bool
	}{
		"with a length": {func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{"status":"completed"}`)) }, false},
		"in chunks": {func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(strings.Repeat(" ", 10_000)))
			_ = http.NewResponseController(w).Flush()
			_, _ = w.Write([]byte(`{"status":"completed"}`))
		}, false},
		"another status": {func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, `{"status":"completed"}`, http.StatusServiceUnavailable)
		}, true},
		"not completed": {func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{"status":"charging"}`)) }, true},
		"no body":       {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := serve(t, c.handle)
			for range 3 { // the connection goes on
				err := w.send()
				_, refused := errors.AsType[*refused](err)
				assert.Require(t, refused == c.refused && (refused || err == nil), err)
			}
		})
	}
}
