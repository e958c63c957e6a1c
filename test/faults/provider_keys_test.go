package faults

import (
	"path/filepath"
	"testing"

	pawl "pawl/client"
	"pawl/internal/simulator"
)

// until waits until an order is as the books are to have it.
func (s *shop) until(id, status, hold string) {
	s.t.Helper()
	eventually(s.t, patience, id+" is "+status+" "+hold, func() bool {
		o := s.outcomes()[id]
		return o.Status == status && o.Hold == hold
	})
}

// proveBoth has the command prove the books, and compare them with the provider's.
func (s *shop) proveBoth(id string) {
	s.t.Helper()
	if code, said := run(s.t, "verify", "--database-url", s.database.URL, "--provider", s.url); code != 0 {
		s.t.Errorf("pawl verify --provider ends with %d:\n%s\n%s", code, said, s.trace(id))
	}
}

// An order is charged in vain, started again, and canceled while the void of its first key is not answered: nothing of a
// second charge is in the books, and the void goes on until it is answered.
func TestStoppedWhileAVoidIsUnanswered(t *testing.T) {
	build(t)
	t.Parallel()
	s := openShop(t, blind, callLimit)
	s.faults(simulator.Rule{Fault: simulator.Decline, Step: "charge"}, simulator.Rule{Fault: simulator.Error, Step: "charge", Operation: "undo"})
	s.open(2)
	s.order("one")
	s.until("one", "failed", "")
	eventually(t, patience, "it is started again", func() bool { return s.ask("retry", "one") })
	s.until("one", "charging", "retry")
	eventually(t, patience, "it is canceled", func() bool { return s.ask("cancel", "one") })
	s.until("one", "canceled", "")
	for _, view := range []string{"charges", "refunds"} {
		if n := count(t, s.database.URL, `SELECT count(*) FROM books.`+view); n != 0 {
			t.Errorf("%d %s of an order that nobody has charged\n%s", n, view, s.trace("one"))
		}
	}
	s.faults()
	eventually(t, patience, "the first key is voided", func() bool {
		return count(t, s.database.URL, `SELECT count(*) FROM books.late_undos AS u WHERE u.step = 'charge' AND u.generation = 0 AND u.finished_at IS NOT NULL`) == 1
	})
	s.proveBoth("one")
}

// An order that its provider certainly did nothing for goes on under a policy whose steps are the ledger's: the provider's
// books lack what was never asked of it, and that is no difference.
func TestTheLedgerAfterAProvider(t *testing.T) {
	build(t)
	t.Parallel()
	s := openShop(t, looking, callLimit)
	s.faults(simulator.Rule{Fault: simulator.NotDone, Step: "charge"})
	s.open(1)
	s.order("one")
	s.until("one", "charging", "retry")
	policy := filepath.Join(t.TempDir(), "ledger.yaml")
	write(t, policy, "charge: {executor: ledger}\nreserve: {executor: ledger}\nconfirm: {executor: ledger}\n")
	newest := s.open(1, "--policy", policy).addresses()[0] // the other one may not have heard yet which policy is active
	eventually(t, patience, "it goes on under the other policy", func() bool {
		_, err := s.api(newest).RetryOrder(t.Context(), "one", &pawl.RetryOrderParams{Prefer: "respond-async"}, pawl.RetryBody{OnBehalfOf: "test", Policy: "active"})
		return err == nil
	})
	s.until("one", "completed", "")
	s.proveBoth("one")
}
