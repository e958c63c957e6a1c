package engine

import (
	"cmp"
	"context"
	"slices"
	"time"

	"pawl/db"
	"pawl/engine/ledger"
	"pawl/fsm"
	"pawl/internal/orders"
	"pawl/internal/pg"
	"pawl/internal/policy"
)

// admit stores new orders, and says where they and those that existed go next. Without an active policy, those that bring
// no terms take the short way.
func (e *remote) admit(runs []*run) []*run {
	plain, others := []*run(nil), runs
	version, p := e.policies.active()
	if version == nil {
		plain, others = runs, nil
		if slices.ContainsFunc(runs, hasTerms) {
			others, plain = divide(runs, hasTerms)
		}
	}
	if len(plain) > 0 {
		e.admitPlain(plain)
	}
	if len(others) > 0 {
		e.admitWithTerms(version, p, others)
	}
	return runs
}

func hasTerms(r *run) bool { return r.input.Terms != (Terms{}) }

// remotePace is the time between two statements for answers of providers. It is short
// beside a call over a network, and makes batches of what would be single orders: a
// statement costs as much for one order as for ten.
const remotePace = 20 * time.Millisecond

// admissionPace: where the charge is remote, new orders come as often as answers do.
func (e *core) admissionPace() time.Duration {
	if _, p := e.policies.active(); p != nil && p.Charge.Executor.Remote() {
		return remotePace
	}
	return 0
}

// admitPlain stores the orders of a batch that are new, already leased to us and charging, and
// finds out about the others. Only this and admitWithTerms make orders.
func (e *remote) admitPlain(runs []*run) {
	rows, err := ledger.Admit(e.ctx, e.query, e.admission(runs))
	if err != nil {
		e.notAdmitted(err, runs)
		return
	}
	e.admitted(runs, rows)
}

// notAdmitted says where runs go after an admission that failed.
func (e *remote) notAdmitted(err error, runs []*run) {
	if e.standsDown("admit orders", err, runs) {
		return
	}
	again := func(half []*run) { e.admit(half) }
	switch pg.FaultOf(err) {
	case pg.Bad:
		split(runs, again, func(r *run) { end(err, r) })
	case pg.Busy:
		split(runs, again, func(r *run) { r.next = toReadmit })
	case pg.Again:
		e.Stats.Retried.Add(1)
		goTo(toReadBack, runs...)
	default:
		e.unknown("admit orders", err)
		goTo(toReadBack, runs...)
	}
}

func (e *core) admission(runs []*run) db.OrdersAdmitParams {
	n := len(runs)
	p := db.OrdersAdmitParams{
		OrderIds: make([]string, n), Amounts: make([]string, n), Currencies: make([]string, n),
		Items: make([]string, n), Quantities: make([]int32, n), Metadata: make([]string, n),
		Owner: e.owner, LeaseSeconds: e.cfg.Lease.Seconds(), PreviousNo: e.lastAdmitted.Load(), EndedNo: e.lastEnded.Load(),
	}
	for i, r := range runs {
		r.sent = true
		o := &r.order
		o.Amount, o.Item, o.Metadata = r.input.Amount, r.input.Item, r.input.Metadata
		o.Currency, o.Quantity = cmp.Or(r.input.Currency, e.cfg.Currency), cmp.Or(r.input.Quantity, 1)
		p.OrderIds[i], p.Amounts[i], p.Currencies[i] = o.OrderID, o.Amount.String(), o.Currency
		p.Items[i], p.Quantities[i], p.Metadata[i] = o.Item, o.Quantity, string(o.Metadata)
		o.SubmittedBy = db.Optional(r.input.SubmittedBy)
	}
	addSubmitters(&p, runs)
	addKeys(&p, runs)
	return p
}

// addSubmitters says who sent the orders, unless no caller of the batch was identified.
func addSubmitters(p *db.OrdersAdmitParams, runs []*run) {
	if !slices.ContainsFunc(runs, func(r *run) bool { return r.input.SubmittedBy != "" }) {
		return
	}
	for _, r := range runs {
		p.SubmittedBy = append(p.SubmittedBy, r.input.SubmittedBy)
	}
}

