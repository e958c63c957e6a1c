package cli

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/govalues/decimal"

	"pawl/fsm"
	"pawl/internal/iso4217"
	"pawl/internal/policy"
)

// triedOrder is an order as a request has it: what a policy asks of it, its own times, and the rest, so that a whole
// request can be pasted.
type triedOrder struct {
	policy.Order
	Amount         *decimal.Decimal // in place of the Order's until it is known that there is one
	CompleteBy     *time.Time
	ReservationTTL int64 // seconds; 0: that of the policy

	OrderID, Quantity, Metadata, PaymentMethod, StartAt json.RawMessage
}

func parseOrder(text, currency string) (*triedOrder, error) {
	o := triedOrder{Order: policy.Order{Currency: currency}}
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.DisallowUnknownFields()
	err := decoder.Decode(&o)
	switch {
	case err != nil:
		return nil, err
	case decoder.More():
		return nil, errors.New("want one JSON object")
	case o.Amount == nil || o.Amount.IsNeg():
		return nil, errors.New("amount: want a number of at least 0")
	case o.Item == "":
		return nil, errors.New("item: want a text")
	case !iso4217.Known(o.Currency):
		return nil, errors.New("currency: not an ISO 4217 code")
	case o.ReservationTTL < 0:
		return nil, errors.New("reservationTtl: want seconds")
	}
	o.Order.Amount = *o.Amount
	return &o, nil
}

// explainOrder prints what would become of an order.
func explainOrder(out io.Writer, p *policy.Policy, o *triedOrder) {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, s := range fsm.Steps() {
		fmt.Fprintf(table, "%s\t%s\n", s, explainStep(p.Step(s)))
	}
	fmt.Fprintf(table, "approval\t%s\n", explainApproval(p.ApprovalOf(o.Order)))
	fmt.Fprintf(table, "concurrency\t%s\n", explainConcurrency(p, p.Key(o.Order)))
	fmt.Fprintf(table, "deadline\t%s\n", explainDeadline(p, o))
	fmt.Fprintf(table, "reservation\t%s\n", explainReservation(p, o))
	_ = table.Flush()
}

func explainStep(how *policy.Step) string {
	if !how.Executor.Remote() {
		return "ledger, in the database"
	}
	text := fmt.Sprintf("%s at %s; a call takes up to %s; a person is asked after %d retries and %s",
		how.Executor, cmp.Or(how.URL, "its own address"), how.Timeout, how.Retry.MaxRetries, how.Retry.Budget)
	if how.Capture != "" {
		text += "; captured " + how.Capture
	}
	return text
}

func explainApproval(rule *policy.Approval, i int) string {
	if rule == nil {
		return "none needed"
	}
	text := fmt.Sprintf("rule %d fits: waits for a person before the charge", i+1)
	if rule.ByAnother {
		text += ", not the one who submitted it"
	}
	if rule.Timeout > 0 {
		text += fmt.Sprintf("; after %s: %s", rule.Timeout, rule.OnTimeout)
	}
	return text
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

func explainReservation(p *policy.Policy, o *triedOrder) string {
	ttl := cmp.Or(time.Duration(o.ReservationTTL)*time.Second, p.ReservationTTL)
	if ttl == 0 {
		return "waits for its confirmation for ever"
	}
	return fmt.Sprintf("waits for its confirmation for %s", ttl)
}
