package engine

import (
	"math"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"pawl/fsm"
	"pawl/internal/orders"
	"pawl/internal/policy"
	"pawl/internal/provider"
	"pawl/test/assert"
)

func anyDuration(most time.Duration) *rapid.Generator[time.Duration] {
	return rapid.Custom(func(t *rapid.T) time.Duration {
		return time.Duration(rapid.Int64Range(0, int64(most)).Draw(t, "nanoseconds"))
	})
}

// anyTry is an answer that may be tried again, at any point of any window.
func anyTry(t *rapid.T) (u undecided, after time.Duration, counts bool) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	retry := policy.Retry{
		Initial:    time.Millisecond + anyDuration(time.Minute).Draw(t, "initial"),
		Factor:     rapid.Float64Range(1, 10).Draw(t, "factor"),
		MaxRetries: rapid.IntRange(0, 999).Draw(t, "maxRetries"),
		Budget:     anyDuration(time.Hour).Draw(t, "budget"),
	}
	retry.Cap = retry.Initial + anyDuration(30*time.Minute).Draw(t, "cap")
	after = rapid.OneOf(rapid.Just(time.Duration(0)), anyDuration(2*time.Hour)).Draw(t, "after")
	counts = rapid.Bool().Draw(t, "counts")
	retries := rapid.Int32Range(0, 2000).Draw(t, "retries")
	o := &orders.Order{Status: fsm.Charging, Retries: &retries}
	if rapid.Bool().Draw(t, "begun") {
		from := now.Add(-anyDuration(2*time.Hour).Draw(t, "spent"))
		o.RetryWindowStartedAt = &from
	}
	c := &call{state: fsm.Charging, step: fsm.Charge, operation: provider.Do, doubted: rapid.Bool().Draw(t, "doubted"),
		result: provider.Retry{Code: "not_done", After: after, Counts: counts}}
	if counts && rapid.Bool().Draw(t, "unknown") {
		c.result = provider.Unknown{Code: "timeout", After: after}
	}
	return undecided{cfg: &policy.Step{Retry: retry}, call: c, order: o, now: now, chance: rapid.Float64Range(0, 1).Draw(t, "chance")}, after, counts
}

func (u undecided) spent() time.Duration {
	if u.order.RetryWindowStartedAt == nil {
		return 0
	}
	return u.now.Sub(*u.order.RetryWindowStartedAt)
}

func TestDelays(t *testing.T) {
	t.Parallel()
	t.Run("are at least what the other side asked for, and no longer than that and the cap", func(t *testing.T) {
		t.Parallel()
		rapid.Check(t, func(t *rapid.T) {
			u, after, _ := anyTry(t)
			s := u.decide()
			if s.Hold != fsm.HoldRetry {
				return
			}
			if s.Delay < after || s.Delay > after+u.cfg.Retry.Cap {
				t.Fatalf("%s after %s, cap %s", s.Delay, after, u.cfg.Retry.Cap)
			}
		})
	})
	t.Run("are drawn from nothing to a bound that grows", func(t *testing.T) {
		t.Parallel()
		rapid.Check(t, func(t *rapid.T) {
			u, _, counts := anyTry(t)
			bound := func(retries int32, spent time.Duration) float64 {
				return delayBound(&u.cfg.Retry, retries, counts, spent)
			}
			retries, spent := *u.order.Retries+1, u.spent()
			switch {
			case bound(retries, spent) > float64(u.cfg.Retry.Cap) || math.IsNaN(bound(retries, spent)):
				t.Fatal("beyond the cap")
			case bound(retries+1, spent) < bound(retries, spent) || bound(retries, 2*spent) < bound(retries, spent):
				t.Fatal("it shrinks")
			case bound(1, 0) != float64(u.cfg.Retry.Initial):
				t.Fatalf("the first is up to %v, not %s", bound(1, 0), u.cfg.Retry.Initial)
			}
			u.chance = 0
			least := u.decide()
			u.chance = 1
			if most := u.decide(); least.Hold == fsm.HoldRetry && most.Delay-least.Delay < time.Duration(0.99*bound(retries, spent)) {
				t.Fatalf("from %s to %s", least.Delay, most.Delay)
			}
		})
	})
	t.Run("of orders that failed together are spread", func(t *testing.T) {
		t.Parallel()
		retries := int32(3)
		u := undecided{
			cfg:  &policy.Step{Retry: policy.Retry{Initial: 200 * time.Millisecond, Factor: 2, Cap: time.Minute, MaxRetries: 7, Budget: time.Hour}},
			call: &call{operation: provider.Do, result: provider.Unknown{Code: "timeout"}}, order: &orders.Order{Status: fsm.Charging, Retries: &retries},
		}
		var buckets [8]int
		for i := range 800 {
			u.chance = float64(i) / 800 // as rand.Float64 spreads it
			buckets[int(8*u.decide().Delay/(1600*time.Millisecond))]++
		}
		for i, n := range buckets {
			if n < 90 || n > 110 {
				t.Errorf("%d of 800 in the %d. eighth", n, i+1)
			}
		}
	})
}

