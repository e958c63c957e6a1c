package simulator

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
)

// verdict is what comes of a request.
type verdict struct {
	after   *intent      // as it is from now on; nil: unchanged
	shown   *intent      // as it is answered
	refund  any          // that was made
	fault   *stripeFault // what is answered instead
	outcome string       // in the log of requests
	unsaved bool         // it was refused before it began: the key is free
}

func refused(fault *stripeFault, i *intent) verdict {
	return verdict{shown: i, fault: fault, outcome: "refused"}
}

func (v *verdict) status() int {
	if v.fault != nil {
		return v.fault.httpStatus
	}
	return http.StatusOK
}

func (v *verdict) body(q *stripeRequest) any {
	switch {
	case v.fault != nil:
		if v.shown != nil && v.fault.httpStatus < http.StatusInternalServerError {
			v.fault.PaymentIntent = v.shown.json(q.expand())
		}
		return v.fault.reply().body
	case v.refund != nil:
		return v.refund
	}
	return v.shown.json(q.expand())
}

// verdict decides a request; mu is held.
func (s *Simulator) verdict(q *stripeRequest) (v verdict) {
	if q.broken() && q.rule.Fault == Error {
		return verdict{after: s.asked(q), fault: serverFault(q.rule.Status), outcome: "error"}
	}
	switch q.operation {
	case stripeCreate:
		v = s.create(q)
	case stripeConfirm:
		v = s.confirm(q, s.state.intents[q.intent].next())
	case stripeCapture:
		v = s.capture(q, s.state.intents[q.intent].next())
	case stripeCancel:
		v = s.cancel(q, s.state.intents[q.intent].next())
	case stripeRefund:
		v = s.refund(q, s.state.intents[q.intent].next())
	}
	if q.broken() && !v.unsaved {
		v.fault = serverFault(q.rule.Status)
	}
	return v
}

// asked notes that a capture was begun under this key, whatever comes of it.
func (s *Simulator) asked(q *stripeRequest) *intent {
	if q.operation != stripeCapture || s.state.intents[q.intent].CaptureKey != "" {
		return nil
	}
	i := s.state.intents[q.intent].next()
	i.CaptureKey = q.key
	return i
}

func (s *Simulator) create(q *stripeRequest) verdict {
	if q.rule.Code != "" && q.means != operationDo {
		v := refused(invalid(q.rule.Code, "", "By the fault plan."), nil)
		v.unsaved = true
		return v
	}
	i := &intent{
		ID: s.state.name("pi"), Key: q.key, Status: needsConfirmation, Amount: q.amount, Currency: q.currency,
		Manual: q.form.Get("capture_method") == "manual", PaymentMethod: q.form.Get("payment_method"), Customer: q.form.Get("customer"),
		Metadata: q.metadata(), Created: time.Now().Unix(), Version: 1,
	}
	if i.PaymentMethod == "" {
		i.Status = needsMethod
	}
	if q.form.Get("confirm") == "true" {
		return s.confirm(q, i)
	}
	return verdict{after: i, shown: i, outcome: "created"}
}

// confirm charges, authorizes, or is refused. LateAfterVoid does it whatever the state is.
func (s *Simulator) confirm(q *stripeRequest, i *intent) verdict {
	if method := q.form.Get("payment_method"); method != "" && (i.Status == needsMethod || i.Status == needsConfirmation) {
		i.PaymentMethod, i.Status = method, needsConfirmation
	}
	switch late := q.rule.Fault == LateAfterVoid; {
	case i.Status == needsMethod && !late:
		return refused(invalid("payment_intent_unexpected_state", "",
			"You cannot confirm this PaymentIntent because it's missing a payment method."), s.state.intents[i.ID])
	case i.Status != needsConfirmation && !late:
		if i.Status == canceled {
			s.counts.refusedAfterUndo++
		}
		return refused(unexpected(i, "confirmed"), s.state.intents[i.ID])
	case q.rule.Fault == Async || q.rule.Fault == CallbackTwice:
		return promisedStripe(q, i)
	case q.rule.Code != "":
		return hidden(q, decline(i, q.rule.Code))
	case declinedMethod(i.PaymentMethod) != "":
		return hidden(q, decline(i, declinedMethod(i.PaymentMethod)))
	case slices.Contains(methodsWithAction, i.PaymentMethod):
		i.Status = needsAction
		return verdict{after: i, shown: i, outcome: string(Pending)}
	case i.PaymentMethod == methodProcessing:
		i.Status = processing
		return verdict{after: i, shown: i, outcome: string(Pending)}
	}
	s.charge(i)
	return hidden(q, verdict{after: i, shown: i, outcome: "done"})
}

