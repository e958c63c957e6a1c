package ledger

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"pawl/db"
	"pawl/fsm"
)

// Results is a batch whose calls came to the same outcome, with what differs between them.
type Results struct {
	Batch
	Outcome  fsm.Outcome
	Step     fsm.Step
	Executor string           // empty: the ledger did it
	Capture  string           // of a charge that only authorizes
	Sells    bool             // the reservation is the ledger's, and confirming sells it
	Consumes bool             // the answers came without a call
	Doubted  bool             // an earlier call than the refused one is still in doubt
	Begins   bool             // the move into the next state begins the call of its step
	Call     time.Duration    // how long it may take
	Lease    time.Duration    // of orders whose call begins, if theirs ends before the call
	Of       map[int64]Answer // by order number
}

// Answer is one answer as it is stored.
type Answer struct {
	Reference, Data string // Data is JSON, or empty
	Code, Detail    string // of what is not done
}

// SaveResults takes a batch whose step was done remotely out of its state: the effect goes into
// the books, the call is closed, the history row written, in one commit. The orders
// returned have moved if and only if the error is nil.
func SaveResults(ctx context.Context, q *db.Queries, a Results) ([]Moved, error) {
	switch {
	case a.Outcome == fsm.Stopped:
		return movedBy(q.RemoteStopped(ctx, db.RemoteStoppedParams{
			OrderNos: a.OrderNos, Expected: a.Expected, Fence: a.Fence, Seq: a.Seq, Executor: a.Executor}))
	case a.Outcome == fsm.Refused:
		return movedBy(q.RemoteRefused(ctx, db.RemoteRefusedParams{
			OrderNos: a.OrderNos, Expected: a.Expected, Fence: a.Fence, Seq: a.Seq, Step: string(a.Step), Consumes: a.Consumes,
			Executor: a.Executor, Doubted: a.Doubted,
			Codes: a.each(func(x Answer) string { return x.Code }), Details: a.each(func(x Answer) string { return x.Detail })}))
	}
	refs, data := a.each(func(x Answer) string { return x.Reference }), a.each(func(x Answer) string { return x.Data })
	switch a.Expected {
	case fsm.Charging:
		return movedBy(q.RemoteCharged(ctx, db.RemoteChargedParams{
			OrderNos: a.OrderNos, Refs: refs, Data: data, Expected: a.Expected, Fence: a.Fence, Seq: a.Seq,
			Executor: a.Executor, Capture: a.Capture, Consumes: a.Consumes,
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
		return nil, fmt.Errorf("record answers: no step is done in %s", a.Expected)
	}
}

func (a *Results) each(field func(Answer) string) []string {
	out := make([]string, len(a.OrderNos))
	for i, no := range a.OrderNos {
		out[i] = field(a.Of[no])
	}
	return out
}

// Suspension is what becomes of an order that an answer leaves in its state.
type Suspension struct {
	Hold    string // empty: the order goes on
	Reason  string
	Delay   time.Duration // negative: until a person acts
	Counts  bool          // the answer counts against the limit of the policy
	Cleared bool          // nothing is in doubt any more
	Outcome string        // of the call; empty: there was none
	Answer
	Action json.RawMessage // nil: there is none
}

// Suspensions is a batch whose orders stay in their state.
type Suspensions struct {
	Batch
	Of       map[int64]Suspension // by order number
	Consumes bool                 // the answers came without a call
}

// Suspend closes the calls of a batch and holds its orders, without a move.
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
