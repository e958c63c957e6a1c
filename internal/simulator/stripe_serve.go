package simulator

import (
	"net/http"
)

// The requests of Stripe's API that are answered, by what https://docs.stripe.com/api calls them.
const (
	stripeCreate  = "create"  // a payment intent
	stripeConfirm = "confirm" // it: this charges, or authorizes
	stripeCapture = "capture" // what was authorized
	stripeCancel  = "cancel"  // an intent
	stripeRefund  = "refund"  // a charge, or a part of it
	stripeRead    = "read"    // an intent, or refunds
)

func (s *Simulator) stripeRoutes(mux *http.ServeMux) {
	mux.HandleFunc("POST /v1/payment_intents", s.stripe(stripeCreate))
	mux.HandleFunc("POST /v1/payment_intents/{intent}/confirm", s.stripe(stripeConfirm))
	mux.HandleFunc("POST /v1/payment_intents/{intent}/capture", s.stripe(stripeCapture))
	mux.HandleFunc("POST /v1/payment_intents/{intent}/cancel", s.stripe(stripeCancel))
	mux.HandleFunc("GET /v1/payment_intents/{intent}", s.stripe(stripeRead))
	mux.HandleFunc("POST /v1/refunds", s.stripe(stripeRefund))
	mux.HandleFunc("GET /v1/refunds", s.stripe(stripeRead))
	mux.HandleFunc("GET /v1/refunds/{refund}", s.stripe(stripeRead))
	mux.HandleFunc("/v1/", func(w http.ResponseWriter, r *http.Request) {
		s.deliver(w, r, invalid("", "", "Unrecognized request URL ("+r.Method+": "+r.URL.Path+").").status(http.StatusNotFound).reply())
	})
	mux.HandleFunc("POST /stripe/payment_intents/{intent}/{what}", s.postHappening)
}

func (s *Simulator) stripe(call string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		q, fault := s.readStripe(w, r, call)
		if fault != nil { // before a key is looked at: it can come again, and be right
			s.deliver(w, r, fault.reply())
			return
		}
		if q.idempotency != "" {
			w.Header().Set("Idempotency-Key", q.idempotency)
		}
		s.serve(w, r, &q.request, func() reply {
			if call == stripeRead {
				return s.lookAt(q)
			}
			return s.attempt(r.Context(), &q.request, s.beginStripe(q), ending{func() { s.abandonStripe(q) }, func() reply { return s.decideStripe(q) }})
		})
	}
}

// broken reports whether the request is to go wrong inside Stripe, which then keeps the 500
// for its key, be it done or not.
func (q *request) broken() bool {
	return q.stripe && q.operation != stripeRead && (q.rule.Fault == Error || q.rule.Fault == ErrorAfter) && q.rule.Status == http.StatusInternalServerError
}

// worded puts a reply of our own API into the words of the API that was asked.
func (q *request) worded(a reply) reply {
	if _, ours := a.body.(said); ours && q.stripe {
		a.body = serverFault(a.status).reply().body
	}
	return a
}

// lookAt answers a request that changes nothing.
func (s *Simulator) lookAt(q *stripeRequest) reply {
	if q.rule.Fault == Slow && !s.pause(q.rule.Delay) {
		return closedReply
	}
	if q.refund != "" || q.form.Has("payment_intent") {
		return s.durable(s.lookAtRefunds(q))
	}
	s.mu.Lock()
	shown := s.state.intents[q.intent].json(q.expand())
	s.mu.Unlock()
	return s.durable(reply{status: http.StatusOK, outcome: "read", body: shown})
}

// decideStripe makes happen what was asked for, or not, in one moment.
func (s *Simulator) decideStripe(q *stripeRequest) reply {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.release(q)
	v := s.verdict(q)
	text := encode(v.body(q))
	a := reply{status: v.status(), outcome: v.outcome, body: text}
	if v.unsaved {
		return a
	}
	before := s.state.intents[q.intent]
	s.record(event{Event: eventStripe, Key: q.idempotency, Subject: q.body.Subject, Body: q.fingerprint,
		Stripe: &change{Intent: v.after, Status: a.status, Answer: text, Outcome: v.outcome}})
	if v.after == nil {
		return a
	}
	return s.telling(q, before, v.after, a)
}
