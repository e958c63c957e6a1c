package engine

import (
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"pawl/engine/batch"
	"pawl/engine/ledger"
	"pawl/fsm"
	"pawl/internal/orders"
)

// Engine drives orders against one database. Its methods are safe for concurrent use
// between Start and Stop.
type Engine struct {
	remote
	queues

	watches *watcher
	limiter *concurrencyLimiter
	hot     *hotItems

	lateUndos *sideCalls
	refunds   *sideCalls
	overdue   atomic.Pointer[orders.Backlog] // the most overdue order when this replica last looked at all

	notReady    rate.Sometimes // log lines that say why
	badWebhooks rate.Sometimes // log lines of webhooks that can't be verified, which anyone can send
	knownReads  chan struct{}  // a place for each read of an order while new ones are turned away
}

// queues are where runs wait. Only this file adds to them, but for a new order, which waits to be admitted.
type queues struct {
	admits     *queue               // new orders
	moves      map[fsm.State]*queue // orders whose step the ledger does
	preflights *queue               // orders that may have been called for before
	begins     *queue               // calls to be committed before they are made
	results    *queue               // results to be committed
	waits      *queue               // orders to be held before their start, paused, or because they can't be moved
	leaves     *queue               // orders to be released
	unwritten  *queue               // fenced answers that could not be written
	all        []*queue
	turns      *batch.Turns // of the ledger's statements

	ways [destinations]func([]*run)
}

// makeQueues says what waits where, and which handler takes it from there. Queues of the ledger take turns in the order
// of an order's way.
func (e *Engine) makeQueues() {
	most := e.cfg.MaxBatch
	remote := func() time.Duration { return remotePace }
	e.turns = batch.NewTurns()
	e.hot = &hotItems{remote: &e.remote, items: map[string]int{}}
	e.hot.queue = e.newQueue("hot", batch.Options{Most: min(most, answersMost), NoBacklog: true}, inGroups(e, hotKeyOf, e.tryHot)) // waits for locks
	e.admits = e.newQueue("admit", batch.Options{Most: most, Pace: e.admissionPace, Turns: e.turns}, e.then(e.admit))
	e.moves = map[fsm.State]*queue{}
	for _, state := range fsm.States() {
		if ledger.Moves[state] != nil {
			e.moves[state] = e.newQueue(string(state), batch.Options{Most: most, Turns: e.turns}, inGroups(e, versionOf, e.moveInLedger))
		}
	}
	e.preflights = e.newQueue("preflight", batch.Options{Most: most}, e.then(e.preflightCalls))
	e.begins = e.newQueue("begin_call", batch.Options{Most: most, Pace: remote}, inGroups(e, beginKeyOf, e.beginCalls))
	commit := inGroups(e, e.resultKey, e.commitResults)
	e.results = e.newQueue("call_result", batch.Options{Most: min(most, answersMost), Pace: remote},
		func(runs []*run) { commit(e.hot.divert(runs)) })
	e.waits = e.newQueue("hold", batch.Options{Most: most, NoBacklog: true}, inGroups(e, holdKeyOf, e.holdOrders))
	e.leaves = e.newQueue("release", batch.Options{Most: most, NoBacklog: true}, e.then(e.leave))
	e.unwritten = e.newQueue("fenced_answer", batch.Options{Most: most, NoBacklog: true}, e.then(e.keepUnwritten)) // one by one
	e.makeWays()
}

