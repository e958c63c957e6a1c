package httpapi

import (
	"fmt"
	"net/http"
	"net/url"
	"testing"
)

func TestInventory(t *testing.T) {
	t.Parallel()
	b := setup(t)
	put := func(t *testing.T, name, body string, header ...string) answer {
		t.Helper()
		return call(t, b.api, http.MethodPut, "/api/inventory/"+url.PathEscape(name), body, header...)
	}
	t.Run("an item nobody has heard of is 404", func(t *testing.T) {
		b.get(t, "/api/inventory/widget").wantProblem(t, 404, "not_found")
		b.get(t, "/api/inventory/a%00").wantProblem(t, 404, "not_found")
	})
	t.Run("an item that was only ordered is not tracked", func(t *testing.T) {
		b.process(t, `{"orderId":"o1","amount":1,"item":"widget"}`).wantStatus(t, 200)
		a := b.get(t, "/api/inventory/widget")
		if i := a.wantStatus(t, 200); i.Tracked || i.Available != nil {
			t.Error(a.body)
		}
	})
	t.Run("setting the stock tracks it", func(t *testing.T) {
		i := put(t, "widget", `{"onHand":5}`).wantStatus(t, 200)
		if !i.Tracked || i.OnHand != 5 || i.Reserved != 0 || i.Available == nil || *i.Available != 5 {
			t.Errorf("%+v", i)
		}
		b.process(t, `{"orderId":"o2","amount":1,"item":"widget","quantity":2}`).wantStatus(t, 200)
		if i := b.get(t, "/api/inventory/widget").wantStatus(t, 200); *i.Available != 3 {
			t.Errorf("%+v", i)
		}
	})
	t.Run("If-Match with another version is 412", func(t *testing.T) {
		tag := b.get(t, "/api/inventory/widget").header.Get("ETag")
		put(t, "widget", `{"onHand":6}`, "If-Match", tag).wantStatus(t, 200)
		put(t, "widget", `{"onHand":7}`, "If-Match", tag).wantProblem(t, 412, "precondition_failed")
		put(t, "unheard of", `{"onHand":7}`, "If-Match", tag).wantProblem(t, 412, "precondition_failed")
		put(t, "widget", `{"onHand":7}`, "If-Match", `"1","2"`).wantProblem(t, 422, "invalid_parameter")
	})
	t.Run("less than is reserved is 409", func(t *testing.T) {
		b.exec(t, `UPDATE inventory SET reserved = 4 WHERE item = 'widget'`)
		p := put(t, "widget", `{"onHand":3}`).wantProblem(t, 409, "stock_too_low")
		if p.Errors[0].Pointer != "/onHand" {
			t.Error(p.Errors)
		}
	})
	t.Run("bodies that are not valid are refused", func(t *testing.T) {
		for _, body := range []string{`{}`, `{"onHand":-1}`, `{"onHand":1.5}`, `{"onHand":"1"}`, `{"onHand":1000000000001}`, `{"onhand":1}`, `[]`} {
			put(t, "refused", body).wantProblem(t, 422, "invalid_input")
		}
		put(t, "refused", `{"onHand":1,"onHand":2}`).wantProblem(t, 400, "malformed_json")
		put(t, "refused", ``).wantProblem(t, 400, "malformed_json")
		put(t, "a\x00", `{"onHand":1}`).wantProblem(t, 422, "invalid_parameter")
		b.get(t, "/api/inventory/refused").wantProblem(t, 404, "not_found")
	})
	t.Run("any name works", func(t *testing.T) {
		for _, name := range oddIDs {
			put(t, name, `{"onHand":1}`).wantStatus(t, 200)
			if i := b.get(t, "/api/inventory/"+url.PathEscape(name)).wantStatus(t, 200); i.Item != name {
				t.Errorf("asked for %q, got %q", name, i.Item)
			}
		}
	})
	t.Run("is listed in pages, in the order of the bytes", func(t *testing.T) {
		seen, last, query := 0, "", ""
		for range 100 {
			page := b.get(t, "/api/inventory?limit=7"+query).wantStatus(t, 200)
			for _, i := range page.Items {
				if i.Item <= last {
					t.Errorf("%q behind %q", i.Item, last)
				}
				seen, last = seen+1, i.Item
			}
			if page.NextCursor == "" {
				break
			}
			query = "&cursor=" + page.NextCursor
		}
		if want := b.count(t, `SELECT count(*) FROM inventory`); seen != want {
			t.Errorf("%d items, want %d", seen, want)
		}
		for _, query := range []string{"cursor=x", "limit=0", "item=widget", "cursor=" + sealCursor([]string{"orders"}, "1")} {
			b.get(t, fmt.Sprintf("/api/inventory?%s", query)).wantProblem(t, 422, "invalid_parameter")
		}
	})
}

func TestHealth(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, target := range []string{"/health", "/livez"} {
		if o := b.get(t, target).wantStatus(t, 200); o.Status != "ok" {
			t.Errorf("%s: %+v", target, o)
		}
	}
	// Without metrics to serve there is no such path.
	b.get(t, "/metrics").wantProblem(t, 404, "unknown_route")
}
