package browser

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/chromedp/cdproto/network"

	"pawl/client"
	"pawl/test/assert"
)

// TestSigningIn signs in as people do, with the button behind a link, and out again.
func TestSigningIn(t *testing.T) {
	t.Parallel()
	b := open(t, nil)
	b.visit("/console/orders")
	b.shows("You are not signed in")
	b.forgive("401")
	link := strings.TrimPrefix(linkFor(t, "maria"), shared.url)
	b.visit(link)
	b.press("Sign in")
	b.shows("token:maria")
	b.press("Go on")
	b.shows("Action for selected orders") // the page that was asked for
	b.press("Sign out")
	b.shows("You are signed out.")
	b.visit("/console/orders")
	b.shows("You are not signed in")
	b.forgive("401")
	b.visit(link) // it is used up
	b.shows("This link does not work")
	b.forgive("404")
}

// signOut deletes the cookie without the page.
func (b *tab) signOut() {
	b.t.Helper()
	call(b, network.ClearBrowserCookies, struct{}{})
}

// TestElsewhere approves an order in pawl console, with a token that can do nothing else.
func TestElsewhere(t *testing.T) {
	t.Parallel()
	order := process(t, client.ProcessBody{Item: "yacht"}).OrderID
	token, err := pawl("token", "create", "approver", "--roles", "read,approve")
	assert.NoError(t, err)
	file := filepath.Join(t.TempDir(), "token")
	assert.NoError(t, os.WriteFile(file, []byte(lastLine(token)), 0o600))
	b := program(t, `(http://127[\d.]+:\d+)(/console\S*)`, syscall.SIGTERM,
		"console", "--url", shared.url, "--token-file", file, "--port", "0")
	b.shows("token:approver")
	b.visit("/console/order?id=" + order)
	b.wait("is live", isLive)
	assert.True(t, !eval[bool](b, `[...document.querySelectorAll("main a, main button")].some(e => /Cancel|Pause/.test(e.innerText))`),
		"a person who can only approve is offered more")
	b.press("Approve")
	b.shows("What will change")
	b.fill("reason", "fine")
	b.press("Approve")
	b.shows("The order is approved.")
}

// TestDocumentation reads pages of pawl docs: with pictures, wide tables, and commands.
func TestDocumentation(t *testing.T) {
	t.Parallel()
	b := program(t, `(http://127[\d.]+:\d+)(/)`, syscall.SIGTERM, "docs", "--listen", "127.0.0.1:0")
	b.shows("Pawl is a retry-safe order service")
	for _, page := range []string{"/", "/docs/operations.html", "/docs/guarantees.html", "/docs/tutorial.html"} {
		b.visit(page)
		b.hasNoBarriers()
	}
}

// TestLab opens the lab of a demonstration, kills a replica there and starts it again. At the end, it shows the verdict.
func TestLab(t *testing.T) {
	t.Parallel()
	b := program(t, `(http://[\w.]+:\d+)(/console/lab\S*)`, syscall.SIGINT, "demo", "--seconds", "0")
	b.shows("Books of both sides")
	b.wait("is live", isLive)
	b.hasNoBarriers()
	b.press("Kill")
	b.wait("a replica is dead", arrived+`document.querySelector("main .badge.dead")`)
	for _, l := range pictureLooks {
		b.look(l)
		b.picture("lab", "header")
	}
	b.look(looks[0])
	b.press("Start")
	b.wait("no replica is dead", arrived+`document.querySelector("main .badge") && !document.querySelector("main .badge.dead")`)
	b.wait("both replicas serve", `document.querySelectorAll("main .badge.serves").length === 2`)
	b.visit("/console")
	b.shows("Orders by state")
	b.hasNoBarriers()
	b.visit("/console/lab")
	b.wait("is live", isLive)
	assert.NoError(t, b.stop())
	b.shows("0 charged twice") // in its window, though the demonstration has ended
	b.shows("accounted for")
	b.wait("its title has the result, and no menu leads to a dead server",
		`document.title.startsWith("0 charged twice") && !document.querySelector("header").checkVisibility()`)
	b.hasNoBarriers()
}

// program runs a command of the program until the end of the test, and opens the console that it announces.
func program(t *testing.T, announces string, end os.Signal, arguments ...string) *tab {
	t.Helper()
	began(t)
	found, stop, err := announced(announces, end, arguments...)
	assert.NoError(t, err)
	stop = sync.OnceValue(stop)
	t.Cleanup(func() { // after the window is closed
		err := stop()
		assert.True(t, err == nil, "pawl", arguments, err)
	})
	b := open(t, nil)
	b.address, b.stop = found[1], stop
	b.look(looks[0])
	b.visit(found[2])
	return b
}
