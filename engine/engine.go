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

// Engine drives the orders of one database. Its methods are safe for concurrent use between Start and Stop.
type Engine struct {
	remote
	queues

	watches *watcher
	limiter *concurrencyLimiter
	hot     *hotItems

	lateUndos        *sideCalls
	chargeOperations *sideCalls
	overdue          atomic.Pointer[orders.Backlog] // the most overdue order of the last sweep

	notReady    rate.Sometimes // limits log lines
	badWebhooks rate.Sometimes // limits log lines about unverified webhooks, which any client can cause
	knownReads  chan struct{}  // a place for each read of an order while new ones are rejected
}

// queues hold waiting runs. Only this file adds to them, except that Engine.enter adds new orders to admits. hotItems
// and callPool have queues of their own.
type queues struct {
	admits     *queue               // new orders, for admission
	moves      map[fsm.State]*queue // orders at a step of the ledger
	preflights *queue               // orders that may have earlier calls
	begins     *queue               // calls to be committed before they are made
	results    *queue               // results to be committed
	waits      *queue               // orders to be put on hold
	leaves     *queue               // orders to be released
	unwritten  *queue               // fenced answers that could not be stored
	all        []*queue

	ways [destinations]func([]*run)
}

// makeQueues makes the queues with their handlers. Those whose statements don't wait for the disk take turns. (An admission
// with terms waits, in the turn of those without.)
func (e *Engine) makeQueues() {
	most := e.cfg.MaxBatch
	turn := batch.NewTurn()
	e.hot = &hotItems{remote: &e.remote, items: map[string]int{}}
	e.hot.queue = e.newQueue("hot", batch.Options{Most: min(most, answersMost), NoBacklog: true}, // waits for locks
		inGroups(e, hotKeyOf, e.tryHot))
	e.admits = e.newQueue("admit", batch.Options{Most: most, Pace: e.admissionPace, Turn: turn, Alone: e.admissionWaits}, e.then(e.admit))
	e.moves = map[fsm.State]*queue{}
	for _, state := range fsm.States() {
		if ledger.Moves[state] != nil {
			options := batch.Options{Most: most}
			if state == fsm.Charging || state == fsm.Reserving {
				options.Turn = turn
			}
			e.moves[state] = e.newQueue(string(state), options, inGroups(e, versionOf, e.moveInLedger))
		}
	}
	e.preflights = e.newQueue("preflight", batch.Options{Most: most}, e.then(e.preflightCalls))
	e.begins = e.newQueue("begin_call", batch.Options{Most: most, Pace: func() time.Duration { return callPace }}, inGroups(e, beginKeyOf, e.beginLooking))
	commit := inGroups(e, e.resultKey, e.commitResults)
	e.results = e.newQueue("call_result", batch.Options{Most: min(most, answersMost)},
		func(runs []*run) { commit(e.hot.divert(runs)) })
	e.waits = e.newQueue("hold", batch.Options{Most: most, NoBacklog: true}, inGroups(e, holdKeyOf, e.holdOrders))
	e.leaves = e.newQueue("release", batch.Options{Most: most, NoBacklog: true}, e.then(e.leave))
	e.unwritten = e.newQueue("fenced_answer", batch.Options{Most: most, NoBacklog: true}, e.then(e.keepUnwritten)) // one by one
	e.makeWays()
}

// makeWays maps each destination to its queue or handler. A handler without a queue blocks its caller, which mostly has
// to know the outcome before it continues.
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

// dispatch sends each run to the destination that its handler chose. Nothing else sends runs, so this and makeWays are
// the whole path of an order. It sorts the runs in place, and takes them over from the caller.
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

// lead is how many runs at the beginning have the property.
func lead(runs []*run, same func(*run) bool) int {
	if n := slices.IndexFunc(runs, func(r *run) bool { return !same(r) }); n >= 0 {
		return n
	}
	return len(runs)
}

// then dispatches the runs that a handler returns.
func (e *Engine) then(handle func([]*run) []*run) func([]*run) {
	return func(runs []*run) { e.dispatch(handle(runs)) }
}

// inGroups is then for a handler of runs that share a statement. Each group is dispatched before the next one is handled.
func inGroups[K comparable](e *Engine, key func(*run) K, handle func(K, []*run) []*run) func([]*run) {
	return func(runs []*run) {
		for key, group := range groupBy(runs, key) {
			e.dispatch(handle(key, group))
		}
	}
}

func addTo(q *queue) func([]*run) { return func(runs []*run) { q.Add(runs...) } }

