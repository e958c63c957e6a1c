package simulator

import (
	"net/http"
	"time"
)

// beginStripe finds the answer to a key, or takes it on and locks the intent. Stripe stores
// no answer of a request that conflicts with another one, and compares what a key was used
// for: https://docs.stripe.com/api/idempotent_requests.
func (s *Simulator) beginStripe(q *stripeRequest) *reply {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := s.state.stripeKey(q.idempotency)
	var a reply
	switch {
	case known != nil && known.body != q.fingerprint:
		a = (&stripeFault{Type: "idempotency_error", httpStatus: http.StatusBadRequest,
			Message: "Keys for idempotent requests can only be used with the same parameters they were first used with."}).reply()
	case known != nil && known.running:
		s.counts.suppressed++
		a = (&stripeFault{Type: "idempotency_error", Code: "idempotency_key_in_use", httpStatus: http.StatusConflict,
			Message: "There is currently another in-progress request using this Idempotent Key."}).reply()
	case known != nil:
		s.counts.suppressed++
		return &known.answer
	case q.locks() && s.state.intents[q.intent].busy:
		a = invalid("lock_timeout", "", "This object cannot be accessed right now because another API request or Stripe process is currently accessing it.").
			status(http.StatusTooManyRequests).reply()
	default:
		s.take(q)
		return nil
	}
	return &a
}

// stripeKey is what is known of a key that is still kept.
func (s *state) stripeKey(name string) *stripeKey {
	known := s.stripeKeys[name]
	if known == nil || !known.running && time.Since(known.at) > keyRetention {
		return nil
	}
	return known
}

// locks reports whether a request keeps others away from its intent. What breaks the
// contract does not.
func (q *stripeRequest) locks() bool { return q.intent != "" && q.rule.Fault != LateAfterVoid }

// take takes a key on, and locks the intent; mu is held.
func (s *Simulator) take(q *stripeRequest) {
	q.logged.Outcome = "running"
	s.history.change()
	if q.idempotency != "" {
		s.state.stripeKeys[q.idempotency] = &stripeKey{body: q.fingerprint, running: true}
	}
	if q.locks() {
		s.state.intents[q.intent].busy = true
	}
}

// release gives back what take took; mu is held.
func (s *Simulator) release(q *stripeRequest) {
	delete(s.state.stripeKeys, q.idempotency)
	if q.locks() {
		s.state.intents[q.intent].busy = false
	}
}

func (s *Simulator) abandonStripe(q *stripeRequest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.release(q)
}
