package orders

import (
	"context"
	"fmt"
	"regexp"
	"strings"

	"pawl/db"
)

// Erasure is a request to erase a customer, and how far it is.
type Erasure = db.ErasuresRow

// Erasures returns the erasures before a number, newest first, up to limit. Errors: ErrUnavailable.
func (r *Reader) Erasures(ctx context.Context, before, limit int32) ([]Erasure, error) {
	rows, err := Read(ctx, r, r.query.Erasures, db.ErasuresParams{Before: before, Most: limit})
	return rows, Unavailable("read erasures", err)
}

// OrdersOpen says that a customer can't be erased yet: some orders have not ended, or a refund, capture, void or late
// undo of them is open.
type OrdersOpen struct {
	OrderIDs []string // up to 20
}

func (o *OrdersOpen) Error() string {
	return fmt.Sprintf("open orders of the customer: %s", strings.Join(o.OrderIDs, ", "))
}

// pseudonym is the form of those that pawl.erase_customer makes.
var pseudonym = regexp.MustCompile(`^erased_[0-9a-f]{32}$`)

// Pseudonym reports whether a customer id, or another text, was replaced when a customer was erased.
func Pseudonym(text string) bool {
	return strings.HasPrefix(text, "erased_") && pseudonym.MatchString(text) // every admission asks
}

func erased(o *Order) bool { return o.CustomerID != nil && Pseudonym(*o.CustomerID) }
