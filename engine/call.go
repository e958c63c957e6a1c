package engine

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/govalues/decimal"

	"pawl/db"
	"pawl/engine/ledger"
	"pawl/fsm"
	"pawl/internal/orders"
	"pawl/internal/policy"
	"pawl/internal/provider"
	"pawl/internal/provider/stripe"
)

// withoutCall commits a result without a call.
func (r *run) withoutCall(p *callPool, result provider.Result) destination {
	o := &r.order
	r.call = &call{pool: p, state: o.Status, generation: o.Generation, step: p.step, result: result, uncalled: true}
	return toResult
}

const lookup provider.Operation = "lookup"

// dropCalls releases the resources of calls that are not made.
func dropCalls(runs ...*run) {
	for _, r := range runs {
		r.call.report(errUncalled)
		r.call.permitFrom.releaseAndPump()
		r.call = nil
	}
}

// begun records in the run that its call was committed, with this number and at this time. It always comes before the
// call.
func (r *run) begun(number int32, inDoubtSince *time.Time, at time.Time) {
	o, c := &r.order, r.call
	o.Calls, o.InDoubtSince, r.vainTries = &number, inDoubtSince, 0
	if o.RetryWindowStartedAt == nil {
		o.RetryWindowStartedAt = &at
	}
	c.number, c.fence, c.lookOnly = number, o.Fence, c.lookOnly || c.keyExpired(r, at)
	r.next = toCall
}

// call is one call of a remote step. It exists from before its commit until its result is committed, and belongs to the
// holder of the run.
type call struct {
	pool          *callPool // whose executor it is
	permitFrom    *callPool // where its permit is from; not pool if an earlier generation is voided
	state         fsm.State // of the order meanwhile
	step          fsm.Step
	generation    int32 // of the key: the current one, or an earlier one that is voided
	operation     provider.Operation
	number        int32
	fence         int64
	doubted       bool      // an earlier call may have had its effect
	undoReference string    // the reference in an undo request
	lookOnly      bool      // the provider may have forgotten the key, so sending it could repeat the step or undo nothing
	unseen        bool      // a look-up just before this call found that the provider has not seen the key
	uncalled      bool      // no call is made; only the result is recorded
	asked         time.Time // just before the statement that begins it, by the clocks of this machine
	report        func(error)

	result provider.Result // nil until it is answered
	source string          // of an answer without a call: callback, webhook, operator
}

// The sources of answers without a call, as in step_answers.
const (
	byCallback = "callback"
	byWebhook  = "webhook"
	byOperator = "operator"
)

// Results that do not come from providers. stopRequested: the order will stop, so no answer is awaited. ledgerConfirm:
// the ledger did this step of an order whose other steps are remote. unseen: a look-up found that the provider has not
// seen the key, so the next call sends it again. attention: a person is needed.
type (
	stopRequested struct{ provider.Done }
	ledgerConfirm struct{ provider.Done }
	unseen        struct{ provider.Retry }
	attention     struct {
		provider.Unknown
		reason string
	}
)

// The circuit breaker gets errProviderFailing for a failed call, and errUncalled for one that does not count, mostly
// because it was not made.
var (
	errProviderFailing = errors.New("the provider is failing")
	errUncalled        = errors.New("not called")
)

// isCurrent reports whether the order is still in the state and generation of the call. An undo may concern an
// earlier generation.
func (c *call) isCurrent(o *orders.Order) bool {
	return c.state == o.Status && (!c.voids(o) || c.operation == provider.Undo)
}

// voids reports whether the call voids a key of an earlier generation. Its result says nothing about the step of the
// current generation, whose doubt is unchanged.
func (c *call) voids(o *orders.Order) bool { return c.generation != o.Generation }

// operationIn is the operation of the step in a state.
func operationIn(s fsm.State) provider.Operation {
	if s.Undoing() {
		return provider.Undo
	}
	return provider.Do
}

// refusedInDoubt reports whether an earlier call may still take effect although a later one was refused. A refusal
// recorded by a person is final. A provider with look-ups remembers refusals, so that the earlier call has no effect
// either.
func (c *call) refusedInDoubt() bool {
	_, refused := c.result.(provider.Refused)
	_, remembers := c.pool.exec.(provider.Looker)
	return refused && c.doubted && !remembers && c.source != byOperator
}

