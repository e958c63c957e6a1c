package engine

import (
	"context"
	"fmt"
	"slices"
	"time"

	"pawl/db"
	"pawl/fsm"
	"pawl/ledger"
)

// drive sends each run to the line of its state, and those that need no move to their
// end. It takes any mix of states; the runs are ours.
func (e *Engine) drive(runs []*run) {
	for len(runs) > 0 {
		state := runs[0].status()
		same := func(r *run) bool { return r.status() == state }
		n := slices.IndexFunc(runs, func(r *run) bool { return !same(r) })
		if n < 0 {
			n = len(runs)
		}
		e.send(state, runs[:n])
		runs = runs[n:]
	}
}

func (e *Engine) send(state fsm.State, runs []*run) {
	if state.Final() {
		e.finish(nil, runs...)
		return
	}
	if slices.ContainsFunc(runs, special) {
		runs = e.route(runs)
	}
	e.lines[state].add(e.slow.divert(runs)...)
}

// move is the flush of a line: it moves a set out of its state. Runs of one line share
// the status; fence and seq differ rarely, and each group is a statement of its own.
func (e *Engine) move(state fsm.State, move ledger.Move, set []*run) {
	e.moveOr(state, move, set, e.slow.add)
}

// moveOr gives what waited for a stock row in vain to busy.
func (e *Engine) moveOr(state fsm.State, move ledger.Move, set []*run, busy func([]*run)) {
	for _, group := range alike(set) {
		e.moveAlike(state, mover{move: move, moved: e.drive, busy: busy}, group)
	}
}

// mover is a move and what comes after it.
type mover struct {
	move    ledger.Move
	outcome fsm.Outcome  // what the move is to the machine; empty: the statement finds out, by the row
	moved   func([]*run) // takes the orders that moved
	busy    func([]*run) // takes the set when a stock row stayed locked
}

// leads reports whether the machine lets the move take an order from one state to the other.
func (m *mover) leads(from, to fsm.State) bool {
	switch m.outcome {
	case "":
		return fsm.Legal(from, to)
	case stays:
		return from == to
	default:
		return from.Leads(m.outcome, to)
	}
}

// moveAlike moves runs of the same status, fence and seq.
func (e *Engine) moveAlike(state fsm.State, m mover, set []*run) {
	ctx, cancel := e.statement()
	defer cancel()
	moved, lost, err := e.apply(ctx, &m, set)
	switch db.FaultOf(err) {
	case db.None:
		m.moved(moved)
		e.lose(lost)
	case db.Bad:
		e.split(set, func(half []*run) { e.moveAlike(state, m, half) }, func(r *run) { e.hold(r, err) })
	default:
		e.failed(fmt.Sprintf("move orders out of %s", state), err, set, m.busy)
	}
}

// failed goes on after a statement whose error is not the data's fault.
func (e *Engine) failed(doing string, err error, set []*run, busy func([]*run)) {
	if e.standsDown(doing, err, set) {
		return
	}
	switch db.FaultOf(err) {
	case db.Busy:
		busy(set)
	case db.Again:
		e.Stats.Retried.Add(1)
		e.later(set)
	default:
		e.unknown(doing, err)
		e.readBack(slices.Clone(set))
	}
}

// alike groups runs by fence and seq, in order of appearance.
func alike(set []*run) [][]*run {
	key := func(r *run) [2]int64 { return [2]int64{r.order.Fence, int64(r.order.Seq)} }
	first := key(set[0])
	if !slices.ContainsFunc(set, func(r *run) bool { return key(r) != first }) {
		return [][]*run{set} // nearly always
	}
	groups := map[[2]int64][]*run{}
	var out [][]*run
	for _, r := range set {
		groups[key(r)] = append(groups[key(r)], r)
	}
	for _, g := range groups {
		out = append(out, g)
	}
	return out
}

