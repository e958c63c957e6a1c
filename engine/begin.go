package engine

import (
	"cmp"
	"slices"
	"time"

	"pawl/db"
	"pawl/fsm"
	"pawl/provider"
)

// outsidePace is the time between two statements for answers of providers. It is short
// beside a call over a network, and makes sets of what would be single orders: a
// statement costs as much for one order as for ten.
const outsidePace = 20 * time.Millisecond

// beginKey is what the attempts of one statement have in common.
type beginKey struct {
	state      fsm.State
	fence      int64
	seq        int32
	step       fsm.Step
	operation  provider.Operation
	generation int32         // 0 but for voids: that of the order
	call       time.Duration // how long it may take
}

// beginSet is the flush of the line of attempts: it commits that calls are about to be
// made, and makes them.
func (e *Engine) beginSet(set []*run) {
	for key, group := range groupBy(set, e.beginKey) {
		e.beginAlike(key, group)
	}
}

func (e *Engine) beginKey(r *run) beginKey {
	o, a := &r.order, r.attempt
	key := beginKey{state: o.Status, fence: o.Fence, seq: o.Seq, step: a.step, operation: a.operation,
		call: a.lane.cfg.Timeout + leaseMargin}
	if a.generation != o.Generation {
		key.generation = a.generation
	}
	if a.lookOnly {
		key.operation = lookup
	}
	return key
}

// leaseMargin is how much longer than a call the lease of its order lasts: no other
// replica starts the same call meanwhile.
const leaseMargin = time.Second

const lookup provider.Operation = "lookup"

func (e *Engine) beginAlike(key beginKey, set []*run) {
	ctx, cancel := e.statement()
	defer cancel()
	slices.SortFunc(set, func(a, b *run) int { return cmp.Compare(a.no(), b.no()) })
	asked := time.Now()
	for _, r := range set {
		r.attempt.asked = asked
	}
	rows, err := e.query.AttemptsBegin(ctx, e.beginning(key, set))
	switch {
	case db.FaultOf(err) == db.Bad:
		e.split(set, func(half []*run) { e.beginAlike(key, half) }, func(r *run) { e.notBegun(r); e.hold(r, err) })
		return
	case err != nil:
		e.notBegun(set...)
		e.failed("begin attempts", err, set, e.later)
		return
	}
	e.Stats.Sets.Add(1)
	if len(rows) > 0 {
		e.tickOn(rows[0].At)
	}
	begun := make(map[int64]bool, len(rows))
	for _, row := range rows {
		i, _ := slices.BinarySearchFunc(set, row.OrderNo, func(r *run, no int64) int { return cmp.Compare(r.no(), no) })
		begun[row.OrderNo] = true
		e.called(set[i], row)
	}
	lost := slices.DeleteFunc(slices.Clone(set), func(r *run) bool { return begun[r.no()] })
	e.notBegun(lost...)
	e.lose(lost)
}

func (e *Engine) beginning(key beginKey, set []*run) db.AttemptsBeginParams {
	p := db.AttemptsBeginParams{
		OrderNos: numbersOf(set), Expected: key.state, Fence: key.fence, Seq: key.seq,
		Step: string(key.step), Operation: string(key.operation), CallSeconds: key.call.Seconds(),
		LeaseSeconds: max(e.cfg.Lease, key.call).Seconds(),
	}
	if set[0].attempt.generation != set[0].order.Generation {
		p.Generation = &key.generation
	}
	if key.operation == provider.Undo {
		for _, r := range set {
			p.Names = append(p.Names, r.attempt.named)
		}
	}
	return p
}

// called starts the call of an attempt that is committed.
func (e *Engine) called(r *run, row db.AttemptsBeginRow) {
	o, a := &r.order, r.attempt
	o.Seq, o.Attempts, o.InDoubtSince, r.moved, r.lost = row.Seq, &row.Attempt, row.InDoubtSince, false, 0
	if o.WindowFrom == nil {
		o.WindowFrom = &row.At
	}
	a.number, a.fence, a.lookOnly = row.Attempt, o.Fence, a.lookOnly || a.expired(r, row.At)
	e.wg.Go(func() { a.slot.call(r) })
}

// notBegun gives back what attempts hold that come to nothing.
func (e *Engine) notBegun(set ...*run) {
	for _, r := range set {
		r.attempt.report(errUncalled)
		r.attempt.slot.free()
		r.attempt = nil
	}
}

// groupBy groups runs by what one statement can take.
func groupBy[K comparable](set []*run, key func(*run) K) map[K][]*run {
	groups := map[K][]*run{}
	for _, r := range set {
		k := key(r)
		groups[k] = append(groups[k], r)
	}
	return groups
}
