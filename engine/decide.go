package engine

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"time"

	"pawl/fsm"
	"pawl/orders"
	"pawl/policy"
	"pawl/provider"
)

const outcomeUnknown = "outcome_unknown: the provider may have forgotten the key by now, so it is not sent again"

// suspension says what becomes of an order that an answer leaves in its state.
type suspension struct {
	hold    string // empty: the order goes on
	reason  string
	delay   time.Duration // negative: until somebody acts
	counts  bool          // the answer counts against the limit of the policy
	cleared bool          // nothing is in doubt any more
	outcome string        // of the call; empty: there was none
	code    string
	detail  string
	ref     string
	action  json.RawMessage
}

// undecided is all that counts for an order whose step was neither done nor refused.
type undecided struct {
	cfg    *policy.Step
	call   *call
	order  *orders.Order
	now    time.Time // on the database's clock
	chance float64   // from 0 to 1; the delay is drawn by it
}

// decide says what becomes of the order. It depends on nothing else.
func (u undecided) decide() suspension {
	s, c, o := u.meaning(), u.call, u.order
	ofStep := c.operation == provider.Do && !isAttention(c.result) && !c.uncalled && !c.lookOnly
	if s.hold != "" && (ofStep || c.voids(o)) && orders.Stopping(o) && !o.Status.Undoing() && (s.cleared || !o.Status.Pivot()) {
		s.hold, s.reason, s.delay = "", "", 0 // neither step nor void is waited for: the order is to be undone
	}
	return s
}

func isAttention(result provider.Result) bool {
	_, is := result.(attention)
	return is
}

func (u undecided) meaning() suspension {
	c := u.call
	switch result := c.result.(type) {
	case attention:
		return suspension{hold: fsm.HoldAttention, reason: result.reason, delay: -1, outcome: outcomeOf(c, "unknown"), code: result.Code, detail: result.Detail}
	case provider.Refused: // to undo what was done, or a confirmation that can't be undone
		reason := "undo_refused: "
		switch {
		case c.voids(u.order):
			reason = orders.VoidRefused
		case c.operation != provider.Undo:
			reason = "refused_in_doubt: "
		}
		return suspension{hold: fsm.HoldAttention, reason: reason + result.Code, delay: -1, counts: true,
			outcome: outcomeOf(c, "refused"), code: result.Code, detail: result.Detail}
	case provider.Waiting:
		return suspension{hold: fsm.HoldCallback, delay: u.cfg.CallbackTimeout, outcome: outcomeOf(c, "waiting"), ref: result.Reference, action: result.Action}
	case provider.Retry:
		// A callback that says not done may be about another call than the last one.
		s := suspension{counts: result.Counts, cleared: !c.doubted || c.source == byOperator, outcome: outcomeOf(c, "retry"), code: result.Code, detail: result.Detail}
		// That an undo did nothing says nothing of what it was to undo.
		s.cleared = s.cleared && !c.voids(u.order) && !c.uncalled && !(c.operation == provider.Undo && c.source == byOperator)
		return u.again(s, result.After)
	case unseen: // the request is sent again at once
		return suspension{outcome: "retry", code: result.Code, detail: result.Detail}
	case provider.Unknown:
		s := suspension{counts: true, outcome: outcomeOf(c, "unknown"), code: result.Code, detail: result.Detail, ref: result.Reference}
		return u.again(s, result.After)
	default: // an earlier key is void now: go on to the next call
		return suspension{outcome: outcomeOf(c, "done")}
	}
}

func outcomeOf(c *call, outcome string) string {
	if c.uncalled {
		return ""
	}
	return outcome
}

// again holds the order for a retry, or for a person when retries and budget are used up.
func (u undecided) again(s suspension, after time.Duration) suspension {
	cfg, retries, spent := u.cfg, value(u.order.Retries), time.Duration(0)
	if u.order.RetryWindowStartedAt != nil {
		spent = max(u.now.Sub(*u.order.RetryWindowStartedAt), 0)
	}
	if s.counts {
		retries++
	}
	s.hold, s.reason = fsm.HoldRetry, s.code
	s.delay = after + time.Duration(u.chance*delayBound(&cfg.Retry, retries, s.counts, spent)) // or orders with the same Retry-After would call at once
	left := cfg.Retry.Budget - spent
	switch {
	case slices.Contains(cfg.Retry.NonRetryable, s.code):
		s.hold, s.reason = fsm.HoldAttention, "non_retryable: "+s.code
	case int(retries) > cfg.Retry.MaxRetries && left <= 0:
		s.hold, s.reason = fsm.HoldAttention, fmt.Sprintf("retries_exhausted: %d calls in %s, last %s", retries, spent.Round(time.Second), s.code)
	case after > left && after > cfg.Retry.Cap && !u.call.uncalled:
		s.hold, s.reason = fsm.HoldAttention, fmt.Sprintf("retry_after: the provider asks to wait until %s", u.now.Add(after).UTC().Format(time.RFC3339))
	}
	if s.hold == fsm.HoldAttention {
		s.delay = -1
	}
	return s
}

// delayBound is what the delay of a retry is drawn up to, from zero (full jitter: Brooker,
// "Exponential Backoff And Jitter", 2015), in nanoseconds. It grows with their number.
// An answer that does not count leaves that number as it is, so after one the bound grows with
// the time spent.
func delayBound(r *policy.Retry, retries int32, counts bool, spent time.Duration) float64 {
	bound := float64(max(spent/2, r.Initial))
	if counts {
		bound = float64(r.Initial) * math.Pow(r.Factor, float64(min(retries-1, 64)))
	}
	return min(bound, float64(r.Cap))
}
