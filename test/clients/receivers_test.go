package clients

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"pawl/test/assert"
)

// TestReceivers runs the receivers of docs/events.md as they are printed, and has the service deliver events to them. The one
// in TypeScript checks signatures with the library of Standard Webhooks.
func TestReceivers(t *testing.T) {
	t.Parallel()
	s := serve(t)
	program := filepath.Join(t.TempDir(), "receiver")
	write(t, program+".go", block(t, "../../docs/events.md", "go"))
	run(t, ".", "go", "build", "-o", program, program+".go")
	for language, command := range map[string][]string{"Go": {program}, "TypeScript": {"node", filepath.Join(made(t, "typescript", typescript), "test/receiver.js")}} {
		t.Run(language, func(t *testing.T) {
			t.Parallel()
			port := freePort()
			made := s.ask(t, "POST /api/webhook-endpoints", fmt.Sprintf(`{"url":"http://127.0.0.1:%s/pawl","types":["order.completed"]}`, port))
			before := fmt.Sprint(made["secret"])
			order := func(r *receiver, n string) {
				t.Helper()
				id := language + "-" + n
				s.ask(t, "POST /api/orders/process", fmt.Sprintf(`{"orderId":%q,"amount":"9.99","item":"widget"}`, id))
				r.wait(t, id)
			}
			r := receive(t, port, "whsec_bm90IHRoZSBzZWNyZXQgb2YgdGhpcyBvbmU= "+before, command)
			order(r, "signed")
			after := fmt.Sprint(s.ask(t, fmt.Sprintf("POST /api/webhook-endpoints/%s/rotate-secret", made["id"]), "{}")["secret"])
			assert.Require(t, after != before && strings.HasPrefix(after, "whsec_"), "the secret was not rotated")
			order(r, "while the receiver has the old secret")
			r.stop()
			r = receive(t, port, after, command)
			order(r, "when it has the new one")
			r.stop()
			receive(t, port, "whsec_bm90IHRoZSBzZWNyZXQgb2YgdGhpcyBvbmU=", command)
			tried := s.ask(t, fmt.Sprintf("POST /api/webhook-endpoints/%s/test", made["id"]), "")
			assert.True(t, tried["status"] == 401.0 && tried["delivered"] == false, "with another secret", tried)
		})
	}
}

// ask sends a request that must succeed.
func (s *service) ask(t *testing.T, request, body string) (answer map[string]any) {
	t.Helper()
	method, path, _ := strings.Cut(request, " ")
	r, err := http.NewRequestWithContext(t.Context(), method, s.url+path, strings.NewReader(body))
	assert.NoError(t, err)
	r.Header.Set("Content-Type", "application/json")
	got, err := http.DefaultClient.Do(r)
	assert.NoError(t, err)
	defer got.Body.Close()
	text, err := io.ReadAll(got.Body)
	if err == nil {
		err = json.Unmarshal(text, &answer)
	}
	assert.Require(t, err == nil && got.StatusCode == http.StatusOK, request, got.Status, text, err)
	return answer
}

// receiver is a running receiver, and what it has printed.
type receiver struct {
	command *exec.Cmd
	mu      sync.Mutex
	said    bytes.Buffer
}

// Write notes what the receiver prints.
func (r *receiver) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.said.Write(p)
}

// receive starts a receiver, in place of the one that listened on the port before, and returns when it listens. It ends with the test.
func receive(t *testing.T, port, secrets string, command []string) *receiver {
	t.Helper()
	r := &receiver{command: exec.CommandContext(t.Context(), command[0], command[1:]...)}
	r.command.Env = append(os.Environ(), "PORT="+port, "WEBHOOK_SECRETS="+secrets)
	r.command.Stdout, r.command.Stderr = r, r
	t.Cleanup(r.stop)
	assert.NoError(t, r.command.Start())
	r.until(t, "listens", func() bool {
		connection, err := net.Dial("tcp", "127.0.0.1:"+port)
		if err == nil {
			connection.Close()
		}
		return err == nil
	})
	return r
}

// stop ends a receiver.
func (r *receiver) stop() {
	if r.command.ProcessState == nil && r.command.Process != nil {
		_ = r.command.Process.Kill()
		_ = r.command.Wait()
	}
}

// wait waits until the receiver has printed the event of an order.
func (r *receiver) wait(t *testing.T, orderID string) {
	t.Helper()
	r.until(t, "has got "+orderID, func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return strings.Contains(r.said.String(), "order.completed "+orderID+"\n")
	})
}

func (r *receiver) until(t *testing.T, what string, so func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); !so(); {
		assert.Require(t, !time.Now().After(end), "the receiver never", what, r.said.String())
		select {
		case <-t.Context().Done():
			t.Fatal(t.Context().Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// freePort is a port that nobody listens on, below those that the system gives to connections: it stays free meanwhile.
func freePort() string {
	for {
		port := strconv.Itoa(20_000 + rand.IntN(12_000))
		if l, err := net.Listen("tcp", "127.0.0.1:"+port); err == nil {
			l.Close()
			return port
		}
	}
}
