package cell_test

import (
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"pawl/internal/cell"
	"pawl/test/assert"
)

// TestHAProxy runs the configuration of the documents: it sends every request to the cell that has the order.
func TestHAProxy(t *testing.T) {
	t.Parallel()
	program, err := exec.LookPath("haproxy")
	if err != nil {
		t.Skip("HAProxy is not installed")
	}
	page, err := os.ReadFile("../../docs/operations.md")
	assert.NoError(t, err)
	text := regexp.MustCompile("(?s)```haproxy\n(.*?)```").FindStringSubmatch(string(page))[1]
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	assert.NoError(t, err)
	defer listener.Close()
	inherited, err := listener.(*net.TCPListener).File()
	assert.NoError(t, err)
	defer inherited.Close()
	text = strings.Replace(text, "bind :8080", "bind fd@3", 1)
	for i := range 4 {
		service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, i) }))
		t.Cleanup(service.Close)
		text = strings.Replace(text, fmt.Sprintf("cell%d.internal:3000", i), service.Listener.Addr().String(), 1)
	}
	file := filepath.Join(t.TempDir(), "haproxy.cfg")
	assert.NoError(t, os.WriteFile(file, []byte("defaults\n  timeout connect 5s\n  timeout client 1m\n  timeout server 1m\n"+text), 0o600))
	proxy := exec.CommandContext(t.Context(), program, "-db", "-f", file)
	proxy.Stderr, proxy.ExtraFiles = t.Output(), []*os.File{inherited}
	assert.NoError(t, proxy.Start())
	t.Cleanup(func() { proxy.Process.Kill(); proxy.Wait() }) //nolint:errcheck // it was killed

	ask := func(method, path, header string) string {
		r, err := http.NewRequestWithContext(t.Context(), method, "http://"+listener.Addr().String()+path, nil)
		assert.NoError(t, err)
		if header != "" {
			r.Header.Set("Pawl-Order", header)
		}
		answer, err := http.DefaultClient.Do(r)
		assert.NoError(t, err)
		defer answer.Body.Close()
		body := make([]byte, 1)
		n, _ := answer.Body.Read(body)
		if answer.StatusCode != http.StatusOK {
			return answer.Status
		}
		return string(body[:n])
	}
	seen := map[string]bool{}
	for i := range 64 {
		id := fmt.Sprintf("Zürich/%d %%?", i)
		want := fmt.Sprint(cell.Of(id, 4).Number)
		seen[want] = true
		hash := sha256.Sum256([]byte(id))
		token := strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(hash[:]))
		assert.Equal(t, ask("GET", "/api/orders/"+url.PathEscape(id), ""), want, id)
		assert.Equal(t, ask("POST", "/api/orders/"+url.PathEscape(id)+"/cancel", ""), want, id)
		assert.Equal(t, ask("POST", "/api/orders/process", url.PathEscape(id)), want, id)
		assert.Equal(t, ask("POST", "/api/callbacks/"+token, ""), want, id)
	}
	assert.Equal(t, len(seen), 4)
	assert.Equal(t, ask("GET", "/api/orders", ""), "421 Misdirected Request")
}
