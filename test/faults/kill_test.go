package faults

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pawl/internal/simulator"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

// path is a way of an order whose steps are all remote, with the statements that take it there.
type path struct {
	name  string
	rules []simulator.Rule
	ends  string
	moves []string
	pivot int // the number of the statement after which the confirmation that will be refused is called for
}

// On the way forward a move and the call of the next step are one commit; on the way back each is its own.
var paths = []path{
	{"forward", nil, "completed", []string{"OrdersAdmitWithTerms", "RemoteCharged", "RemoteReserved", "RemoteConfirmed"}, 0},
	{"declined", []simulator.Rule{{Fault: simulator.Decline, Step: "charge"}}, "failed",
		[]string{"OrdersAdmitWithTerms", "RemoteRefused"}, 0},
	{"back", []simulator.Rule{{Fault: simulator.Decline, Step: "confirm"}}, "failed",
		[]string{"OrdersAdmitWithTerms", "RemoteCharged", "RemoteReserved", "RemoteRefused",
			"CallsBegin", "OrdersRelease", "CallsBegin", "OrdersRefund"}, 3},
	{"again", []simulator.Rule{{Fault: simulator.NotDone, Step: "charge", Times: 1}}, "completed",
		[]string{"OrdersAdmitWithTerms", "CallsSuspend"}, 0}, // then any replica may take it
	{"later", []simulator.Rule{{Fault: simulator.Async, Step: "reserve", Delay: 100 * time.Millisecond}}, "completed",
		[]string{"OrdersAdmitWithTerms", "RemoteCharged", "CallsSuspend"}, 0},
}

// calls are the moments in a call at which its process ends: when the provider has the request and its effect is still to
// come, and when it has happened and the answer is lost.
var calls = []struct {
	fault   simulator.Rule
	outcome []string // in the provider's log, when the process is to end
}{
	{simulator.Rule{Fault: simulator.Slow, Delay: overlong, Times: 1}, []string{"", "running"}},
	{simulator.Rule{Fault: simulator.TimeoutBefore, Times: 1}, []string{"", "none"}},
	{simulator.Rule{Fault: simulator.TimeoutAfter, Times: 1}, []string{"done", "refunded", "released", "voided", "created"}},
}

// doomed is an order whose process ends at one moment.
type doomed struct {
	id    string
	rules []simulator.Rule
	ends  string

	statement int // the number of the statement it ends at, from 1 on; 0: it ends in a call
	after     bool
	moves     []string
	pivot     bool // it is about whether the confirmation was called for that will be refused

	step, operation string
	outcome         []string
}

func allDoomed(executor string) (all []doomed) {
	looks := executor != blind
	for _, p := range paths {
		for n, statement := range p.moves {
			for _, when := range []string{"before", "after"} {
				d := doomed{id: fmt.Sprintf("%s-%s-%d-%s-", p.name, when, n, statement), ends: p.ends, statement: n + 1, after: when == "after", moves: p.moves[:n+1]}
				d.pivot = p.pivot > 0 && (d.after && d.statement == p.pivot || !d.after && d.statement == p.pivot+1)
				if d.pivot && !looks {
					d.ends = "held: refused_in_doubt" // the first call may still arrive
				}
				d.add(p.rules...)
				all = append(all, d)
			}
		}
	}
	for _, call := range calls {
		for _, step := range []string{"charge", "reserve", "confirm"} {
			d := doomed{id: fmt.Sprintf("in-%s-%s-", step, call.fault.Fault), ends: "completed", step: step, operation: "do", outcome: call.outcome}
			rule := call.fault
			rule.Step = step
			d.add(rule)
			all = append(all, d)
		}
		if executor == stripeNow || executor == stripeLater {
			d := doomed{id: fmt.Sprintf("in-create-%s-", call.fault.Fault), ends: "completed", step: "charge", operation: "create", outcome: call.outcome}
			rule := call.fault
			rule.Step, rule.Operation = "charge", "create"
			d.add(rule)
			all = append(all, d)
		}
		for _, step := range []string{"charge", "reserve"} {
			d := doomed{id: fmt.Sprintf("in-%s-undo-%s-", step, call.fault.Fault), ends: "failed", step: step, operation: "undo", outcome: call.outcome}
			rule := call.fault
			rule.Step, rule.Operation = step, "undo"
			refuses := "confirm"
			if executor == stripeLater && step == "charge" { // a capture is refused when there is nothing left to be undone
				refuses = "reserve"
			}
			d.add(rule, simulator.Rule{Fault: simulator.Decline, Step: refuses})
			all = append(all, d)
		}
	}
	return all
}

