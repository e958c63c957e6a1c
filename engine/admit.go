package engine

import (
	"context"
	"maps"
	"slices"
	"time"

	"pawl/db"
	"pawl/fsm"
	"pawl/ledger"
)

// admit is the flush of the queue of new orders. Without an active policy, those that bring no terms take the short way.
func (e *Engine) admit(runs []*run) {
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
}

func hasTerms(r *run) bool { return r.input.Terms != (Terms{}) }

// admissionPace: where the charge is remote, new orders come as often as answers do.
func (e *Engine) admissionPace() time.Duration {
	if _, p := e.policies.active(); p != nil && p.Charge.Executor.Remote() {
		return remotePace
	}
	return 0
}

// admitPlain stores the orders of a batch that are new, already leased to us and charging, and
// finds out about the others. Only this and admitWithTerms make orders.
func (e *Engine) admitPlain(runs []*run) {
	rows, err := ledger.Admit(e.ctx, e.query, e.admission(runs))
	if err != nil {
		e.notAdmitted(err, runs)
		return
	}
	e.admitted(runs, rows)
}

// notAdmitted goes on after an admission that failed.
func (e *Engine) notAdmitted(err error, runs []*run) {
	if e.standsDown("admit orders", err, runs) {
		return
	}
	switch db.FaultOf(err) {
	case db.Bad:
		e.split(runs, e.admit, func(r *run) { e.finish(err, r) })
	case db.Busy:
		e.split(runs, e.admit, func(r *run) { e.admitAgain([]*run{r}) })
	case db.Again:
		e.Stats.Retried.Add(1)
		e.readBack(runs)
	default:
		e.unknown("admit orders", err)
		e.readBack(runs)
	}
}

func (e *Engine) admission(runs []*run) db.OrdersAdmitKeyedParams {
	n := len(runs)
	p := db.OrdersAdmitKeyedParams{
		OrderIds: make([]string, n), Amounts: make([]string, n), Currencies: make([]string, n),
		Items: make([]string, n), Quantities: make([]int32, n), Metadata: make([]string, n),
		Owner: e.owner, LeaseSeconds: e.cfg.Lease.Seconds(), PreviousNo: e.lastAdmitted.Load(),
	}
	for i, r := range runs {
		r.sent = true
		o := &r.order
		o.Amount, o.Currency, o.Item, o.Quantity, o.Metadata =
			r.input.Amount, r.input.Currency, r.input.Item, r.input.Quantity, r.input.Metadata
		if o.Currency == "" {
			o.Currency = e.cfg.Currency
		}
		if o.Quantity == 0 {
			o.Quantity = 1
		}
		p.OrderIds[i], p.Amounts[i], p.Currencies[i] = o.OrderID, o.Amount.String(), o.Currency
		p.Items[i], p.Quantities[i], p.Metadata[i] = o.Item, o.Quantity, string(o.Metadata)
		o.SubmittedBy = db.Optional(r.input.SubmittedBy)
	}
	addSubmitters(&p, runs)
	addKeys(&p, runs)
	return p
}

// addSubmitters says who sent the orders, unless nobody was identified in the whole batch.
func addSubmitters(p *db.OrdersAdmitKeyedParams, runs []*run) {
	if !slices.ContainsFunc(runs, func(r *run) bool { return r.input.SubmittedBy != "" }) {
		return
	}
	for _, r := range runs {
		p.SubmittedBy = append(p.SubmittedBy, r.input.SubmittedBy)
	}
}

// addKeys adds the keys of the requests that have one, if there are any.
func addKeys(p *db.OrdersAdmitKeyedParams, runs []*run) {
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

// admitted drives the new orders and reads the others, which existed or came to exist.
func (e *Engine) admitted(runs []*run, rows []db.OrdersAdmitRow) {
	byID := make(map[string]*run, len(runs))
	for _, r := range runs {
		byID[r.orderID] = r
	}
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
		e.lastAdmitted.Store(new(rows[n-1].OrderNo))
	}
	e.Stats.Admitted.Add(int64(len(fresh)))
	e.activity.count(fsm.Pending, fsm.Charging, len(fresh))
	e.ownAndDrive(fresh)
	e.found(byID)
}

// found reads the orders of a batch that were there before.
func (e *Engine) found(byID map[string]*run) {
	if len(byID) == 0 {
		return
	}
	e.Stats.Known.Add(int64(len(byID)))
	e.readBack(slices.Collect(maps.Values(byID)))
}

// readLastAdmitted reads what was admitted before this process began, so that its first order names it.
func (e *Engine) readLastAdmitted() {
	ctx, cancel := context.WithTimeout(e.ctx, 5*time.Second)
	defer cancel()
	switch last, err := e.query.OrdersLast(ctx); {
	case err != nil:
		e.log.Warn("read the order admitted last", "error", err)
	case last > 0:
		e.lastAdmitted.Store(&last)
	}
}

// ownAndDrive notes that the runs are ours and sends each where its state says.
func (e *Engine) ownAndDrive(runs []*run) {
	if len(runs) == 0 {
		return
	}
	e.runs.own(runs)
	for _, r := range runs {
		r.markKnown()
	}
	e.drive(runs)
}
