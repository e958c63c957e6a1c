package engine

import (
	"errors"
	"fmt"

	"pawl/db"
)

// The answers that are not an order. Each is a normal outcome for a caller to
// tell apart with errors.Is or errors.As; anything else is a fault.
var (
	// ErrNotFound: there is no such order or item.
	ErrNotFound = errors.New("not found")
	// ErrOverloaded: the backlog is too long to take another order now. Nothing
	// was stored; try again later.
	ErrOverloaded = errors.New("overloaded")
	// ErrStopping: this replica is shutting down. Nothing of the request was
	// stored by it; another replica can take it.
	ErrStopping = errors.New("stopping")
	// ErrUnavailable: the database did not answer in time and the outcome is not
	// known. Asking again is safe: it finds out, and does nothing twice.
	ErrUnavailable = errors.New("database unavailable")
	// ErrPrecondition: the order or item is no longer at the version asked for.
	ErrPrecondition = errors.New("version has changed")
)

// Conflict says that the order exists with other input. Nothing was written.
type Conflict struct {
	Order       Order
	Differences []Difference
}

// Difference is one field in which the stored order and the request differ.
type Difference struct {
	Pointer      string // JSON pointer (RFC 6901) into the request body
	Stored, Sent string // as text; amounts with all their digits
}

func (c *Conflict) Error() string {
	return fmt.Sprintf("order %q exists with other input", c.Order.Order.OrderID)
}

// NotApplicable says that the verb does not apply to the order as it is now.
type NotApplicable struct {
	Verb  string
	Order Order
}

func (n *NotApplicable) Error() string {
	return fmt.Sprintf("%s does not apply to an order that is %s", n.Verb, n.Order.Order.Status)
}

// StockTooLow says that fewer units were to be on hand than are reserved.
type StockTooLow struct {
	Item db.InventoryGetRow
}

func (s *StockTooLow) Error() string {
	return fmt.Sprintf("item %q has %d units reserved", s.Item.Item, s.Item.Reserved)
}
