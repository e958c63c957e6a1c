package simulator

import (
	"cmp"
	"strings"
)

// The payment methods of https://docs.stripe.com/testing that something comes of. With all
// others a charge is approved.
const (
	methodDisputed      = "pm_card_createDispute"       // charged, and then disputed
	methodPendingRefund = "pm_card_pendingRefund"       // charged; its refund is pending
	methodProcessing    = "pm_usBankAccount_processing" // processing until it is canceled, or somebody says
)

var methodsWithAction = []string{"pm_card_authenticationRequired", "pm_card_threeDSecureRequired", "pm_card_threeDSecure2Required"}

var declines = map[string]string{
	"InsufficientFunds":     "insufficient_funds",
	"LostCard":              "lost_card",
	"StolenCard":            "stolen_card",
	"ExpiredCard":           "expired_card",
	"IncorrectCvc":          "incorrect_cvc",
	"ProcessingError":       "processing_error",
	"VelocityLimitExceeded": "card_velocity_exceeded",
}

// declinedMethod is why a payment method is always declined; empty: it is not.
func declinedMethod(name string) string {
	_, why, ok := strings.Cut(name, "_chargeDeclined")
	if !ok || !strings.HasPrefix(name, "pm_card_") {
		return ""
	}
	return cmp.Or(declines[why], "card_declined")
}
