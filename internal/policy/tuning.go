package policy

import (
	"fmt"
	"time"
)

// The longest a step can be told to wait. The margin of the key retention takes a last
// call that begins at the end of its window: its delay and its time-out.
const (
	leastTime    = time.Millisecond
	maxTimeout   = 10 * time.Minute
	maxCap       = 30 * time.Minute
	maxWait      = 720 * time.Hour
	maxRetention = 87_600 * time.Hour
	keyMargin    = time.Hour
)

// tuning reads how long and how often a step is tried.
func (m mapping) tuning(how *Step) {
	m.duration("timeout", &how.Timeout, leastTime, maxTimeout)
	m.duration("keyRetention", &how.KeyRetention, time.Hour, maxRetention)
	m.duration("callbackTimeout", &how.CallbackTimeout, leastTime, maxWait)
	m.wholeNumber("inFlight", &how.InFlight, 1, 10_000)
	m.wholeNumber("queue", &how.Queue, 1, maxLimit)
	if n := m.values["retry"]; n != nil {
		retry := m.mapping(n, m.pathOf("retry"), []string{"initial", "factor", "cap", "maxRetries", "budget", "nonRetryable"})
		retry.duration("initial", &how.Retry.Initial, leastTime, maxCap)
		retry.number("factor", &how.Retry.Factor, 1, 10)
		retry.duration("cap", &how.Retry.Cap, leastTime, maxCap)
		retry.wholeNumber("maxRetries", &how.Retry.MaxRetries, 0, 999)
		retry.duration("budget", &how.Retry.Budget, 0, maxWait)
		how.Retry.NonRetryable = retry.texts("nonRetryable")
		if how.Retry.Cap < how.Retry.Initial {
			retry.add(retry.at("cap", "initial"), retry.pathOf("cap"), "is less than initial; want the longest of the delays")
		}
	}
	if n := m.values["breaker"]; n != nil {
		breaker := m.mapping(n, m.pathOf("breaker"), []string{"failures", "open"})
		breaker.wholeNumber("failures", &how.Breaker.Failures, 1, maxLimit)
		breaker.duration("open", &how.Breaker.Open, leastTime, time.Hour)
	}
}

// forgotten refuses a step that could be tried again after the other side has forgotten
// the key of the first call: it would be done twice.
func (m mapping) forgotten(how *Step) {
	retries := how.Retry.Longest(how.Timeout)
	where := m.at("keyRetention", "callbackTimeout", "retry", "executor")
	if how.Executor == Stripe && how.KeyRetention > 24*time.Hour {
		m.add(where, m.pathOf("keyRetention"), "Stripe promises to remember a key for 24h: want no more")
	}
	if need := retries + how.CallbackTimeout + keyMargin; need > how.KeyRetention {
		m.add(where, m.pathOf("keyRetention"), fmt.Sprintf(
			"%s is too short: retries (up to %s), callbackTimeout (%s) and a margin of %s need %s, or a step could be done again under a key that is forgotten",
			short(how.KeyRetention), short(retries), short(how.CallbackTimeout), short(keyMargin), short(need)))
	}
}

// Longest is how long a retry window can last when every call takes its whole time-out
// and every delay is as long as it can be: retries and budget must both be spent.
func (r Retry) Longest(timeout time.Duration) time.Duration {
	spent := time.Duration(0)
	delay := float64(r.Initial)
	for range r.MaxRetries + 1 { // the first call, too
		spent += timeout + min(time.Duration(delay), r.Cap)
		delay = min(delay*r.Factor, float64(r.Cap))
	}
	return max(spent, r.Budget)
}
