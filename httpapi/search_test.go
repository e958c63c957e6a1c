package httpapi

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"pawl/migrations"
	"pawl/test/assert"
)

// found searches and returns the ids, each with what matched, in one text.
func (b *bundle) found(t testing.TB, query string) string {
	t.Helper()
	page := b.searched(t, query)
	var all []string
	for _, o := range page.Orders {
		all = append(all, strings.TrimSuffix(o.OrderID+" "+o.Matched.By+" "+strings.Join(o.Matched.Keys, " "), " "))
	}
	if page.More {
		all = append(all, "more")
	}
	for _, word := range page.NotFound {
		all = append(all, "not "+word)
	}
	return strings.Join(all, ", ")
}

func (b *bundle) searched(t testing.TB, query string) (page searchedPage) {
	t.Helper()
	a := b.get(t, "/api/orders?"+query)
	assert.Equal(t, a.status, http.StatusOK, query, a.body)
	assert.NoError(t, json.Unmarshal([]byte(a.body), &page))
	return page
}

type searchedPage struct {
	Orders []struct {
		OrderID string
		Matched struct {
			By   string
			Keys []string
		}
	}
	Total      *int64
	More       bool
	NotFound   []string
	NextCursor string
}

// pages reads a search page by page, and returns the ids.
func (b *bundle) pages(t testing.TB, query string) (ids string) {
	t.Helper()
	for cursor, n := "", 0; n == 0 || cursor != ""; n++ {
		page := b.searched(t, query+cursor)
		for _, o := range page.Orders {
			ids += " " + o.OrderID
		}
		if cursor = page.NextCursor; cursor != "" {
			cursor = "&cursor=" + cursor
		}
		assert.Require(t, n < 20, query, "does not end:", ids)
	}
	return strings.TrimSpace(ids)
}

