package engine

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"pawl/db"
	"pawl/internal/orders"
)

const (
	forgetInterval = 20  // between searches for orders that can be forgotten, as a multiple of the recovery interval
	forgetMost     = 200 // orders in a batch: a short transaction
	forgetRest     = 3   // how long to rest after a batch, as a multiple of what it took

	archiveOverdue = time.Hour // until an archive's open batch, which keeps the service from forgetting, is logged
)

// forgetLoop forgets orders that ended longer ago than the retention, in small batches with rests.
func (e *Engine) forgetLoop() {
	for pause := e.cfg.RecoveryInterval; e.lastsFor(pause); pause = forgetInterval * e.cfg.RecoveryInterval {
		if err := e.forget(); err != nil && e.ctx.Err() == nil {
			e.log.Warn("forget old orders", "error", err)
		}
	}
}

// forget goes once through the orders that are old enough. An open batch belongs to another replica or to an archive.
// If a replica has it for longer than a lease, it has died.
func (e *Engine) forget() error {
	for after, more := int64(0), true; more; {
		began := time.Now()
		m, err := e.query.OrdersMarkForgotten(e.ctx, db.OrdersMarkForgottenParams{
			After: after, Looks: forgetMost, OlderSeconds: e.cfg.OrderRetention.Seconds()})
		if err != nil {
			return fmt.Errorf("mark orders: %w", err)
		}
		others := m.Marked == 0 && m.OpenFor >= 0
		if open := time.Duration(m.OpenFor * float64(time.Second)); m.OpenArchive && open > archiveOverdue {
			e.log.Warn("an archive has marked orders and not removed them: run pawl archive again", "open_for", open)
		}
		if m.OpenArchive || others && m.OpenFor < e.cfg.Lease.Seconds() {
			return nil
		}
		if !others {
			after, more = m.Last, !m.AfterLast
			e.learnForgotten()
		}
		if m.OpenFor >= 0 && !e.removeMarked() {
			return nil
		}
		e.pause(forgetRest * time.Since(began))
	}
	return nil
}

// removeMarked removes the orders of the open batch, once no statement runs that may not know of it. It reports whether
// it did.
func (e *Engine) removeMarked() bool {
	for try := range 100 {
		r, err := e.query.OrdersRemoveForgotten(e.ctx, nil)
		switch {
		case err != nil && e.ctx.Err() == nil:
			e.log.Warn("remove old orders", "error", err)
			return false
		case err == nil && !r.Waiting:
			e.Stats.Forgotten.Add(int64(r.Removed))
			return true
		}
		if e.backOff(try); e.stopping.Load() || e.ctx.Err() != nil {
			return false
		}
	}
	return false // the next search goes on with it
}

// learnForgotten reads which orders were forgotten since it was called last. Until it has, admissions leave out all
// orders, and each one that was left out learns again.
func (e *core) learnForgotten() {
	ctx, cancel := context.WithTimeout(e.ctx, 5*time.Second)
	defer cancel()
	_ = e.Orders.LearnForgotten(ctx)
}

// withoutForgotten ends the runs of orders that were forgotten, and returns the others.
func (e *core) withoutForgotten(runs []*run) []*run {
	if len(runs) == 0 {
		return nil
	}
	ids := make([]string, len(runs))
	for i, r := range runs {
		ids[i] = r.orderID
	}
	rows, err := untilKnown(e, "look for forgotten orders", func() ([]db.OrdersForgottenRow, error) {
		return e.Orders.Forgotten(e.ctx, ids)
	})
	if e.standsDown("look for forgotten orders", err, runs) {
		return nil
	}
	if e.ctx.Err() != nil {
		goTo(toHandBack, runs...)
		return nil
	}
	forgotten, others := divide(runs, func(r *run) bool {
		return slices.ContainsFunc(rows, func(row db.OrdersForgottenRow) bool { return row.OrderID == r.orderID })
	})
	endRuns(orders.ErrForgotten, forgotten...)
	return others
}