// charge takes the money, or puts it on hold.
func (s *Simulator) charge(i *intent) {
	i.Charge = fmt.Sprintf("ch_%s_%d", strings.TrimPrefix(i.ID, "pi_"), i.Charges+1)
	i.Charges++
	i.Status, i.LastError, i.Promise, i.Disputed = succeeded, nil, nil, i.PaymentMethod == methodDisputed
	if i.Manual {
		i.Status = needsCapture
	}
}

// decline has the bank refuse. Another try needs another payment method.
func decline(i *intent, code string) verdict {
	fault := declined(code, i)
	kept := *fault
	i.Status, i.LastError, i.PaymentMethod, i.Promise = needsMethod, &kept, "", nil
	return verdict{after: i, shown: i, fault: fault, outcome: "refused"}
}

// promisedStripe takes a request on and leaves the decision to a job.
func promisedStripe(q *stripeRequest, i *intent) verdict {
	i.Status, i.Promise = processing, q.promise()
	return verdict{after: i, shown: i, outcome: string(Pending)}
}

// hidden answers that what was decided is being processed, for those who are to hear of it
// later, if at all.
func hidden(q *stripeRequest, v verdict) verdict {
	if !slices.Contains([]Fault{CallbackLate, CallbackNever, CallbackBefore}, q.rule.Fault) {
		return v
	}
	shown := *v.after
	shown.Status, shown.LastError = processing, nil
	v.shown, v.fault, v.outcome = &shown, nil, string(Pending)
	return v
}

// capture takes what is on hold. One that is declined finds that the hold has expired, and
// the intent canceled for it: https://docs.stripe.com/payments/place-a-hold-on-a-payment-method.
func (s *Simulator) capture(q *stripeRequest, i *intent) verdict {
	if i.CaptureKey == "" {
		i.CaptureKey = q.key
	}
	switch {
	case i.Status != needsCapture:
		return refused(unexpected(i, "captured"), s.state.intents[i.ID])
	case q.rule.Fault == Async || q.rule.Fault == CallbackTwice:
		return promisedStripe(q, i)
	case q.rule.Code != "":
		return hidden(q, expire(i))
	}
	take(i)
	return hidden(q, verdict{after: i, shown: i, outcome: "done"})
}

func take(i *intent) {
	i.Captures++
	i.Status, i.Promise = succeeded, nil
}

func expire(i *intent) verdict {
	i.Status, i.CanceledAt, i.CanceledFor, i.Promise = canceled, time.Now().Unix(), "automatic", nil
	fault := invalid(codeExpired, "", "The authorization has expired, and can no longer be captured.")
	return verdict{after: i, shown: i, fault: fault, outcome: "refused"}
}

// cancelable are the states of an intent that can be canceled. Of those that are being
// processed it is the few: https://docs.stripe.com/api/payment_intents/cancel.
var cancelable = []string{needsMethod, needsConfirmation, needsAction, needsCapture}

func (s *Simulator) cancel(q *stripeRequest, i *intent) verdict {
	switch {
	case !slices.Contains(cancelable, i.Status) && (i.Status != processing || i.PaymentMethod != methodProcessing):
		return refused(unexpected(i, "canceled"), s.state.intents[i.ID])
	case q.rule.Code != "":
		return refused(invalid(q.rule.Code, "", "By the fault plan."), s.state.intents[i.ID])
	}
	i.Status, i.CanceledAt, i.CanceledFor, i.Promise = canceled, time.Now().Unix(), q.form.Get("cancellation_reason"), nil
	return verdict{after: i, shown: i, outcome: string(Voided)}
}
