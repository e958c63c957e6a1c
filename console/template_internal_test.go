package console

import "testing"

// TestCounts: a number may be larger only where the API stopped counting.
func TestCounts(t *testing.T) {
	t.Parallel()
	for got, want := range map[string]string{
		count(7): "7", count(999): "999", count(int64(10_000)): "10,000", count(1_234_567): "1,234,567",
		upTo(9_999): "9,999", upTo(countedTo): "10,000+", atLeast(5_000, true): "5,000+",
	} {
		if got != want {
			t.Errorf("%s instead of %s", got, want)
		}
	}
}
