package remote_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/cookiejar"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"pawl/internal/access"
	"pawl/test/assert"
)

// heard is what a command has printed so far.
type heard struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (h *heard) Write(text []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.text.Write(text)
}

func (h *heard) find(pattern *regexp.Regexp) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return pattern.FindStringSubmatch(h.text.String())
}

var consoleLink = regexp.MustCompile(`as "([^"]+)": (http://127\.0\.0\.1:\d+)(/console\?key=\S+)\n`)

// openConsole runs pawl console until the test ends, and returns its address and key.
func openConsole(t *testing.T, line, url string) (as, address, link string) {
	t.Helper()
	ctx, end := context.WithCancel(context.WithoutCancel(t.Context()))
	var said heard
	ended := make(chan error, 1)
	go func() { ended <- execute(ctx, &said, url, line) }()
	t.Cleanup(func() {
		end()
		if err := <-ended; err != nil {
			t.Error("it ends with", err)
		}
	})
	for limit := time.Now().Add(time.Minute); time.Now().Before(limit); {
		if found := said.find(consoleLink); found != nil {
			return found[1], found[2], found[3]
		}
		select {
		case err := <-ended:
			ended <- err
			t.Fatal(err)
		case <-time.After(10 * time.Millisecond):
		}
	}
	t.Fatal("it says nothing")
	return "", "", ""
}

// TestConsole: on this machine one may do what the token may do at the service, and nothing else is there.
func TestConsole(t *testing.T) {
	t.Parallel()
	url, owner := serviceAndBooks(t)
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, nil, 0o600); err != nil { // the service is open
		t.Fatal(err)
	}
	as, address, link := openConsole(t, "console --port 0 --token-file "+token, url)
	assert.Equal(t, as, "local", "as")
	jar, err := cookiejar.New(nil)
	assert.NoError(t, err)
	browser := &http.Client{Jar: jar, CheckRedirect: func(r *http.Request, _ []*http.Request) error {
		if strings.HasPrefix(r.URL.String(), address) {
			return nil
		}
		return http.ErrUseLastResponse
	}}
	get := func(path string) (status int, header http.Header, body string) {
		t.Helper()
		answer, err := browser.Get(address + path)
		assert.NoError(t, err)
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		assert.NoError(t, err)
		return answer.StatusCode, answer.Header, string(text)
	}
	if status, _, body := get("/console"); status != http.StatusForbidden || strings.Contains(body, "local") {
		t.Errorf("without the key: %d %s", status, body)
	}
	if status, _, body := get(link); status != http.StatusOK || !strings.Contains(body, "<bdi>local</bdi>") || strings.Contains(body, "Sign out") {
		t.Errorf("with the key: %d %s", status, body)
	}
	if status, _, body := get("/"); status != http.StatusOK || !strings.Contains(body, "<bdi>local</bdi>") {
		t.Errorf("the address alone: %d %s", status, body)
	}
	for _, path := range []string{"/docs", "/problems/outcome_unknown"} {
		if status, header, _ := get(path); status != http.StatusSeeOther || header.Get("Location") != url+path {
			t.Errorf("%s: %d %v", path, status, header)
		}
	}
	for _, path := range []string{"/api/orders", "/metrics", "/console/../api/orders", "//" + strings.TrimPrefix(url, "http://") + "/api/orders"} {
		if status, _, body := get(path); status != http.StatusNotFound {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
	issued, err := access.Create(t.Context(), owner, access.Template{Name: "reader", Roles: access.Roles{access.Read},
		Lifetime: time.Hour, Actor: "test"})
	assert.NoError(t, err)
	for given, says := range map[string]string{issued.Token: "<bdi>token:reader</bdi>", "pawl_nonsense": "<bdi>anonymous</bdi>"} {
		assert.NoError(t, os.WriteFile(token, []byte(given+"\n"), 0o600))
		if _, _, body := get("/console"); !strings.Contains(body, says) {
			t.Errorf("with %q in the file: %s", given, body)
		}
	}
}

// TestConsoleThatCannotBegin: it fails if the service does not answer.
func TestConsoleThatCannotBegin(t *testing.T) {
	t.Parallel()
	for _, s := range []step{
		{"console --token-file /nonexistent", "read token", "^$"},
		{"console --token-file ''", "--token-file must not be empty", "^$"},
	} {
		s.try(t, "http://127.0.0.1:1")
	}
	(step{"console", "URL of the service", "^$"}).try(t, "ftp://elsewhere")
}