func TestRetriesEnd(t *testing.T) {
	t.Parallel()
	t.Run("only when the retries and the time are spent, or the other side asks for too long", func(t *testing.T) {
		t.Parallel()
		rapid.Check(t, func(t *rapid.T) {
			u, after, counts := anyTry(t)
			s, left := u.decide(), u.cfg.Retry.Budget-u.spent()
			u.order.Hold, u.order.Policy = new(fsm.HoldRetry), new(int32(1))
			e := &Engine{}
			e.policies = newPolicies(nil, nil)
			e.policies.now.Store(&knownPolicies{byVersion: map[int32]*policy.Policy{1: {Charge: *u.cfg}}})
			told := e.Retries(u.order)
			if u.order.RetryWindowStartedAt != nil && told.Until.Sub(u.now) != left {
				t.Fatalf("until %s, with %s left", told.Until, left)
			}
			exhausted := (told.Left == 0 || told.Left == 1 && counts) && left <= 0
			tooLong := after > left && after > u.cfg.Retry.Cap
			if want := exhausted || tooLong; (s.Hold == fsm.HoldAttention) != want || s.Hold == fsm.HoldAttention && s.Delay >= 0 {
				t.Fatalf("%+v, exhausted %v, too long %v", s, exhausted, tooLong)
			}
			if s.Hold == fsm.HoldAttention && exhausted != strings.HasPrefix(s.Reason, "retries_exhausted: ") {
				t.Fatal(s.Reason)
			}
			if _, unknown := u.call.result.(provider.Unknown); unknown && s.Cleared || u.call.doubted && s.Cleared {
				t.Fatal("a doubt is forgotten")
			}
		})
	})
	t.Run("at once with a code that is not to be tried again", func(t *testing.T) {
		t.Parallel()
		u := undecided{cfg: &policy.Step{Retry: policy.Retry{MaxRetries: 7, Budget: time.Hour, NonRetryable: []string{"closed"}}},
			call: &call{operation: provider.Do, doubted: true, result: provider.Retry{Code: "closed", Counts: true}}, order: &orders.Order{Status: fsm.Charging}}
		s := u.decide()
		assert.True(t, s.Hold == fsm.HoldAttention && s.Reason == "non_retryable: closed" && !s.Cleared, s)
	})
	t.Run("and nobody waits for what is to be undone, but for a confirmation in doubt", func(t *testing.T) {
		t.Parallel()
		rapid.Check(t, func(t *rapid.T) {
			u, _, _ := anyTry(t)
			cancel := "cancel"
			u.order.StopRequested = &cancel
			u.order.Status = rapid.SampledFrom([]fsm.State{fsm.Charging, fsm.Reserving, fsm.Confirming, fsm.Releasing, fsm.Refunding}).Draw(t, "status")
			if rapid.Bool().Draw(t, "waits") {
				u.call.result = provider.Waiting{}
			}
			s := u.decide()
			stays := u.order.Status.Undoing() || u.order.Status == fsm.Confirming && !s.Cleared
			if s.Hold != fsm.HoldAttention && (s.Hold == "") == stays {
				t.Fatalf("%s: %+v", u.order.Status, s)
			}
		})
	})
}