func TestSearch(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for i, order := range []string{
		`"orderId":"shop-1","customerId":"ann"`, `"orderId":"shop-10","customerId":"ann","metadata":{"email":"ann@example.com","shop":"x"}`,
		`"orderId":"shop-2","customerId":"c-129","metadata":{"email":"bob@example.com"}`, `"orderId":"ann","metadata":{"email":"shop-1"}`,
		`"orderId":"shop","metadata":{"email":"` + strings.Repeat("é", 300) + `"}`,
		`"orderId":"web-7","metadata":{"email":"inv-2026-0129"}`, `"orderId":"web-129"`, `"orderId":"web-1290"`,
	} {
		b.process(t, fmt.Sprintf(`{%s,"amount":%d,"item":"widget"}`, order, i+1)).wantStatus(t, 200)
	}
	for table, reference := range map[string]string{"charges": "ch_1", "reservations": "rs_1"} {
		b.exec(t, `UPDATE `+table+` SET reference = $1 FROM orders AS o WHERE o.order_no = `+table+`.order_no AND o.order_id = 'shop-2'`, reference)
	}
	b.call(t, "POST /api/orders/shop-1/refunds", `{"amount":0.01,"reason":"r","requestId":"r1"}`)
	b.exec(t, `UPDATE charge_operations SET reference = 'ch_1' FROM orders AS o WHERE o.order_no = charge_operations.order_no AND o.order_id = 'shop-1'`)
	dispute := `{"reference":"dp_1","state":"opened","amount":1,"reason":"r"}`
	b.call(t, "POST /api/orders/shop-1/disputes", dispute)
	assert.Equal(t, b.found(t, "term=ann@example.com"), "", "before the key can be searched")
	assert.NoError(t, migrations.AddSearchKey(t.Context(), b.AdminURL, "email"))
	assert.NoError(t, migrations.AddSearchKey(t.Context(), b.AdminURL, "it's \"x\""))
	body := b.get(t, "/api/orders?term=nobody").body
	assert.Contains(t, body, `"metadataKeys":["email","it's \"x\""],"looked":8,"lookedSince":"2`, "what was looked at is missing")
	for term, want := range map[string]string{
		"ann":                        "ann orderId, shop-10 customerId, shop-1 customerId",
		"shop-1":                     "shop-1 orderId, shop-10 orderIdPrefix, ann metadata email",
		"shop":                       "shop orderId, shop-1 orderIdPrefix, shop-10 orderIdPrefix, shop-2 orderIdPrefix",
		"sho":                        "shop orderIdPrefix, shop-1 orderIdPrefix, shop-10 orderIdPrefix, shop-2 orderIdPrefix",
		"ch_1":                       "shop-2 chargeReference, shop-1 refundReference",
		"rs_1":                       "shop-2 reservationReference",
		"ann@example.com":            "shop-10 metadata email",
		"x":                          "", // of a key that can't be searched
		"ANN":                        "ann orderId, shop-10 customerId, shop-1 customerId",
		"op-1":                       "ann part metadata.email, shop-10 part orderId, shop-1 part orderId",
		"N@Example":                  "shop-10 part metadata.email",
		"H_1":                        "shop-2 part chargeReference, shop-1 part refundReference",
		"s_1":                        "shop-2 part reservationReference",
		"P_1":                        "shop-1 part disputeReference",
		"3,00":                       "shop-2 amount",
		"2.0":                        "shop-10 amount",
		"$2.00":                      "shop-10 amount",
		"usd 2.00":                   "shop-10 amount",
		"3,00 €":                     "shop-2 amount",
		"3.00 EUR":                   "", // they are in USD
		"129,98 €":                   "", // and not what has 129 inside
		"1e0":                        "",
		"order #129":                 "web-129 word orderId, shop-2 word customerId, web-1290 part orderId, web-7 part metadata.email",
		"#7":                         "web-7 word orderId", // the index has it
		"#777, #129":                 "web-129 word orderId, not 777",
		"op":                         "", // too short for a part
		"%":                          "",
		strings.Repeat("é", 255):     "shop part metadata.email",
		"order no. #SHOP-10.":        "shop-10 orderId",
		"Order#shop-10":              "shop-10 orderId",
		`"shop-2", Shop-10`:          "shop-10 orderId, shop-2 orderId",
		"a-1, a-2, a-3, a-4, shop-2": "shop-2 orderId, not a-1, not a-2, not a-3, not a-4", // as many ids as a person pastes
		"shop-2, op-10":              "shop-2 orderId, shop-10 part orderId",
		"Example bob":                "shop-2 part metadata.email",
		"b_b example":                "", // no pattern
		"inv p-1":                    "ann part metadata.email, shop-10 part orderId, shop-1 part orderId",
		"'ann@example.com'.":         "shop-10 metadata email",
		"order shop":                 "", // its words have no digit
	} {
		assert.Equal(t, b.found(t, "term="+url.QueryEscape(term)), want, term)
	}
	assert.Equal(t, b.found(t, "term=shop&limit=3"), "shop orderId, shop-1 orderIdPrefix, shop-10 orderIdPrefix, more")
	b.held(t, "zz-held", nil)
	for query, want := range map[string]string{ // one at a time: ids, then the newest first; each once
		"term=shop": "shop shop-1 shop-10 shop-2", "term=ann": "ann shop-10 shop-1", "term=shop-1": "shop-1 shop-10 ann", "term=op-1": "ann shop-10 shop-1",
		"term=ch_1": "shop-2 shop-1", "term=shop-2,+Shop-10": "shop-10 shop-2", "term=%23129": "web-129 web-1290 shop-2 web-7", "term=shop&amountFrom=2": "shop shop-10 shop-2",
		"term=op&status=failed": "", "term=op-1&customerId=ann": "shop-10 shop-1", "term=2.00&currency=EUR": "", "term=shop&customerId=ann&createdFrom=2020-01-01T00:00:00Z": "shop-1 shop-10",
		"term=shop&hold=retry": "", "dispute=open&hold=retry": "", "term=zz&hold=attention": "zz-held",
	} {
		for _, size := range []string{"&limit=1", "&limit=2&count=true", "&limit=200"} {
			got := strings.Fields(b.pages(t, query+size))
			all := strings.Fields(want)
			if strings.Contains(query, "%23") { // on a page, words come first
				slices.Sort(got)
				slices.Sort(all)
			}
			assert.Equal(t, strings.Join(got, " "), strings.Join(all, " "), query+size)
		}
	}
	counted := b.searched(t, "term=shop&limit=1&count=true")
	counted = b.searched(t, "term=shop&limit=1&count=true&cursor="+counted.NextCursor)
	assert.True(t, *counted.Total == 4 && !counted.More, *counted.Total)
	b.get(t, "/api/orders?term=op-10&cursor="+counted.NextCursor).wantProblem(t, 422, "invalid_parameter")
	for _, id := range []string{"po", "qo", "ro"} {
		b.process(t, `{"orderId":"`+id+`","amount":20,"item":"widget","metadata":{"email":"1290"}}`).wantStatus(t, 200)
	}
	assert.Equal(t, b.found(t, "term=%231290"), "web-1290 word orderId, ro metadata email, qo metadata email, po metadata email", "not only what is the number")
	assert.Equal(t, b.pages(t, "term=%231290&limit=1"), "ro qo po web-1290", "each once, an index has them or not")
	assert.NoError(t, migrations.RemoveSearchKey(t.Context(), b.AdminURL, "email"))
	assert.Equal(t, b.found(t, "term=bob@example.com"), "", "of a key that was removed")
	for query, name := range map[string]string{"term=": "term", "term=a&sort=oldest": "sort", "term=%00": "term", "term=a%20": "term", "term=a&limit=201": "limit", "term=" + strings.Repeat("a", 256): "term"} {
		p := b.get(t, "/api/orders?"+query).wantProblem(t, 422, "invalid_parameter")
		assert.True(t, len(p.Errors) == 1 && p.Errors[0].Parameter == name, query, p.Errors)
	}
}
