package engine

import (
	"fmt"
	"math"
	"slices"
	"time"

	"pawl/fsm"
	"pawl/ledger"
	"pawl/orders"
	"pawl/policy"
	"pawl/provider"
)

const outcomeUnknown = "outcome_unknown: the provider may have forgotten the key by now, so it is not sent again"

// undecided is all that counts for an order whose step was neither done nor refused.
type undecided struct {
	cfg    *policy.Step
	call   *call
	order  *orders.Order
	now    time.Time // on the database's clock
	chance float64   // from 0 to 1; the delay is drawn by it
}

// decide says what becomes of the order. It depends on nothing else.
func (u undecided) decide() ledger.Suspension {
	s, c, o := u.meaning(), u.call, u.order
	ofStep := c.operation == provider.Do && !isAttention(c.result) && !c.uncalled && !c.lookOnly
	if s.Hold != "" && (ofStep || c.voids(o)) && orders.Stopping(o) && !o.Status.Undoing() && (s.Cleared || !o.Status.Pivot()) {
		s.Hold, s.Reason, s.Delay = "", "", 0 // neither step nor void is waited for: the order is to be undone
	}
	return s
}

func isAttention(result provider.Result) bool {
	_, is := result.(attention)
	return is
}

func (u undecided) meaning() (s ledger.Suspension) {
	c := u.call
	if s.Outcome, s.Answer = namedResult(c.result); c.uncalled {
		s.Outcome = ""
	}
	switch result := c.result.(type) {
	case attention:
		s.Hold, s.Reason, s.Delay = fsm.HoldAttention, result.reason, -1
	case provider.Refused: // to undo what was done, or a confirmation that can't be undone
		reason := "undo_refused: "
		switch {
		case c.voids(u.order):
			reason = orders.VoidRefused
		case c.operation != provider.Undo:
			reason = "refused_in_doubt: "
		}
		s.Hold, s.Reason, s.Delay, s.Counts = fsm.HoldAttention, reason+result.Code, -1, true
	case provider.Waiting:
		s.Hold, s.Delay, s.Action = fsm.HoldCallback, u.cfg.CallbackTimeout, result.Action
	case provider.Retry:
		s.Counts = result.Counts
		// A callback that says not done may be about another call than the last one.
		s.Cleared = !c.doubted || c.source == byOperator
		// That an undo did nothing says nothing of what it was to undo.
		s.Cleared = s.Cleared && !c.voids(u.order) && !c.uncalled && !(c.operation == provider.Undo && c.source == byOperator)
		return u.again(s, result.After)
	case unseen: // the request is sent again at once
	case provider.Unknown:
		s.Counts = true
		return u.again(s, result.After)
	default: // an earlier key is void now: go on to the next call
		s.Answer = ledger.Answer{}
	}
	return s
}

// again holds the order for a retry, or for a person when retries and budget are used up.
func (u undecided) again(s ledger.Suspension, after time.Duration) ledger.Suspension {
	cfg, retries, spent := u.cfg, or(u.order.Retries), time.Duration(0)
	if u.order.RetryWindowStartedAt != nil {
		spent = max(u.now.Sub(*u.order.RetryWindowStartedAt), 0)
	}
	if s.Counts {
		retries++
	}
	s.Hold, s.Reason = fsm.HoldRetry, s.Code
	s.Delay = after + time.Duration(u.chance*delayBound(&cfg.Retry, retries, s.Counts, spent)) // or orders with the same Retry-After would call at once
	left := cfg.Retry.Budget - spent
	switch {
	case slices.Contains(cfg.Retry.NonRetryable, s.Code):
		s.Hold, s.Reason = fsm.HoldAttention, "non_retryable: "+s.Code
	case int(retries) > cfg.Retry.MaxRetries && left <= 0:
		s.Hold, s.Reason = fsm.HoldAttention, fmt.Sprintf("retries_exhausted: %d calls in %s, last %s", retries, spent.Round(time.Second), s.Code)
	case after > left && after > cfg.Retry.Cap && !u.call.uncalled:
		s.Hold, s.Reason = fsm.HoldAttention, fmt.Sprintf("retry_after: the provider asks to wait until %s", u.now.Add(after).UTC().Format(time.RFC3339))
	}
	if s.Hold == fsm.HoldAttention {
		s.Delay = -1
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