// keyExpired reports whether the key of a call was too old when the call was committed. now is the time of that
// statement: both times are by the clock of the database, so the clock and the sleep of this machine don't matter.
func (c *call) keyExpired(r *run, now time.Time) bool {
	o := &r.order
	if c.operation != provider.Undo || c.voids(o) {
		return c.permitFrom.stepKeyExpired(o, now)
	}
	return r.preflight.own.undoKeyExpired(c.pool.cfg, o, o.InDoubtSince, now)
}

// stoodStillCode is the code of a call that was not made because it would have been too late.
const stoodStillCode = "stood_still"

// stoodStill reports whether so much time has passed since the commit of the call that its key may have expired: the
// process was stopped, or the machine slept. The monotonic clock does not advance during sleep, and the wall clock may
// be set, so the larger difference is used. If that is wrong, the step is only called a little later.
func (c *call) stoodStill() bool {
	now := time.Now()
	return max(now.Sub(c.asked), now.Round(0).Sub(c.asked.Round(0))) > retentionMargin/2
}

// perform makes the call: a look-up if the step is in doubt and the provider supports it, and otherwise the request
// itself.
func (c *call) perform(ctx context.Context, request *provider.Call) provider.Result {
	if c.stoodStill() {
		return provider.Retry{Code: stoodStillCode, Detail: "this replica stood still before the call, which was not made"}
	}
	switch {
	case c.pool.exec == nil:
		return attention{reason: "policy_unusable: " + c.pool.unusable.Error()}
	case c.looksUp():
		return c.lookUp(ctx, request)
	case c.lookOnly:
		return attention{reason: outcomeUnknown}
	case c.operation == provider.Undo:
		return c.undo(ctx, request)
	}
	return c.pool.exec.Do(ctx, request)
}

func (c *call) lookUp(ctx context.Context, request *provider.Call) provider.Result {
	result := c.pool.exec.(provider.Looker).Lookup(ctx, request)
	if retry, ok := result.(provider.Retry); ok && c.lookOnly {
		return attention{reason: outcomeUnknown}
	} else if ok {
		return unseen{retry}
	}
	return result
}

func (c *call) undo(ctx context.Context, request *provider.Call) provider.Result {
	result := c.pool.exec.Undo(ctx, request)
	if _, ok := result.(provider.Waiting); ok {
		return provider.Unknown{Code: "undo_pending"}
	}
	return result
}

// looksUp reports whether the call only looks up a step in doubt.
func (c *call) looksUp() bool {
	_, can := c.pool.exec.(provider.Looker)
	return can && c.operation == provider.Do && c.doubted && !c.unseen
}

// kind is the operation that the call is recorded and counted as.
func (c *call) kind() provider.Operation {
	if c.operation == provider.Do && (c.lookOnly || c.looksUp()) {
		return lookup
	}
	return c.operation
}

// preflight is what was read before the first call of a run: see queries/calls.sql.
type preflight struct {
	answer *db.CallsPreflightRow // an unused answer without a call; nil: none
	own    sentKey               // of the step that the order is at
	voids  []sentKey             // keys of earlier generations to void: a late request with one of them could still take effect
	unseen bool                  // a look-up since then found that the provider has not seen the key
}

// learn records what the result of a call means for the next one: the key was not seen, or an earlier key is void.
// After any other result, the order makes another call only to stop.
func (p *preflight) learn(c *call) {
	switch c.result.(type) {
	case unseen:
		p.unseen = true
	case provider.Done:
		is := func(k sentKey) bool { return k.generation == c.generation && k.step == c.step }
		if i := slices.IndexFunc(p.voids, is); i >= 0 {
			p.voids = slices.Delete(p.voids, i, i+1)
		}
	}
}

