package engine_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/govalues/decimal"

	"pawl/engine"
	"pawl/fsm"
	"pawl/internal/books"
	"pawl/internal/orders"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

// stuck opens a shop whose order is held for a person, because of what goes wrong at the simulator.
func stuck(rules ...string) func(*testing.T) *shop {
	return func(t *testing.T) *shop {
		t.Helper()
		s := with(impatient)(t)
		s.faults(t, rules...)
		s.sticks(t, "order")
		return s
	}
}

// sticks has an order held for a person.
func (s *shop) sticks(t testing.TB, orderID string) {
	t.Helper()
	o := s.process(t, request(orderID))
	assert.Require(t, text(o.Hold) == "attention", brief(o))
}

// ends checks that a verb brings the order to its end, and that the simulator has what it says, and nothing else.
func ends(q engine.Request, want fsm.State) act {
	return func(t *testing.T, s *shop) { t.Helper(); s.ends(t, s.do(t, q), want) }
}

// verified proves the books, over all generations.
func (b *bundle) verified(t testing.TB) {
	t.Helper()
	b.settled(t)
	report, err := books.Verify(t.Context(), b.Pool, books.Options{})
	assert.NoError(t, err)
	for _, check := range report.Checks {
		assert.True(t, check.Violations == 0, check.Name, check)
	}
}

func TestConfirmInDoubt(t *testing.T) {
	t.Parallel()
	s := stuck("error@confirm")(t)
	s.refused(t, asked(orders.Cancel), orders.RefusedConfirmInDoubt)
	o := s.get(t, "order")
	assert.Equal(t, orders.AllowedActions(&o), []string{"retry", "step-result"})
	s.faults(t)
	s.ends(t, s.do(t, asked(orders.Retry)), fsm.Completed)
}

func TestRequestIDs(t *testing.T) {
	t.Parallel()
	b := setupWith(t, byCallers)
	b.hold(t, fsm.Reserving, "order")
	q := asked(orders.Resume)
	q.RequestID = "r"
	b.do(t, q)
	q.Verb = orders.Cancel
	b.writesNothing(t, func() {
		assert.ErrorIs(t, assert.Err(b.engine.Do(t.Context(), q)), orders.ErrKeyReused)
	})
}

// A verb whose answer is lost was done or not, and the caller is told which.
func TestVerbsWithoutTheirAnswer(t *testing.T) {
	t.Parallel()
	for _, f := range []fate{loseRequest, loseReply, loseClient} {
		t.Run(fmt.Sprint(f), func(t *testing.T) {
			t.Parallel()
			b, p := setupBehind(t, byCallers)
			b.hold(t, fsm.Reserving, "order")
			p.cut(3, 3, f) // after the read of the order
			order, err := b.engine.Do(t.Context(), asked(orders.Resume))
			p.On(nil)
			for errors.Is(err, orders.ErrUnavailable) {
				order, err = b.engine.Do(t.Context(), asked(orders.Resume))
				var done *orders.NotApplicable
				if errors.As(err, &done) {
					order, err = deref(b.engine.Process(t.Context(), request("order")))
				}
			}
			assert.True(t, err == nil && order.Status == fsm.Completed, err, order.Status)
			b.verified(t)
		})
	}
}

// Callers whose verb waits for a locked row give its connection back soon: others are
// served.
func TestVerbsOnLockedRows(t *testing.T) {
	t.Parallel()
	b := setup(t)
	newGhost(b.Pool).admit(t, time.Minute, "locked")
	b.setStock(t, "shelf", 5)
	b.lock(t, `SELECT 1 FROM orders, inventory FOR UPDATE`)
	var callers sync.WaitGroup
	for range 20 {
		callers.Go(func() {
			_, err := b.engine.Do(t.Context(), engine.Request{Verb: orders.Cancel, OrderID: "locked"})
			assert.ErrorIs(t, err, orders.ErrUnavailable, "cancel of a locked order")
		})
		callers.Go(func() {
			assert.ErrorIs(t, assert.Err(setStock(t.Context(), b.engine, "shelf", 6)), orders.ErrUnavailable, "stock of a locked item")
		})
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience) // the locks are there until the callers have left
	defer cancel()
	o, err := deref(b.engine.Process(ctx, request("free")))
	assert.True(t, err == nil && o.Status == fsm.Completed, "another order meanwhile", err, o.Status)
	callers.Wait()
}

