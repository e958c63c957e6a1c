package browser

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

// TestLab opens the lab of a demonstration, kills a replica there and starts it again.
func TestLab(t *testing.T) {
	t.Parallel()
	address, path := demonstrate(t)
	b := open(t, nil)
	b.address = address
	b.look(looks[0])
	b.visit(path)
	b.shows("Books of both sides")
	b.wait("is live", isLive)
	for _, l := range looks {
		b.look(l)
		b.hasNoBarrier(l)
	}
	b.look(looks[0])
	b.press("Kill")
	b.wait("a replica is dead", arrived+`document.querySelector("main .badge.dead")`)
	b.picture("lab")
	b.press("Start")
	b.wait("no replica is dead", arrived+`document.querySelector("main .badge") && !document.querySelector("main .badge.dead")`)
	b.wait("both replicas serve", `document.querySelectorAll("main .badge.serves").length === 2`)
	b.visit("/console")
	b.shows("The machine")
	for _, l := range looks {
		b.look(l)
		b.hasNoBarrier(l)
	}
	if *update {
		b.look(looks[0])
		b.wait("there is a curve", `document.querySelector(".chart path.line")?.getAttribute("d").split(/[ML]/).length > 3`)
		b.pictureOf("overview", "section:has(#hour)")
	}
}

// demonstrate runs the demonstration until the end of the test, and returns the way to its lab.
func demonstrate(t *testing.T) (address, path string) {
	t.Helper()
	began(t)
	demo := exec.Command(shared.program, "demo", "--seconds", "0")
	demo.Stderr = os.Stderr
	out, err := demo.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := demo.Start(); err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	lines := bufio.NewScanner(io.TeeReader(out, &said))
	t.Cleanup(func() {
		_ = demo.Process.Signal(syscall.SIGINT)
		for lines.Scan() {
		}
		if err := demo.Wait(); err != nil {
			t.Errorf("pawl demo: %v\n%s", err, said.String())
		}
	})
	link := regexp.MustCompile(`(http://[\w.]+:\d+)(/console/lab\S*)`)
	for lines.Scan() {
		if found := link.FindStringSubmatch(lines.Text()); found != nil {
			_ = demo.Process.Signal(syscall.SIGPIPE) // as a request does whose replica was killed
			return found[1], found[2]
		}
	}
	t.Fatal("no address of a lab in ", said.String())
	return "", ""
}