// sentKey is a key of a step that may have been sent.
type sentKey struct {
	step          fsm.Step
	generation    int32
	policy        int32     // under which it was sent; set for earlier generations
	route         string    // likewise; empty: the step has only one
	reference     string    // the provider's reference of the effect
	undoBegun     bool      // an undo request was sent before
	undoReference string    // the reference in that request; empty: none
	sentAt        time.Time // when the key was first sent
}

// referenceToUndo is the reference for an undo request; empty: the undo identifies the effect by the key of the
// original request. Endpoints compare bodies, so every undo request repeats the reference of the first one. With Stripe
// the request is the same whether the reference was known or is found by the key.
func (k *sentKey) referenceToUndo(how policy.Executor) string {
	if k.undoBegun && how != policy.Stripe {
		return k.undoReference
	}
	return k.reference
}

// referenceToVoid is referenceToUndo for a key of an earlier generation. As far as we know, it has no effect left, and
// the undo only voids the key, so it has no reference of its own.
func (k *sentKey) referenceToVoid(how policy.Executor) string {
	if !k.undoBegun && how != policy.Stripe {
		return ""
	}
	return k.referenceToUndo(how)
}

// undoKeyExpired reports whether an undo request would use a key that the provider may have forgotten. It would find
// nothing and report success, and the effect would remain. since is when the step came to be in doubt, if it is.
func (k *sentKey) undoKeyExpired(how *policy.Step, o *orders.Order, since *time.Time, now time.Time) bool {
	sent := k.sentAt
	if since != nil && since.Before(sent) {
		sent = *since
	}
	return !foundByReference(how.Executor, k.referenceToUndo(how.Executor), o.Amount) && now.Sub(sent) > how.KeyRetention-retentionMargin
}

// foundByReference reports whether an undo finds the effect by the provider's reference, even if the key was forgotten.
func foundByReference(how policy.Executor, reference string, amount decimal.Decimal) bool {
	if how == policy.Stripe {
		return stripe.FoundByReference(reference, amount)
	}
	return reference != ""
}

func preflights(rows []db.CallsPreflightRow, err error) (map[int64]*preflight, error) {
	found := map[int64]*preflight{}
	for _, row := range rows {
		f := found[row.OrderNo]
		if f == nil {
			f = &preflight{}
			found[row.OrderNo] = f
		}
		key := sentKey{fsm.Step(row.Step), row.Generation, row.Policy, row.Route, row.Reference, row.UndoBegun, row.UndoNamed, row.SentAt}
		if row.Voids {
			f.voids = append(f.voids, key)
			continue
		}
		f.own = key
		if row.Outcome != "" {
			f.answer = &row
		}
	}
	return found, err
}

// namedResult is a result in stored form.
func namedResult(result provider.Result) (outcome string, answer ledger.Answer) {
	switch result := result.(type) {
	case provider.Done:
		return "done", ledger.Answer{Reference: result.Reference, Data: string(result.Data)}
	case provider.Refused:
		return "refused", ledger.Answer{Code: result.Code, Detail: result.Detail}
	case provider.Retry:
		return "retry", ledger.Answer{Code: result.Code, Detail: result.Detail}
	case unseen:
		return "retry", ledger.Answer{Code: result.Code, Detail: result.Detail}
	case provider.Waiting:
		return "waiting", ledger.Answer{Reference: result.Reference}
	case provider.Unknown:
		return "unknown", ledger.Answer{Code: result.Code, Detail: result.Detail, Reference: result.Reference}
	default:
		return "unknown", ledger.Answer{}
	}
}

// failureOf is what the breaker counts: the provider is unreachable or failing. Refusals and requests to wait are not
// failures. A look-up that is answered while the step is not done counts neither way.
func failureOf(result provider.Result) error {
	switch result := result.(type) {
	case provider.Unknown:
		if result.Code == provider.InProgress {
			return errUncalled
		}
		return errProviderFailing
	case unseen:
		return errUncalled
	case attention: // no request was sent
		return errUncalled
	case provider.Retry:
		if result.Code == stoodStillCode {
			return errUncalled
		}
		if result.Counts || result.Code == "connection_failed" {
			return errProviderFailing
		}
	}
	return nil
}

const outcomeUnknown = "outcome_unknown: the provider may have forgotten the key by now, so it is not sent again"