// makeWays says where each destination is. A handler without a queue blocks its caller: mostly it has to know how the
// orders stand before it may go on.
func (e *Engine) makeWays() {
	e.ways = [destinations]func([]*run){
		toHandBack:  func([]*run) {},
		toFenced:    e.then(e.keepAllFenced),
		toUnwritten: addTo(e.unwritten),
		toStep:      e.then(e.route),
		toAdmit:     addTo(e.admits),
		toMove:      e.addToMoves,
		toPreflight: addTo(e.preflights),
		toPermit:    e.then(e.waitForPermit),
		toBegin:     addTo(e.begins),
		toCall:      e.startCalls,
		toResult:    addTo(e.results),
		toHold:      addTo(e.waits),
		toApproval:  e.then(e.endApproval),
		toReadBack:  e.then(e.readBack),
		toKeyCheck:  e.then(e.checkKeys),
		toHot:       e.then(e.hot.add),
		toRetry:     e.after(toStep),
		toReadmit:   e.after(toAdmit),
		toWatch:     e.then(e.watches.watch),
		toRelease:   addTo(e.leaves),
		toGiveBack:  e.then(e.giveBack),
		toEnd:       e.end,
	}
}

// dispatch sends each run where the handler that had it said. Nothing else sends runs, so this and makeWays are the way
// of an order. The runs are sorted in place, and no longer the caller's.
func (e *Engine) dispatch(runs []*run) {
	if slices.ContainsFunc(runs, func(r *run) bool { return r.next != runs[0].next }) {
		slices.SortStableFunc(runs, func(a, b *run) int { return int(a.next) - int(b.next) })
	}
	for len(runs) > 0 {
		next := runs[0].next
		n := lead(runs, func(r *run) bool { return r.next == next })
		e.ways[next](runs[:n:n])
		runs = runs[n:]
	}
}

// lead is how many runs at the beginning are the same.
func lead(runs []*run, same func(*run) bool) int {
	if n := slices.IndexFunc(runs, func(r *run) bool { return !same(r) }); n >= 0 {
		return n
	}
	return len(runs)
}

// then dispatches what a handler returns.
func (e *Engine) then(handle func([]*run) []*run) func([]*run) {
	return func(runs []*run) { e.dispatch(handle(runs)) }
}

// inGroups is then for a handler that takes what one statement can take. Each group goes on before the next.
func inGroups[K comparable](e *Engine, key func(*run) K, handle func(K, []*run) []*run) func([]*run) {
	return func(runs []*run) {
		for key, group := range groupBy(runs, key) {
			e.dispatch(handle(key, group))
		}
	}
}

func addTo(q *queue) func([]*run) { return func(runs []*run) { q.Add(runs...) } }

// after sends runs on after a pause that grows with every try in vain: a database that reads and refuses to write must
// not be hammered, and a locked row stays locked for a while.
func (e *Engine) after(next destination) func([]*run) {
	return func(runs []*run) {
		runs = slices.Clone(runs) // a queue uses its slice again
		time.AfterFunc(pauseAfter(runs), func() { e.dispatch(goTo(next, runs...)) })
	}
}

// addToMoves adds runs to the queues of their states, but those whose stock row is locked.
func (e *Engine) addToMoves(runs []*run) {
	for len(runs) > 0 {
		state := runs[0].status()
		n := lead(runs, func(r *run) bool { return r.status() == state })
		e.moves[state].Add(e.hot.divert(runs[:n:n])...)
		runs = runs[n:]
	}
}

// tryHot tries orders of one item and state whose stock row was locked.
func (e *Engine) tryHot(key hotKey, runs []*run) []*run {
	results, others := divide(runs, (*run).hasResult)
	for key, group := range groupBy(results, e.resultKey) {
		e.commitResults(key, group)
	}
	for at, group := range groupBy(others, versionOf) {
		e.moveInLedger(at, group)
	}
	return e.hot.tried(key.item, runs)
}

// startCalls makes calls that are committed, each by itself.
func (e *Engine) startCalls(runs []*run) {
	for _, r := range runs {
		permit := r.call.permit
		e.wg.Go(func() {
			e.results.Add(e.makeCall(r))
			permit.free()
		})
	}
}

// end ends runs, and tells all who wait for that: callers, those who watch, and orders that wait for a concurrency
// permit.
func (e *Engine) end(runs []*run) {
	claimed := e.finish(runs)
	e.limiter.askFor(runs)
	e.watches.nudge(runs)
	e.goOn("", claimed)
}