// combination is one way an order's row can be.
type combination struct {
	status         fsm.State
	hold, stop     string
	doubted, tried bool
}

// combinations are those that the database takes.
func combinations() (all []combination) {
	for _, status := range fsm.States() {
		for _, stop := range []string{"", "cancel", "pause", "deadline"} {
			if status.Final() {
				all = append(all, combination{status: status, stop: stop})
				continue
			}
			for _, hold := range []string{"", "retry", "callback", "scheduled", "queued", "approval", "paused", "attention"} {
				all = append(all, combination{status, hold, stop, false, false}, combination{status, hold, stop, false, true},
					combination{status, hold, stop, true, true})
			}
		}
	}
	return all
}

// combined stores every combination once for every verb.
const combined = `WITH stored AS (
	INSERT INTO orders (order_id, status, hold, stop_requested, in_doubt_since, calls, retries, fence, seq, owner, due_at, ended_as, finished_at,
		outcome, failure_step, failure_code, currency, item, amount)
	SELECT order_id, status, nullif(hold, ''), nullif(stop, ''), CASE WHEN doubted THEN now() END, CASE WHEN tried THEN 1 END,
		CASE WHEN tried THEN 1 END, 1, 1, CASE WHEN ended IS NULL AND hold = '' THEN gen_random_uuid() END,
		CASE WHEN ended IS NULL AND hold = '' THEN now() + interval '1 hour' END, ended, CASE WHEN ended IS NOT NULL THEN now() END,
		nullif(ended, 'completed'), CASE WHEN ended = 'failed' THEN 'charge' END, CASE WHEN ended = 'failed' THEN 'declined' END, 'USD', 'widget', 1
	FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::boolean[], $6::boolean[]) AS x(order_id, status, hold, stop, doubted, tried),
	LATERAL (SELECT CASE WHEN status IN ('completed', 'failed', 'canceled') THEN status END) AS e(ended)
	RETURNING order_no, order_id, status
	), authorized AS (
		INSERT INTO charges (order_no, generation, currency, amount, executor, capture)
		SELECT order_no, 0, 'USD', 1, 'simulator', 'later' FROM stored WHERE status = 'completed' AND order_id ~ ': (capture|void)$')
	INSERT INTO transitions (order_no, seq, to_status, fence) SELECT order_no, 1, status, 1 FROM stored`

func (b *bundle) combine(t testing.TB) (orderIDs []string) {
	t.Helper()
	var statuses, holds, stops []string
	var doubts, calls []bool
	for _, c := range combinations() {
		for _, verb := range orders.Verbs {
			orderIDs = append(orderIDs, fmt.Sprintf("%s, held %q, stop %q, in doubt %t, tried %t: %s", c.status, c.hold, c.stop, c.doubted, c.tried, verb))
			statuses, holds, stops = append(statuses, string(c.status)), append(holds, c.hold), append(stops, c.stop)
			doubts, calls = append(doubts, c.doubted), append(calls, c.tried)
		}
	}
	b.exec(t, "ALTER TABLE orders DISABLE TRIGGER orders_guard_insert")
	b.exec(t, combined, orderIDs, statuses, holds, stops, doubts, calls)
	return orderIDs
}

// byVersion is a request for a verb that lacks nothing.
func of(verb orders.Verb, orderID string, at fsm.State) engine.Request {
	q := engine.Request{Verb: verb, OrderID: orderID, Actor: "ann", Reason: "a test", Async: true}
	if verb == orders.StepResult {
		q.Settle = &engine.Settled{Step: stepIn(at), Outcome: engine.SettledDone}
	}
	if slices.Contains([]orders.Verb{orders.Refund, orders.Capture, orders.Void}, verb) {
		q.ChargeOperation, q.RequestID = &engine.ChargeOperation{}, "a request"
	}
	return q
}

