package httpapi

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"pawl/internal/events"
)

// TestMemoryOfPages: pages and forms wait until there is memory for them, and give it back.
func TestMemoryOfPages(t *testing.T) {
	t.Parallel()
	begun, end := make(chan bool, 1), make(chan bool)
	api := New(nil, Config{Console: func(http.Handler) http.Handler {
		return http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/console/slow" {
				begun <- true
				<-end
			}
		})
	}})
	send := func(ctx context.Context, method, path string, length int64) int {
		r := httptest.NewRequestWithContext(ctx, method, path, nil)
		r.Host, r.RemoteAddr, r.ContentLength = "localhost", fromHere, length
		w := httptest.NewRecorder()
		api.ServeHTTP(w, r)
		return w.Code
	}
	slow := make(chan int, 1)
	go func() { slow <- send(t.Context(), "POST", "/console/slow", maxForm) }()
	<-begun
	soon, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	for _, length := range []int64{maxForm, -1, 1 << 40} { // one that nobody knows may be as long
		if code := send(soon, "POST", "/console/form", length); code != http.StatusServiceUnavailable {
			t.Errorf("another form of %d bytes: %d", length, code)
		}
	}
	if code := send(t.Context(), "GET", "/console/orders", 0); code != http.StatusOK {
		t.Errorf("a page: %d", code)
	}
	const some = 2 << 20
	if code := send(t.Context(), "POST", "/console/form", some); code != http.StatusOK {
		t.Errorf("a shorter form: %d", code)
	}
	close(end)
	if code := <-slow; code != http.StatusOK {
		t.Error(code)
	}
	if code := send(t.Context(), "POST", "/console/form", maxForm); code != http.StatusOK {
		t.Errorf("there is room again: %d", code)
	}
}

// TestPagesThatListen: pages count as those who listen to events do, and hear of the end of the service.
func TestPagesThatListen(t *testing.T) {
	t.Parallel()
	tail := events.NewTail(nil, events.TailConfig{})
	server := NewServer(New(nil, Config{Events: tail, Console: func(http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		})
	}}), Listening{Connections: 8})
	address := serveOn(t, server)
	var streams []*sse
	for range 4 {
		s, status, _ := askForStream(t, address, "/console/live")
		if status != http.StatusOK {
			t.Fatal(status)
		}
		streams = append(streams, s)
	}
	if _, status, _ := askForStream(t, address, "/console/live"); status != http.StatusServiceUnavailable {
		t.Errorf("one too many: %d", status)
	}
	streams[0].Close()
	eventually(t, "there is a place again", func() bool {
		s, status, _ := askForStream(t, address, "/console/live")
		streams[0] = s
		return status == http.StatusOK
	})
	tail.Stop(t.Context())
	for _, s := range streams {
		if rest := s.block(); rest != nil {
			t.Errorf("%q", rest)
		}
	}
}
