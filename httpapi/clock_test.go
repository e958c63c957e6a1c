package httpapi

import (
	"testing"
	"time"

	"pawl/orders"
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
	due := at.Add(20 * time.Second)
	held := orders.Order{Hold: new("retry"), DueAt: &due}
	if seconds := retryAfter(&held, clock); seconds != "21" {
		t.Errorf("Retry-After: %s", seconds)
	}
}
