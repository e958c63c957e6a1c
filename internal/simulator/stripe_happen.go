package simulator

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"
)

// What happens to a payment intent without a request of its shop.
const (
	Approved  = "approve"   // the customer has authenticated, the bank has paid
	Declined  = "decline"   // one of them has not
	Expired   = "expire"    // an authorization was not captured in time
	Disputed  = "dispute"   // the customer disputes the charge
	Undispute = "undispute" // and does not any more

	RefundPaid     = "refund-paid"     // the last refund, which was pending, has reached the customer
	RefundReturned = "refund-returned" // or his bank has sent it back
)

// Happen does what the customer, the bank or the time does to a payment intent, and sends
// the event. Code is why it is declined; empty: card_declined, or that the customer has not
// authenticated. The error says that it can't happen to the intent as it is.
func (s *Simulator) Happen(id, what, code string) error {
	if !s.enter() {
		return errors.New("the simulator is being stopped")
	}
	defer s.work.Done()
	s.mu.Lock()
	told, err := s.happen(id, what, code)
	s.mu.Unlock()
	if err != nil {
		return err
	}
	if err := s.journal.sync(); err != nil {
		return fmt.Errorf("write simulator file: %w", err)
	}
	s.start(func() { s.call(told, 1) })
	return nil
}

// happen does it, and returns what there is to tell; mu is held.
func (s *Simulator) happen(id, what, code string) (message, error) {
	before := s.state.intents[id]
	if before == nil {
		return message{}, fmt.Errorf("no payment intent %q", id)
	}
	i := before.next()
	waits := i.Status == needsAction || i.Status == processing
	switch {
	case what == Approved && waits && i.Charges > 0:
		take(i)
	case what == Approved && waits:
		s.charge(i)
	case what == Declined && waits && i.Charges > 0, what == Expired && i.Status == needsCapture:
		expire(i)
	case what == Declined && waits:
		otherwise := "card_declined"
		if i.Status == needsAction {
			otherwise = codeUnauthenticated
		}
		decline(i, cmp.Or(code, otherwise))
	case slices.Contains([]string{Disputed, Undispute}, what) && i.Charges > 0:
		i.Disputed = what == Disputed
	case slices.Contains([]string{RefundPaid, RefundReturned}, what) && i.refundHappens(what):
	default:
		return message{}, fmt.Errorf("%s: does not happen to a payment intent that is %s", what, i.Status)
	}
	s.record(event{Event: eventStripe, Stripe: &change{Intent: i}})
	return s.eventMessage(before, i), nil
}

func (s *Simulator) postHappening(w http.ResponseWriter, r *http.Request) {
	if err := s.Happen(r.PathValue("intent"), r.PathValue("what"), r.URL.Query().Get("code")); err != nil {
		s.deliver(w, r, reply{status: http.StatusConflict, body: said{Code: "bad_request", Detail: err.Error()}})
		return
	}
	s.deliver(w, r, ok(map[string]string{"at": time.Now().UTC().Format(time.RFC3339)}))
}
