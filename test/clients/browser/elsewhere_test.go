package browser

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"syscall"
	"testing"

	"pawl/client"
)

// TestElsewhere approves an order in a console on this machine, of a service that may be anywhere, with a token that may do no more.
func TestElsewhere(t *testing.T) {
	t.Parallel()
	order := process(t, client.ProcessBody{Item: "yacht"}).OrderID
	address, path := consoleElsewhere(t)
	b := open(t, nil)
	b.address = address
	b.visit(path)
	b.shows("token:approver")
	b.visit("/console/order?id=" + order)
	b.wait("is live", isLive)
	if eval[bool](b, `[...document.querySelectorAll("main a, main button")].some(e => /Cancel|Pause/.test(e.innerText))`) {
		t.Error("who may only approve is offered more")
	}
	for _, step := range []string{"press Approve", "shows What will change", "reason = fine", "press Approve", "shows The order is approved."} {
		b.take(step)
	}
	becomes(t, order, "completed")
}

// consoleElsewhere serves the console with the token of somebody who may approve, until the end of the test.
func consoleElsewhere(t *testing.T) (address, path string) {
	t.Helper()
	token, err := pawl("token", "create", "approver", "--roles", "read,approve")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(lastLine(token)), 0o600); err != nil {
		t.Fatal(err)
	}
	console := exec.Command(shared.program, "console", "--url", shared.url, "--token-file", file, "--port", "0")
	console.Stderr = os.Stderr
	out, err := console.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := console.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = console.Process.Signal(syscall.SIGTERM)
		if err := console.Wait(); err != nil {
			t.Error("pawl console:", err)
		}
	})
	lines := bufio.NewScanner(out)
	lines.Scan()
	found := regexp.MustCompile(`(http://127[\d.]+:\d+)(/console\S*)`).FindStringSubmatch(lines.Text())
	if found == nil {
		t.Fatal("no address in ", lines.Text())
	}
	return found[1], found[2]
}
