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

// withoutCall has a result committed that no call gave, and that does not count as one.
func (r *run) withoutCall(p *callPool, result provider.Result) destination {
	o := &r.order
	r.call = &call{pool: p, state: o.Status, generation: o.Generation, step: p.step, result: result, uncalled: true}
	return toResult
}

const lookup provider.Operation = "lookup"

// dropCalls gives back what calls hold that are not made.
func dropCalls(runs ...*run) {
	for _, r := range runs {
		r.call.report(errUncalled)
		r.call.permit.free()
		r.call = nil
	}
}

// begun notes in the run that its call is committed, with this number and at this time. Every call of an order is made
// after this.
func (r *run) begun(number int32, inDoubtSince *time.Time, at time.Time) {
	o, c := &r.order, r.call
	o.Calls, o.InDoubtSince, r.complete, r.vainTries = &number, inDoubtSince, false, 0
	if o.RetryWindowStartedAt == nil {
		o.RetryWindowStartedAt = &at
	}
	c.number, c.fence, c.lookOnly = number, o.Fence, c.lookOnly || c.keyExpired(r, at)
	r.next = toCall
}

// call is one call of a remote step. It exists from before it is committed until
// its answer is committed, and belongs to the holder of the run.
type call struct {
	pool          *callPool // whose executor it is
	permit        *callPool // whose permit it holds until it is answered or dropped; not pool where an earlier generation is voided
	state         fsm.State // where the order stands meanwhile
	step          fsm.Step
	generation    int32 // of the key: that of the order, or an earlier one that is voided
	operation     provider.Operation
	number        int32
	fence         int64
	doubted       bool      // an earlier call may have had its effect
	undoReference string    // the reference that an undo request gives
	lookOnly      bool      // the provider may have forgotten the key: sending it could do the step twice, or undo nothing
	unseen        bool      // a look-up just before this call said that the provider has not seen the key
	uncalled      bool      // no call is made; only the result is recorded
	asked         time.Time // just before the statement that begins it was sent, on the clocks of this machine
	report        func(error)

	result provider.Result // nil until it is answered
	source string          // of an answer that came without a call: callback, webhook, operator
}

// Where an answer without a call comes from, as it stands in step_answers.
const (
	byCallback = "callback"
	byWebhook  = "webhook"
	byOperator = "operator"
)

// Results that no provider gave. stopRequested: the order is to stop, so no answer is waited for.
// ledgerConfirm: the ledger did this step of an order whose other steps are remote. unseen: a look-up
// found that the provider has not seen the key, so it is sent again by a call of its own. attention: a
// person is needed.
type (
	stopRequested struct{ provider.Done }
	ledgerConfirm struct{ provider.Done }
	unseen        struct{ provider.Retry }
	attention     struct {
		provider.Unknown
		reason string
	}
)

// What the circuit breaker gets for a call that failed, and for one that does not count: mostly it was not made.
var (
	errProviderFailing = errors.New("the provider is failing")
	errUncalled        = errors.New("not called")
)

// stands reports whether the order still is in the state that the call is for, and in its
// generation. An undo may be about an earlier generation.
func (c *call) stands(o *orders.Order) bool {
	return c.state == o.Status && (!c.voids(o) || c.operation == provider.Undo)
}

// voids reports whether the call is to void a key of an earlier generation. Its result says nothing
// about the step of the current generation, which is as much in doubt as before.
func (c *call) voids(o *orders.Order) bool { return c.generation != o.Generation }

// operationIn is what the step of a state does there.
func operationIn(s fsm.State) provider.Operation {
	if s.Undoing() {
		return provider.Undo
	}
	return provider.Do
}

// refusedInDoubt reports whether an earlier call may still have its effect although a later
// one was refused. Not if a person said refused: that is final. Not if the provider offers
// look-ups: then it remembers what it refused, and the earlier call has no effect either.
func (c *call) refusedInDoubt() bool {
	_, refused := c.result.(provider.Refused)
	_, remembers := c.pool.exec.(provider.Looker)
	return refused && c.doubted && !remembers && c.source != byOperator
}

// keyExpired reports whether the key of a call was too old to be sent when the call
// was committed. now is the time of that statement, as the age of the key is: no clock of
// this machine, nor its sleep, has a part in it.
func (c *call) keyExpired(r *run, now time.Time) bool {
	o := &r.order
	if c.operation != provider.Undo || c.voids(o) {
		return c.permit.stepKeyExpired(o, now)
	}
	return r.preflight.own.undoKeyExpired(c.pool.cfg, o, o.InDoubtSince, now)
}

// stoodStillCode is the code of a call that was not made because it would have come too late.
const stoodStillCode = "stood_still"

