package simulator_test

import (
	"testing"

	"pawl/internal/simulator"
)

func TestStripeRefunds(t *testing.T) {
	t.Parallel()
	s := openStripe(t, simulator.Config{})
	s.says(intent("o"), "a", "200 pi_1 requires_confirmation")
	const part = "POST /v1/refunds payment_intent=pi_1&amount=500&metadata[pawl_refund]=r1"
	s.says(part, "r1", "400 invalid_request_error payment_intent")
	s.says("POST /v1/payment_intents/pi_1/confirm", "b", "200 pi_1 succeeded")
	s.says("GET /v1/refunds/re_9", "", "404 invalid_request_error resource_missing refund")
	s.says("POST /v1/refunds payment_intent=pi_1&amount=1251", "r0", "400 invalid_request_error amount")
	s.says("POST /v1/refunds payment_intent=pi_1&amount=0", "r0a", "400 invalid_request_error parameter_invalid_integer amount")
	s.says(part, "r2", "200 re_2 succeeded")
	s.says(part, "r2", "200 re_2 succeeded again")
	s.says("GET /v1/refunds/re_2", "", "200 re_2 succeeded")
	if charge := s.object("pi_1")["latest_charge"].(map[string]any); charge["amount_refunded"] != 500.0 || charge["refunded"] != false {
		t.Errorf("%v", charge)
	}
	s.says("POST /v1/refunds payment_intent=pi_1&metadata[pawl_refund]=r3", "r3", "200 re_3 succeeded")
	s.says("POST /v1/refunds payment_intent=pi_1&metadata[pawl_refund]=r4", "r4", "400 invalid_request_error charge_already_refunded")
	s.entries("o", "charge a live 1 12.50 EUR; refund r2 live 1 5.00 EUR; refund r3 live 1 7.50 EUR")
	if err := s.Happen("pi_1", simulator.RefundReturned, ""); err != nil {
		t.Error(err)
	}
	if err := s.Happen("pi_1", simulator.RefundPaid, ""); err == nil {
		t.Error("a refund that failed was paid")
	}
	s.entries("o", "charge a live 1 12.50 EUR; refund r2 live 1 5.00 EUR; refund r3 refused 1 7.50 EUR")
	if money := s.Summary().Money[0]; money.Refunded != "5.00" || !s.Summary().OK() {
		t.Errorf("%+v", s.Summary())
	}
}
