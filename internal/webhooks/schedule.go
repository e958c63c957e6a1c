package webhooks

import (
	"math/rand/v2"
	"time"
)

// pauses are how long a delivery waits after each attempt that failed. After one more attempt it is exhausted.
var pauses = [...]time.Duration{
	5 * time.Second, time.Minute, 5 * time.Minute, 30 * time.Minute, 2 * time.Hour, 5 * time.Hour,
	10 * time.Hour, 14 * time.Hour, 20 * time.Hour, 24 * time.Hour,
}

// longestRetryAfter bounds how long an answer may put off the next attempt, of its delivery or of all of them.
const longestRetryAfter = time.Hour

// pauseAfter is how long to wait after so many attempts, the last of which asked for at least as long as retryAfter; false:
// there are no more.
func pauseAfter(attempts int, retryAfter time.Duration) (time.Duration, bool) {
	if attempts > len(pauses) {
		return 0, false
	}
	return max(jitter(pauses[attempts-1]), min(retryAfter, longestRetryAfter)), true
}

// longestPauses are the longest pause of a delivery by how often it was tried, in seconds. One that was not tried is due when
// it is stored.
func longestPauses() []float64 {
	longest := []float64{1}
	for _, pause := range pauses {
		longest = append(longest, max(pause+pause/10, longestRetryAfter).Seconds())
	}
	return longest
}

// jitter is a duration within a tenth of d, so that what failed together is not tried together.
func jitter(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.9 + 0.2*rand.Float64()))
}
