package httpapi

import (
	"fmt"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

func (b *bundle) stock(t testing.TB, name, body string, header ...string) answer {
	t.Helper()
	return b.call(t, "PUT /api/inventory/"+url.PathEscape(name), body, header...)
}

func TestInventory(t *testing.T) {
	t.Parallel()
	b := setup(t)
	t.Run("an item nobody has heard of is 404", func(t *testing.T) {
		t.Parallel()
		b.get(t, "/api/inventory/unknown").wantProblem(t, 404, "not_found")
		b.get(t, "/api/inventory/a%00").wantProblem(t, 404, "not_found")
	})
	t.Run("is not tracked until somebody sets it", func(t *testing.T) {
		t.Parallel()
		order := func(id string, quantity int) {
			b.process(t, fmt.Sprintf(`{"orderId":%q,"amount":1,"item":"widget","quantity":%d}`, id, quantity)).wantStatus(t, 200)
		}
		order("o1", 1)
		if i := b.get(t, "/api/inventory/widget").wantStatus(t, 200); i.Tracked || i.Available != nil {
			t.Errorf("%+v", i)
		}
		i := b.stock(t, "widget", `{"onHand":5}`).wantStatus(t, 200)
		if !i.Tracked || i.OnHand != 5 || i.Reserved != 0 || i.Available == nil || *i.Available != 5 {
			t.Errorf("%+v", i)
		}
		order("o2", 2)
		if i := b.get(t, "/api/inventory/widget").wantStatus(t, 200); i.OnHand != 3 || *i.Available != 3 {
			t.Errorf("%+v", i)
		}
	})
	t.Run("less than is reserved is 409", func(t *testing.T) {
		t.Parallel()
		b.stock(t, "reserved", `{"onHand":5}`).wantStatus(t, 200)
		b.exec(t, `UPDATE inventory SET reserved = 4 WHERE item = 'reserved'`)
		p := b.stock(t, "reserved", `{"onHand":3}`).wantProblem(t, 409, "stock_too_low")
		if p.Errors[0].Pointer != "/onHand" {
			t.Error(p.Errors)
		}
	})
	t.Run("a body that is not valid sets nothing", func(t *testing.T) {
		t.Parallel()
		for _, body := range []string{`{}`, `{"onHand":-1}`, `{"onHand":1.5}`, `{"onHand":"1"}`, `{"onHand":1000000000001}`, `{"onhand":1}`, `[]`} {
			b.stock(t, "refused", body).wantProblem(t, 422, "invalid_input")
		}
		b.stock(t, "refused", `{"onHand":1,"onHand":2}`).wantProblem(t, 400, "malformed_json")
		b.stock(t, "refused", ``).wantProblem(t, 400, "malformed_json")
		b.stock(t, "a\x00", `{"onHand":1}`).wantProblem(t, 422, "invalid_parameter")
		b.get(t, "/api/inventory/refused").wantProblem(t, 404, "not_found")
	})
}

func TestInventoryPreconditions(t *testing.T) {
	t.Parallel()
	b := setup(t)
	t.Run("of another version is 412", func(t *testing.T) {
		t.Parallel()
		tag := b.stock(t, "versioned", `{"onHand":6}`).header.Get("ETag")
		if read := b.get(t, "/api/inventory/versioned").header.Get("ETag"); tag == "" || read != tag {
			t.Errorf("ETag %s, then %s", tag, read)
		}
		b.stock(t, "versioned", `{"onHand":6}`, "If-Match", tag).wantStatus(t, 200)
		b.stock(t, "versioned", `{"onHand":7}`, "If-Match", tag).wantProblem(t, 412, "precondition_failed")
		for _, tag := range []string{tag, `"0"`, `"-1"`} {
			b.stock(t, "unheard of", `{"onHand":7}`, "If-Match", tag).wantProblem(t, 412, "precondition_failed")
		}
		b.stock(t, "versioned", `{"onHand":7}`, "If-Match", `"1","2"`).wantProblem(t, 422, "invalid_parameter")
	})
	t.Run("any version is 412 when there is none", func(t *testing.T) {
		t.Parallel()
		b.stock(t, "nowhere", `{"onHand":7}`, "If-Match", "*").wantProblem(t, 412, "precondition_failed")
		b.get(t, "/api/inventory/nowhere").wantProblem(t, 404, "not_found")
		b.stock(t, "somewhere", `{"onHand":7}`).wantStatus(t, 200)
		if i := b.stock(t, "somewhere", `{"onHand":8}`, "If-Match", " * ").wantStatus(t, 200); i.OnHand != 8 {
			t.Errorf("%+v", i)
		}
	})
	t.Run("no version is 412 when there is one", func(t *testing.T) {
		t.Parallel()
		if i := b.stock(t, "fresh", `{"onHand":7}`, "If-None-Match", "*").wantStatus(t, 200); i.OnHand != 7 {
			t.Errorf("%+v", i)
		}
		b.stock(t, "fresh", `{"onHand":8}`, "If-None-Match", "*").wantProblem(t, 412, "precondition_failed")
		b.stock(t, "fresh", `{"onHand":8}`, "If-None-Match", "*", "If-Match", "*").wantProblem(t, 412, "precondition_failed")
		b.stock(t, "neither", `{"onHand":8}`, "If-None-Match", "*", "If-Match", "*").wantProblem(t, 412, "precondition_failed")
		b.stock(t, "fresh", `{"onHand":8}`, "If-None-Match", `"1"`).wantProblem(t, 422, "invalid_parameter")
		if i := b.get(t, "/api/inventory/fresh").wantStatus(t, 200); i.OnHand != 7 {
			t.Errorf("%+v", i)
		}
	})
	t.Run("no version is 412 for all but one who ask at once", func(t *testing.T) {
		t.Parallel()
		var made atomic.Int32
		for item := range 8 {
			var wg sync.WaitGroup
			for range 4 {
				wg.Go(func() {
					if a := b.stock(t, fmt.Sprint("contested ", item), `{"onHand":7}`, "If-None-Match", "*"); a.status == 200 {
						made.Add(1)
					}
				})
			}
			wg.Wait()
		}
		if made.Load() != 8 {
			t.Errorf("8 items were made %d times", made.Load())
		}
	})
}

func TestListInventory(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, name := range oddIDs {
		b.stock(t, name, `{"onHand":1}`).wantStatus(t, 200)
		if i := b.get(t, "/api/inventory/"+url.PathEscape(name)).wantStatus(t, 200); i.Item != name {
			t.Errorf("asked for %q, got %q", name, i.Item)
		}
	}
	seen, last, query := 0, "", ""
	for range len(oddIDs) {
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
	if seen != len(oddIDs) {
		t.Errorf("%d items, want %d", seen, len(oddIDs))
	}
	for _, query := range []string{"cursor=x", "limit=0", "item=widget", "cursor=" + sealCursor([]string{"orders"}, "1"),
		"cursor=" + sealCursor([]string{"inventory"}, "a\x00"), "cursor=" + sealCursor([]string{"inventory"}, "\xff"),
		"cursor=" + sealCursor([]string{"inventory"}, strings.Repeat("x", 256))} {
		b.get(t, "/api/inventory?"+query).wantProblem(t, 422, "invalid_parameter")
	}
}

func TestHealth(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, target := range []string{"/health", "/livez"} {
		if o := b.get(t, target).wantStatus(t, 200); o.Status != "ok" {
			t.Errorf("%s: %+v", target, o)
		}
		if a := b.call(t, "HEAD "+target, ""); a.status != 200 {
			t.Error(a)
		}
	}
	b.get(t, "/metrics").wantProblem(t, 404, "unknown_route") // there are none to be served
}

func TestHealthOfADatabaseThatIsNotMigrated(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.get(t, "/health").wantStatus(t, 200)
	b.exec(t, `DROP TABLE refunds CASCADE`)
	if p := b.get(t, "/health").wantProblem(t, 503, "unavailable"); !strings.Contains(p.Detail, "not migrated") {
		t.Errorf("%+v", p)
	}
	b.get(t, "/livez").wantStatus(t, 200)
}
