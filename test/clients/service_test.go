package clients

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"pawl/test/assert"
)

// folder makes a folder that the account can enter, too, under which root's PostgreSQL runs.
func folder(t *testing.T) string {
	t.Helper()
	dir := newFolder(t)
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func newFolder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "pawl-clienttest-*") // not os.TempDir, whose path can be too long for a socket
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	assert.NoError(t, err)
	return dir
}

// shared are the folders that tests have in common: making them takes longer than most tests.
var shared struct {
	sync.Mutex
	folders map[string]string
}

func TestMain(m *testing.M) {
	shared.folders = map[string]string{}
	m.Run() // its exit code is that of the process
	for _, dir := range shared.folders {
		os.RemoveAll(dir)
	}
}

// made is a folder that the first test that needs it fills.
func made(t *testing.T, name string, fill func(t *testing.T, dir string)) string {
	t.Helper()
	shared.Lock()
	defer shared.Unlock()
	if shared.folders[name] == "" {
		dir := newFolder(t)
		fill(t, dir)
		shared.folders[name] = dir
	}
	return shared.folders[name]
}

func build(t *testing.T, dir string) {
	t.Helper()
	run(t, "../..", "go", "build", "-ldflags=-s -w", "-o", filepath.Join(dir, "pawl"), ".")
}

var announcement = regexp.MustCompile(`^pawl serves (http://[^\s,]+)`)

// service is a running service with a database of its own.
type service struct {
	url, program, data string

	mu      sync.Mutex
	ending  bool
	command *exec.Cmd
	out     io.Reader
	starter sync.WaitGroup
}

// serve starts the service on a database of its own. It ends with the test.
func serve(t *testing.T) *service {
	t.Helper()
	s := &service{program: filepath.Join(made(t, "program", build), "pawl"), data: filepath.Join(folder(t), "data")}
	t.Cleanup(func() { s.stop(t) })
	assert.NoError(t, s.start(freePort()))
	return s
}

// start starts the service on a port and returns when it serves.
func (s *service) start(port string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ending {
		return nil
	}
	s.command = exec.Command(s.program, "serve", "--listen", "127.0.0.1", "--port", port,
		"--data-dir", s.data, "--policy", "testdata/policy.yaml", "--log-format", "text", "--log-level", "warn")
	s.command.Stderr = os.Stderr
	out, err := s.command.StdoutPipe()
	if err != nil {
		return err
	}
	if err := s.command.Start(); err != nil {
		return err
	}
	s.out = out
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if match := announcement.FindStringSubmatch(lines.Text()); match != nil {
			if s.url == "" { // the same ever after
				s.url = match[1]
			}
			return nil
		}
	}
	return io.ErrUnexpectedEOF
}

// restart kills the service and starts it again at the same address, while the caller goes on.
func (s *service) restart(t *testing.T) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	address, err := url.Parse(s.url)
	if err != nil {
		t.Error(err)
		return
	}
	_ = s.command.Process.Kill()
	_ = s.command.Wait()
	s.starter.Go(func() {
		assert.Succeeds(t, s.start(address.Port()), "start the service again")
	})
}

// stop asks the service to end, and waits for it.
func (s *service) stop(t *testing.T) {
	t.Helper()
	s.starter.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ending = true
	if s.command == nil || s.command.Process == nil {
		return
	}
	_ = s.command.Process.Signal(syscall.SIGTERM)
	_, _ = io.Copy(io.Discard, s.out)
	assert.Succeeds(t, s.command.Wait(), "the service ended with")
}

func write(t *testing.T, file string, text []byte) {
	t.Helper()
	assert.NoError(t, os.WriteFile(file, text, 0o600))
}

// fault is what the proxy does to one request; clients/README.md says what each does. The zero fault does nothing.
type fault struct {
	Do         string `json:"do"`
	Status     int    `json:"status"`
	RetryAfter string `json:"retryAfter"`
	Path       string `json:"path"`
}

// seenRequest is a request as it came to the proxy.
type seenRequest struct {
	method, path, key, authorization string
	at                               time.Time
}

// faultProxy stands before a service. It has one case at a time, which has a path of its own.
type faultProxy struct {
	server  *httptest.Server
	service *service

	mu     sync.Mutex
	prefix string
	number int
	faults []fault
	seen   []seenRequest
	t      *testing.T
}

func startProxy(t *testing.T, s *service) *faultProxy {
	t.Helper()
	p := &faultProxy{service: s}
	p.server = httptest.NewServer(p)
	t.Cleanup(p.server.Close)
	return p
}

