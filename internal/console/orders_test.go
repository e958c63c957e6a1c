package console_test

import (
	"fmt"
	"html"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"pawl/client"
	"pawl/internal/access"
)

// found are the ids of the orders that a page lists, in its order.
func (p shown) found() (ids []string) {
	for _, match := range regexp.MustCompile(`<th scope="row"><a href="/console/order\?id=[^"]*"><bdi>([^<]*)</bdi>`).FindAllStringSubmatch(p.body, -1) {
		ids = append(ids, html.UnescapeString(match[1]))
	}
	return ids
}

// link is where a link of the page leads, by what it says.
func (p shown) link(t *testing.T, text string) string {
	t.Helper()
	match := regexp.MustCompile(`<a [^>]*href="([^"]*)"[^>]*>` + regexp.QuoteMeta(text) + `</a>`).FindStringSubmatch(p.body)
	if match == nil {
		t.Fatalf("no link says %q: %s", text, p.body)
	}
	return html.UnescapeString(match[1])
}

func ordersOf(search string) string { return "/console/orders?" + url.Values{"q": {search}}.Encode() }

func TestOrders(t *testing.T) {
	t.Parallel()
	s := setup(t)
	s.get(t, "/console/orders").want(t, 200, "There are no orders yet", "api/orders/process")
	for i := range 4 {
		s.process(t, client.ProcessBody{OrderID: fmt.Sprintf("o%d", i), Amount: fmt.Sprintf("%d.50", i), Item: "widget", CustomerID: "ann smith"})
	}
	s.process(t, client.ProcessBody{OrderID: "big", Amount: "600", Item: "lamp"})
	hostile := `<script>alert(1)</script>" onclick="x` + "\u202e"
	s.plant(t, "attention", "retry_after: "+hostile, "../o "+`"><img src=x>`)
	for search, want := range map[string]string{
		"":                                     `../o "><img src=x>|big|o3|o2|o1|o0`,
		"status:completed amount:>1.5":         "o3|o2",
		"amount:1.5..2.50 sort:oldest":         "o1|o2",
		`customer:"ann smith" sort:oldest`:     "o0|o1|o2|o3",
		"hold:approval":                        "big",
		"reason:retry_after":                   `../o "><img src=x>`,
		"status:open item:lamp":                "big",
		"to:2001-01-01":                        "",
		"status:failed from:today":             "",
		"code:out_of_stock":                    "",
		"item:lamp amount:>=600 nonsense:x":    "",
		"status:nothing item:lamp":             "big",
		"item:" + strings.Repeat("x", 300):     "",
		"customer:nobody sort:oldest item:lag": "",
	} {
		page := s.get(t, ordersOf(search)).want(t, 200, `name="q"`)
		if got := strings.Join(page.found(), "|"); got != want {
			t.Errorf("%s: %q, want %q", search, got, want)
		}
		page.lacks(t, "<script>alert", "<img", `" onclick`, "\u202e")
	}
	s.get(t, ordersOf("item:"+strings.Repeat("x", 300))).want(t, 200, "item must be an item name")
	s.get(t, ordersOf("status:nothing")).want(t, 200, "was left out: there are pending")
	s.get(t, ordersOf("shop:17")).want(t, 200, "There is no order &#34;shop:17&#34;.")
	s.get(t, ordersOf(`"`+strings.Repeat("x", 254)+`"`)).want(t, 200, "There is no order") // too long for an id with its quotes
	tricky := "/console/order?" + url.Values{"id": {`../o "><img src=x>`}}.Encode()
	for _, typed := range []string{`../o "><img src=x>`, `"../o ""><img src=x>"`} { // as it is, and as it is quoted
		if to := s.get(t, ordersOf(typed)).want(t, 303).header.Get("Location"); to != tricky {
			t.Errorf("%s leads to %s", typed, to)
		}
	}
	if to := s.get(t, ordersOf("o1")).want(t, 303).header.Get("Location"); to != "/console/order?id=o1" {
		t.Errorf("leads to %s", to)
	}
}

// TestOrdersPageByPage: the URL of a page is all that makes it, and orders that come meanwhile move nothing.
func TestOrdersPageByPage(t *testing.T) {
	t.Parallel()
	s := setup(t)
	for i := range 120 {
		s.plant(t, "paused", "", fmt.Sprintf("p%03d", i))
	}
	first := s.get(t, ordersOf("hold:paused")).want(t, 200, "Orders 1 to 50", `value="hold:paused"`)
	s.plant(t, "paused", "", "meanwhile")
	second := s.get(t, first.link(t, "Next page")).want(t, 200, "Orders 51 to 100", `value="hold:paused"`)
	third := s.get(t, second.link(t, "Next page")).want(t, 200, "Orders 101 to 120").lacks(t, "Next page")
	if all := append(append(first.found(), second.found()...), third.found()...); len(all) != 120 || all[0] != "p119" || all[119] != "p000" {
		t.Errorf("%d orders: %q", len(all), all)
	}
	if again := s.get(t, third.link(t, "First page")).found(); again[0] != "meanwhile" {
		t.Errorf("the first page begins with %q", again[0])
	}
	s.get(t, ordersOf("hold:attention")+strings.TrimPrefix(first.link(t, "Next page"), ordersOf("hold:paused"))).want(t, 200)
	s.get(t, ordersOf("hold:attention")+"&cursor=x").want(t, 200, "cursor must be the nextCursor")
}

// TestOrdersOffersWhatIsAllowed: who may only read sees no way to choose orders.
func TestOrdersOffersWhatIsAllowed(t *testing.T) {
	t.Parallel()
	s := setup(t)
	s.plant(t, "attention", "retry_after: later", "one")
	s.get(t, "/console/orders").want(t, 200, `type="checkbox" name="id" value="one"`, `<option value="cancel">`)
	name, reader := s.token(t, "reader", access.Read)
	s.get(t, "/console/orders", name, reader).want(t, 200, "<bdi>one</bdi>").lacks(t, "checkbox", "<option")
	s.get(t, "/console/attention", name, reader).want(t, 200, "<bdi>one</bdi>", "You have no role").lacks(t, "Retry", "Cancel")
	name, approver := s.token(t, "approver", access.Read, access.Approve)
	s.get(t, "/console/orders", name, approver).want(t, 200, `<option value="approve">`).lacks(t, `<option value="cancel">`)
	name, shop := s.token(t, "shop", access.Submit)
	s.get(t, "/console/attention", name, shop).want(t, 403)
}