func stepIn(s fsm.State) fsm.Step {
	switch s {
	case fsm.Reserving, fsm.Releasing:
		return fsm.Reserve
	case fsm.Confirming:
		return fsm.Confirm
	default:
		return fsm.Charge
	}
}

// verdict is what came of a verb.
type verdict struct {
	before, answer, after orders.Order
	err                   error
	said                  string // by the history, last: who asked for what, and why
}

// The engine is not started: what is written stays as it was written.
func TestVerbsApplyWhereTheyAreListed(t *testing.T) {
	t.Parallel()
	dbtest.SkipIfShort(t)
	database := dbtest.New(t)
	b := &bundle{Database: database, engine: engine.New(openPool(t, database.URL), engine.Config{})}
	listed := map[orders.Verb]bool{}
	for id, v := range b.verdicts(t, b.combine(t)) {
		verb := orders.Verb(id[strings.LastIndex(id, " ")+1:])
		listed[verb] = v.appliesWhereListed(t, verb) || listed[verb]
	}
	for _, verb := range orders.Verbs {
		assert.True(t, listed[verb], verb, "applies to nothing")
	}
}

// verdicts asks for the verb that each order is there for. What is stored is read once for all: there are thousands.
func (b *bundle) verdicts(t *testing.T, ids []string) map[string]*verdict {
	t.Helper()
	all, g := make([]verdict, len(ids)), newGhost(b.Pool)
	for n, order := range g.stored(t, ids...) {
		all[n].before = order
	}
	var people sync.WaitGroup
	for i, verb := range orders.Verbs { // one person for each, at the same time
		people.Go(func() {
			for n := i; n < len(ids); n += len(orders.Verbs) {
				all[n].answer, all[n].err = b.asksTwice(t, of(verb, ids[n], all[n].before.Status))
			}
		})
	}
	people.Wait()
	said, of := b.said(t), map[string]*verdict{}
	for n, order := range g.stored(t, ids...) {
		all[n].after, all[n].said, of[ids[n]] = order, said[ids[n]], &all[n]
	}
	return of
}

// appliesWhereListed checks that a verb is done where the order lists it, and refused elsewhere, and reports which.
func (v *verdict) appliesWhereListed(t *testing.T, verb orders.Verb) (applies bool) {
	t.Helper()
	id, seq := v.before.OrderID, v.after.Seq
	assert.True(t, v.err != nil || v.answer.Seq == seq, id, "answered with seq", v.answer.Seq, "and", seq, "is stored")
	applies = slices.Contains(orders.AllowedActions(&v.before), string(verb))
	if verb == orders.Cancel && !applies && v.err == nil && text(v.before.StopRequested) == "cancel" && seq == v.before.Seq {
		return false // it waits with the one under way
	}
	assert.True(t, applies == (v.err == nil) && applies == (seq == v.before.Seq+1),
		id, "listed", applies, "answered", v.err, "seq", v.before.Seq, "to", seq)
	assert.True(t, !applies || v.said == string(verb)+" ann a test", id, "the history says", v.said)
	return applies
}

// heard checks that the history says who asked for what, last.
func (b *bundle) heard(t testing.TB, orderID string, verb orders.Verb) {
	t.Helper()
	assert.Equal(t, b.said(t)[orderID], string(verb)+" ann a test", orderID, "the history says")
}

// asksTwice asks for a verb, first as a dry run. Both must be refused, or neither.
func (b *bundle) asksTwice(t *testing.T, q engine.Request) (orders.Order, error) {
	t.Helper()
	q.DryRun = true
	_, dry := b.engine.Do(t.Context(), q)
	q.DryRun = false
	after, err := b.engine.Do(t.Context(), q)
	var refusal *orders.NotApplicable
	assert.True(t, (err == nil || errors.As(err, &refusal)) && (dry == nil) == (err == nil), q.OrderID, err, "as a dry run", dry)
	return after, err
}

