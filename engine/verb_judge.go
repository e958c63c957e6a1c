package engine

import (
	"cmp"
	"context"
	"slices"

	"pawl/db"
	"pawl/fsm"
	"pawl/orders"
	"pawl/policy"
	"pawl/provider"
)

// judge says what a verb changes in the order, or why it does not apply: *orders.NotApplicable.
// Nil without an error: there is nothing to write, somebody asked for the same before.
func (e *Engine) judge(ctx context.Context, o *orders.Order, q *Request) (*change, error) {
	switch {
	case q.aboutLateUndo():
		return e.judgeLateUndo(ctx, o, q)
	case q.aboutRefund():
		return e.judgeRefund(o, q)
	}
	if q.Generation != nil && *q.Generation != o.Generation {
		return nil, &orders.NotApplicable{Verb: q.Verb, Code: orders.RefusedGeneration, Order: *o}
	}
	// Under the active policy the provider may be asked what became of the key.
	canAsk := q.Verb == orders.Retry && q.ActivePolicy && orders.HeldFor(o, fsm.HoldAttention) && orders.HeldAsUnknown(o)
	if !q.Verb.Applies(o) && !canAsk {
		return e.joins(o, q)
	}
	c := changeOf(o, q)
	if q.ActivePolicy && q.Verb == orders.Retry {
		if err := e.switchPolicy(ctx, o, c); err != nil {
			return nil, err
		}
	}
	code, err := e.refusal(ctx, o, q, c)
	switch {
	case err != nil:
		return nil, err
	case code != "":
		return nil, &orders.NotApplicable{Verb: q.Verb, Code: code, Order: *o}
	}
	return c, nil
}

// saysWhich reports whether the request tells itself from an earlier one: sent twice, it restarts a failed order once.
func (q *Request) saysWhich() bool { return q.RequestID != "" || q.IfSeq != nil || q.Generation != nil }

// aboutLateUndo: not the step that the order is at is settled, but the undo of an effect that
// was reported too late.
func (q *Request) aboutLateUndo() bool { return q.Settle != nil && q.Settle.Generation != nil }

// judgeLateUndo lets a person close an open late undo, of an order that may have ended. The
// order stays as it is.
func (e *Engine) judgeLateUndo(ctx context.Context, o *orders.Order, q *Request) (*change, error) {
	if q.Settle.Outcome != SettledDone {
		return nil, &orders.NotApplicable{Verb: q.Verb, Code: orders.RefusedState, Order: *o}
	}
	open, err := orders.Read(ctx, e.Orders, e.query.LateUndoIsOpen, db.LateUndoIsOpenParams{OrderNo: o.OrderNo, Generation: *q.Settle.Generation, Step: string(q.Settle.Step)})
	switch {
	case err != nil:
		return nil, orders.Unavailable("read late undos", err)
	case !open:
		return nil, &orders.NotApplicable{Verb: q.Verb, Code: orders.RefusedNoLateUndo, Order: *o}
	}
	return sameAs(o), nil
}

// joins lets a cancellation wait with the one under way. If it has an id it is written
// down, so that it is known when it comes again.
func (e *Engine) joins(o *orders.Order, q *Request) (*change, error) {
	underway := q.Verb == orders.Cancel && or(o.StopRequested) == string(orders.Cancel) && !o.Status.Final()
	switch {
	case !underway:
		return nil, &orders.NotApplicable{Verb: q.Verb, Code: q.Verb.RefusalFor(o), Order: *o}
	case q.RequestID == "":
		return nil, nil
	}
	return sameAs(o), nil
}

