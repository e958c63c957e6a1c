package books_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"pawl/db"
	"pawl/engine/ledger"
	"pawl/fsm"
	"pawl/internal/books"
	"pawl/internal/provider"
	"pawl/test/dbtest"
)

func TestMain(m *testing.M) { dbtest.Main(m) }

// failer is what the helpers need of *testing.T and *rapid.T.
type failer interface {
	Helper()
	Fatalf(format string, args ...any)
}

// shop writes books with the statements of the service.
type shop struct {
	failer
	ctx   context.Context
	pool  *pgxpool.Pool
	q     *db.Queries
	owner uuid.UUID
	last  *int64 // the order admitted last
}

func newShop(t *testing.T) *shop {
	t.Helper()
	pool := dbtest.New(t).Pool
	return &shop{failer: t, ctx: t.Context(), pool: pool, q: db.New(pool), owner: uuid.New()}
}

// in is the same shop for a part of the test.
func (s *shop) in(t *testing.T) *shop {
	t.Helper()
	part := *s
	part.failer, part.ctx = t, t.Context()
	return &part
}

func (s *shop) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatalf("%v", err)
	}
}

// sql runs statements as they are, in one transaction.
func (s *shop) sql(text string) {
	s.Helper()
	_, err := s.pool.Exec(s.ctx, text, pgx.QueryExecModeSimpleProtocol)
	s.must(err)
}

func (s *shop) admit(id, item string) {
	s.Helper()
	rows, err := s.q.OrdersAdmit(s.ctx, db.OrdersAdmitParams{
		OrderIds: []string{id}, Amounts: []string{"10.50"}, Currencies: []string{"EUR"}, Items: []string{item},
		Quantities: []int32{2}, Metadata: []string{""}, Owner: s.owner, LeaseSeconds: 60, PreviousNo: s.last,
	})
	s.must(err)
	s.last = &rows[0].OrderNo
}

// admitToWait begins an order as pending: no statement of the service does it yet.
func (s *shop) admitToWait(id, item string) {
	s.Helper()
	_, err := s.pool.Exec(s.ctx, `WITH admitted AS (
		INSERT INTO orders (order_id, status, due_at, amount, currency, item, quantity)
		VALUES ($1, 'pending', now() + interval '1 minute', 10.50, 'EUR', $2, 2) RETURNING order_no)
		INSERT INTO transitions (order_no, seq, to_status, fence) SELECT order_no, 1, 'pending', 0 FROM admitted`, id, item)
	s.must(err)
}

// redrive starts the next generation of a failed order: no statement of the service does it yet.
func (s *shop) redrive(id string) {
	s.Helper()
	_, err := s.pool.Exec(s.ctx, `WITH moved AS (
		UPDATE orders SET status = 'pending', generation = generation + 1, seq = seq + 1, due_at = now() + interval '1 minute',
			ended_as = NULL, finished_at = NULL, outcome = NULL, failure_step = NULL, failure_code = NULL
		WHERE order_id = $1 AND status = 'failed' RETURNING *)
		INSERT INTO transitions (order_no, seq, from_status, to_status, fence, verb)
		SELECT order_no, seq, 'failed', 'pending', fence, 'redrive' FROM moved`, id)
	s.must(err)
}

func (s *shop) order(id string) db.Order {
	s.Helper()
	rows, err := s.q.OrdersByID(s.ctx, db.OrdersByIDParams{OrderIds: []string{id}})
	s.must(err)
	if len(rows) != 1 {
		s.Fatalf("%d orders %q", len(rows), id)
	}
	return rows[0]
}

// move makes the next move of the order, which must succeed.
func (s *shop) move(id string) fsm.State {
	s.Helper()
	o := s.order(id)
	way := ledger.Moves[o.Status]
	if lined := ledger.LineMoves[o.Status]; o.Lines != nil && lined != nil {
		way = lined
	}
	moved, err := way(s.ctx, s.q, ledger.Batch{OrderNos: []int64{o.OrderNo}, Expected: o.Status, Fence: o.Fence, Seq: o.Seq})
	s.must(err)
	if len(moved) != 1 {
		s.Fatalf("order %q did not leave %s", id, o.Status)
	}
	return moved[0].ToStatus
}

func (s *shop) moveTo(id string, state fsm.State) {
	s.Helper()
	for at := s.order(id).Status; at != state; at = s.move(id) {
		if at.Final() {
			s.Fatalf("order %q ended as %s on its way to %s", id, at, state)
		}
	}
}

func (s *shop) stop(id string) {
	s.Helper()
	s.must(stop(s.ctx, s.pool, id))
}

// stop asks that an order be stopped, as the service does: its next move goes back.
func stop(ctx context.Context, pool *pgxpool.Pool, id string) error {
	_, err := pool.Exec(ctx, `WITH asked AS (
		UPDATE orders SET stop_requested = 'cancel', seq = seq + 1, due_at = CASE WHEN hold IS NULL THEN due_at ELSE now() END,
			take_overs = CASE WHEN hold IS NULL THEN take_overs ELSE 0 END, hold = NULL, hold_reason = NULL
		WHERE order_id = $1 AND status NOT IN ('completed', 'failed', 'canceled')
			AND (hold IS NOT NULL OR stop_requested IS NULL AND status NOT IN ('releasing', 'refunding'))
			AND NOT (status = 'confirming' AND in_doubt_since IS NOT NULL)
		RETURNING *)
		INSERT INTO transitions (order_no, seq, from_status, to_status, fence, verb)
		SELECT order_no, seq, status, status, fence, 'cancel' FROM asked`, id)
	return err
}

