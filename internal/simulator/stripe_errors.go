package simulator

import (
	"cmp"
	"net/http"
	"slices"
)

// stripeFault is an error as Stripe answers it: https://docs.stripe.com/api/errors.
type stripeFault struct {
	Type          string `json:"type"`
	Code          string `json:"code,omitempty"`
	DeclineCode   string `json:"decline_code,omitempty"`
	Message       string `json:"message,omitempty"`
	Param         string `json:"param,omitempty"`
	Charge        string `json:"charge,omitempty"`
	PaymentMethod *named `json:"payment_method,omitempty"`
	PaymentIntent any    `json:"payment_intent,omitempty"`

	httpStatus int
}

// named is an object of which only the name is told.
type named struct {
	ID     string `json:"id"`
	Object string `json:"object"`
}

func (f *stripeFault) status(status int) *stripeFault {
	f.httpStatus = status
	return f
}

func (f *stripeFault) reply() reply {
	outcome := "refused"
	switch {
	case f.httpStatus >= http.StatusInternalServerError:
		outcome = "error"
	case f.Code == "idempotency_key_in_use" || f.Code == "lock_timeout":
		outcome = "in_progress"
	case f.Type == "idempotency_error":
		outcome = "idempotency_mismatch"
	}
	return reply{status: f.httpStatus, outcome: outcome, body: map[string]*stripeFault{"error": f}}
}

func invalid(code, param, message string) *stripeFault {
	return &stripeFault{Type: "invalid_request_error", Code: code, Param: param, Message: message, httpStatus: http.StatusBadRequest}
}

func missing(what, param, id string) *stripeFault {
	return invalid("resource_missing", param, "No such "+what+": '"+id+"'")
}

// serverFault is an error that says nothing but its status.
func serverFault(status int) *stripeFault {
	fault := &stripeFault{Type: "api_error", Message: "An error by the fault plan, or of the simulator.", httpStatus: status}
	if status < http.StatusInternalServerError {
		fault.Type = "invalid_request_error"
	}
	if status == http.StatusTooManyRequests {
		fault.Code = "rate_limit"
	}
	return fault
}

// ownCodes are refusals of a card that Stripe gives a code of their own; all others are
// card_declined with a decline code. See https://docs.stripe.com/declines/codes.
var ownCodes = []string{"card_declined", "expired_card", "incorrect_cvc", "incorrect_number", "processing_error", "authentication_required"}

// declined is what a refusal of the bank is answered with.
func declined(code string, i *intent) *stripeFault {
	fault := &stripeFault{Type: "card_error", Code: "card_declined", DeclineCode: code, Message: "Your card was declined.", httpStatus: http.StatusPaymentRequired}
	if slices.Contains(ownCodes, code) {
		fault.Code = code
	}
	if code == "card_declined" {
		fault.DeclineCode = "generic_decline"
	}
	if code == codeUnauthenticated {
		fault.Code, fault.DeclineCode, fault.Type = code, "", "invalid_request_error"
	}
	if i.PaymentMethod != "" {
		fault.PaymentMethod = &named{i.PaymentMethod, "payment_method"}
	}
	return fault
}

const (
	codeUnauthenticated = "payment_intent_authentication_failure"
	codeExpired         = "capture_charge_authorization_expired"
)

// unexpected refuses what an intent can't be asked for in its state.
func unexpected(i *intent, what string) *stripeFault {
	return invalid("payment_intent_unexpected_state", "", "This PaymentIntent can't be "+what+" because it has a status of "+cmp.Or(i.Status, "none")+".")
}
