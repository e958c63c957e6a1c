package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"pawl/fsm"
	"pawl/orders"
	"pawl/provider"
)

// attempt is one call of an outside step. It exists from before the attempt is committed until
// its answer is committed, and belongs to whoever holds the run.
type attempt struct {
	lane       *lane     // whose executor it is
	slot       *lane     // whose slot it takes; another one when an earlier generation is voided
	state      fsm.State // where the order stands meanwhile
	step       fsm.Step
	generation int32 // of the key: that of the order, or an earlier one that is voided
	operation  provider.Operation
	number     int32
	fence      int64
	doubted    bool      // an earlier attempt may have had its effect
	named      string    // the reference that an undo request gives
	lookOnly   bool      // the provider may have forgotten the key: sending it could do the step twice, or undo nothing
	uncalled   bool      // no call is made; only the result is recorded
	asked      time.Time // just before the statement that begins it was sent, on the clocks of this machine
	report     func(error)

	result provider.Result // nil until it is answered
	source string          // of an answer that came without a call: callback, webhook, operator
}

// Where an answer without a call comes from, as it stands in step_answers.
const (
	byCallback = "callback"
	byWebhook  = "webhook"
	byOperator = "operator"
)

// Results that no provider gave. stop: the order is to stop, so no answer is waited for.
// beside: the ledger did this step of an order whose other steps are outside. attention: a
// person is needed.
type (
	stop      struct{ provider.Done }
	beside    struct{ provider.Done }
	attention struct {
		provider.Unknown
		reason string
	}
)

// What the circuit breaker gets for a call that failed, and for one that was not made.
var (
	errIll      = errors.New("the other side does not do its part")
	errUncalled = errors.New("not called")
)

// stands reports whether the order still is in the state that the attempt is for, and in its
// generation. An undo may be about an earlier generation.
func (a *attempt) stands(o *orders.Order) bool {
	return a.state == o.Status && (a.generation == o.Generation || a.operation == provider.Undo)
}

// operationIn is what the step of a state does there.
func operationIn(s fsm.State) provider.Operation {
	if s.Undoing() {
		return provider.Undo
	}
	return provider.Do
}

// prepare makes the attempt for the next call of a run.
func (l *lane) prepare(r *run) *attempt {
	o := &r.order
	a := &attempt{lane: l, slot: l, state: o.Status, step: l.step, generation: o.Generation, operation: operationIn(o.Status),
		doubted: o.InDoubtSince != nil, lookOnly: l.forgotten(o, l.e.now())}
	switch {
	case len(r.voids) > 0:
		a.toVoid(&r.voids[0])
	case a.operation == provider.Undo: // one that must not be sent has not come this far
		a.named, a.lookOnly = r.undo.name(l.cfg.Executor), false
	}
	return a
}

// toVoid makes the attempt undo a key of an earlier generation. What the row says about doubt is
// about the current generation, so it does not count here. Only the executor that did the step can
// undo it; if this process can't use that executor, a person is asked.
func (a *attempt) toVoid(void *voidKey) {
	e := a.lane.e
	a.step, a.generation, a.operation, a.doubted, a.lookOnly = void.step, void.generation, provider.Undo, false, false
	if p, ok := e.policies.of(&void.policy); ok && p != nil && p.Of(void.step).Executor.Outside() {
		a.lane = e.lane(void.policy, void.step, p)
	} else {
		a.lane = &lane{e: e, step: void.step, cfg: a.lane.cfg, unusable: fmt.Errorf("no policy %d here to undo the %s with", void.policy, void.step)}
	}
	a.named = void.known.voidName(a.lane.cfg.Executor)
}

// refusedInDoubt reports whether an earlier call may still have its effect although a later
// one was refused. Not if a person said refused: that is final. Not if the provider offers
// look-ups: then it remembers what it refused, and the earlier call has no effect either.
func (a *attempt) refusedInDoubt() bool {
	_, refused := a.result.(provider.Refused)
	_, remembers := a.lane.exec.(provider.Looker)
	return refused && a.doubted && !remembers && a.source != byOperator
}

// forgotten reports whether the provider may have forgotten the key of the step in doubt at
// that time. Sending it again could do the step twice, so only a look-up, a callback or a
// person settles the step.
func (l *lane) forgotten(o *orders.Order, now time.Time) bool {
	return o.InDoubtSince != nil && now.Sub(*o.InDoubtSince) > l.cfg.KeyRetention-retentionMargin
}

// retentionMargin is how long before a provider may forget a key we stop sending it.
const retentionMargin = time.Hour

// perform makes the call. A step in doubt is asked after first, where that is possible.
func (a *attempt) perform(ctx context.Context, c *provider.Call) provider.Result {
	if a.stoodStill() {
		return provider.Retry{Code: stoodStillCode, Detail: "this replica stood still before the call, which was not made"}
	}
	exec := a.lane.exec
	if exec == nil {
		return attention{reason: "policy_unusable: " + a.lane.unusable.Error()}
	}
	if a.operation == provider.Undo && a.lookOnly {
		return attention{reason: outcomeUnknown}
	}
	if a.operation == provider.Undo {
		result := exec.Undo(ctx, c)
		if _, ok := result.(provider.Waiting); ok {
			return provider.Unknown{Code: "undo_pending"}
		}
		return result
	}
	if looker, ok := exec.(provider.Looker); ok && a.doubted {
		result := looker.Lookup(ctx, c)
		if _, unseen := result.(provider.Retry); !unseen {
			return result
		}
	}
	if a.lookOnly {
		return attention{reason: outcomeUnknown}
	}
	return exec.Do(ctx, c)
}
