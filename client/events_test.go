package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"pawl/test/assert"
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
	assert.Equal(t, seen, []string{"1.1", "the end"}, "saw")
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
	assert.Equal(t, tries, 3, "tries")
}

// TestVerifyWebhook has the example of the specification, and what must not pass for it.
func TestVerifyWebhook(t *testing.T) {
	t.Parallel()
	const secret, other = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_b25lIHNlY3JldCBvZiAyNCBieXRlcyE="
	const signature, body = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=", `{"test": 2432232314}`
	at := time.Unix(1614265330, 0)
	for _, c := range []struct {
		name, signature, body string
		secrets               []string
		now                   time.Time
		good                  bool
	}{
		{"as signed", signature, body, []string{secret}, at, true},
		{"the second secret", signature, body, []string{other, secret}, at, true},
		{"the second signature", "v1,AAAA " + signature, body, []string{secret}, at, true},
		{"a slow network", signature, body, []string{secret}, at.Add(4 * time.Minute), true},
		{"another secret", signature, body, []string{other}, at, false},
		{"another body", signature, body + " ", []string{secret}, at, false},
		{"another scheme", "v1a" + signature[2:], body, []string{secret}, at, false},
		{"no signature", "", body, []string{secret}, at, false},
		{"no secret", signature, body, nil, at, false},
		{"an empty secret", signature, body, []string{""}, at, false},
		{"a secret without a key", "v1,woH/1mJtZGSMCmpFTxRYbStS24eLLD/oXIYr4PYyZ7g=", body, []string{"whsec_"}, at, false},
		{"no base64", signature, body, []string{"whsec_?"}, at, false},
		{"too old", signature, body, []string{secret}, at.Add(6 * time.Minute), false},
		{"from the future", signature, body, []string{secret}, at.Add(-6 * time.Minute), false},
	} {
		header := http.Header{"Webhook-Id": {"msg_p5jXN8AQM9LWM0D4loKWxJek"}, "Webhook-Timestamp": {"1614265330"}, "Webhook-Signature": {c.signature}}
		if err := VerifyWebhook(c.secrets, header, []byte(c.body), c.now); (err == nil) != c.good {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if VerifyWebhook([]string{secret}, http.Header{}, nil, at) == nil {
		t.Error("a request without the headers is taken for a webhook")
	}
}
