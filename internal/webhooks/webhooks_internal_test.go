package webhooks

import (
	"strings"
	"testing"
	"time"

	"pawl/internal/signing"
	"pawl/test/assert"
)

// TestSchedule: how long a delivery waits after each attempt, and when it is given up.
func TestSchedule(t *testing.T) {
	t.Parallel()
	const never = -1
	for _, c := range []struct {
		attempts   int
		retryAfter time.Duration
		least      time.Duration
		most       time.Duration
	}{
		{1, 0, 4 * time.Second, 6 * time.Second},
		{2, 0, 48 * time.Second, 72 * time.Second},
		{3, 0, 4 * time.Minute, 6 * time.Minute},
		{4, 0, 24 * time.Minute, 36 * time.Minute},
		{10, 0, 19 * time.Hour, 29 * time.Hour},
		{11, 0, never, never},
		{11, time.Minute, never, never},
		{1, time.Minute, time.Minute, time.Minute},              // the endpoint knows better
		{1, 365 * 24 * time.Hour, longestRetryAfter, time.Hour}, // but not how to be forgotten
		{3, time.Second, 4 * time.Minute, 6 * time.Minute},      // nor to be hammered
	} {
		pause, more := pauseAfter(c.attempts, c.retryAfter)
		if c.least == never {
			assert.True(t, !more, "after", c.attempts, "attempts there is one more")
			continue
		}
		assert.True(t, more && pause >= c.least && pause <= c.most,
			"after", c.attempts, "attempts and Retry-After", c.retryAfter, pause)
	}
}

// TestEndpointIDs: an endpoint has one id, and no other text is it.
func TestEndpointIDs(t *testing.T) {
	t.Parallel()
	for id, want := range map[string]int32{"whe_1": 1, "whe_2147483647": 2147483647} {
		no := numberOf(id)
		assert.True(t, no == want && EndpointID(no) == id, id, no)
	}
	for _, id := range []string{"", "whe_", "whe_0", "whe_01", "whe_-1", "whe_2147483648", "whe_1x", "1", "whe_ 1"} {
		assert.Equal(t, numberOf(id), 0, id)
	}
}

// TestMaskAtTheEnd: of an answer that is cut off within a secret, no part of the secret is kept.
func TestMaskAtTheEnd(t *testing.T) {
	t.Parallel()
	secret := signing.NewSecret()
	key := strings.TrimPrefix(secret, signing.Prefix)
	for seen := range len(key) {
		a := Attempt{Entry: Entry{Answer: strings.Repeat(" ", maxRead-seen) + key[:seen]}}
		a.mask([]string{secret})
		assert.Require(t, a.Answer == "", seen, "characters of a secret are kept", a.Answer)
	}
	a := Attempt{Entry: Entry{Answer: "the key is " + key}}
	a.mask([]string{secret})
	assert.Equal(t, a.Answer, "the key is ***")
}
