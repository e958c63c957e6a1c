package clienttest

import (
	"bufio"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"syscall"
	"testing"
)

// folder makes a folder that the account can enter, too, under which root's PostgreSQL runs.
func folder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "pawl-clienttest-*") // not os.TempDir, whose path can be too long for a socket
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

var announcement = regexp.MustCompile(`^pawl serves (http://[^\s,]+)`)

// serve builds and starts the service on a database of its own, and returns its address. It ends with the test.
func serve(t *testing.T) (url string) {
	t.Helper()
	dir := folder(t)
	program := filepath.Join(dir, "pawl")
	run(t, "..", "go", "build", "-o", program, ".")
	service := exec.CommandContext(t.Context(), program, "serve", "--listen", "127.0.0.1", "--port", "0",
		"--data-dir", filepath.Join(dir, "data"), "--policy", "testdata/policy.yaml", "--log-format", "text", "--log-level", "warn")
	service.Cancel = func() error { return service.Process.Signal(syscall.SIGTERM) }
	service.Stderr = os.Stderr
	out, err := service.StdoutPipe()
	if err == nil {
		err = service.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // the context of the test has ended, and the service is asked to
		_, _ = io.Copy(io.Discard, out)
		if err := service.Wait(); err != nil && service.ProcessState.ExitCode() != 0 {
			t.Error(err)
		}
	})
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if match := announcement.FindStringSubmatch(lines.Text()); match != nil {
			return match[1]
		}
	}
	t.Fatal("the service ended before it served")
	return ""
}

// download stores what the service answers to GET.
func download(t *testing.T, url, file string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		t.Fatal(answer.Status, err)
	}
	write(t, file, text)
}

func write(t *testing.T, file string, text []byte) {
	t.Helper()
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
}
