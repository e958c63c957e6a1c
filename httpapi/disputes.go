package httpapi

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"pawl/engine"
)

var recordDisputeOperation = withBody(huma.Operation{
	OperationID: "recordDispute", Method: http.MethodPost, Path: "/api/orders/{orderId}/disputes", Tags: []string{"orders"},
	Summary: "Record a dispute of an order's charge",
	Description: "Records that the dispute with this reference was opened, won or lost. It is a fact: it moves nothing and never changes. " +
		"Each state is recorded once: a repeated request has no further effect, and one with another amount is rejected. " +
		"Stripe's charge.dispute events are recorded by themselves.",
}, "not_found", "order_forgotten", "not_applicable", "invalid_idempotency_key", "idempotency_key_reused", "precondition_failed", "stopping", "unavailable", "internal")

type disputeBody struct {
	Reference string      `json:"reference" minLength:"1" maxLength:"255" doc:"The provider's name for the dispute."`
	State     string      `json:"state" enum:"opened,won,lost" doc:"What has become of it, from the point of view of the seller."`
	Amount    amountInput `json:"amount" doc:"How much is disputed; more than 0, in the currency of the order."`
	Charge    string      `json:"charge,omitempty" maxLength:"255" doc:"The provider's name for the charge, if the dispute has it. Searches find the order by it."`
	At        *time.Time  `json:"at,omitempty" doc:"When it happened (RFC 3339). Defaults to now."`
	VerbBody
}

func (disputeBody) tell(*engine.Request) {}

// recordDispute does not wait for the order: nothing happens to it.
func (s *server) recordDispute(w http.ResponseWriter, r *sent[disputeBody]) error {
	q, err := readVerb(w, r, "")
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(r.Context(), readLimit)
	defer cancel()
	o, err := s.engine.Orders.Get(ctx, q.OrderID)
	if err != nil {
		return err
	}
	amount, fault := positiveAmount(r.body.Amount, o.Currency)
	if fault != nil {
		return newProblem("invalid_input", "", *fault)
	}
	q.Dispute = &engine.Dispute{Reference: r.body.Reference, State: r.body.State, Amount: amount, Charge: r.body.Charge, At: r.body.At}
	q.Verb, q.Async = q.Dispute.Verb(), true
	if o, err = s.engine.Do(ctx, q); err != nil {
		return err
	}
	wire := s.answerOf(&o, r.ignored)
	wire.DryRun = q.DryRun
	writeOrderStatus(w, wire, http.StatusOK)
	return nil
}
