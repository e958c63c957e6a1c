package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/govalues/decimal"

	"pawl/fsm"
	"pawl/iso4217"
	"pawl/policy"
)

// triedOrder is an order as a request has it. What the policy does not look at is there
// so that a whole request can be pasted.
type triedOrder struct {
	Amount         json.Number `json:"amount"`
	Currency       string      `json:"currency"`
	Item           string      `json:"item"`
	CustomerID     string      `json:"customerId"`
	ConcurrencyKey string      `json:"concurrencyKey"`
	CompleteBy     *time.Time  `json:"completeBy"`

	OrderID       json.RawMessage `json:"orderId"`
	Quantity      json.RawMessage `json:"quantity"`
	Metadata      json.RawMessage `json:"metadata"`
	PaymentMethod json.RawMessage `json:"paymentMethod"`
	StartAt       json.RawMessage `json:"startAt"`

	asked policy.Order
}

func parseOrder(text, currency string) (*triedOrder, error) {
	o := triedOrder{Currency: currency}
	decoder := json.NewDecoder(bytes.NewReader([]byte(text)))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&o); err != nil {
		return nil, err
	}
	if decoder.More() {
		return nil, errors.New("want one JSON object")
	}
	amount, err := decimal.Parse(o.Amount.String())
	switch {
	case err != nil || amount.IsNeg():
		return nil, errors.New("amount: want a number of at least 0")
	case o.Item == "":
		return nil, errors.New("item: want a text")
	case !iso4217.Known(o.Currency):
		return nil, errors.New("currency: not an ISO 4217 code")
	}
	o.asked = policy.Order{
		Amount: amount, Currency: o.Currency, Item: o.Item, CustomerID: o.CustomerID, ConcurrencyKey: o.ConcurrencyKey,
	}
	return &o, nil
}

// explainOrder prints what would become of an order.
func explainOrder(out io.Writer, p *policy.Policy, o *triedOrder) {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, s := range fsm.Steps() {
		fmt.Fprintf(table, "%s\t%s\n", s, explainStep(p.Of(s)))
	}
	fmt.Fprintf(table, "approval\t%s\n", explainApproval(p.ApprovalOf(o.asked)))
	fmt.Fprintf(table, "concurrency\t%s\n", explainConcurrency(p, p.Key(o.asked)))
	fmt.Fprintf(table, "deadline\t%s\n", explainDeadline(p, o))
	fmt.Fprintf(table, "reservation\t%s\n", explainReservation(p))
	_ = table.Flush()
}

func explainStep(how *policy.Step) string {
	if !how.Executor.Outside() {
		return "ledger, in the database"
	}
	where := how.URL
	if where == "" {
		where = "its own address"
	}
	text := fmt.Sprintf("%s at %s; a call takes up to %s; a person is asked after %d answers and %s",
		how.Executor, where, how.Timeout, how.Retry.Attempts, how.Retry.Budget)
	if how.Capture != "" {
		text += "; captured " + how.Capture
	}
	return text
}

func explainApproval(rule *policy.Approval, i int) string {
	switch {
	case rule == nil:
		return "none needed"
	case rule.Timeout == 0:
		return fmt.Sprintf("rule %d fits: waits for a person before the charge", i+1)
	default:
		return fmt.Sprintf("rule %d fits: waits for a person before the charge; after %s: %s", i+1, rule.Timeout, rule.OnTimeout)
	}
}

func explainConcurrency(p *policy.Policy, key string) string {
	if key == "" {
		return "no limit"
	}
	return fmt.Sprintf("at most %d under way with %q", p.Concurrency.Limit, key)
}

func explainDeadline(p *policy.Policy, o *triedOrder) string {
	switch {
	case o.CompleteBy != nil:
		return o.CompleteBy.Format(time.RFC3339)
	case p.CompleteWithin > 0:
		return fmt.Sprintf("%s after it came", p.CompleteWithin)
	default:
		return "none"
	}
}

func explainReservation(p *policy.Policy) string {
	if p.ReservationTTL == 0 {
		return "waits for its confirmation for ever"
	}
	return fmt.Sprintf("waits for its confirmation for %s", p.ReservationTTL)
}
