package browser

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"pawl/client"
	"pawl/test/assert"
)

// tricks are texts that a careless page would take for something else than text. They may be ids.
var tricks = []string{
	`<script>window.hacked=1</script>`,
	`"><img src=x onerror="window.hacked=1"><x-hostile>`,
	`' autofocus onfocus='window.hacked=1`,
	`</textarea></title></script></svg><x-hostile onmouseover=window.hacked=1>`,
	`javascript:window.hacked=1//`,
	`https://elsewhere.invalid/<x-hostile>`,
	`//elsewhere.invalid/x`,
	`<a hx-get="/elsewhere" hx-trigger="load">x</a>`,
	`<hx-partial hx-target="body">x</hx-partial>`,
	`<template><script>window.hacked=1</script></template>`,
	`{{.}}{{print "x"}}${window.hacked=1}`,
	`../../x?a=b&c=d#e%2e%2e;%00`,
	`%2e%2e`,
	`&lt;x-hostile&gt;&#x3c;x-hostile>`,
	`' OR 1=1; --`,
	`אבגד )( ﷺ Z̷̢̛͠a̵l̶g̸o`,
	`*bold* [link](javascript:window.hacked=1) ` + "`code`",
	strings.Repeat("W", 200),
}

// hostileTexts have all tricks in them. A page costs so much more than a text that each has as many as an id has room for; some only
// work at the beginning.
func hostileTexts() (texts []string) {
	first := func(trick string) bool {
		return regexp.MustCompile(`^(javascript:|https?:|//|\.\.|%2e)`).MatchString(trick)
	}
	rest := slices.DeleteFunc(slices.Clone(tricks), first)
	for _, text := range slices.DeleteFunc(slices.Clone(tricks), func(trick string) bool { return !first(trick) }) {
		for len(rest) > 0 && len(text)+len(rest[0]) < longestID {
			text, rest = text+" "+rest[0], rest[1:]
		}
		texts = append(texts, text)
	}
	return append(texts, rest...)
}

// longestID is how many bytes an id or item may have, but for those before and behind the text that tell orders with the same text apart.
const longestID = 255 - len("hostile-refusal:")

// unseen are those that ids and reasons may not have, but the answers of providers may.
const unseen = "\u202egnp.exe\u200b\x1b[31mred\a\r\nSet-Cookie: hacked=1\t\ufeff\u2028"

// TestHostileTexts stores every trick wherever callers, people and providers can store a text, and looks at what comes of it.
func TestHostileTexts(t *testing.T) {
	t.Parallel()
	b := maria(t)
	b.look(look{"light", 390})
	texts := hostileTexts()
	for _, trick := range texts {
		ids := storeHostile(t, trick)
		for _, path := range hostilePages(trick, ids) {
			b.visit(path)
			b.shows(trick)
			b.hasOnlyText()
		}
	}
	for _, path := range []string{
		"/console", "/console/attention?hold=approval", "/console/orders", "/console/errors", "/console/stock", "/console/webhooks",
	} {
		b.visit(path)
		b.hasOnlyText()
	}
	for _, trick := range texts[:2] { // what comes later is morphed into the page
		waiting := trick + " 1"
		b.visit("/console/order?id=" + escaped(waiting))
		b.wait("is live", isLive)
		assert.NoError(t, assert.Err(shared.api.PauseOrder(t.Context(), waiting, client.VerbBody{Reason: "paused: " + trick})))
		b.shows("paused: " + trick)
		b.hasOnlyText()
	}
}

// storeHostile makes orders that are full of a text: one that is done, and one that waits for a person.
func storeHostile(t *testing.T, trick string) (ids []string) {
	t.Helper()
	ctx := t.Context()
	short := string([]rune(trick)[:min(len([]rune(trick)), 40)])
	for i, item := range []string{"hostile:", "yacht", "hostile-refusal:"} {
		body := client.ProcessBody{OrderID: trick, Amount: "5", Item: item, CustomerID: trick,
			Metadata: map[string]string{strings.TrimSpace(short): trick}}
		if i > 0 {
			body.OrderID = fmt.Sprintf("%s %d", trick, i)
		}
		if item != "yacht" {
			body.Item += trick
		}
		assert.NoError(t, assert.Err(shared.api.Process(ctx, body)))
		ids = append(ids, body.OrderID)
	}
	_, err := shared.api.RefundOrder(ctx, trick, client.RefundBody{Amount: new("1"), Reason: trick, RequestID: trick, OnBehalfOf: trick})
	assert.NoError(t, err)
	counted := client.SetInventoryBody{OnHand: 1, Reason: trick, OnBehalfOf: trick}
	assert.NoError(t, assert.Err(shared.api.SetInventory(ctx, trick, counted, client.SetInventoryParams{IfNoneMatch: "*"})))
	endpoint := client.WebhookEndpointBody{URL: "http://" + shared.shop.address() + "/hook?" + escaped(trick), Description: trick,
		Types: []string{"stock.*"}, Reason: trick}
	assert.NoError(t, assert.Err(shared.api.CreateWebhookEndpoint(ctx, endpoint)))
	return ids
}

// hostilePages are the pages that show such orders.
func hostilePages(trick string, orders []string) (paths []string) {
	paths = append(paths, "/console/item?item="+escaped(trick))
	if !strings.Contains(trick, `"`) { // which the search takes for its own
		paths = append(paths, "/console/orders?q="+escaped(trick))
	}
	for _, id := range orders {
		paths = append(paths, "/console/order?id="+escaped(id))
	}
	return paths
}

// hasOnlyText fails the test if a text has become more than text.
func (b *tab) hasOnlyText() {
	b.t.Helper()
	found := eval[[]string](b, `[
		...[...document.querySelectorAll("*")].flatMap(e => [...e.attributes]
			.filter(a => /^(on|hx-|data-hx-|style$|srcdoc$)/.test(a.name)).map(a => e.localName + " has " + a.name)),
		...[...document.querySelectorAll("x-hostile, img, iframe, object, embed, base, template, hx-partial, main :is(script, style, link, meta)")]
			.map(e => "there is a " + e.localName),
		...[...document.querySelectorAll("[href], [src], [action], [formaction]")].flatMap(e =>
			["href", "src", "action", "formaction"].filter(a => e.hasAttribute(a)).map(a => new URL(e.getAttribute(a), location).href)
			.filter(u => !u.startsWith(location.origin + "/") && u !== "data:,").map(u => e.localName + " leads to " + u)),
		...("hacked" in window || document.cookie ? ["a script ran, or a cookie was set"] : []),
		...(document.documentElement.scrollWidth > innerWidth ? ["the page is " + document.documentElement.scrollWidth + " wide"] : []),
	]`)
	for _, what := range found {
		b.t.Errorf("%s\n%s", what, eval[string](b, "location.href"))
	}
}
