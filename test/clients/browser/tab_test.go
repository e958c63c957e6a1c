package browser

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/audits"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"pawl/test/assert"
)

func startBrowser() error {
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.WSURLReadTimeout(2*time.Minute))
	if os.Geteuid() == 0 {
		options = append(options, chromedp.NoSandbox)
	}
	allocator, end := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, _ := chromedp.NewContext(allocator)
	shared.browser = ctx //nolint:fatcontext // one browser for all tests
	shared.stops = append(shared.stops, func() {
		if err := chromedp.Cancel(ctx); err != nil {
			fmt.Fprintln(os.Stderr, "end Chromium:", err)
		}
		end()
	})
	return chromedp.Do(ctx)
}

// tab is a window of a browser that knows nobody else's cookies. What a page must never do is noted, and fails the test in
// the end.
type tab struct {
	t       *testing.T
	ctx     context.Context
	address string       // of the service that it looks at
	stop    func() error // ends that service; nil: the one of all tests

	mu       sync.Mutex
	requests []string // "GET /path", in the order in which they were sent
	troubles []string
	received float64 // bytes over the wire, heads and all
}

// open opens a window that is signed in with a cookie, or with none. It is closed with the test.
func open(t *testing.T, cookie *http.Cookie) *tab {
	t.Helper()
	began(t)
	b := &tab{t: t, address: shared.url}
	b.start(chromedp.WithNewBrowserContext())
	if cookie != nil {
		yes := true
		call(b, network.SetCookie, network.SetCookieParams{Name: cookie.Name, Value: cookie.Value, Path: "/", Secure: &yes, HTTPOnly: &yes,
			URL: strings.Replace(shared.url, "http:", "https:", 1), SameSite: network.CookieSameSiteLax})
	}
	return b
}

// maria opens a window of somebody who may do everything. All windows have the same session.
func maria(t *testing.T) *tab {
	t.Helper()
	began(t)
	shared.signIn.Do(func() { shared.session = session(t, linkFor(t, "maria")) })
	return open(t, shared.session)
}

func (b *tab) start(options ...chromedp.ContextOption) {
	b.t.Helper()
	ctx, end := chromedp.NewContext(shared.browser, append(options, chromedp.WithListener(b.hear))...)
	b.ctx = ctx
	b.t.Cleanup(func() {
		end()
		b.mu.Lock()
		defer b.mu.Unlock()
		for _, trouble := range b.troubles {
			b.t.Error(trouble)
		}
	})
	if err := chromedp.Do(ctx); err != nil { // without a limit, which would end the window
		b.t.Fatal(err)
	}
	call(b, audits.Enable, cdp.Empty{})
}

// hear notes what happens in the window.
func (b *tab) hear(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	note := func(format string, arguments ...any) {
		b.troubles = append(b.troubles, fmt.Sprintf(format, arguments...))
	}
	switch e := event.(type) {
	case *network.EventRequestWillBeSent:
		address, err := url.Parse(e.Request.URL)
		if err != nil || address.Scheme != "data" && "http://"+address.Host != b.address {
			note("a request to somebody else: %s", e.Request.URL)
			return
		}
		b.requests = append(b.requests, e.Request.Method+" "+address.RequestURI())
	case *network.EventLoadingFinished:
		b.received += e.EncodedDataLength
	case *audits.EventIssueAdded:
		if violation := e.Issue.Details.ContentSecurityPolicyIssueDetails; violation != nil {
			note("against the content security policy: %s %s", violation.ViolatedDirective, violation.BlockedURL)
		}
	case *runtime.EventExceptionThrown:
		note("a script failed: %s", quoted(fmt.Sprintf("%+v %+v", e.ExceptionDetails.Text, e.ExceptionDetails.Exception)))
	case *log.EventEntryAdded:
		if e.Entry.Level == log.EntryLevelError {
			note("%s: %s", e.Entry.URL, e.Entry.Text)
		}
	case *page.EventJavascriptDialogOpening:
		note("a dialog: %s", e.Message)
	}
}

// forgive forgets a trouble that a test has made on purpose.
func (b *tab) forgive(part string) {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	rest := slices.DeleteFunc(slices.Clone(b.troubles), func(trouble string) bool { return strings.Contains(trouble, part) })
	assert.True(b.t, len(rest) != len(b.troubles), "no trouble with", part, "in", b.troubles)
	b.troubles = rest
}

