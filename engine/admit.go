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

// admit stores the new orders of a batch. Without an active policy, orders without terms are admitted by a shorter
// statement. It is a method of remote because an admission may begin the call of the charge.
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

// hasOtherTerms reports whether the order has more terms than lines.
func hasOtherTerms(r *run) bool { return r.input.Terms != (Terms{Lines: r.input.Lines}) }

// admissionWaits reports whether all admissions wait for the disk: with an active policy.
func (e *core) admissionWaits() bool {
	version, _ := e.policies.active()
	return version != nil
}

// admissionPace is callPace if the active policy has a remote charge: then admissions begin calls.
func (e *core) admissionPace() time.Duration {
	if _, p := e.policies.active(); p != nil && p.Charge.Executor.Remote() {
		return callPace
	}
	return 0
}

// admitPlain stores the new orders of a batch, charging and leased to this process. Only admitPlain and
// admitWithTerms insert orders.
func (e *remote) admitPlain(runs []*run) {
	rows, err := ledger.Admit(e.ctx, e.query, e.admitParams(runs))
	if err != nil {
		e.notAdmitted(err, runs)
		return
	}
	e.admitted(runs, rows)
}

// notAdmitted sets the next destination of the runs after an admission that failed.
func (e *remote) notAdmitted(err error, runs []*run) {
	if e.standsDown("admit orders", err, runs) {
		return
	}
	again := func(half []*run) { e.admit(half) }
	switch pg.FaultOf(err) {
	case pg.Bad:
		split(runs, again, func(r *run) { endRuns(err, r) })
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

func (e *core) admitParams(runs []*run) db.OrdersAdmitParams {
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
	s := e.Orders.Suspects(p.OrderIds)
	p.Known, p.Suspects, p.Suspected = s.Known, s.Hashes, s.BatchNos
	addSubmitters(&p, runs)
	addKeys(&p, runs)
	return p
}

// addSubmitters adds the submitters, if the batch has any.
func addSubmitters(p *db.OrdersAdmitParams, runs []*run) {
	if !slices.ContainsFunc(runs, func(r *run) bool { return r.input.SubmittedBy != "" }) {
		return
	}
	for _, r := range runs {
		p.SubmittedBy = append(p.SubmittedBy, r.input.SubmittedBy)
	}
}

// addKeys adds the idempotency keys, if the batch has any.
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

// admitted sends the new orders of a batch to their first step. The others existed, or were stored meanwhile, and are
// read.
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

// noteAdmitted counts new orders, and keeps the last number for the history of the next order (previous_no).
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

// numbersSkipped is more numbers than a crash can lose (those in the log buffers), and more than an asynchronous
// standby can lack. Below 2^53 there is room for millions of crashes.
const numbersSkipped = 1_000_000_000

// renewNumbering lets orders be numbered again after the database server crashed or was restarted: see
// OrderNumberingRenew.
func (e *core) renewNumbering() {
	ctx, cancel := context.WithTimeout(e.ctx, 5*time.Second)
	defer cancel()
	numbering, err := e.query.OrderNumberingRenew(ctx, db.OrderNumberingRenewParams{Skipped: numbersSkipped, Cell: e.cfg.Cell.String()})
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

// readLastAdmitted reads the number of the last order, for the history of the first one that this process admits.
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

// admitWithTerms admits orders that have the active policy, times, a customer or another term. Some must wait before
// they start. If the charge is remote, as many as get a permit begin its call with their admission.
func (e *remote) admitWithTerms(version *int32, p *policy.Policy, runs []*run) {
	if version != nil && p == nil { // not read yet: no order may start as if there were none
		endRuns(orders.ErrUnavailable, runs...)
		return
	}
	if p != nil && p.Charge.Executor.Remote() {
		short := []*run(nil)
		if looksAtStock(p) {
			short, runs = e.divideByStock(runs)
		}
		for _, group := range e.byRoute(p, runs) {
			first := e.callPool(*version, p, fsm.Charge, or(group[0].order.Route))
			n := first.acquire(len(group))
			e.admitTo(version, p, permits{pool: first, left: n}, group[:n:n])
			short = append(short, group[n:]...)
		}
		runs = short
	}
	e.admitTo(version, p, permits{}, runs)
}

// admitTo admits a batch. With permits, the orders that start at once begin the call of their charge in the same
// commit.
func (e *remote) admitTo(version *int32, p *policy.Policy, with permits, runs []*run) {
	if len(runs) == 0 {
		return
	}
	with.asked = time.Now()
	defer with.freeUnused()
	params := e.admitWithTermsParams(version, p, runs)
	params.Waits = version != nil || slices.ContainsFunc(runs, hasOtherTerms)
	params.Begins, params.LeaseSeconds = with.pool != nil, max(e.cfg.Lease, with.lease()).Seconds()
	rows, err := e.query.OrdersAdmitWithTerms(e.ctx, params)
	if err != nil {
		e.notAdmitted(err, runs)
		return
	}
	e.admittedWith(runs, rows, &with)
}

func (e *core) admitWithTermsParams(version *int32, start *policy.Policy, runs []*run) db.OrdersAdmitWithTermsParams {
	base := e.admitParams(runs)
	p := db.OrdersAdmitWithTermsParams{
		OrderIds: base.OrderIds, Known: base.Known, Suspects: base.Suspects, Suspected: base.Suspected, Amounts: base.Amounts, Currencies: base.Currencies, Items: base.Items,
		Quantities: base.Quantities, Metadata: base.Metadata, Owner: base.Owner, LeaseSeconds: base.LeaseSeconds,
		PreviousNo: base.PreviousNo, EndedNo: base.EndedNo, SubmittedBy: base.SubmittedBy,
		Principals: base.Principals, Keys: base.Keys, Fingerprints: base.Fingerprints,
	}
	for _, r := range runs {
		in, o := &r.input.Terms, &r.order
		o.CustomerID = db.Optional(in.CustomerID)
		p.Policies = append(p.Policies, or(version))
		p.Lines = append(p.Lines, in.Lines)
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
		if start != nil && len(start.Routes) > 0 {
			p.Routes = append(p.Routes, or(o.Route))
		}
		p.ApprovalSeconds = append(p.ApprovalSeconds, or(t.approval).Timeout.Seconds())
	}
	return p
}

// orderTerms is what the request and the policy together demand of an order. Zero values demand nothing.
type orderTerms struct {
	completeWithin, reservationTTL float64 // seconds
	concurrencyKey                 string
	approval                       *policy.Approval
}

// termsOf returns the terms of an order. The reservation TTL of the request takes precedence over that of the policy.
// Without a policy, there is neither a concurrency key nor an approval.
func termsOf(in *Terms, o *orders.Order, p *policy.Policy) orderTerms {
	t := orderTerms{reservationTTL: in.ReservationTTL.Seconds()}
	if p == nil {
		return t
	}
	t.concurrencyKey = p.Key(policy.Order{Amount: o.Amount, Currency: o.Currency, Items: orders.ItemsOf(o.Item, []byte(in.Lines)),
		CustomerID: in.CustomerID, ConcurrencyKey: in.ConcurrencyKey})
	t.completeWithin = p.CompleteWithin.Seconds()
	t.reservationTTL = cmp.Or(t.reservationTTL, p.ReservationTTL.Seconds())
	t.approval = approvalOf(p, o)
	return t
}

// admittedWith is admitted for orders with terms. Those on hold have no driver.
func (e *core) admittedWith(runs []*run, rows []db.OrdersAdmitWithTermsRow, with *permits) {
	byID := byOrderID(runs)
	var driven, begun []*run
	for _, o := range writtenOrders(rows) {
		r := byID[o.OrderID]
		delete(byID, o.OrderID)
		r.order, r.complete = o, true // no step was done yet
		r.kept.Store(r.input.Key)
		r.markStored()
		switch {
		case o.Hold != nil:
			endRuns(nil, r)
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
