package ledger

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"pawl/db"
	"pawl/fsm"
)

// Results is a batch whose calls have the same outcome, with what differs between them.
type Results struct {
	Batch
	Outcome  fsm.Outcome
	Step     fsm.Step
	Executor string // empty: the ledger did the step
	Capture  string // set for a charge that only authorizes
	// CaptureWithin is how long an authorization lasts whose captures are requested, and CaptureDue when to warn of its
	// end.
	CaptureWithin, CaptureDue time.Duration

	Sells    bool             // the ledger made the reservation, and confirming sells it
	Consumes bool             // the answers came without a call
	Doubted  bool             // a call before the refused one is still in doubt
	Begins   bool             // the move into the next state begins the call of its step
	Call     time.Duration    // how long it may take
	Lease    time.Duration    // new lease of orders whose call begins, if theirs ends before the call
	Of       map[int64]Answer // by order number
}

// Answer is one answer as it is stored.
type Answer struct {
	Reference, Data string // Data is JSON, or empty
	Code, Detail    string // why the step is not done
}

// SaveResults moves a batch whose step was done remotely out of its state: the effect and the history row are
// written, and the call closed, in one commit. The returned orders have moved if and only if the error is nil.
func SaveResults(ctx context.Context, q *db.Queries, a Results) ([]Moved, error) {
	switch {
	case a.Outcome == fsm.Stopped:
		return movedBy(q.RemoteStopped(ctx, db.RemoteStoppedParams{
			OrderNos: a.OrderNos, Expected: a.Expected, Fence: a.Fence, Seq: a.Seq, Executor: a.Executor, Capture: a.Capture}))
	case a.Outcome == fsm.Refused:
		return movedBy(q.RemoteRefused(ctx, db.RemoteRefusedParams{
			OrderNos: a.OrderNos, Expected: a.Expected, Fence: a.Fence, Seq: a.Seq, Step: string(a.Step), Consumes: a.Consumes,
			Executor: a.Executor, Capture: a.Capture, Doubted: a.Doubted,
			Codes: a.each(func(x Answer) string { return x.Code }), Details: a.each(func(x Answer) string { return x.Detail })}))
	}
	refs, data := a.each(func(x Answer) string { return x.Reference }), a.each(func(x Answer) string { return x.Data })
	switch a.Expected {
	case fsm.Charging:
		return movedBy(q.RemoteCharged(ctx, db.RemoteChargedParams{
			OrderNos: a.OrderNos, Refs: refs, Data: data, Expected: a.Expected, Fence: a.Fence, Seq: a.Seq,
			Executor: a.Executor, Capture: a.Capture, CaptureSeconds: a.CaptureWithin.Seconds(), CaptureDueSeconds: a.CaptureDue.Seconds(), Consumes: a.Consumes,
			Begins: a.Begins, CallSeconds: a.Call.Seconds(), LeaseSeconds: a.Lease.Seconds()}))
	case fsm.Reserving:
		return movedBy(q.RemoteReserved(ctx, db.RemoteReservedParams{
			OrderNos: a.OrderNos, Refs: refs, Data: data, Expected: a.Expected, Fence: a.Fence, Seq: a.Seq,
			Executor: a.Executor, Consumes: a.Consumes, Begins: a.Begins, CallSeconds: a.Call.Seconds(), LeaseSeconds: a.Lease.Seconds()}))
	case fsm.Confirming:
		return movedBy(q.RemoteConfirmed(ctx, db.RemoteConfirmedParams{
			OrderNos: a.OrderNos, Refs: refs, Data: data, Expected: a.Expected, Fence: a.Fence, Seq: a.Seq,
			Executor: a.Executor, Sells: a.Sells, Consumes: a.Consumes}))
	case fsm.Releasing:
		return release(ctx, q, a.Batch, a.Consumes)
	case fsm.Refunding:
		return refund(ctx, q, &a)
	default:
		return nil, fmt.Errorf("save results: state %s has no step", a.Expected)
	}
}

func (a *Results) each(field func(Answer) string) []string {
	out := make([]string, len(a.OrderNos))
	for i, no := range a.OrderNos {
		out[i] = field(a.Of[no])
	}
	return out
}

// Suspension is what happens to an order that stays in its state.
type Suspension struct {
	Hold    string // empty: the order continues
	Reason  string
	Delay   time.Duration // negative: until a person acts
	Counts  bool          // the answer counts as a retry
	Cleared bool          // the step is no longer in doubt
	Outcome string        // of the call; empty: there was no call
	Answer
	Action json.RawMessage // for the customer; nil: none
}

// Suspensions is a batch whose orders stay in their state.
type Suspensions struct {
	Batch
	Of       map[int64]Suspension // by order number
	Consumes bool                 // the answers came without a call
}

// Suspend closes the calls of a batch, and puts its orders on hold or lets them continue in their state.
func Suspend(ctx context.Context, q *db.Queries, batch Suspensions) ([]Moved, error) {
	n := len(batch.OrderNos)
	p := db.CallsSuspendParams{
		OrderNos: batch.OrderNos, Expected: batch.Expected, Fence: batch.Fence, Seq: batch.Seq, Consumes: batch.Consumes,
		Holds: make([]string, n), Reasons: make([]string, n), Delays: make([]float64, n), Counts: make([]bool, n),
		Cleared: make([]bool, n), Outcomes: make([]string, n), Codes: make([]string, n), Details: make([]string, n),
		Refs: make([]string, n), Actions: make([]string, n),
	}
	for i, no := range batch.OrderNos {
		h := batch.Of[no]
		p.Holds[i], p.Reasons[i], p.Delays[i] = h.Hold, h.Reason, h.Delay.Seconds()
		p.Counts[i], p.Cleared[i] = h.Counts, h.Cleared
		p.Outcomes[i], p.Codes[i], p.Details[i] = h.Outcome, h.Code, h.Detail
		p.Refs[i], p.Actions[i] = h.Reference, string(h.Action)
	}
	return movedBy(q.CallsSuspend(ctx, p))
}

// Fallbacks is a batch of orders whose charge was refused, and begins again on another route.
type Fallbacks struct {
	Batch
	Route    string           // the next route
	Consumes bool             // the answers came without a call
	Of       map[int64]Answer // by order number
}

// FallBack closes the calls of a batch, and begins the next generation of its orders.
func FallBack(ctx context.Context, q *db.Queries, f Fallbacks) ([]Moved, error) {
	all := Results{Batch: f.Batch, Of: f.Of}
	return movedBy(q.RemoteFallback(ctx, db.RemoteFallbackParams{
		OrderNos: f.OrderNos, Expected: f.Expected, Fence: f.Fence, Seq: f.Seq, Route: f.Route, Consumes: f.Consumes,
		Codes: all.each(func(x Answer) string { return x.Code }), Details: all.each(func(x Answer) string { return x.Detail })}))
}

// movedBy turns the rows of a statement into verdicts.
func movedBy[R row](rows []R, err error) ([]Moved, error) {
	if err != nil {
		return nil, err
	}
	moved := make([]Moved, len(rows))
	for i, r := range rows {
		moved[i] = Moved(r)
	}
	return moved, nil
}
