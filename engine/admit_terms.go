package engine

import (
	"cmp"
	"slices"
	"time"

	"pawl/db"
	"pawl/fsm"
	"pawl/orders"
	"pawl/policy"
)

// admitWithTerms admits orders that bring more than the ledger's way needs: a policy, which is the active one,
// times, a customer. Some of them wait before they start.
func (e *Engine) admitWithTerms(version *int32, p *policy.Policy, runs []*run) {
	if version != nil && p == nil { // not known here, or not yet: nothing may start as if there were none
		e.finish(orders.ErrUnavailable, slices.Clone(runs)...)
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
func (e *Engine) admitTo(version *int32, p *policy.Policy, with permits, runs []*run) {
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

func (e *Engine) admissionWith(version *int32, start *policy.Policy, runs []*run) db.OrdersAdmitWithTermsParams {
	base := e.admission(runs)
	p := db.OrdersAdmitWithTermsParams{
		OrderIds: base.OrderIds, Amounts: base.Amounts, Currencies: base.Currencies, Items: base.Items,
		Quantities: base.Quantities, Metadata: base.Metadata, Owner: base.Owner, LeaseSeconds: base.LeaseSeconds, PreviousNo: base.PreviousNo,
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

// termsOf are the terms of an order. The reservation TTL of the request wins over that of the policy; without a policy there
// is neither a key nor an approval.
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
func (e *Engine) admittedWith(runs []*run, rows []db.OrdersAdmitWithTermsRow, with *permits) {
	byID := make(map[string]*run, len(runs))
	for _, r := range runs {
		byID[r.orderID] = r
	}
	var driven, begun, held []*run
	started := 0
	for _, o := range writtenOrders(rows) {
		r := byID[o.OrderID]
		delete(byID, o.OrderID)
		r.order, r.complete = o, true // nothing of it was done yet
		r.kept.Store(r.input.Key)
		r.markKnown()
		switch {
		case o.Hold != nil:
			held = append(held, r)
			e.held(*o.Hold, 1)
		case o.Calls != nil:
			begun = append(begun, r)
		default:
			driven = append(driven, r)
		}
		if o.Status == fsm.Charging {
			started++
		}
	}
	if n := len(rows); n > 0 {
		e.lastAdmitted.Store(new(rows[n-1].WrittenOrder.OrderNo))
	}
	e.Stats.Admitted.Add(int64(len(rows)))
	e.activity.count(fsm.Pending, fsm.Charging, started)
	e.runs.own(begun)
	for _, r := range begun {
		o := &r.order
		with.use(r)
		e.begun(r, *o.Calls, o.InDoubtSince, e.now())
	}
	e.ownAndDrive(driven)
	e.finish(nil, held...)
	for _, r := range held {
		if *r.order.Hold == fsm.HoldQueued {
			e.limiter.ask(*r.order.ConcurrencyKey)
		}
	}
	e.found(byID)
}
