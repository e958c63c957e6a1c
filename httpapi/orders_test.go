package httpapi

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"
)

// oddIDs are order ids that a router, a proxy or a decoder could take for something else.
var oddIDs = []string{
	"process", "bulk", "transitions", "cancel", "a/b", "a%2Fb", "a%b", "/", "//", " lead", "trail ", "a?b=c", "a#b", "a;b", "a+b",
	"…", "...", "日本", "é", "e\u0301", "😀", "\u202eabc", "a\\b", "\"", "'", "<b>", "{orderId}", "..%2f..", "~", strings.Repeat("é", 255),
}

func TestGetOrder(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, id := range oddIDs {
		t.Run("id "+id, func(t *testing.T) {
			b.process(t, fmt.Sprintf(`{"orderId":%s,"amount":1,"item":"i"}`, appendString(nil, id))).wantStatus(t, 200)
			path := "/api/orders/" + url.PathEscape(id)
			if o := b.get(t, path).wantStatus(t, 200); o.OrderID != id {
				t.Errorf("asked for %q, got %q", id, o.OrderID)
			}
			if h := b.get(t, path+"/transitions").wantStatus(t, 200); len(h.Transitions) == 0 {
				t.Error("no history")
			}
			call(t, b.api, "POST", path+"/cancel", "").wantProblem(t, 409, "not_applicable")
		})
	}
	t.Run("an id that is not there is 404", func(t *testing.T) {
		for _, id := range []string{"nobody", "%00", "a%0Ab", "%FF", "%ED%A0%80", "%2E%2E", "%2e", strings.Repeat("x", 256)} {
			b.get(t, "/api/orders/"+id).wantProblem(t, 404, "not_found")
			b.get(t, "/api/orders/"+id+"/transitions").wantProblem(t, 404, "not_found")
			call(t, b.api, "POST", "/api/orders/"+id+"/cancel", "").wantProblem(t, 404, "not_found")
		}
	})
	t.Run("If-None-Match is 304 while nothing has changed", func(t *testing.T) {
		tag := b.get(t, "/api/orders/bulk").header.Get("ETag")
		for _, header := range []string{tag, "W/" + tag, `"0", ` + tag, "*"} {
			if a := b.get(t, "/api/orders/bulk", "If-None-Match", header); a.status != 304 || a.body != "" || a.header.Get("ETag") != tag {
				t.Errorf("%s: %+v", header, a)
			}
		}
		for _, header := range []string{`"0"`, strings.Trim(tag, `"`), ""} {
			b.get(t, "/api/orders/bulk", "If-None-Match", header).wantStatus(t, 200)
		}
	})
	t.Run("HEAD is GET without a body", func(t *testing.T) {
		a := call(t, b.api, "HEAD", "/livez", "")
		if a.status != 200 {
			t.Error(a)
		}
	})
}

func TestListTransitions(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.process(t, `{"orderId":"o","amount":1,"item":"i"}`).wantStatus(t, 200)
	rows := b.get(t, "/api/orders/o/transitions").wantStatus(t, 200).Transitions
	var states []string
	for i, row := range rows {
		if int(row.Seq) != i+1 || row.Actor != "pawl" || row.From == nil || row.At.IsZero() || row.Fence != 1 {
			t.Errorf("%+v", row)
		}
		states = append(states, string(row.To))
	}
	if got := strings.Join(states, " "); got != "charging reserving confirming completed" {
		t.Error(got)
	}
	t.Run("in pages", func(t *testing.T) {
		page := b.get(t, "/api/orders/o/transitions?after=1&limit=2").wantStatus(t, 200).Transitions
		if len(page) != 2 || page[0].Seq != 2 || page[1].Seq != 3 {
			t.Error(page)
		}
	})
	for _, query := range []string{"limit=0", "limit=201", "limit=x", "after=-1", "after=99999999999", "from=1"} {
		b.get(t, "/api/orders/o/transitions?"+query).wantProblem(t, 422, "invalid_parameter")
	}
}