func (d *doomed) add(rules ...simulator.Rule) {
	for _, rule := range rules {
		rule.OrderPrefix = d.id
		d.rules = append(d.rules, rule)
	}
}

// TestMatrixOfKills ends a process before and after every commit of an order, and in every call of it. Only the other
// replicas, or one that is started afterwards, finish the order.
func TestMatrixOfKills(t *testing.T) {
	build(t)
	t.Parallel()
	for name, c := range map[string]struct {
		executor string
		others   int
	}{
		"a lone replica, and one that comes after it": {blind, 0},
		"one of several": {looking, several() - 1},
		"a lone replica that captures, and one that comes after": {stripeLater, 0},
		"one of several that take the money at once":             {stripeNow, several() - 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			matrixOfKills(t, c.executor, c.others)
		})
	}
}

func matrixOfKills(t *testing.T, executor string, others int) {
	t.Helper()
	s := openShop(t, executor, 20*time.Second) // a call lasts until its process has ended, and its order is not taken over before
	var rules []simulator.Rule
	all := allDoomed(executor)
	if !repeated() {
		all = half(usual(all, executor), others == 0)
	}
	for _, d := range all {
		rules = append(rules, d.rules...)
	}
	s.faults(rules...)
	if others > 0 {
		s.open(others)
	}
	processes := victims(all)
	each(len(processes), 4, func(i int) { s.doom(processes[i]) })
	if others == 0 {
		s.open(1)
	}
	took := s.settle(3 * patience)
	orders := s.outcomes()
	for _, d := range all {
		o, stored := orders[d.id]
		if never := d.statement == 1 && !d.after; stored == never || stored && (cell{ends: d.ends}).wrong(o) {
			t.Errorf("%s: ended %s, want %s\n%s", d.id, o, d.ends, s.trace(d.id))
		}
	}
	s.prove()
	s.proveTaken(all)
	taken := takeOvers(t, s.database.URL)
	t.Logf("%d moments, %d processes killed; %d take-overs; all ended after %s; %+v", len(all), len(processes), taken, took, s.provider.Summary())
	assert.True(t, taken >= int64(len(all))/2, "the fault did not bite")
}

// proveTaken fails the test unless each order whose process ended in its call was taken over. Otherwise its call had ended.
func (s *shop) proveTaken(all []doomed) {
	s.t.Helper()
	taken := query[string](s.t, s.database.URL, `SELECT DISTINCT t.order_id FROM books.transitions AS t WHERE t.verb = 'take_over'`)
	for _, d := range all {
		if d.statement == 0 && !slices.Contains(taken, d.id) {
			s.t.Errorf("%s: its process did not end in its call\n%s", d.id, s.trace(d.id))
		}
	}
}

// usual are the moments that an executor comes to in a usual run: those between statements are the same at Stripe, and
// what two paths have in common comes once.
func usual(all []doomed, executor string) []doomed {
	if executor == stripeNow || executor == stripeLater {
		return slices.DeleteFunc(all, func(d doomed) bool { return d.step == "" })
	}
	seen := map[string]bool{}
	return slices.DeleteFunc(all, func(d doomed) bool {
		moment := fmt.Sprint(d.moves, d.after, d.pivot)
		again := d.statement > 0 && seen[moment]
		seen[moment] = true
		return again
	})
}