func (s *shop) hold(id string) {
	s.Helper()
	o := s.order(id)
	_, err := s.q.OrdersHold(s.ctx, db.OrdersHoldParams{
		OrderNos: []int64{o.OrderNo}, Expected: o.Status, Fence: o.Fence, Seq: o.Seq, Hold: "attention", HoldReason: "test",
	})
	s.must(err)
}

// takeOver releases the order and claims it for another owner.
func (s *shop) takeOver(id string) {
	s.Helper()
	o := s.order(id)
	if o.Owner != nil {
		_, err := s.q.LeasesRelease(s.ctx, db.LeasesReleaseParams{OrderNos: []int64{o.OrderNo}, Owner: *o.Owner})
		s.must(err)
	}
	_, err := s.q.LeasesClaim(s.ctx, db.LeasesClaimParams{OrderNos: []int64{o.OrderNo}, Owner: uuid.New(), LeaseSeconds: 60})
	s.must(err)
}

func (s *shop) stock(item string, onHand int64) {
	s.Helper()
	var version, before int64
	s.must(s.pool.QueryRow(s.ctx, `SELECT coalesce(max(version), 0), coalesce(max(on_hand), 0) FROM inventory
		WHERE item = $1`, item).Scan(&version, &before))
	_, err := s.q.InventoryMove(s.ctx, db.InventoryMoveParams{
		Item: item, Change: onHand - before, IfVersion: &version, Kind: "set", RequestID: uuid.NewString()})
	s.must(err)
}

// fill makes one order in each state, named after it, and some with a longer past.
func (s *shop) fill() {
	s.Helper()
	s.stock("lamp", 100)
	s.admitToWait("pending", "lamp")
	for _, state := range []fsm.State{fsm.Charging, fsm.Reserving, fsm.Confirming, fsm.Completed} {
		s.admit(string(state), "lamp")
		s.moveTo(string(state), state)
	}
	for _, state := range []fsm.State{fsm.Releasing, fsm.Refunding, fsm.Canceled} {
		s.admit(string(state), "chair")
		s.moveTo(string(state), fsm.Confirming)
		s.stop(string(state))
		s.moveTo(string(state), state)
	}
	s.stock("sofa", 1)
	for _, id := range []string{"failed", "redriven"} {
		s.admit(id, "sofa")
		s.moveTo(id, fsm.Failed)
	}
	s.stock("sofa", 9)
	s.redrive("redriven")
	s.moveTo("redriven", fsm.Completed)
	s.admit("held", "lamp")
	s.moveTo("held", fsm.Confirming)
	s.takeOver("held")
	s.hold("held")
	s.admit("early", "lamp")
	s.stop("early")
	s.moveTo("early", fsm.Canceled)
}

func (s *shop) verify(opt books.Options) books.Report {
	s.Helper()
	return s.verifyOn(s.pool, opt)
}

// verifyWith proves the books with a fault in them, in a transaction that is taken back: one database does for all faults.
func (s *shop) verifyWith(fault string, opt books.Options) books.Report {
	s.Helper()
	tx, err := s.pool.Begin(s.ctx)
	s.must(err)
	defer func() { _ = tx.Rollback(s.ctx) }()
	_, err = tx.Exec(s.ctx, fault, pgx.QueryExecModeSimpleProtocol)
	s.must(err)
	opt.Background = true // one snapshot after the other
	return s.verifyOn(faulty{tx}, opt)
}

// faulty is a database as one transaction sees it. The transactions of a proof are savepoints, of which nothing is left:
// their settings of the planner end with them, as they do otherwise.
type faulty struct{ pgx.Tx }

func (f faulty) BeginTx(ctx context.Context, _ pgx.TxOptions) (pgx.Tx, error) {
	tx, err := f.Begin(ctx)
	return savepoint{tx}, err
}

type savepoint struct{ pgx.Tx }

func (s savepoint) Commit(ctx context.Context) error { return s.Rollback(ctx) }

func (s *shop) verifyOn(database books.Database, opt books.Options) books.Report {
	s.Helper()
	report, err := books.Verify(s.ctx, database, opt)
	s.must(err)
	for _, check := range report.Checks {
		for _, offender := range check.Offenders {
			if strings.HasPrefix(offender.Fault, ",") || strings.Contains(offender.Fault, ", ,") || offender.Fault == "" {
				s.Fatalf("%s says of %q: %q", check.Name, offender.ID, offender.Fault)
			}
		}
	}
	return report
}

// offenders maps the checks that found something to the ids they name.
func offenders(report books.Report) map[string][]string {
	found := map[string][]string{}
	for _, check := range report.Checks {
		for _, offender := range check.Offenders {
			found[check.Name] = append(found[check.Name], offender.ID)
		}
	}
	return found
}