func TestListOrders(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var ids []string
	for i := range 7 {
		id := fmt.Sprintf("o%d", i)
		b.process(t, fmt.Sprintf(`{"orderId":%q,"amount":%d,"item":"item-%d"}`, id, i, i%2)).wantStatus(t, 200)
		ids = append([]string{id}, ids...)
	}
	b.held(t, "stuck", nil)
	listed := func(t *testing.T, query string) (got []string, next string) {
		t.Helper()
		page := b.get(t, "/api/orders?"+query).wantStatus(t, 200)
		for _, o := range page.Orders {
			got = append(got, o.OrderID)
		}
		return got, page.NextCursor
	}
	same := func(t *testing.T, got []string, want ...string) {
		t.Helper()
		if !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	t.Run("all, newest first", func(t *testing.T) {
		got, next := listed(t, "")
		if same(t, got, append([]string{"stuck"}, ids...)...); next != "" {
			t.Error("a cursor behind the last page")
		}
	})
	t.Run("by status", func(t *testing.T) {
		got, _ := listed(t, "status=charging")
		same(t, got, "stuck")
		got, _ = listed(t, "status=completed&item=item-1")
		same(t, got, "o5", "o3", "o1")
		got, _ = listed(t, "status=failed")
		same(t, got)
	})
	t.Run("by time", func(t *testing.T) {
		at := b.get(t, "/api/orders/o3").decoded(t).CreatedAt.Format(time.RFC3339Nano)
		got, _ := listed(t, "item=item-1&createdFrom="+url.QueryEscape(at))
		same(t, got, "o5", "o3")
		got, _ = listed(t, "item=item-1&createdTo="+url.QueryEscape(at))
		same(t, got, "o1")
	})
	t.Run("page by page, whatever comes in meanwhile", func(t *testing.T) {
		got, next := listed(t, "limit=3&status=completed")
		same(t, got, "o6", "o5", "o4")
		b.process(t, `{"orderId":"meanwhile","amount":1,"item":"i"}`).wantStatus(t, 200)
		got, next = listed(t, "limit=3&status=completed&cursor="+next)
		same(t, got, "o3", "o2", "o1")
		got, next = listed(t, "limit=200&status=completed&cursor="+next)
		if same(t, got, "o0"); next != "" {
			t.Error("a cursor behind the last page")
		}
	})
	t.Run("a cursor that was changed, or is of another list, is 422", func(t *testing.T) {
		_, next := listed(t, "limit=1&item=item-1")
		for _, query := range []string{
			"cursor=" + next, "item=item-0&cursor=" + next, "item=item-1&status=completed&cursor=" + next,
			"item=item-1&cursor=" + next[:len(next)-1], "item=item-1&cursor=A" + next[1:], "item=item-1&cursor=" + next + "A",
			"cursor=x", "cursor=%00", "cursor=" + sealCursor([]string{"inventory"}, "i"),
		} {
			p := b.get(t, "/api/orders?"+query).wantProblem(t, 422, "invalid_parameter")
			if len(p.Errors) != 1 || p.Errors[0].Parameter != "cursor" {
				t.Errorf("%s: %+v", query, p)
			}
		}
		listed(t, "item=item-1&cursor="+next)
	})
	t.Run("parameters that are not valid are 422, and not echoed", func(t *testing.T) {
		for query, name := range map[string]string{
			"limit=0": "limit", "limit=201": "limit", "limit=s3cret": "limit", "status=s3cret": "status", "createdFrom=s3cret": "createdFrom",
			"createdTo=2026-01-01": "createdTo", "item=s3cret%00": "item", "item=%FF": "item", "stauts=failed": "stauts",
		} {
			a := b.get(t, "/api/orders?"+query)
			p := a.wantProblem(t, 422, "invalid_parameter")
			if len(p.Errors) != 1 || p.Errors[0].Parameter != name || strings.Contains(a.body, "s3cret") {
				t.Errorf("%s: %s", query, a.body)
			}
		}
	})
}