// half is every other pair of moments, or the others: together the two tests of a matrix come to every moment once. The
// first half has those of a refused confirmation that is in doubt, which only an executor has that can't look up keys.
func half(all []doomed, first bool) (some []doomed) {
	for i, d := range all {
		if (d.pivot || (i+1)/2%2 == 1) == first {
			some = append(some, d)
		}
	}
	return some
}

// victims are the processes that end, each with its orders: one that ends at a statement has one order, and one that ends in
// calls has all those whose calls go wrong in one way. A slow call ends by itself: its process does not wait for others.
func victims(all []doomed) (processes [][]doomed) {
	inCalls := map[simulator.Fault][]doomed{}
	for _, d := range all {
		if d.statement > 0 || d.rules[0].Fault == simulator.Slow {
			processes = append(processes, []doomed{d})
			continue
		}
		fault := d.rules[0].Fault
		inCalls[fault] = append(inCalls[fault], d)
	}
	return slices.AppendSeq(processes, maps.Values(inCalls))
}

// doom starts a process that takes over no orders, sends it orders, and ends it at its moment: the statement of the one
// order, or when all of them are in their calls.
func (s *shop) doom(orders []doomed) {
	s.t.Helper()
	d := &orders[0]
	p := dbtest.NewProxy(s.t, s.database.URL)
	r := startReplicas(s.t, 1, p.URL, append(slices.Clone(hasty), "--policy", s.policy, "--public-url", s.public)...)
	victim := r.all[0]
	var mu sync.Mutex
	var executed []string
	p.OnLost(victim.kill)
	p.On(func(statement string) dbtest.Fate {
		if statement == "LeasesDue" || statement == "LateUndosClaim" { // what others left behind is not for it
			<-victim.exited
		}
		if !strings.HasPrefix(statement, "Remote") && !slices.Contains([]string{"OrdersAdmitWithTerms", "OrdersRelease", "OrdersRefund", "CallsBegin", "CallsSuspend"}, statement) {
			return dbtest.Passes
		}
		mu.Lock()
		defer mu.Unlock()
		if len(executed) > 0 && executed[len(executed)-1] == statement {
			return dbtest.Passes // on a machine that stood still it was taken for lost: no move comes twice in a row
		}
		executed = append(executed, statement)
		switch {
		case len(executed) != d.statement:
			return dbtest.Passes
		case d.after:
			return dbtest.LoseReply
		}
		return dbtest.LoseRequest
	})
	c := newClient(1, false)
	defer c.close()
	for _, o := range orders {
		go s.place(c, r.addresses()[0], o.id, func() bool {
			mu.Lock()
			defer mu.Unlock()
			return len(executed) == 0 && victim.running()
		})
	}
	if d.statement == 0 {
		for i := range orders {
			s.await(&orders[i])
		}
		victim.kill()
	}
	select {
	case <-victim.exited:
	case <-time.After(patience):
		victim.kill()
	}
	mu.Lock()
	defer mu.Unlock()
	assert.True(s.t, d.statement <= 0 || slices.Equal(executed, d.moves), d.id, "executed", executed, "want", d.moves)
}

// place sends an order, and once more where a machine that stood still has refused it. The answer does not matter.
func (s *shop) place(c *client, url, id string, again func() bool) {
	for refused := true; refused; refused = refused && again() {
		a := c.process(context.WithoutCancel(s.t.Context()), url, order{id: id, amount: "12.50", item: "boat", card: visa}, "wait=60")
		refused = a.code == http.StatusServiceUnavailable || a.code == http.StatusTooManyRequests
	}
}

// requests are what an operation is called in the provider's log. Those of Stripe's API have names of their own.
var requests = map[string][]string{"do": {"do", "confirm", "capture"}, "undo": {"undo", "refund", "cancel"}, "create": {"create"}}

// await waits until the provider is where the process is to end.
func (s *shop) await(d *doomed) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	_, err := s.provider.Await(ctx, func(r simulator.Request) bool {
		return r.OrderID == d.id && r.Step == d.step && slices.Contains(requests[d.operation], r.Operation) && slices.Contains(d.outcome, r.Outcome)
	})
	assert.Succeeds(s.t, err, d.id, "the provider was not called")
}
