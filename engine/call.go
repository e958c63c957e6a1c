package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"pawl/db"
	"pawl/fsm"
	"pawl/orders"
	"pawl/provider"
)

// call is one call of a remote step. It exists from before it is committed until
// its answer is committed, and belongs to whoever holds the run.
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
	errIll      = errors.New("the other side does not do its part")
	errUncalled = errors.New("not called")
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

// newCall makes the next call of a run ready.
func (p *callPool) newCall(r *run) *call {
	o := &r.order
	c := &call{pool: p, permit: p, state: o.Status, step: p.step, generation: o.Generation, operation: operationIn(o.Status),
		doubted: o.InDoubtSince != nil, lookOnly: p.stepKeyExpired(o, p.e.now())}
	switch {
	case r.preflight == nil:
	case c.operation == provider.Do && len(r.preflight.voids) == 0:
		c.unseen = r.preflight.unseen
	case len(r.preflight.voids) > 0:
		c.toVoid(&r.preflight.voids[0])
	case c.operation == provider.Undo: // one that must not be sent has not come this far
		c.undoReference, c.lookOnly = r.preflight.own.referenceToUndo(p.cfg.Executor), false
	}
	return c
}

// toVoid makes the call undo a key of an earlier generation. What the row says about doubt is
// about the current generation, so it does not count here. Only the executor that did the step can
// undo it; if this process can't use that executor, a person is asked.
func (c *call) toVoid(key *sentKey) {
	e := c.pool.e
	c.step, c.generation, c.operation, c.doubted, c.lookOnly = key.step, key.generation, provider.Undo, false, false
	if p, ok := e.policies.byVersion(&key.policy); ok && p != nil && p.Step(key.step).Executor.Remote() {
		c.pool = e.callPool(key.policy, key.step, p)
	} else {
		c.pool = &callPool{e: e, step: key.step, cfg: c.pool.cfg, unusable: fmt.Errorf("no policy %d here to undo the %s with", key.policy, key.step)}
	}
	c.undoReference = key.referenceToVoid(c.pool.cfg.Executor)
}

// callOfAnswer is the call of an answer that came without one, so that both go one way.
func (p *callPool) callOfAnswer(o *orders.Order, row *db.CallsPreflightRow) *call {
	c := &call{pool: p, state: o.Status, generation: o.Generation, step: p.step, operation: operationIn(o.Status),
		number: or(o.Calls), doubted: or(o.Retries) > 0, source: row.Source}
	switch row.Outcome {
	case "done":
		c.result = provider.Done{Reference: row.AnswerReference, Data: []byte(row.Data)}
	case "refused":
		c.result = provider.Refused{Code: row.Code, Detail: row.Detail}
	default:
		c.result = provider.Retry{Code: row.Code, Detail: row.Detail, Counts: true}
	}
	return c
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
