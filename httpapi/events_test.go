package httpapi

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pawl/db"
	"pawl/internal/events"
)

// number starts what numbers events, and ends it with the test.
func (b *bundle) number(t *testing.T) {
	t.Helper()
	pool := open(t, b.URL)
	t.Cleanup(pool.Close)
	relay := events.NewRelay(db.New(pool), events.RelayConfig{})
	relay.Start()
	t.Cleanup(relay.Stop)
}

// eventsAt reads a page of the feed.
func (b *bundle) eventsAt(t *testing.T, query string) (page struct {
	Events     []json.RawMessage
	NextCursor string
	More       bool
}) {
	t.Helper()
	a := b.get(t, "/api/events"+query)
	a.wantStatus(t, 200)
	if err := json.Unmarshal([]byte(a.body), &page); err != nil {
		t.Fatal(err)
	}
	return page
}

// typesOf are the types of events, and the seqs of their orders.
func typesOf(t *testing.T, page []json.RawMessage) (all []string) {
	t.Helper()
	for _, raw := range page {
		var e events.Event
		if err := json.Unmarshal(raw, &e); err != nil {
			t.Fatal(err)
		}
		all = append(all, e.Type)
	}
	return all
}

// TestFirstEventsAfterAPause: nobody has listened, so events get their numbers seldom. Whoever reads the feed right after an answer
// finds what the answer was about, also with a wait that is shorter than that takes.
func TestFirstEventsAfterAPause(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.number(t)
	for i, query := range []string{"?after=", "?wait=1&after=", "?type=order.completed&after="} {
		b.exec(t, `UPDATE event_relay SET wanted_until = NULL`)
		cursor := b.eventsAt(t, "?after=latest").NextCursor
		b.process(t, fmt.Sprintf(`{"orderId":"o-%d","amount":"9.99","item":"widget"}`, i)).wantStatus(t, 200)
		if page := b.eventsAt(t, query+cursor); len(page.Events) == 0 {
			t.Errorf("%s: no event", query)
		}
	}
	page := b.eventsAt(t, "?type=stock.*")
	if len(page.Events) != 0 || page.NextCursor != b.eventsAt(t, "?after=latest").NextCursor {
		t.Errorf("%d events that no filter chooses, up to %s", len(page.Events), page.NextCursor)
	}
}

func TestEventsOfOrders(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.number(t)
	b.adjust(t, "widget", `{"change":5,"requestId":"delivery-1","reason":"<new> & good"}`).wantStatus(t, 200)
	b.process(t, `{"orderId":"o-1","amount":"9.99","item":"widget","customerId":"c-1","paymentMethod":"pm-secret"}`).wantStatus(t, 200)
	b.verb(t, "o-1/refunds", `{"amount":"2.5","requestId":"r-1","reason":"broken"}`).wantStatus(t, 200)
	want := []string{"stock.adjustment", "order.charging", "order.reserving", "order.confirming", "order.completed", "order.refund_done"}
	var got []string
	var bodies []string
	cursor := "oldest"
	for len(got) < len(want) {
		page := b.eventsAt(t, "?limit=4&wait=60&after="+cursor)
		if len(page.Events) == 0 {
			t.Fatal("no event in a minute, after ", got)
		}
		got, cursor = append(got, typesOf(t, page.Events)...), page.NextCursor
		for _, body := range page.Events {
			bodies = append(bodies, string(body))
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	text := strings.Join(bodies, "\n")
	for _, part := range []string{`"orderId":"o-1","seq":5,"from":"completed","status":"completed","verb":"refund","amount":"9.99","currency":"USD",` +
		`"customerId":"c-1","refund":1,"refundAmount":"2.5`, `"item":"widget","version":1,"change":5,"onHand":5,`, `"reason":"<new> & good"`} {
		if !strings.Contains(text, part) {
			t.Errorf("no %s in\n%s", part, text)
		}
	}
	if strings.Contains(text, "pm-secret") {
		t.Error("what is withheld comes out: ", text)
	}
	again := b.eventsAt(t, "")
	for i := range again.Events {
		if string(again.Events[i]) != bodies[i] {
			t.Errorf("read again it is %s, and was %s", again.Events[i], bodies[i])
		}
	}
	for query, want := range map[string][]string{
		"?order=o-1&type=order.completed": {"order.completed"},
		"?type=stock.*,order.reserving":   {"stock.adjustment", "order.reserving"},
		"?status=completed&order=o-1":     {"order.completed", "order.refund_done"},
		"?order=o-1&limit=1":              {"order.charging"},
		"?order=nobody":                   nil,
		"?after=latest":                   nil,
		"?after=" + cursor + "&wait=0":    nil,
	} {
		page := b.eventsAt(t, query)
		got := typesOf(t, page.Events)
		for page.More && len(got) < len(want) { // a page that has looked at much is short
			page = b.eventsAt(t, query+"&after="+page.NextCursor)
			got = append(got, typesOf(t, page.Events)...)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q", query, got)
		}
		if page.NextCursor != cursor && !page.More {
			t.Errorf("%s leads to %s, not to the end, %s", query, page.NextCursor, cursor)
		}
	}
	for _, query := range []string{"?after=17", "?after=1.2.3", "?type=order.frobnicated", "?wait=61"} {
		b.get(t, "/api/events"+query).wantProblem(t, 422, "invalid_parameter")
	}
	for _, after := range []string{"1.5", cursor + "7"} {
		b.get(t, "/api/events?after="+after).wantProblem(t, 410, "cursor_expired")
	}
}
