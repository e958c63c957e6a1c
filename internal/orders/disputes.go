package orders

import (
	"encoding/json"
	"time"

	"github.com/govalues/decimal"
)

// ReportedDispute is what was reported about a dispute of a charge. There is one for each state that it has had.
type ReportedDispute struct {
	Reference string          `json:"reference"` // the provider's name for the dispute
	State     string          `json:"state"`     // one of those below
	Amount    decimal.Decimal `json:"amount"`
	Reason    string          `json:"reason"`
	Charge    string          `json:"charge"` // the provider's name for the charge, if it was reported
	At        time.Time       `json:"at"`     // when it happened
}

// The states of a dispute, from the point of view of the seller.
const (
	DisputeOpened = "opened"
	DisputeWon    = "won"
	DisputeLost   = "lost"
)

// Disputes returns what was reported, oldest first. Orders returned by statements that write have none.
func Disputes(o *Order) []ReportedDispute {
	var disputes []ReportedDispute
	if o.DisputeList != nil {
		_ = json.Unmarshal(o.DisputeList, &disputes) // our own view
	}
	return disputes
}