// goOn drives those of the orders whose rows say that they are ours now, on behalf of a request if it has an id, and
// returns how many there are. A caller of ours may have waited for another replica to drive one of them.
func (e *Engine) goOn(httpRequestID string, rows []orders.Order) int {
	runs, n := e.takeUp(httpRequestID, rows)
	e.dispatch(runs)
	if n > 0 {
		e.watches.wake.nudge()
	}
	return n
}

// route says where orders that we drive go, by their state: to their end, or to the statement of the ledger, unless
// something else comes first.
func (e *remote) route(runs []*run) []*run {
	var late []*run
	for _, r := range runs {
		switch {
		case r.status().Final():
			end(nil, r)
		case !needsRouting(r):
			r.next = toMove
		default:
			if r.call != nil && !r.call.stands(&r.order) {
				late = append(late, e.fence(r)...)
			}
			r.next = e.routeByPolicy(r)
		}
	}
	return append(runs, late...)
}

// needsRouting reports whether more than its state decides where an order goes.
func needsRouting(r *run) bool {
	o := &r.order
	return o.Policy != nil || o.Status == fsm.Pending || orders.Pausing(o)
}

func (e *remote) routeByPolicy(r *run) destination {
	o := &r.order
	p, known := e.policies.byVersion(o.Policy)
	switch {
	case r.hasResult():
		return resultAfter(r)
	case orders.Pausing(o):
		r.hold = &hold{code: fsm.HoldPaused}
		return toHold
	case !known:
		return toRelease
	case o.Status == fsm.Pending:
		return e.gate(r, p)
	case p == nil:
		return toMove
	case p.Step(o.Status.Step()).Executor.Remote():
		return e.nextCall(r)
	case o.Status == fsm.Confirming && p.Reserve.Executor.Remote():
		return e.confirmInLedger(r)
	default:
		return toMove
	}
}

// resultAfter has a result committed after all, although the order was written to meanwhile. If that was a callback, it
// beats any result of the call except done.
func resultAfter(r *run) destination {
	if r.preflight == nil && slices.Contains([]fsm.Outcome{suspends, fsm.Refused}, outcomeFor(r.call, &r.order)) {
		return toPreflight
	}
	return toResult
}

// overloaded reports that there is more work than gets done: a queue moves, and what waits in it has waited for a
// quarter of the lease all the same. A queue whose statement hangs says nothing about the load, and
// holds up its own orders only. The orders of an item whose stock row is locked may take a quarter of the memory.
func (e *Engine) overloaded(item string) bool {
	if e.runs.size.Load() >= int64(e.cfg.MaxInFlight) || e.runs.bytes.Load() >= maxMetadata || e.hot.holds(item) > e.cfg.MaxInFlight/4 {
		return true
	}
	return slices.ContainsFunc(e.all, func(q *queue) bool { return q.Behind(e.cfg.Lease / 4) })
}

// maxMetadata is how much metadata the orders in memory have together. While a batch is on
// its way there are some six copies of it: bodies, arguments, wire, what is yet to be
// collected.
const maxMetadata = 32 << 20

// BatchesAtOnce is how many statements of the ledger may be under way at the same time now. See batch.Turns.
func (e *Engine) BatchesAtOnce() int64 { return int64(e.turns.AtOnce()) }

// newQueue makes a queue; its name is that in the metrics.
func (e *Engine) newQueue(name string, options batch.Options, flush func([]*run)) *queue {
	size := e.metrics.batchOrders.WithLabelValues(name)
	q := batch.New(options, func(runs []*run) {
		size.Observe(float64(len(runs)))
		flush(runs)
	})
	e.all = append(e.all, q)
	return q
}

// InFlight is the number of orders in this replica's memory.
func (e *core) InFlight() int64 { return e.runs.size.Load() }

// LeasesHeld is the number of orders that this replica drives.
func (e *core) LeasesHeld() int64 { return e.runs.leases() }