// refusal finds what the row does not say, and stands in the way.
func (e *Engine) refusal(ctx context.Context, o *orders.Order, q *Request, c *change) (code string, err error) {
	if q.Verb == orders.Approve {
		own, err := e.wantsAnother(o, q.Actor)
		if own || err != nil {
			return orders.RefusedOwnOrder, err
		}
	}
	redrives := o.Status == fsm.Failed
	sends := q.Verb == orders.Retry && !redrives || q.Verb == orders.Resume && orders.HeldFor(o, fsm.HoldPaused)
	unsafe := false
	if sends {
		if unsafe, err = e.unsafeToRepeat(ctx, o, c.policy); err != nil {
			return "", err
		}
	}
	if q.Verb == orders.StepResult && o.Status.Step() != q.Settle.Step {
		return orders.RefusedOtherStep, nil
	}
	if q.PaymentMethod != "" && !redrives {
		return orders.RefusedPaymentMethod, nil
	}
	if !redrives && !unsafe && q.Verb != orders.StepResult {
		return "", nil
	}
	facts, err := orders.Read(ctx, e.Orders, e.query.OrderFacts, db.OrderFactsParams{OrderNo: o.OrderNo, Generation: o.Generation, Step: string(cmp.Or(o.Status.Step(), fsm.Charge)), Operation: string(operationIn(o.Status))})
	switch {
	case err != nil:
		return "", orders.Unavailable("read effects", err)
	case redrives && facts.Retried && !q.saysWhich():
		return orders.RefusedRetried, nil
	case redrives && facts.Standing:
		return orders.RefusedStillUndoing, nil
	case unsafe && !facts.Answered:
		return orders.RefusedUnknown, nil
	case q.Verb == orders.StepResult && o.Generation > 0 && !o.Status.Undoing() && !facts.Called:
		return orders.RefusedNotCalled, nil // who knows of an effect has seen one of an earlier generation
	case q.Verb == orders.StepResult && facts.Answered:
		return orders.RefusedAnswered, nil
	}
	return "", nil
}

// unsafeToRepeat reports whether the provider may have forgotten the key that would be sent
// again, and can't look it up either. Nobody looks up an undo; it may go by a reference.
func (e *Engine) unsafeToRepeat(ctx context.Context, o *orders.Order, version *int32) (bool, error) {
	p, known := e.policies.byVersion(version)
	if !known || p == nil || o.Status.Step() == "" || !p.Step(o.Status.Step()).Executor.Remote() {
		return false, nil
	}
	pool := e.callPool(*version, o.Status.Step(), p)
	if o.Status.Undoing() {
		known, err := e.keyOf(ctx, o.OrderNo, sentKey{step: pool.step, generation: o.Generation}, provider.Undo)
		return err == nil && known.own.undoKeyExpired(pool.cfg, o, o.InDoubtSince, e.now()), err
	}
	_, looks := pool.exec.(provider.Looker)
	return !looks && pool.stepKeyExpired(o, e.now()), nil
}

// hasKeysToVoid reports whether the order has keys of earlier generations that must be dead
// before it is charged. Only a remote charge is preceded by their undoing.
func (e *Engine) hasKeysToVoid(ctx context.Context, o *orders.Order) (bool, error) {
	generation := o.Generation
	if o.Status == fsm.Failed {
		generation++ // it is to start again
	} else if generation == 0 || o.Status.Undoing() {
		return false, nil
	}
	known, err := e.keyOf(ctx, o.OrderNo, sentKey{step: fsm.Charge, generation: generation}, provider.Do)
	return err == nil && len(known.voids) > 0, err
}

// switchPolicy lets an order go on under the active policy, unless a step that was done
// under its own, or may have been, could not be undone then.
func (e *Engine) switchPolicy(ctx context.Context, o *orders.Order, c *change) (err error) {
	version, active := e.policies.active()
	if version != nil && active == nil {
		return orders.ErrUnavailable // not known here, or not yet
	}
	pinned, known := e.policies.byVersion(o.Policy)
	refused := !known || needsPinned(o, pinned, active)
	if !refused && !active.Step(fsm.Charge).Executor.Remote() {
		if refused, err = e.hasKeysToVoid(ctx, o); err != nil {
			return err
		}
	}
	if refused {
		return &orders.NotApplicable{Verb: orders.Retry, Code: orders.RefusedPolicySwitch, Order: *o}
	}
	c.policy = version
	return nil
}

// needsPinned reports whether a step that stands, or may stand, is undone elsewhere under
// the other policy, or that one takes its key to be remembered for longer. It was sent
// under the pinned one, and the provider's memory is no longer than that says.
func needsPinned(o *orders.Order, pinned, other *policy.Policy) bool {
	var stands []fsm.Step
	if o.ChargedAt != nil && o.RefundedAt == nil {
		stands = append(stands, fsm.Charge)
	}
	if o.ReservedAt != nil && o.ReleasedAt == nil {
		stands = append(stands, fsm.Reserve)
	}
	if o.InDoubtSince != nil {
		stands = append(stands, o.Status.Step())
	}
	return slices.ContainsFunc(stands, func(s fsm.Step) bool {
		was, is := pinned.Step(s), other.Step(s)
		return was.Executor != is.Executor || was.URL != is.URL || was.UndoURL != is.UndoURL || was.Capture != is.Capture ||
			was.Executor.Remote() && (pinned.Copied || was.KeyRetention < is.KeyRetention)
	})
}