// said is what the history says last of each order: who asked for what, and why.
func (b *bundle) said(t testing.TB) map[string]string {
	t.Helper()
	of := map[string]string{}
	for _, line := range column[[]string](t, b.Pool, `SELECT DISTINCT ON (order_id) ARRAY[order_id, concat_ws(' ', verb, actor, reason)]
		FROM books.transitions ORDER BY order_id, seq DESC`) {
		of[line[0]] = line[1]
	}
	return of
}

func (b *bundle) do(t testing.TB, q engine.Request) orders.Order {
	t.Helper()
	order, err := b.engine.Do(t.Context(), q)
	assert.NoError(t, err, q.Verb, q.OrderID)
	return order
}

// refused checks that a verb is refused for a reason, and that nothing is written.
func (b *bundle) refused(t testing.TB, q engine.Request, code string) {
	t.Helper()
	for _, dry := range []bool{true, false} {
		q.DryRun = dry
		b.writesNothing(t, func() {
			_, err := b.engine.Do(context.WithoutCancel(t.Context()), q)
			var refusal *orders.NotApplicable
			assert.True(t, errors.As(err, &refusal) && refusal.Code == code && refusal.Error() != "", q.Verb, q.OrderID, err, code)
		})
	}
}

func TestApproval(t *testing.T) {
	t.Parallel()
	const large = "approval: [{amountOver: 50, currency: USD, timeout: 1h}]"
	own, other := asked(orders.Approve), asked(orders.Approve)
	own.Actor, other.Actor = "token:shop", "token:maria"
	submitted := func(t *testing.T, s *shop) {
		t.Helper()
		in := request("order")
		in.SubmittedBy = "token:shop"
		why := text(s.process(t, in).HoldReason)
		assert.True(t, strings.HasPrefix(why, "another_approver: "), "held with", why, "which does not tell who can't approve it")
	}
	oneDecides := func(t *testing.T, s *shop) {
		t.Helper()
		var callers sync.WaitGroup
		for i := range 20 {
			callers.Go(func() {
				_, err := s.engine.Do(t.Context(), asked([]orders.Verb{orders.Approve, orders.Reject}[i%2]))
				assert.True(t, err == nil || errors.As(err, new(*orders.NotApplicable)), err)
			})
		}
		callers.Wait()
	}
	waits, approve := processes("pending approval"), asked(orders.Approve)
	play(t, []scene{
		{"approve lets the order start", with(large), acts{
			waits, does(approve, "completed"), shows(true, `SELECT approved_at IS NOT NULL FROM orders`), proven}},
		{"reject cancels it", with(large), acts{waits, does(asked(orders.Reject), "canceled: rejected"), proven}},
		{"another approves where the policy wants it", with("approval: [{approver: another}]"), acts{submitted,
			refuses(own, orders.RefusedOwnOrder), does(other, "completed")}},
		{"a pause is no way around it", with(large), acts{waits, pause, is("paused"), refuses(approve, orders.RefusedState),
			does(asked(orders.Resume), "pending approval"), does(approve, "completed")}},
		{"of many at once one decides", with(large), acts{waits, oneDecides,
			shows(1, `SELECT count(*) FROM books.transitions WHERE verb IN ('approve', 'reject')`)}},
	})
}