// admitRemote begins an order whose steps are done by a provider.
func (s *shop) admitRemote(id, item string) {
	s.Helper()
	s.admit(id, item)
	s.sql("UPDATE orders SET policy = 1 WHERE order_id = '" + id + "'")
}

func (s *shop) set(id string) ledger.Batch {
	o := s.order(id)
	return ledger.Batch{OrderNos: []int64{o.OrderNo}, Expected: o.Status, Fence: o.Fence, Seq: o.Seq}
}

// call begins a call: its answer is still to come.
func (s *shop) call(id string) {
	s.Helper()
	o := s.order(id)
	operation := provider.Do
	if o.Status.Undoing() {
		operation = provider.Undo
	}
	begun, err := s.q.CallsBegin(s.ctx, db.CallsBeginParams{OrderNos: []int64{o.OrderNo}, Expected: o.Status, Fence: o.Fence,
		Seq: o.Seq, Step: string(stepOf[o.Status]), Operation: string(operation), LeaseSeconds: 60})
	s.must(err)
	if len(begun) != 1 {
		s.Fatalf("order %q: no call begins in %s", id, o.Status)
	}
}

var stepOf = map[fsm.State]fsm.Step{
	fsm.Charging: fsm.Charge, fsm.Refunding: fsm.Charge, fsm.Reserving: fsm.Reserve, fsm.Releasing: fsm.Reserve, fsm.Confirming: fsm.Confirm,
}

// answer takes an order out of its state. Charges only authorize.
func (s *shop) answer(id string, verdict fsm.Outcome, consumes bool) {
	s.Helper()
	set := s.set(id)
	a := ledger.Results{Batch: set, Outcome: verdict, Step: stepOf[set.Expected], Executor: "simulator", Consumes: consumes,
		Doubted: set.Expected == fsm.Charging && *s.order(id).Calls > 1, // the call before is
		Of:      map[int64]ledger.Answer{set.OrderNos[0]: {Reference: "ref", Code: "card_declined"}}}
	if set.Expected == fsm.Charging {
		a.Capture = "on_confirm"
	}
	moved, err := ledger.SaveResults(s.ctx, s.q, a)
	s.must(err)
	if len(moved) != 1 {
		s.Fatalf("order %q did not leave %s", id, set.Expected)
	}
}

// done calls and is answered, for all the states given.
func (s *shop) done(id string, states ...fsm.State) {
	s.Helper()
	for _, state := range states {
		if at := s.order(id).Status; at != state {
			s.Fatalf("order %q is %s, not %s", id, at, state)
		}
		s.call(id)
		s.answer(id, fsm.Done, false)
	}
}

// tell stores an answer that came without a call, as a callback does.
func (s *shop) tell(id string, of fsm.Step) {
	s.Helper()
	s.sql("INSERT INTO step_answers (order_no, generation, step, source, outcome) SELECT order_no, generation, '" +
		string(of) + "', 'callback', 'done' FROM orders WHERE order_id = '" + id + "'")
}

// fillRemote makes orders that a provider has to do with, named after what became of them.
func (s *shop) fillRemote() {
	s.Helper()
	for _, id := range []string{"sold", "refused", "stopped", "in doubt", "waiting", "told", "voiding", "late"} {
		s.admitRemote(id, "boat")
	}
	s.done("sold", fsm.Charging, fsm.Reserving, fsm.Confirming)

	s.done("refused", fsm.Charging, fsm.Reserving)
	s.call("refused")
	s.answer("refused", fsm.Refused, false)
	s.done("refused", fsm.Releasing, fsm.Refunding)

	s.call("stopped")
	s.stop("stopped")
	s.answer("stopped", fsm.Stopped, false)
	s.call("stopped")
	_, err := ledger.SaveResults(s.ctx, s.q, ledger.Results{Batch: s.set("stopped"), Outcome: fsm.Done, Step: fsm.Charge, Executor: "simulator"}) // nothing to undo
	s.must(err)

	s.call("in doubt")

	s.done("waiting", fsm.Charging)
	s.call("waiting")
	waiting := s.set("waiting")
	_, err = ledger.Suspend(s.ctx, s.q, ledger.Suspensions{Batch: waiting,
		Of: map[int64]ledger.Suspension{waiting.OrderNos[0]: {Hold: "callback", Delay: time.Hour, Outcome: "waiting"}}})
	s.must(err)

	s.call("told")
	s.sql("UPDATE step_calls SET finished_at = now(), outcome = 'waiting' WHERE" + of("told"))
	s.tell("told", fsm.Charge)
	s.answer("told", fsm.Done, true)

	s.done("voiding", fsm.Charging)
	s.call("voiding")
	s.stop("voiding")
	s.answer("voiding", fsm.Stopped, false)

	s.call("late")
	s.answer("late", fsm.Refused, false)
	s.sql("INSERT INTO late_undos (order_no, generation, step, reason) SELECT order_no, 0, 'charge', 'test' FROM orders WHERE order_id = 'late'")
}
