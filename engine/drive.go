package engine

import (
	"fmt"
	"slices"
	"time"

	"pawl/db"
	"pawl/fsm"
	"pawl/ledger"
)

// drive sends each run to the queue of its state, and those that need no move to their
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
	e.moves[state].Add(e.hot.divert(runs)...)
}

// moveOut takes orders out of a state in which the ledger does the step. Runs of one queue share
// the status; fence and seq differ rarely, and each group is a statement of its own. What waited for a stock row
// in vain goes to busy.
func (e *Engine) moveOut(state fsm.State, set []*run, busy func([]*run)) {
	for _, group := range groupBy(set, func(r *run) [2]int64 { return [2]int64{r.order.Order.Fence, int64(r.order.Order.Seq)} }) {
		e.move(state, mover{statement: ledger.Moves[state], moved: e.drive, busy: busy}, group)
	}
}

// mover is a move and what comes after it.
type mover struct {
	statement ledger.Move
	outcome   fsm.Outcome  // what the move is to the machine; empty: the statement finds out, by the row
	moved     func([]*run) // takes the orders that moved
	busy      func([]*run) // takes the set when a stock row stayed locked
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

// move moves runs of the same status, fence and seq.
func (e *Engine) move(state fsm.State, m mover, set []*run) {
	moved, lost, err := e.apply(&m, set)
	switch db.FaultOf(err) {
	case db.None:
		m.moved(moved)
		e.lose(lost)
	case db.Bad:
		e.split(set, func(half []*run) { e.move(state, m, half) }, func(r *run) { e.giveUp(r, err) })
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

// groupBy groups runs by what one statement can take. A group may be the set itself.
func groupBy[K comparable](set []*run, key func(*run) K) map[K][]*run {
	if len(set) == 0 {
		return nil
	}
	first := key(set[0])
	if !slices.ContainsFunc(set[1:], func(r *run) bool { return key(r) != first }) {
		return map[K][]*run{first: set} // nearly always
	}
	groups := map[K][]*run{}
	for _, r := range set {
		k := key(r)
		groups[k] = append(groups[k], r)
	}
	return groups
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

// finish tells the callers of runs that have ended. An order that took another way than
// straight forward is read first, so that what is shown is what is stored.
func (e *Engine) finish(err error, runs ...*run) {
	if err == nil {
		err = e.complete(runs)
	}
	removed, claimed := e.runs.remove(runs)
	for _, r := range removed {
		if err == nil {
			r.isKnown()
			e.turnOver(r)
		}
		r.end(err)
	}
	if err == nil {
		e.takeUp(claimed)
	}
}

// turnOver lets the next one of its key start when an order has ended.
func (e *Engine) turnOver(r *run) {
	if key := r.order.Order.ConcurrencyKey; key != nil && r.status().Final() {
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
		byNo[row.Order.OrderNo].order = row
	}
	return nil
}

// later sends runs back to their queue after a pause that grows with every try in vain.
func (e *Engine) later(runs []*run) {
	runs = slices.Clone(runs) // the queue uses its slice again
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
