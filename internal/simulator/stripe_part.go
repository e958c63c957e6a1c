package simulator

import (
	"maps"
	"slices"
	"time"
)

// stripePart is a capture of a part of a payment intent, or the void of the rest.
type stripePart struct {
	Key    string `json:"key"` // of the request
	Kind   string `json:"kind"`
	Amount int64  `json:"amount"`
}

// taken is the money that an intent has taken.
func (i *intent) taken() int64 {
	switch {
	case i.Charges == 0 || i.Status != succeeded && !i.Manual:
		return 0
	case i.Manual:
		return i.Captured
	}
	return i.Amount
}

// capturePart captures a part of an authorization: https://docs.stripe.com/payments/multicapture. Unless it is the
// final one, more captures may follow, if the card allows it.
func (s *Simulator) capturePart(q *stripeRequest, i *intent) verdict {
	final := q.form.Get("final_capture") != "false"
	var fault *stripeFault
	switch {
	case i.Status != needsCapture:
		fault = unexpected(i, "captured")
	case q.rule.Code != "":
		fault = invalid(q.rule.Code, "", "By the fault plan.")
	case q.amount > i.Amount-i.Captured:
		fault = invalid("amount_too_large", "amount_to_capture", "The amount is greater than the amount that can be captured.")
	case !final && (!i.Multicapture || i.PaymentMethod == methodOneCapture):
		fault = invalid("", "final_capture", "Multicapture is not available for this payment.")
	}
	if fault != nil {
		return refused(fault, s.state.intents[i.ID])
	}
	i.Captures++
	i.Captured += q.amount
	i.Parts = append(slices.Clone(i.Parts), stripePart{q.key, operationCapture, q.amount})
	maps.Copy(i.Metadata, q.metadata())
	if final || i.Captured == i.Amount {
		i.Status = succeeded
	}
	return verdict{after: i, shown: i, outcome: "done"}
}

// enterParts enters the parts of an intent in the books.
func (s *state) enterParts(now, was *intent, at time.Time) {
	for n := len(was.Parts); n < len(now.Parts); n++ {
		part := &now.Parts[n]
		s.enter(&entry{}, &entry{Entry: Entry{Key: part.Key, Subject: now.subject(part.Kind, part.Amount), State: Live, Effects: 1, At: at}})
	}
}