// addKeys adds the keys of the requests that have one, if there are any.
func addKeys(p *db.OrdersAdmitParams, runs []*run) {
	if !slices.ContainsFunc(runs, func(r *run) bool { return r.input.Key != nil }) {
		return
	}
	p.Principals, p.Keys, p.Fingerprints = make([]string, len(runs)), make([]string, len(runs)), make([][]byte, len(runs))
	for i, r := range runs {
		if k := r.input.Key; k != nil {
			p.Principals[i], p.Keys[i], p.Fingerprints[i] = k.Principal, k.Key, k.fingerprint
		}
	}
}

// admitted says where the orders of a batch go: the new ones to their first step. The others existed, or came to exist,
// and are read.
func (e *core) admitted(runs []*run, rows []db.OrdersAdmitRow) {
	byID := byOrderID(runs)
	fresh := make([]*run, 0, len(rows))
	for _, row := range rows {
		r := byID[row.OrderID]
		delete(byID, row.OrderID)
		o := &r.order
		o.OrderNo, o.CreatedAt = row.OrderNo, row.CreatedAt
		o.Status, o.Fence, o.Seq, o.Owner = fsm.Charging, 1, 1, &e.owner
		r.complete = true
		r.kept.Store(r.input.Key)
		fresh = append(fresh, r)
	}
	if n := len(rows); n > 0 {
		e.noteAdmitted(rows[n-1].OrderNo, n)
	}
	e.own(fresh)
	e.foundStored(byID)
}

func byOrderID(runs []*run) map[string]*run {
	byID := make(map[string]*run, len(runs))
	for _, r := range runs {
		byID[r.orderID] = r
	}
	return byID
}

// noteAdmitted counts new orders, and keeps the number of the last one: the next order names it.
func (e *core) noteAdmitted(last int64, admitted int) {
	e.lastAdmitted.Store(&last)
	e.Stats.Admitted.Add(int64(admitted))
}

// foundStored sends the orders of a batch that existed before to be read.
func (e *core) foundStored(byID map[string]*run) {
	e.Stats.Known.Add(int64(len(byID)))
	for _, r := range byID {
		r.next = toReadBack
	}
}

// numbersSkipped is more than a crash can lose, which is what the log buffers hold, and more than an asynchronous standby can lack.
// Below 2^53 there is room for millions of crashes.
const numbersSkipped = 1_000_000_000

// renewNumbering has orders be given numbers again after a crash or a restart of the server: see OrderNumberingRenew.
func (e *core) renewNumbering() {
	ctx, cancel := context.WithTimeout(e.ctx, 5*time.Second)
	defer cancel()
	numbering, err := e.query.OrderNumberingRenew(ctx, numbersSkipped)
	switch {
	case err != nil:
		e.log.Warn("renew the numbering of orders", "error", err) // an admission that needs it tries again
		return
	case numbering.Renewed:
		e.log.Info("order numbers move ahead: the database server was restarted, or has recovered from a crash")
	}
	if !numbering.Relaxed {
		e.log.Warn("every step of an order waits for the disk: the table pawl.order_numbering is logged")
	}
}

// readLastAdmitted reads what was admitted before this process began, so that its first order names it.
func (e *core) readLastAdmitted() {
	ctx, cancel := context.WithTimeout(e.ctx, 5*time.Second)
	defer cancel()
	switch last, err := e.query.OrdersLast(ctx); {
	case err != nil:
		e.log.Warn("read the order admitted last", "error", err)
	case last > 0:
		e.lastAdmitted.Store(&last)
	}
}

// admitWithTerms admits orders that bring more than the ledger's way needs: a policy, which is the active one,
// times, a customer. Some of them wait before they start.
func (e *remote) admitWithTerms(version *int32, p *policy.Policy, runs []*run) {
	if version != nil && p == nil { // not known here, or not yet: nothing may start as if there were none
		end(orders.ErrUnavailable, runs...)
		return
	}
	if p != nil && p.Charge.Executor.Remote() {
		first := e.callPool(*version, fsm.Charge, p)
		n := first.acquire(len(runs))
		e.admitTo(version, p, permits{pool: first, left: n}, runs[:n:n])
		runs = runs[n:]
	}
	e.admitTo(version, p, permits{}, runs)
}