// stoodStill reports whether so much time has passed since the call was committed that
// its key may be too old by now, whatever its age was then: the process was stopped, or the
// machine slept. The monotonic clock does not see the second and the wall clock may miss
// either, so the one that counts more time is believed. If it is wrong, the call is only
// made a little later, by another call.
func (c *call) stoodStill() bool {
	now := time.Now()
	return max(now.Sub(c.asked), now.Round(0).Sub(c.asked.Round(0))) > retentionMargin/2
}

// perform makes the call: a look-up if the step is in doubt and the provider can be asked, otherwise the request itself.
func (c *call) perform(ctx context.Context, request *provider.Call) provider.Result {
	if c.stoodStill() {
		return provider.Retry{Code: stoodStillCode, Detail: "this replica stood still before the call, which was not made"}
	}
	exec := c.pool.exec
	if exec == nil {
		return attention{reason: "policy_unusable: " + c.pool.unusable.Error()}
	}
	if c.operation == provider.Undo && c.lookOnly {
		return attention{reason: outcomeUnknown}
	}
	if c.operation == provider.Undo {
		result := exec.Undo(ctx, request)
		if _, ok := result.(provider.Waiting); ok {
			return provider.Unknown{Code: "undo_pending"}
		}
		return result
	}
	if c.looksUp() {
		result := exec.(provider.Looker).Lookup(ctx, request)
		if retry, ok := result.(provider.Retry); !ok {
			return result
		} else if !c.lookOnly {
			return unseen{retry}
		}
	}
	if c.lookOnly {
		return attention{reason: outcomeUnknown}
	}
	return exec.Do(ctx, request)
}

// looksUp reports whether the call asks what became of a step in doubt, and sends nothing.
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

// preflight is what was read before a call, once and for all: see queries/calls.sql.
type preflight struct {
	answer *db.CallsPreflightRow // one that came without a call and was not used yet; nil: none
	own    sentKey               // of the step that the order is at
	voids  []sentKey             // of earlier generations: a late request with one of them could still be done
	unseen bool                  // a look-up since then said that the provider has not seen the key
}

// learn notes what the result of a call says about the next one: the key was not seen, or an earlier key is void. After any
// other result an order goes on only to stop.
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

// sentKey is the key of a step, and what is known of it before it is undone.
type sentKey struct {
	step          fsm.Step
	generation    int32
	policy        int32     // it was sent under; known of earlier generations
	reference     string    // the provider's own name for what was done
	undoBegun     bool      // an undo request was sent before
	undoReference string    // the reference it gave; empty: none
	sentAt        time.Time // when the key was first sent
}

// referenceToUndo is the reference that an undo request gives; empty: it goes by the key of the original
// request. An endpoint compares bodies, so every undo request gives what the first one gave.
// Not so with Stripe: there the request is the same, whether the reference was known or is
// found by the key.
func (k *sentKey) referenceToUndo(how policy.Executor) string {
	if k.undoBegun && how != policy.Stripe {
		return k.undoReference
	}
	return k.reference
}

// referenceToVoid is the same for a key of an earlier generation. As far as we know nothing stands
// under it, and the undo request is there to void the key, so it gives no reference of its own.
func (k *sentKey) referenceToVoid(how policy.Executor) string {
	if !k.undoBegun && how != policy.Stripe {
		return ""
	}
	return k.referenceToUndo(how)
}

// undoKeyExpired reports whether an undo request would go by a key that the provider may have
// forgotten. It would find nothing and report success, and the effect would stand.
// since: when the step came to be in doubt, if it is.
func (k *sentKey) undoKeyExpired(how *policy.Step, o *orders.Order, since *time.Time, now time.Time) bool {
	sent := k.sentAt
	if since != nil && since.Before(sent) {
		sent = *since
	}
	return !foundByReference(how.Executor, k.referenceToUndo(how.Executor), o.Amount) && now.Sub(sent) > how.KeyRetention-retentionMargin
}

// foundByReference reports whether an undo finds what was done by the provider's own name for it, also when its key is
// forgotten.
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
		key := sentKey{fsm.Step(row.Step), row.Generation, row.Policy, row.Reference, row.UndoBegun, row.UndoNamed, row.SentAt}
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

// namedResult is a result as it is stored.
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

// failureOf is what the breaker counts: the other side is gone or ill. To refuse, or to
// ask for patience, is no illness. That a look-up is answered while the step is not done says neither.
func failureOf(result provider.Result) error {
	switch result := result.(type) {
	case provider.Unknown:
		if result.Code == provider.InProgress {
			return errUncalled
		}
		return errProviderFailing
	case unseen:
		return errUncalled
	case attention: // nothing was asked of the other side
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
