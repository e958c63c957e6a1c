package httpapi

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"pawl/test/assert"
)

// stock sets the stock of an item, as it is now unless a header says more.
func (b *bundle) stock(t testing.TB, name, body string, header ...string) answer {
	t.Helper()
	target := "/api/inventory/" + url.PathEscape(name)
	if !slices.ContainsFunc(header, func(h string) bool { return strings.HasPrefix(h, "If-") }) {
		if seen := b.get(t, target); seen.status == 200 {
			header = append(header, "If-Match", seen.header.Get("ETag"))
		} else {
			header = append(header, "If-None-Match", "*")
		}
	}
	return b.call(t, "PUT "+target, body, header...)
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
		assert.True(t, i.Tracked && i.OnHand == 5 && i.Reserved == 0 && i.Available != nil && *i.Available == 5, i)
		order("o2", 2)
		i = b.get(t, "/api/inventory/widget").wantStatus(t, 200)
		assert.True(t, i.OnHand == 3 && *i.Available == 3, i)
	})
	t.Run("less than is reserved is 409", func(t *testing.T) {
		t.Parallel()
		b.stock(t, "reserved", `{"onHand":5}`).wantStatus(t, 200)
		b.exec(t, `UPDATE inventory SET reserved = 4 WHERE item = 'reserved'`)
		for pointer, p := range map[string]shape{
			"/onHand": b.stock(t, "reserved", `{"onHand":3}`).wantProblem(t, 409, "stock_too_low"),
			"/change": b.adjust(t, "reserved", `{"change":-2,"reason":"broken","requestId":"1"}`).wantProblem(t, 409, "stock_too_low"),
		} {
			assert.Equal(t, p.Errors[0].Pointer, pointer, p.Errors)
		}
	})
	t.Run("a body that is not valid sets nothing", func(t *testing.T) {
		t.Parallel()
		for _, body := range []string{`{}`, `{"onHand":-1}`, `{"onHand":1.5}`, `{"onHand":"1"}`, `{"onHand":1000000000001}`, `{"onhand":1}`, `[]`} {
			b.stock(t, "refused", body).wantProblem(t, 422, "invalid_input")
		}
		b.stock(t, "refused", `{"onHand":1,"onHand":2}`).wantProblem(t, 400, "malformed_json")
		b.stock(t, "refused", ``).wantProblem(t, 422, "invalid_input")
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
		read := b.get(t, "/api/inventory/versioned").header.Get("ETag")
		assert.True(t, tag != "" && read == tag, "ETag", tag, "then", read)
		b.stock(t, "versioned", `{"onHand":6}`, "If-Match", tag).wantStatus(t, 200)
		b.stock(t, "versioned", `{"onHand":7}`, "If-Match", tag).wantProblem(t, 412, "precondition_failed")
		for _, tag := range []string{tag, `"0"`, `"-1"`} {
			b.stock(t, "unheard of", `{"onHand":7}`, "If-Match", tag).wantProblem(t, 412, "precondition_failed")
		}
		b.stock(t, "versioned", `{"onHand":7}`, "If-Match", `"1","2"`).wantProblem(t, 422, "invalid_parameter")
		b.call(t, "PUT /api/inventory/versioned", `{"onHand":7}`).wantProblem(t, 428, "precondition_required")
		b.call(t, "PUT /api/inventory/none", `{"onHand":7}`).wantProblem(t, 428, "precondition_required")
		b.get(t, "/api/inventory/none").wantProblem(t, 404, "not_found")
	})
	t.Run("before a sale is 412", func(t *testing.T) {
		t.Parallel()
		const set = `{"onHand":1,"requestId":"count 1"}`
		tag := b.stock(t, "last one", set).header.Get("ETag")
		b.process(t, `{"orderId":"buys it","amount":1,"item":"last one"}`).wantStatus(t, 200)
		b.stock(t, "last one", `{"onHand":1}`, "If-Match", tag).wantProblem(t, 412, "precondition_failed")
		if i := b.stock(t, "last one", set, "If-None-Match", "*").wantStatus(t, 200); i.OnHand != 0 { // answered, not done again
			t.Errorf("%+v", i)
		}
		o := b.process(t, `{"orderId":"buys it too","amount":1,"item":"last one"}`).wantStatus(t, 200)
		assert.Equal(t, o.Status, "failed", "there was one, and two were sold", o)
	})
	t.Run("any version is refused: it may be another than was counted", func(t *testing.T) {
		t.Parallel()
		b.stock(t, "nowhere", `{"onHand":7}`, "If-Match", " * ").wantProblem(t, 422, "invalid_parameter")
		b.get(t, "/api/inventory/nowhere").wantProblem(t, 404, "not_found")
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
		i := b.get(t, "/api/inventory/fresh").wantStatus(t, 200)
		assert.Equal(t, i.OnHand, 7, i)
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
		assert.Equal(t, made.Load(), 8, "8 items were made times")
	})
}

func (b *bundle) adjust(t testing.TB, name, body string, header ...string) answer {
	t.Helper()
	return b.call(t, "POST /api/inventory/"+url.PathEscape(name)+"/adjustments", body, header...)
}

