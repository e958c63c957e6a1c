package browser

import (
	"strings"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/network"
)

// TestSigningIn signs in as people do, by the button behind a link, and out again.
func TestSigningIn(t *testing.T) {
	t.Parallel()
	b := open(t, nil)
	b.visit("/console/orders")
	b.shows("You are not signed in")
	b.forgive("401")
	link := strings.TrimPrefix(linkFor(t, "maria", ""), shared.url)
	b.visit(link)
	b.press("Sign in")
	b.shows("token:maria")
	b.visit("/console")
	b.shows("Overview")
	b.press("Sign out")
	b.shows("You are signed out.")
	b.visit("/console/orders")
	b.shows("You are not signed in")
	b.forgive("401")
	b.visit(link) // it is used up
	b.press("Sign in")
	b.shows("This link was used")
	b.forgive("404")
}

// TestRoles has people with few roles look at the console: they are offered what they may do, and nothing else.
func TestRoles(t *testing.T) {
	t.Parallel()
	for name, role := range map[string]struct {
		roles   string
		screens string // of the navigation
		refused string // a page that they may not see
	}{
		"reader": {roles: "read", screens: "Overview, Needs a person, Orders, Errors, Webhooks, Policies, Stock, Books"},
		"shop":   {roles: "submit", screens: ""},
		"clerk":  {roles: "stock", screens: "Stock", refused: "/console/orders"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := open(t, session(t, linkFor(t, name, role.roles)))
			b.visit("/console")
			if got := eval[string](b, `[...document.querySelectorAll("nav a")].map(a => a.innerText).join(", ")`); got != role.screens {
				t.Errorf("screens %q, want %q", got, role.screens)
			}
			if name == "reader" {
				b.visit("/console/order?id=waits-1")
				b.shows("waits for approval")
				if eval[bool](b, `[...document.querySelectorAll("main a, main button")].some(e => /Approve|Cancel|Pause/.test(e.innerText))`) {
					t.Error("a reader is offered to change an order")
				}
			}
			if role.refused != "" {
				b.visit(role.refused)
				b.shows("You are token:" + name)
				b.forgive("403")
			}
		})
	}
}

// withoutScript is for pages that are loaded from now on.
func (b *tab) withoutScript() {
	b.t.Helper()
	call(b, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
}

// signOut forgets the cookie behind the back of the page.
func (b *tab) signOut() {
	b.t.Helper()
	call(b, network.ClearBrowserCookies, struct{}{})
}
