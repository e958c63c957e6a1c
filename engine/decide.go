package engine

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"time"

	"pawl/db"
	"pawl/fsm"
	"pawl/policy"
	"pawl/step"
)

// What an order may be held for, as it stands in orders.hold.
const (
	holdRetry     = "retry"
	holdCallback  = "callback"
	holdScheduled = "scheduled"
	holdQueued    = "queued"
	holdApproval  = "approval"
	holdPaused    = "paused"
	holdAttention = "attention"
)

const outcomeUnknown = "outcome_unknown: the provider may have forgotten the key by now, so it is not sent again"

// stay is what an answer means that leaves the order in its state.
type stay struct {
	hold    string // empty: the order goes on
	reason  string
	delay   time.Duration // negative: until somebody acts
	counts  bool          // as a try
	cleared bool          // nothing is in doubt any more
	outcome string        // of the attempt; empty: there was none
	code    string
	detail  string
	ref     string
	action  json.RawMessage
}

// decide says what becomes of an order whose step was neither done nor refused. It knows
// no clock and no chance but those it is given: now on the database's clock, and a
// number from 0 to 1 that the delay is drawn by.
func decide(cfg *policy.Step, a *attempt, o *db.Order, now time.Time, chance float64) stay {
	s := meaning(cfg, a, o, now, chance)
	waits := (s.hold == holdRetry || s.hold == holdCallback) && !a.uncalled && !a.lookOnly
	if waits && stopping(o) && !o.Status.Undoing() && (s.cleared || o.Status != fsm.Confirming) {
		s.hold, s.reason, s.delay = "", "", 0 // nobody waits for a step that is to be undone
	}
	return s
}

func meaning(cfg *policy.Step, a *attempt, o *db.Order, now time.Time, chance float64) stay {
	switch result := a.result.(type) {
	case attention:
		return stay{hold: holdAttention, reason: result.reason, delay: -1, outcome: outcomeOf(a, "unknown"), code: result.Code, detail: result.Detail}
	case step.Refused: // to undo what was done, or a confirmation that can't be undone
		reason := "undo_refused: "
		if a.operation != step.Undo {
			reason = "refused_in_doubt: "
		}
		return stay{hold: holdAttention, reason: reason + result.Code, delay: -1, counts: true,
			outcome: outcomeOf(a, "refused"), code: result.Code, detail: result.Detail}
	case step.Waiting:
		return stay{hold: holdCallback, delay: cfg.WaitTimeout, outcome: outcomeOf(a, "waiting"), ref: result.Reference, action: result.Action}
	case step.Retry:
		// A callback that says not done may be about another call than the last one.
		s := stay{counts: result.Counts, cleared: !a.doubted || a.source == byOperator, outcome: outcomeOf(a, "retry"), code: result.Code, detail: result.Detail}
		s.cleared = s.cleared && !a.uncalled
		return s.again(cfg, o, result.After, now, chance)
	case step.Unknown:
		s := stay{counts: true, outcome: outcomeOf(a, "unknown"), code: result.Code, detail: result.Detail}
		return s.again(cfg, o, result.After, now, chance)
	default: // an earlier key is dead: on to the next call
		return stay{cleared: true, outcome: outcomeOf(a, "done")} // it comes before the first call of its generation
	}
}

func outcomeOf(a *attempt, outcome string) string {
	if a.uncalled {
		return ""
	}
	return outcome
}

// again holds the order for another try, or for a person when the tries are spent.
func (s stay) again(cfg *policy.Step, o *db.Order, after time.Duration, now time.Time, chance float64) stay {
	tries, spent := value(o.Tries), time.Duration(0)
	if o.WindowFrom != nil {
		spent = max(now.Sub(*o.WindowFrom), 0)
	}
	if s.counts {
		tries++
	}
	s.hold, s.reason = holdRetry, s.code
	s.delay = after + drawDelay(&cfg.Retry, tries, s.counts, spent, chance) // all who were told the same time must not come at it
	left := cfg.Retry.Budget - spent
	switch {
	case slices.Contains(cfg.Retry.NonRetryable, s.code):
		s.hold, s.reason = holdAttention, "non_retryable: "+s.code
	case int(tries) >= cfg.Retry.Attempts && left <= 0:
		s.hold, s.reason = holdAttention, fmt.Sprintf("retries_exhausted: %d tries in %s, last %s", tries, spent.Round(time.Second), s.code)
	case after > left && after > cfg.Retry.Cap:
		s.hold, s.reason = holdAttention, fmt.Sprintf("retry_after: the provider asks to wait until %s", now.Add(after).UTC().Format(time.RFC3339))
	}
	if s.hold == holdAttention {
		s.delay = -1
	}
	return s
}

// drawDelay draws from zero to the bound of this try (full jitter: Brooker, "Exponential
// Backoff And Jitter", 2015). The bound grows with the tries; where the other side gave
// no answer at all there are none to count, and it grows with the time spent.
func drawDelay(r *policy.Retry, tries int32, counts bool, spent time.Duration, chance float64) time.Duration {
	bound := float64(max(spent/2, r.Initial))
	if counts {
		bound = float64(r.Initial) * math.Pow(r.Factor, float64(min(tries-1, 64)))
	}
	return time.Duration(chance * min(bound, float64(r.Cap)))
}

func value(n *int32) int32 {
	if n == nil {
		return 0
	}
	return *n
}