// bytes is what has come over the wire so far.
func (b *tab) bytes() float64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.received
}

// sent are the requests so far.
func (b *tab) sent() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.requests)
}

// call sends a command of the DevTools protocol, which must succeed.
func call[P, R any](b *tab, command cdp.Command[P, R], params P) R {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, limit)
	defer cancel()
	result, err := chromedp.Call(ctx, command, params)
	assert.NoError(b.t, err, command.Method)
	return result
}

// run does something in the window, which must succeed.
func run[T any](b *tab, action chromedp.Action[T]) T {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, limit)
	defer cancel()
	value, err := chromedp.Run(ctx, action)
	if err != nil {
		b.t.Fatalf("%v\nat %s", err, b.about())
	}
	return value
}

// eval runs a script in the page, waits for what it promises, and returns its value.
func eval[T any](b *tab, script string) T {
	b.t.Helper()
	return run(b, chromedp.Evaluate[T](script, chromedp.EvalAwaitPromise))
}

// about is where the window is and what it shows, for messages of failed tests.
func (b *tab) about() string {
	ctx, cancel := context.WithTimeout(b.ctx, limit)
	defer cancel()
	text, err := chromedp.Run(ctx, chromedp.Evaluate[string](`location.href + "\n" + document.body.innerText.slice(0, 3000)`))
	if err != nil {
		return err.Error()
	}
	return text
}

// visit loads a page of the service.
func (b *tab) visit(path string) {
	b.t.Helper()
	run(b, chromedp.Navigate(b.address+path))
}

// wait waits until an expression of the page is true. That a page goes meanwhile, and another one comes, is no failure.
func (b *tab) wait(what, expression string) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, limit)
	defer cancel()
	for {
		good, err := chromedp.Run(ctx, chromedp.Evaluate[bool]("Boolean("+expression+")"))
		if err == nil && good {
			return
		}
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			b.t.Fatalf("%s: not within %v (%v)\nat %s", what, limit, err, b.about())
		}
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// arrived says of a page that it is there whole, and that it is not the one of which something was pressed that leads elsewhere.
const arrived = `document.readyState === "complete" && !window.left && `

// shows waits for a text in the page.
func (b *tab) shows(text string) {
	b.t.Helper()
	b.wait("shows "+text, fmt.Sprintf(arrived+`document.body.innerText.includes(%s)`, quoted(text)))
}

// press presses a link, a button or a box by its text, preferably in main.
func (b *tab) press(text string) {
	b.t.Helper()
	b.wait("can press "+text, fmt.Sprintf(arrived+`(window.pressed =
		[...document.querySelectorAll("main :is(a, button, summary, label)"), ...document.querySelectorAll("a, button, label")]
		.find(e => e.checkVisibility() && e.innerText?.trim() === %s))`, quoted(text)))
	eval[any](b, `window.left = pressed.matches("a, form:not([method=dialog]) button:not([type=button])"); window.pressed.click()`)
}

// fill writes a text into the field with a name.
func (b *tab) fill(name, text string) {
	b.t.Helper()
	field := fmt.Sprintf(`document.querySelector("main :is(input:not([type=hidden]), select, textarea)[name=%s]")`, name)
	b.wait("has the field "+name, arrived+field)
	eval[any](b, fmt.Sprintf(`{ const field = %s; field.value = %s; field.dispatchEvent(new Event("change", {bubbles: true})) }`,
		field, quoted(text)))
}

// look is how a page is looked at.
type look struct {
	scheme string // light or dark
	width  int64
}

func (b *tab) look(l look) {
	b.t.Helper()
	call(b, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{
		Width: l.width, Height: 900, DeviceScaleFactor: 1, Mobile: l.width < 500})
	call(b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{
		{Name: "prefers-color-scheme", Value: l.scheme}, {Name: "prefers-reduced-motion", Value: "reduce"},
	}})
	eval[any](b, `new Promise(done => requestAnimationFrame(() => setTimeout(done)))`) // the page has heard of it
}

// escaped is a text for the query of a URL.
func escaped(text string) string { return url.QueryEscape(text) }

const isLive = `document.querySelector(".live")?.dataset.state === "live"`

// axe is the text of axe-core.
var axe = sync.OnceValue(func() string {
	text, err := os.ReadFile(filepath.Join(shared.dir, "node_modules/axe-core/axe.min.js"))
	if err != nil {
		panic(err)
	}
	return string(text)
})
