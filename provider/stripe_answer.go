package provider

import (
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"

	"github.com/stripe/stripe-go/v85"
)

// failure says what it means for a request alone that it was not answered with what it
// asked for; nil if it was. It follows https://docs.stripe.com/api/errors and
// https://docs.stripe.com/error-low-level.
func (r *stripeReply) failure() Result {
	switch {
	case r.err == nil:
		return nil
	case r.fault != nil:
		return r.faulty()
	case r.unreadable():
		return Unknown{Code: "answer_unreadable", Detail: "what came is not an answer of Stripe"}
	}
	return r.lost()
}

// unreadable reports whether an answer came, but not one of Stripe's.
func (r *stripeReply) unreadable() bool {
	var network net.Error // also what net/http says of a request without an answer
	return r.sent > 0 && r.ctxErr == nil && !errors.As(r.err, &network) && !errors.Is(r.err, io.ErrUnexpectedEOF)
}

func (r *stripeReply) faulty() Result {
	code, detail := r.text(faultCode(r.fault)), r.text(r.fault.Msg)
	switch {
	case r.status == http.StatusTooManyRequests: // limits and locks are checked before anything is done
		return r.notDoneByStripe(Retry{Code: cmp.Or(code, "rate_limit"), Detail: detail, After: r.retryAfter()})
	case r.status == http.StatusUnauthorized || r.status == http.StatusForbidden:
		return r.notDoneByStripe(Retry{Code: "unauthorized", Detail: detail, After: r.retryAfter(), Counts: true})
	case r.fault.Type == stripe.ErrorTypeIdempotency: // the key belongs to other parameters
		return Unknown{Code: code, Detail: detail, After: r.retryAfter()}
	case r.status == http.StatusBadRequest || r.status == http.StatusPaymentRequired || r.status == http.StatusNotFound:
		return Refused{Code: cmp.Or(code, "refused"), Detail: detail}
	case r.status >= http.StatusInternalServerError && r.replayed: // it went wrong in the middle, and this key will hear of nothing else
		return Refused{Code: cmp.Or(code, "http_"+strconv.Itoa(r.status)), Detail: detail}
	}
	return Unknown{Code: cmp.Or(code, "http_"+strconv.Itoa(r.status)), Detail: detail, After: r.retryAfter()}
}

// notDoneByStripe is what it means that a request did nothing. When it was put on more than
// one connection that is the answer on the last; an earlier one may have done it.
func (r *stripeReply) notDoneByStripe(retry Retry) Result {
	if r.sent > 1 {
		return doubt(retry)
	}
	return retry
}

// faultCode is the most exact word for what is wrong: why the bank declined, or what
// Stripe calls it.
func faultCode(fault *stripe.Error) string {
	if fault == nil {
		return ""
	}
	return cmp.Or(string(fault.DeclineCode), string(fault.Code), string(fault.Type))
}

// doubt is a failed request in an operation of which another request may have had an
// effect: that one did nothing says nothing of the operation.
func doubt(r Result) Result {
	switch r := r.(type) {
	case Refused:
		return Unknown{Code: r.Code, Detail: r.Detail}
	case Retry:
		return Unknown{Code: r.Code, Detail: r.Detail, After: r.After}
	}
	return r
}

// refunded reports whether nothing is left of the money that was taken.
func refunded(intent *stripe.PaymentIntent) bool {
	return intent.LatestCharge != nil && intent.LatestCharge.Refunded
}

// declined says why an intent has not become a charge: by the request's own words, or by
// what the intent tells of its last attempt.
func (r *stripeReply) declined(intent *stripe.PaymentIntent, otherwise string) Refused {
	fault := r.fault
	if fault == nil || fault.Code == stripe.ErrorCodePaymentIntentUnexpectedState { // that is what it has become, not why
		fault = intent.LastPaymentError
	}
	if fault == nil {
		return Refused{Code: otherwise, Detail: r.text(string(intent.CancellationReason))}
	}
	return Refused{Code: r.text(cmp.Or(faultCode(fault), otherwise)), Detail: r.text(fault.Msg)}
}

// stripeAction is what the customer has to do: to open a page, or what the library of
// Stripe in the browser does with the client secret.
func stripeAction(intent *stripe.PaymentIntent) json.RawMessage {
	var action struct {
		Type         string `json:"type"`
		URL          string `json:"url,omitempty"`
		ClientSecret string `json:"clientSecret,omitempty"`
	}
	action.ClientSecret = intent.ClientSecret
	if next := intent.NextAction; next != nil {
		action.Type = string(next.Type)
		if next.RedirectToURL != nil {
			action.URL, action.ClientSecret = next.RedirectToURL.URL, ""
		}
	}
	text, err := json.Marshal(action)
	if err != nil { // strings can always be encoded
		return nil
	}
	return text
}

func unexpected(intent *stripe.PaymentIntent) Result {
	return Unknown{Code: "unexpected_state", Detail: clean("the payment intent is " + string(intent.Status))}
}
