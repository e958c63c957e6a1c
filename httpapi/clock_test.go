package httpapi

import (
	"testing"
	"time"

	"pawl/internal/orders"
)

// The clock is the database's; that of the machine may be years off.
func TestTimesGoByTheClockOfTheDatabase(t *testing.T) {
	t.Parallel()
	at := time.Date(2031, 5, 6, 7, 8, 9, 0, time.UTC)
	clock := func() time.Time { return at }
	deadline := func(at time.Time) []byte { return []byte(body("completeBy", at.Format(`"`+time.RFC3339+`"`))) }
	if _, _, err := decodeInput(deadline(at.Add(time.Hour)), dollars, clock); err != nil {
		t.Error(err)
	}
	_, _, err := decodeInput(deadline(at.Add(-time.Hour)), dollars, clock)
	if _, faults := faultsOf(t, err); len(faults) != 1 || faults[0] != "/completeBy in_the_past" {
		t.Errorf("%q", faults)
	}
}

func TestRetryAfterFitsTheHold(t *testing.T) {
	t.Parallel()
	at := time.Date(2031, 5, 6, 7, 8, 9, 0, time.UTC)
	in := func(d time.Duration) *time.Time { return new(at.Add(d)) }
	for _, c := range []struct {
		hold string
		due  *time.Time
		want string
	}{
		{"retry", in(20 * time.Second), "21"},
		{"retry", in(-time.Second), "1"},
		{"scheduled", in(10 * time.Minute), "601"},
		{"scheduled", in(24 * time.Hour), "3600"},
		{"callback", in(time.Hour), "5"},
		{"callback", in(time.Second), "2"},
		{"queued", nil, "5"},
		{"approval", in(24 * time.Hour), "60"},
		{"paused", nil, "60"},
		{"attention", nil, "60"},
	} {
		if got := retryAfter(&orders.Order{Hold: &c.hold, DueAt: c.due}, func() time.Time { return at }); got != c.want {
			t.Errorf("%s until %v: Retry-After: %s, want %s", c.hold, c.due, got, c.want)
		}
	}
}