// after sends runs on after a pause, which grows with every failed try: a database that rejects writes must not be
// hammered, and a locked row stays locked for a while.
func (e *Engine) after(next destination) func([]*run) {
	return func(runs []*run) {
		runs = slices.Clone(runs) // queues reuse their slices
		time.AfterFunc(pauseAfter(runs), func() { e.dispatch(goTo(next, runs...)) })
	}
}

// addToMoves adds runs to the queues of their states, except those whose stock row is locked.
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

// startCalls makes committed calls, each in its own goroutine. Calls that begin together often end together, and their
// results then share a statement.
func (e *Engine) startCalls(runs []*run) {
	results := batch.NewCohort(len(runs), e.dispatch)
	for _, r := range runs {
		pool := r.call.permitFrom
		e.wg.Go(func() {
			results.Add(e.makeCall(r))
			pool.releaseAndPump()
		})
	}
}

// end ends runs, and wakes everything that waits for that: callers, watchers, and orders that need a concurrency permit.
func (e *Engine) end(runs []*run) {
	claimed := e.finish(runs)
	e.limiter.askFor(runs)
	e.watches.nudge(runs)
	e.goOn("", claimed)
}

// goOn drives the orders whose rows now name us as the owner, on behalf of a request if it has an id, and returns their
// number. It wakes watchers, because a caller here may be waiting for one of them.
func (e *Engine) goOn(httpRequestID string, rows []orders.Order) int {
	runs, n := e.takeUp(httpRequestID, rows)
	e.dispatch(runs)
	if n > 0 {
		e.watches.wake.nudge()
	}
	return n
}

// route chooses the next destination of orders by their state: their end, or the statement of the ledger, unless
// something else comes first.
func (e *remote) route(runs []*run) []*run {
	var late []*run
	for _, r := range runs {
		switch {
		case r.status().Final():
			endRuns(nil, r)
		case !needsRouting(r):
			r.next = toMove
		default:
			if r.call != nil && !r.call.isCurrent(&r.order) {
				late = append(late, e.fence(r)...)
			}
			r.next = e.routeByPolicy(r)
		}
	}
	return append(runs, late...)
}

// needsRouting reports whether more than the state decides where an order goes.
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
	case stepFor(p, o, o.Status.Step()).Executor.Remote():
		return e.nextCall(r)
	case o.Status == fsm.Confirming && p.Reserve.Executor.Remote():
		return e.confirmInLedger(r)
	default:
		return toMove
	}
}

// resultAfter chooses the destination of a result whose order was written meanwhile. If that was by a callback, the
// callback beats any result of the call except done.
func resultAfter(r *run) destination {
	if r.preflight == nil && slices.Contains([]fsm.Outcome{suspends, fsm.Refused}, outcomeFor(r.call, &r.order)) {
		return toPreflight
	}
	return toResult
}

// overloaded reports whether work arrives faster than it is done: a queue moves, but its oldest run has waited for a
// quarter of the lease. A queue whose statement hangs is not a sign of load, and delays only its own orders. Orders of an
// item whose stock row is locked may take a quarter of the memory. in is nil if there is no request.
func (e *Engine) overloaded(in *Input) bool {
	most := e.cfg.MaxInFlight
	if e.runs.size.Load() >= int64(most) || e.runs.bytes.Load() >= maxMetadata || in != nil && e.hot.holds(in) > most/4 {
		return true
	}
	return slices.ContainsFunc(e.all, func(q *queue) bool { return q.Behind(e.cfg.Lease / 4) })
}

// maxMetadata bounds the metadata and lines of all orders in memory. While a batch is being sent, there are about six copies of it:
// bodies, arguments, the wire, and garbage.
const maxMetadata = 32 << 20

// newQueue makes a queue. The name is for metrics.
func (e *Engine) newQueue(name string, options batch.Options, flush func([]*run)) *queue {
	size := e.metrics.batchOrders.WithLabelValues(name)
	q := batch.New(options, func(runs []*run) {
		size.Observe(float64(len(runs)))
		flush(runs)
	})
	e.all = append(e.all, q)
	return q
}

// Lease is how long a lease lasts.
func (e *core) Lease() time.Duration { return e.cfg.Lease }

// InFlight is the number of orders in this replica's memory.
func (e *core) InFlight() int64 { return e.runs.size.Load() }

// LeasesHeld is the number of orders that this replica drives.
func (e *core) LeasesHeld() int64 { return e.runs.leases() }