// split finds the culprit of a statement that its data made fail: each half is tried by
// itself, a single one is given up.
func (e *Engine) split(set []*run, try func([]*run), giveUp func(*run)) {
	if len(set) == 1 {
		giveUp(set[0])
		return
	}
	half := len(set) / 2
	try(set[:half:half])
	try(set[half:])
}

// hold takes an order out of the way that can't be moved: it waits for a person.
func (e *Engine) hold(r *run, why error) {
	ctx, cancel := e.statement()
	defer cancel()
	o := &r.order
	e.log.Error("order can't be moved", "order_id", o.OrderID, "status", o.Status, "error", why)
	_, err := e.query.OrdersHold(ctx, db.OrdersHoldParams{
		OrderNos: []int64{o.OrderNo}, Expected: o.Status, Fence: o.Fence, Seq: o.Seq,
		Hold: "attention", HoldReason: db.Describe(why),
	})
	if err != nil {
		e.log.Error("hold order", "order_id", o.OrderID, "error", err)
	} else {
		e.Stats.Held.Add(1)
	}
	e.readBack([]*run{r})
}

// finish tells the callers of runs that have ended. An order that took another way than
// straight forward is read first, so that what is shown is what is stored.
func (e *Engine) finish(err error, runs ...*run) {
	if err == nil {
		err = e.complete(runs)
	}
	removed := e.runs.remove(runs)
	for _, r := range removed {
		if err == nil {
			r.isKnown()
			e.turnOver(r)
		}
		r.end(err)
	}
	if rows := e.runs.rouse(removed); err == nil {
		e.takeUp(rows)
	}
}

// turnOver lets the next one of its key start when an order has ended.
func (e *Engine) turnOver(r *run) {
	if key := r.order.ConcurrencyKey; key != nil && r.status().Final() {
		e.turns.ask(*key)
	}
}

func (e *Engine) complete(runs []*run) error {
	var unread []*run
	for _, r := range runs {
		if !r.moved {
			unread = append(unread, r)
		}
	}
	if len(unread) == 0 {
		return nil
	}
	byNo := map[int64]*run{}
	for _, r := range unread {
		byNo[r.no()] = r
	}
	rows, err := e.readUntilKnown(numbersOf(unread), false)
	if e.standsDown("read orders", err, nil) {
		return errUnfit // they have ended, and what is shown of them can't be read
	}
	for _, row := range rows {
		byNo[row.OrderNo].order = row
	}
	return nil
}

// later sends runs back to their line after a pause that grows with every try in vain.
func (e *Engine) later(runs []*run) {
	runs = slices.Clone(runs) // the line uses its slice again
	time.AfterFunc(pauseAfter(runs), func() { e.drive(runs) })
}

// pauseAfter counts one more try in vain and says how long to wait: 2 ms to half a second.
func pauseAfter(runs []*run) time.Duration {
	tries := 0
	for _, r := range runs {
		r.lost++
		tries = max(tries, r.lost)
	}
	return min(time.Millisecond<<min(tries, 9), 500*time.Millisecond)
}

// statement is the context of one statement: a caller who hangs up must not cut off a
// compare-and-set, and no time limit can tell a statement that is lost from one that waits for a standby. db.Pool
// can, and gives up the former; so it ends with the engine only.
func (e *Engine) statement() (context.Context, context.CancelFunc) {
	return context.WithCancel(e.ctx)
}

// unfitPause is how long to leave the database alone after a statement of a verb or a turn
// that it can't run as it is made. Those of orders end otherwise: see standsDown.
const unfitPause = time.Second

func (e *Engine) unknown(doing string, err error) {
	e.Stats.UnknownOutcome.Add(1)
	if db.Stale(err) {
		e.pool.Reset()
	}
	if e.ctx.Err() == nil {
		e.log.Warn("outcome unknown, reading back", "statement", doing, "error", err)
	}
	if db.Unfit(err) {
		e.pause(unfitPause)
	}
}
