package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"testing"
)

// TestEvents: the next page is asked for behind what was looked at, which the filter may not have chosen; the loop ends
// with what can't get better.
func TestEvents(t *testing.T) {
	t.Parallel()
	pages := map[string]string{
		"latest": `{"events":[],"nextCursor":"1.0","more":false}`,
		"1.0":    `{"events":[{"cursor":"1.1","type":"order.charging"}],"nextCursor":"1.9","more":true}`,
		"1.9":    `{"events":[],"nextCursor":"1.20","more":true}`,
	}
	c := clientOf(t, Options{}, func(w http.ResponseWriter, r *http.Request) {
		if (r.FormValue("wait") == "") != (r.FormValue("after") == "latest") || r.FormValue("order") != "a" || r.FormValue("type") != "order.*,stock.set" {
			t.Errorf("asked for %s", r.URL)
		}
		page, ok := pages[r.FormValue("after")]
		if !ok {
			w.WriteHeader(http.StatusGone)
			page = `{"status":410,"code":"cursor_expired","title":"Gone.","nextCursor":"2.1"}`
		}
		fmt.Fprint(w, page)
	})
	var seen []string
	for event, err := range c.Events(t.Context(), ListEventsParams{Order: "a", Type: []string{"order.*", "stock.set"}}) {
		if err == nil {
			seen = append(seen, event.Cursor)
			continue
		}
		var problem *Problem
		if !errors.As(err, &problem) || problem.Code != ProblemCodeCursorExpired || problem.NextCursor != "2.1" {
			t.Error(err)
		}
		seen = append(seen, "the end")
	}
	if !slices.Equal(seen, []string{"1.1", "the end"}) {
		t.Errorf("saw %q", seen)
	}
}

// TestEventsEndWithTheirContext: nothing else ends an outage.
func TestEventsEndWithTheirContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	tries := 0
	c := clientOf(t, Options{RetryFor: 1}, func(w http.ResponseWriter, _ *http.Request) {
		if tries++; tries == 3 {
			cancel()
		}
		w.WriteHeader(http.StatusServiceUnavailable)
	})
	for _, err := range c.Events(ctx, ListEventsParams{}) {
		if err == nil {
			t.Fatal("an event out of nowhere")
		}
	}
	if tries != 3 {
		t.Errorf("%d tries", tries)
	}
}
