package stripe

import (
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"

	"github.com/stripe/stripe-go/v85"

	"pawl/internal/provider"
)

// failure says what it means for a request alone that it was not answered with what it
// asked for; nil if it was. It follows https://docs.stripe.com/api/errors and
// https://docs.stripe.com/error-low-level.
func (r *reply) failure() provider.Result {
	switch {
	case r.Err == nil:
		return nil
	case r.fault != nil:
		return r.faulty()
	case r.unreadable():
		return provider.Unknown{Code: "answer_unreadable", Detail: "what came is not an answer of Stripe"}
	}
	return r.Lost()
}

// unreadable reports whether an answer came, but not one of Stripe's.
func (r *reply) unreadable() bool {
	var network net.Error // also what net/http says of a request without an answer
	return r.Sent > 0 && r.Ended == nil && !errors.As(r.Err, &network) && !errors.Is(r.Err, io.ErrUnexpectedEOF)
}

func (r *reply) faulty() provider.Result {
	code, detail := r.Text(faultCode(r.fault)), r.Text(r.fault.Msg)
	switch {
	case r.Status == http.StatusTooManyRequests: // limits and locks are checked before anything is done
		return r.notDone(provider.Retry{Code: cmp.Or(code, "rate_limit"), Detail: detail, After: r.RetryAfter()})
	case r.Status == http.StatusUnauthorized || r.Status == http.StatusForbidden:
		return r.notDone(provider.Retry{Code: "unauthorized", Detail: detail, After: r.RetryAfter(), Counts: true})
	case r.fault.Type == stripe.ErrorTypeIdempotency: // the key belongs to other parameters
		return provider.Unknown{Code: code, Detail: detail, After: r.RetryAfter()}
	case r.Status == http.StatusBadRequest || r.Status == http.StatusPaymentRequired || r.Status == http.StatusNotFound:
		return provider.Refused{Code: cmp.Or(code, "refused"), Detail: detail}
	case r.Status >= http.StatusInternalServerError && r.replayed: // it went wrong in the middle, and this key will hear of nothing else
		return provider.Refused{Code: cmp.Or(code, "http_"+strconv.Itoa(r.Status)), Detail: detail}
	}
	return provider.Unknown{Code: cmp.Or(code, "http_"+strconv.Itoa(r.Status)), Detail: detail, After: r.RetryAfter()}
}

// notDone is what it means that a request did nothing. When it was put on more than
// one connection that is the answer on the last; an earlier one may have done it.
func (r *reply) notDone(retry provider.Retry) provider.Result {
	if r.Sent > 1 {
		return provider.InDoubt(retry)
	}
	return retry
}

// faultCode is the most exact word for what is wrong: why the bank declined, or what
// Stripe calls it.
func faultCode(fault *stripe.Error) string {
	return cmp.Or(string(fault.DeclineCode), string(fault.Code), string(fault.Type))
}

// refunded reports whether nothing is left of the money that was taken.
func refunded(intent *stripe.PaymentIntent) bool {
	return intent.LatestCharge != nil && intent.LatestCharge.Refunded
}

// declined says why an intent has not become a charge: by the request's own words, or by
// what the intent tells of the last try to pay.
func (r *reply) declined(intent *stripe.PaymentIntent, otherwise string) provider.Refused {
	fault := r.fault
	if fault == nil || fault.Code == stripe.ErrorCodePaymentIntentUnexpectedState { // that is what it has become, not why
		fault = intent.LastPaymentError
	}
	if fault == nil {
		return provider.Refused{Code: otherwise, Detail: r.Text(string(intent.CancellationReason))}
	}
	return provider.Refused{Code: r.Text(cmp.Or(faultCode(fault), otherwise)), Detail: r.Text(fault.Msg)}
}

// actionOf is what the customer has to do: to open a page, or what the library of
// Stripe in the browser does with the client secret.
func actionOf(intent *stripe.PaymentIntent) json.RawMessage {
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
	text, _ := json.Marshal(action) // strings can always be encoded
	return text
}

// processing is what it means that Stripe is at work on an intent: an event says when it is done, or nobody does.
func (a *api) processing(intent *stripe.PaymentIntent) provider.Result {
	if a.how.WebhookSecret != "" { // events come to a webhook
		return provider.Waiting{Reference: intent.ID}
	}
	return provider.Unknown{Code: provider.InProgress, Detail: "the payment is being processed", Reference: intent.ID}
}

// unexpected is what is not known of a state that nothing here leads to.
func unexpected(intent *stripe.PaymentIntent) provider.Result {
	return provider.Unknown{Code: "unexpected_state", Detail: provider.Text("the payment intent is " + string(intent.Status))}
}