// admitTo admits a batch; with permits, those that start at once begin the call of their
// charge with it.
func (e *remote) admitTo(version *int32, p *policy.Policy, with permits, runs []*run) {
	if len(runs) == 0 {
		return
	}
	with.asked = time.Now()
	defer with.freeUnused()
	params := e.admissionWith(version, p, runs)
	params.Begins, params.LeaseSeconds = with.pool != nil, max(e.cfg.Lease, with.lease()).Seconds()
	rows, err := e.query.OrdersAdmitWithTerms(e.ctx, params)
	if err != nil {
		e.notAdmitted(err, runs)
		return
	}
	e.admittedWith(runs, rows, &with)
}

func (e *core) admissionWith(version *int32, start *policy.Policy, runs []*run) db.OrdersAdmitWithTermsParams {
	base := e.admission(runs)
	p := db.OrdersAdmitWithTermsParams{
		OrderIds: base.OrderIds, Amounts: base.Amounts, Currencies: base.Currencies, Items: base.Items,
		Quantities: base.Quantities, Metadata: base.Metadata, Owner: base.Owner, LeaseSeconds: base.LeaseSeconds, PreviousNo: base.PreviousNo, EndedNo: base.EndedNo,
		SubmittedBy: base.SubmittedBy, Principals: base.Principals, Keys: base.Keys, Fingerprints: base.Fingerprints,
	}
	for _, r := range runs {
		in, o := &r.input.Terms, &r.order
		o.CustomerID = db.Optional(in.CustomerID)
		p.Policies = append(p.Policies, or(version))
		p.CustomerIds = append(p.CustomerIds, in.CustomerID)
		p.PaymentMethods = append(p.PaymentMethods, in.PaymentMethod)
		p.StartAts = append(p.StartAts, in.StartAt)
		p.CompleteBys = append(p.CompleteBys, in.CompleteBy)
		t := termsOf(in, o, start)
		p.CompleteSeconds = append(p.CompleteSeconds, t.completeWithin)
		p.TtlSeconds = append(p.TtlSeconds, t.reservationTTL)
		p.ConcurrencyKeys = append(p.ConcurrencyKeys, t.concurrencyKey)
		p.Approvals = append(p.Approvals, t.approval != nil)
		p.ApprovalReasons = append(p.ApprovalReasons, approvalReason(t.approval, o))
		p.ApprovalSeconds = append(p.ApprovalSeconds, or(t.approval).Timeout.Seconds())
	}
	return p
}

// orderTerms is what a request and the policy together ask of an order. Zero is nothing.
type orderTerms struct {
	completeWithin, reservationTTL float64 // seconds
	concurrencyKey                 string
	approval                       *policy.Approval
}

// termsOf are the terms of an order. The reservation TTL of the request wins over that of the policy; without a policy
// there is neither a key nor an approval.
func termsOf(in *Terms, o *orders.Order, p *policy.Policy) orderTerms {
	t := orderTerms{reservationTTL: in.ReservationTTL.Seconds()}
	if p == nil {
		return t
	}
	t.concurrencyKey = p.Key(policy.Order{Amount: o.Amount, Currency: o.Currency, Item: o.Item,
		CustomerID: in.CustomerID, ConcurrencyKey: in.ConcurrencyKey})
	t.completeWithin = p.CompleteWithin.Seconds()
	t.reservationTTL = cmp.Or(t.reservationTTL, p.ReservationTTL.Seconds())
	t.approval = approvalOf(p, o)
	return t
}

// admittedWith is admitted for orders with terms: those that are held have no driver.
func (e *core) admittedWith(runs []*run, rows []db.OrdersAdmitWithTermsRow, with *permits) {
	byID := byOrderID(runs)
	var driven, begun []*run
	for _, o := range writtenOrders(rows) {
		r := byID[o.OrderID]
		delete(byID, o.OrderID)
		r.order, r.complete = o, true // nothing of it was done yet
		r.kept.Store(r.input.Key)
		r.markKnown()
		switch {
		case o.Hold != nil:
			end(nil, r)
			e.metrics.countHeld(*o.Hold, 1)
		case o.Calls != nil:
			begun = append(begun, r)
		default:
			driven = append(driven, r)
		}
	}
	if n := len(rows); n > 0 {
		e.noteAdmitted(rows[n-1].WrittenOrder.OrderNo, n)
	}
	e.runs.own(begun)
	for _, r := range begun {
		o := &r.order
		with.use(r)
		r.begun(*o.Calls, o.InDoubtSince, e.now())
	}
	e.own(driven)
	e.foundStored(byID)
}