// begin starts a case. It returns the address for the client, and what says, at the end of the case, which requests came.
func (p *faultProxy) begin(t *testing.T, faults []fault) (address string, done func() []seenRequest) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.number++
	p.prefix, p.faults, p.seen, p.t = "/case-"+strconv.Itoa(p.number), faults, nil, t
	return p.server.URL + p.prefix, func() []seenRequest {
		p.service.starter.Wait()
		p.mu.Lock()
		defer p.mu.Unlock()
		assert.True(t, len(p.seen) >= len(p.faults), "only", len(p.seen), "requests came, for", len(p.faults), "faults")
		return p.seen
	}
}

// next notes a request and returns the fault that is meant for it.
func (p *faultProxy) next(r *http.Request) (t *testing.T, path string, f fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	path, ok := strings.CutPrefix(r.URL.RequestURI(), p.prefix)
	assert.True(p.t, ok, "a request for", r.URL)
	if n := len(p.seen); n < len(p.faults) {
		f = p.faults[n]
	}
	p.seen = append(p.seen, seenRequest{r.Method, path, r.Header.Get("Idempotency-Key"), r.Header.Get("Authorization"), time.Now()})
	return p.t, path, f
}

// ServeHTTP hands a request on to the service, with its fault.
func (p *faultProxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	t, path, f := p.next(r)
	switch f.Do {
	case "drop":
		panic(http.ErrAbortHandler)
	case "answer":
		w.Header().Set("Content-Type", "text/html")
		if f.RetryAfter != "" {
			w.Header().Set("Retry-After", f.RetryAfter)
		}
		w.WriteHeader(f.Status)
		fmt.Fprint(w, "<h1>Not now.</h1>")
		return
	}
	if f.Path != "" {
		p.somebodyElse(t, f.Path)
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	answer, err := p.forward(r, path, body)
	if err != nil { // the service is being started
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	defer answer.Body.Close()
	p.answer(t, w, r, answerWith{answer, f.Do})
}

// answerWith is an answer of the service and what becomes of it.
type answerWith struct {
	*http.Response
	fault string
}

func (p *faultProxy) answer(t *testing.T, w http.ResponseWriter, r *http.Request, a answerWith) {
	t.Helper()
	if a.fault == "" {
		maps.Copy(w.Header(), a.Header)
		w.WriteHeader(a.StatusCode)
		_, _ = io.Copy(flushing{w}, a.Body)
		return
	}
	text, err := beginning(a.Response)
	assert.True(t, err == nil, err)
	switch a.fault {
	case "lose":
	case "cut":
		w.Header().Set("Content-Type", a.Header.Get("Content-Type"))
		w.Header().Set("Content-Length", strconv.Itoa(len(text)))
		w.WriteHeader(a.StatusCode)
		_, _ = flushing{w}.Write(text[:len(text)/2])
	case "hold":
		<-r.Context().Done()
	case "restart":
		p.service.restart(t)
	default:
		t.Errorf("no such fault: %q", a.fault)
	}
	panic(http.ErrAbortHandler)
}

// beginning is an answer, or its first event if it is a stream, which has no end.
func beginning(answer *http.Response) (text []byte, err error) {
	if !strings.HasPrefix(answer.Header.Get("Content-Type"), "text/event-stream") {
		return io.ReadAll(answer.Body)
	}
	for lines := bufio.NewReader(answer.Body); ; {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return nil, err
		}
		if text = append(text, line...); bytes.Contains(text, []byte("data:")) && len(line) == 1 {
			return text, nil
		}
	}
}

func (p *faultProxy) forward(r *http.Request, path string, body []byte) (*http.Response, error) {
	sent, err := http.NewRequestWithContext(r.Context(), r.Method, p.service.url+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	sent.Header = r.Header.Clone()
	return http.DefaultTransport.RoundTrip(sent)
}

func (p *faultProxy) somebodyElse(t *testing.T, path string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, p.service.url+path, strings.NewReader("{}"))
	if err != nil {
		t.Error(err)
		return
	}
	request.Header.Set("Content-Type", "application/json")
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Error(err)
		return
	}
	defer answer.Body.Close()
	text, _ := io.ReadAll(answer.Body)
	assert.Equal(t, answer.StatusCode, http.StatusOK, path, answer.Status, text)
}

// flushing hands on each piece at once: an answer may be a stream.
type flushing struct{ http.ResponseWriter }

// Write writes a piece of an answer.
func (f flushing) Write(piece []byte) (int, error) {
	n, err := f.ResponseWriter.Write(piece)
	_ = http.NewResponseController(f.ResponseWriter).Flush()
	return n, err
}