func TestStepResult(t *testing.T) {
	t.Parallel()
	withoutCode := settled(fsm.Charge, engine.SettledRefused, "r")
	withoutCode.Settle.Code = ""
	play(t, []scene{
		{"done goes on without a call", stuck("cut-after@reserve"), acts{
			ends(settled(fsm.Reserve, engine.SettledDone, "r"), fsm.Completed),
			shows("r", `SELECT reference FROM books.reservations`)}},
		{"refused undoes what was done before", stuck("error@reserve"), acts{
			ends(settled(fsm.Reserve, engine.SettledRefused, "r"), fsm.Failed),
			shows("reserve seen", `SELECT failure_step || ' ' || failure_code FROM orders`)}},
		{"not_done ends the doubt, so that a cancellation undoes nothing", stuck("error@charge"), acts{
			asks(settled(fsm.Charge, engine.SettledNotDone, "r")),
			comes(true, `SELECT in_doubt_since IS NULL AND hold = 'attention' FROM orders`), fails(),
			ends(asked(orders.Cancel), fsm.Canceled), shows(0, `SELECT count(*) FROM books.charges`)}},
		{"without a code has one", stuck("error@charge"), acts{
			ends(withoutCode, fsm.Failed), shows("step_result", `SELECT failure_code FROM orders`)}},
		{"of another step says so", stuck("error@charge"), acts{
			refuses(settled(fsm.Reserve, engine.SettledDone, "r"), orders.RefusedOtherStep)}},
		{"settles an undo that nobody else can, because its key may be forgotten", stuck("decline@reserve",
			"cut-after@charge/undo"), acts{
			sql(`UPDATE orders SET in_doubt_since = now() - interval '2 days'`),
			sql(`UPDATE step_calls SET undo_reference = NULL`), // it goes by the key
			refuses(asked(orders.Retry), orders.RefusedUnknown), ends(settled(fsm.Charge, engine.SettledDone, "r"), fsm.Failed),
			shows("card_declined", `SELECT failure_code FROM orders`), shows("r", `SELECT reference FROM books.refunds`)}},
		{"done of an undo goes on with the undoing", stuck("decline@reserve", "decline@charge/undo"), acts{
			does(settled(fsm.Charge, engine.SettledDone, "r"), "failed: card_declined"), proven}},
	})
	t.Run("while the step is being done is busy", func(t *testing.T) {
		t.Parallel()
		s := with(eager)(t)
		called, open := s.door.shut(t, "/charge")
		answers := ask(t, s.engine, request("order"))
		eventually(t, "a call is under way", func() bool { return called.Load() == 1 })
		var refusal *orders.NotApplicable
		_, err := s.engine.Do(t.Context(), settled(fsm.Charge, engine.SettledDone, ""))
		assert.True(t, errors.As(err, &refusal) && refusal.Code == orders.RefusedBusy, err)
		open()
		s.ends(t, (<-answers).order, fsm.Completed)
	})
}

// TestDryRunShowsTheOrderAsItWouldBe: where nothing follows from a verb at once, the order is just so afterwards.
func TestDryRunShowsTheOrderAsItWouldBe(t *testing.T) {
	t.Parallel()
	b := setupWith(t, byCallers)
	b.hold(t, fsm.Confirming, "held")
	b.process(t, request("completed"))
	half := decimal.MustParse("4")
	for _, q := range []engine.Request{
		{OrderID: "held", Verb: orders.Resume, Async: true},
		{OrderID: "completed", Verb: orders.Refund, RequestID: "1", Reason: "broken", ChargeOperation: &engine.ChargeOperation{Amount: &half}},
		{OrderID: "completed", Verb: orders.Refund, RequestID: "2", Reason: "all of it", ChargeOperation: &engine.ChargeOperation{}},
	} {
		q.DryRun = true
		would := b.do(t, q)
		q.DryRun = false
		is := b.do(t, q)
		assert.True(t, (shown(&would) == shown(&is) || q.Verb != orders.Refund) && would.Hold == nil,
			q.Verb, "would leave", shown(&would), "it left", shown(&is))
	}
}

// shown is what a verb changes of an order.
func shown(o *orders.Order) string {
	refunds := orders.ChargeOperations(o)
	for i := range refunds {
		refunds[i].CreatedAt, refunds[i].FinishedAt = o.CreatedAt, nil
	}
	line, _ := json.Marshal([]any{o.Status, o.Hold, o.HoldReason, o.StopRequested, o.FailureCode, o.Generation, o.Policy, orders.AllowedActions(o), refunds})
	return string(line)
}
