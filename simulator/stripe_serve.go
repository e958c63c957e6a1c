package simulator

import (
	"context"
	"encoding/json"
	"net/http"
	"time"
)

// The requests of Stripe's API that are answered, by what https://docs.stripe.com/api calls them.
const (
	stripeCreate  = "create"  // a payment intent
	stripeConfirm = "confirm" // it: this charges, or authorizes
	stripeCapture = "capture" // what was authorized
	stripeCancel  = "cancel"  // an intent
	stripeRefund  = "refund"  // all of a charge
	stripeRead    = "read"    // an intent or a refund, or list refunds
)

func (s *Simulator) stripeRoutes(mux *http.ServeMux) {
	mux.HandleFunc("POST /v1/payment_intents", s.stripe(stripeCreate))
	mux.HandleFunc("POST /v1/payment_intents/{intent}/confirm", s.stripe(stripeConfirm))
	mux.HandleFunc("POST /v1/payment_intents/{intent}/capture", s.stripe(stripeCapture))
	mux.HandleFunc("POST /v1/payment_intents/{intent}/cancel", s.stripe(stripeCancel))
	mux.HandleFunc("GET /v1/payment_intents/{intent}", s.stripe(stripeRead))
	mux.HandleFunc("POST /v1/refunds", s.stripe(stripeRefund))
	mux.HandleFunc("GET /v1/refunds/{refund}", s.stripe(stripeRead))
	mux.HandleFunc("GET /v1/refunds", s.stripe(stripeRead))
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
		if !s.enter() {
			s.deliver(w, r, stripeClosed())
			return
		}
		defer s.work.Done()
		s.arrive(&q.request)
		a := s.handleStripe(r.Context(), q)
		s.leave(&q.request, a)
		w.Header().Set("Request-Id", q.number())
		if q.idempotency != "" {
			w.Header().Set("Idempotency-Key", q.idempotency)
		}
		s.deliver(w, r, a)
	}
}

func stripeClosed() reply {
	a := serverFault(http.StatusServiceUnavailable).reply()
	a.outcome = "not_done"
	return a
}

func (s *Simulator) handleStripe(caller context.Context, q *stripeRequest) reply {
	if a, ok := stripeFront(q); ok {
		return a
	}
	switch {
	case q.call != stripeRead:
		return stripeSpoil(q, s.doStripe(caller, q))
	case q.rule.Fault == Hang:
		return reply{outcome: "none", delivery: silent}
	case q.rule.Fault == Slow && !s.pause(q.rule.Delay):
		return stripeClosed()
	}
	return stripeSpoil(q, s.lookAt(q))
}

// stripeFront is what faults answer that keep a request from its key. What begins and goes
// wrong is not among them: Stripe keeps a 500 for the key.
func stripeFront(q *stripeRequest) (reply, bool) {
	var fault *stripeFault
	switch rule := q.rule; {
	case rule.Fault == RefuseConnection || rule.Fault == TimeoutBefore:
		return front(rule)
	case rule.Fault == NotDone:
		fault = serverFault(http.StatusServiceUnavailable)
	case rule.Fault == RateLimit:
		fault = invalid("rate_limit", "", "Too many requests, by the fault plan.").status(http.StatusTooManyRequests)
	case rule.Fault == Error && (rule.Status != http.StatusInternalServerError || q.call == stripeRead):
		fault = serverFault(rule.Status)
	default:
		return reply{}, false
	}
	a := fault.reply()
	a.outcome = "not_done"
	if q.rule.Fault == Error {
		a.outcome = "error"
	}
	if q.rule.Fault == RateLimit {
		a.after = q.rule.Delay
	}
	return a, true
}

// stripeSpoil is what faults make of an answer on its way.
func stripeSpoil(q *stripeRequest, a reply) reply {
	switch rule := q.rule; rule.Fault {
	case TimeoutAfter:
		a.delivery = silent
	case CutAfter:
		a.delivery = cut
	case ErrorAfter:
		if rule.Status != http.StatusInternalServerError || q.call == stripeRead { // otherwise it was stored
			a.status, a.body = rule.Status, serverFault(rule.Status).reply().body
		}
	default:
	}
	return a
}

// doStripe answers a request that changes something. Between begin and decide its key is in
// use and its intent locked. A caller who leaves changes nothing of it.
func (s *Simulator) doStripe(caller context.Context, q *stripeRequest) reply {
	known, written := s.beginStripe(q)
	switch {
	case known != nil && q.rule.Fault == Hang && known.status < http.StatusConflict:
		return reply{outcome: "none", delivery: silent}
	case known != nil:
		return s.stripeDurable(written, *known)
	}
	if undecided := s.hold(caller, &q.rule, stripeClosed()); undecided != nil {
		s.abandonStripe(q)
		return *undecided
	}
	a, written := s.decideStripe(q)
	return s.stripeDurable(written, a)
}

// stripeDurable holds an answer back until what it says is on disk.
func (s *Simulator) stripeDurable(written *batch, a reply) reply {
	if err := written.wait(); err != nil {
		s.log.Error("write simulator file", "error", err)
		lost := serverFault(http.StatusInternalServerError).reply()
		lost.outcome = "unknown"
		return lost
	}
	return a
}

// decideStripe makes happen what was asked for, or not, in one moment.
func (s *Simulator) decideStripe(q *stripeRequest) (reply, *batch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.release(q)
	v := s.verdict(q)
	text, err := json.Marshal(v.body(q))
	if err != nil {
		panic(err) // our own types
	}
	a := reply{status: v.status(), outcome: v.outcome, body: json.RawMessage(text)}
	if v.unsaved {
		return a, nil
	}
	before := s.state.stripe.before(v.after)
	written := s.recordStripe(q, change{Intent: v.after, Refund: v.refund, Key: q.idempotency, Status: a.status, Answer: text, Outcome: v.outcome})
	return s.telling(q, v, before, a), written
}

// recordStripe makes a change happen and hands it to the file; mu is held.
func (s *Simulator) recordStripe(q *stripeRequest, c change) *batch {
	ev := event{Event: eventStripe, At: time.Now().UTC(), Key: c.Key, Stripe: &c}
	if q != nil {
		ev.Body, ev.Subject = q.fingerprint, q.body.Subject
	}
	line, err := json.Marshal(ev)
	if err != nil {
		panic(err) // strings and numbers
	}
	s.state.applyStripe(ev)
	written := s.journal.add(line)
	if c.Intent != nil {
		s.state.stripe.intents[c.Intent.ID].written = written
	}
	if known := s.state.stripe.keys[c.Key]; c.Key != "" {
		known.written = written
	}
	return written
}