// forgotten is the answer to a request for an order that was forgotten: *orders.Forgotten if it has the input of the
// order, *orders.Conflict if not, and the error of a key that belongs to another request. Metadata is not compared, nor
// a field that was left out, except for the quantity.
func (e *core) forgotten(ctx context.Context, in *Input) error {
	ctx, cancel := answering(ctx)
	defer cancel()
	_, err := e.Orders.Get(ctx, in.OrderID)
	known, ok := errors.AsType[*orders.Forgotten](err)
	if !ok {
		return cmp.Or(err, orders.ErrUnavailable) // it is stored after all: asking again finds it
	}
	if err := e.checkForgottenKey(ctx, in); err != nil {
		return err
	}
	sent, err := orders.Read(ctx, e.Orders, e.query.InputHash, db.InputHashParams{
		OrderID: in.OrderID, Amount: in.Amount.String(), Item: in.Item, Quantity: cmp.Or(in.Quantity, 1), Lines: in.Lines,
		CustomerID: in.CustomerID, PaymentMethod: in.PaymentMethod, StartAt: in.StartAt, CompleteBy: in.CompleteBy,
		TtlSeconds: in.ReservationTTL.Seconds(), ConcurrencyKey: in.ConcurrencyKey, SubmittedBy: in.SubmittedBy,
	})
	if err != nil {
		return orders.Unavailable("hash input", err)
	}
	known.Own = termOf(known.Input, hashedSubmitter) == nil || inputHas(known.Input, hashedSubmitter, sent)
	if d := forgottenDifferences(known, in, sent); d != nil {
		return &orders.Conflict{Order: orders.Order{OrderID: in.OrderID}, Differences: d}
	}
	return known
}

// checkForgottenKey returns an error if the key of a request belongs to another one. It does not store the key.
func (e *core) checkForgottenKey(ctx context.Context, in *Input) error {
	if in.Key == nil {
		return nil
	}
	rows, err := orders.Read(ctx, e.Orders, e.query.IdempotencyKeysOf, []string{in.Key.Key})
	if err != nil {
		return orders.Unavailable("read idempotency key", err)
	}
	if stored := fingerprintOf(in.Key, rows); stored != nil && !bytes.Equal(stored, in.Key.fingerprint) {
		return reused(stored, in.Key.fingerprint, keyedMembers)
	}
	return nil
}

// The form of pawl.input_hash: a hash of what was bought, and one for each optional term, after its number.
const (
	boughtSize      = 8
	termSize        = 5
	hashedSubmitter = 7
)

// hashedTerms are the terms by number. A term that the order may have lost, or never stored, is compared only if it is
// stored.
var hashedTerms = []struct {
	number  byte
	pointer string
	lenient bool
}{
	{1, "/customerId", false}, {2, "/paymentMethod", false}, {3, "/startAt", false}, {4, "/completeBy", true},
	{5, "/reservationTtl", false}, {6, "/concurrencyKey", true},
}

// erasedTerms are those that were replaced with the customer of an order.
var erasedTerms = []byte{1, 2, 6}

func forgottenDifferences(known *orders.Forgotten, in *Input, sent []byte) (d []orders.Difference) {
	differs := func(pointer string) {
		d = append(d, orders.Difference{Pointer: pointer, Stored: "(forgotten)", Sent: "(as sent)"})
	}
	if !bytes.Equal(known.Input[:boughtSize], sent[:boughtSize]) {
		differs("")
	}
	if in.Currency != "" && in.Currency != known.Currency {
		d = append(d, orders.Difference{Pointer: "/currency", Stored: known.Currency, Sent: in.Currency})
	}
	for _, term := range hashedTerms {
		given := termOf(sent, term.number)
		if known.Erased && slices.Contains(erasedTerms, term.number) {
			continue
		}
		if given != nil && !inputHas(known.Input, term.number, sent) && !(term.lenient && termOf(known.Input, term.number) == nil) {
			differs(term.pointer)
		}
	}
	return d
}

// inputHas reports whether a stored hash has the same term as a sent one.
func inputHas(stored []byte, number byte, sent []byte) bool {
	given := termOf(sent, number)
	for terms := stored[boughtSize:]; len(terms) >= termSize; terms = terms[termSize:] {
		if given != nil && bytes.Equal(terms[:termSize], given) {
			return true
		}
	}
	return false
}

// termOf returns a term of a hash, or nil.
func termOf(hash []byte, number byte) []byte {
	for terms := hash[boughtSize:]; len(terms) >= termSize; terms = terms[termSize:] {
		if terms[0] == number {
			return terms[:termSize]
		}
	}
	return nil
}