func TestAdjustments(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, c := range []struct {
		body   string
		onHand int
	}{
		{`{"change":10,"onBehalfOf":"ann","reason":"delivery 7","requestId":"1"}`, 10},
		{`{"change":-2,"reason":"broken","requestId":"2"}`, 8},
		{`{"change":10,"onBehalfOf":"ann","reason":"delivery 7","requestId":"1"}`, 8}, // done once
	} {
		a := b.adjust(t, "widget", c.body)
		if i := a.wantStatus(t, 200); i.OnHand != c.onHand || !i.Tracked || a.header.Get("ETag") != `"2"` && c.onHand == 8 {
			t.Errorf("%s: %s %s", c.body, a.body, a.header.Get("ETag"))
		}
	}
	b.adjust(t, "widget", `{"change":3,"reason":"found"}`, "Idempotency-Key", "3").wantStatus(t, 200)
	b.adjust(t, "widget", `{"change":4,"reason":"found"}`, "Idempotency-Key", "3").wantProblem(t, 422, "idempotency_key_reused")
	b.adjust(t, "widget", `{"change":1000000000000,"reason":"found","requestId":"4"}`).wantProblem(t, 409, "stock_too_high")
	for body, pointer := range map[string]string{
		`{"change":1,"reason":"found"}`: "/requestId", `{"change":0,"reason":"found","requestId":"5"}`: "/change",
		`{"change":1,"requestId":"5"}`: "/reason", `{"reason":"found","requestId":"5"}`: "/change",
		`{"change":1.5,"reason":"found","requestId":"5"}`: "/change",
	} {
		p := b.adjust(t, "widget", body).wantProblem(t, 422, "invalid_input")
		assert.True(t, len(p.Errors) == 1 && p.Errors[0].Pointer == pointer, body, p.Errors)
	}
	b.adjust(t, "a\x00", `{"change":1,"reason":"found","requestId":"5"}`).wantProblem(t, 422, "invalid_parameter")
	b.stock(t, "widget", `{"onHand":4,"onBehalfOf":"bob"}`).wantStatus(t, 200)

	moves := b.get(t, "/api/inventory/widget/movements?after=1").wantStatus(t, 200).Movements
	var told []string
	for _, m := range moves {
		told = append(told, fmt.Sprintf("%d %s %+d to %d by %s: %s", m.Version, m.Kind, m.Change, m.OnHand, m.Actor+m.OnBehalfOf, m.Reason))
	}
	want := []string{"2 adjustment -2 to 8 by local: broken", "3 adjustment +3 to 11 by local: found", "4 set -7 to 4 by localbob: "}
	assert.True(t, slices.Equal(told, want) && moves[0].RequestID == "2" && moves[2].RequestID != "", told, moves)
	page := b.get(t, "/api/inventory/widget/movements?limit=1").wantStatus(t, 200).Movements
	assert.True(t, len(page) == 1 && page[0].Version == 1, page)
	page = b.get(t, "/api/inventory/widget/movements?limit=1&sort=newest").wantStatus(t, 200).Movements
	assert.True(t, len(page) == 1 && page[0].Version == moves[len(moves)-1].Version, "the last one", page)
	page = b.get(t, "/api/inventory/widget/movements?sort=newest&before=2").wantStatus(t, 200).Movements
	assert.True(t, len(page) == 1 && page[0].Version == 1, "those before the second", page)
	b.get(t, "/api/inventory/nowhere/movements").wantProblem(t, 404, "not_found")
	b.get(t, "/api/inventory/a%00/movements").wantProblem(t, 404, "not_found")
	for _, query := range []string{"after=-1", "limit=0", "limit=201", "cursor=x"} {
		b.get(t, "/api/inventory/widget/movements?"+query).wantProblem(t, 422, "invalid_parameter")
	}
}

func TestListInventory(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, name := range oddIDs {
		b.stock(t, name, `{"onHand":1}`).wantStatus(t, 200)
		assert.Equal(t, b.get(t, "/api/inventory/"+url.PathEscape(name)).wantStatus(t, 200).Item, name, "asked for")
	}
	seen, last, query := 0, "", ""
	for range len(oddIDs) {
		page := b.get(t, "/api/inventory?limit=7"+query).wantStatus(t, 200)
		for _, i := range page.Items {
			assert.True(t, i.Item > last, i.Item, "behind", last)
			seen, last = seen+1, i.Item
		}
		if page.NextCursor == "" {
			break
		}
		query = "&cursor=" + page.NextCursor
	}
	assert.Equal(t, seen, len(oddIDs), "items")
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
		o := b.get(t, target).wantStatus(t, 200)
		assert.Equal(t, o.Status, "ok", target, o)
		a := b.call(t, "HEAD "+target, "")
		assert.Equal(t, a.status, 200, a)
	}
	b.get(t, "/metrics").wantProblem(t, 404, "unknown_route") // there are none to be served
}

func TestHealthOfADatabaseThatIsNotMigrated(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.get(t, "/health").wantStatus(t, 200)
	b.exec(t, `DROP TABLE charge_operations CASCADE`)
	p := b.get(t, "/health").wantProblem(t, 503, "unavailable")
	assert.Contains(t, p.Detail, "not migrated", p)
	b.get(t, "/livez").wantStatus(t, 200)
}

// A database that is busy for some seconds is no reason to take a replica out.
func TestHealthWaitsForADatabaseThatIsBusy(t *testing.T) {
	t.Parallel()
	b := setup(t)
	busy, err := b.Pool.Begin(t.Context())
	assert.NoError(t, err)
	defer func() { _ = busy.Rollback(context.WithoutCancel(t.Context())) }() // it holds the lock only
	assert.NoError(t, assert.Err(busy.Exec(t.Context(), `LOCK TABLE charges`)))
	answers := make(chan answer, 1)
	go func() { answers <- b.get(t, "/health") }()
	eventually(t, "it has waited for three seconds", func() bool {
		return b.count(t, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' AND query_start < now() - interval '3 s'`) > 0
	})
	assert.NoError(t, busy.Rollback(t.Context()))
	a := <-answers
	assert.Equal(t, a.status, 200, a.body)
}
