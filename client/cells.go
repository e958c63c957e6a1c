package client

import (
	"crypto/sha256"
	"fmt"
	"math/bits"
)

// Cells are the clients of the cells that share the orders of one shop, the first cell first. What is not about one
// order, such as a list, the stock or the events, each cell has for itself. If each cell has a token of its own, make
// Cells of a client for each.
type Cells []*Client

// NewCells returns clients for the services at the URLs of all cells, in their order. Their number is a power of two,
// up to 256.
func NewCells(addresses []string, options Options) (Cells, error) {
	if n := len(addresses); n > 256 || bits.OnesCount(uint(n)) != 1 {
		return nil, fmt.Errorf("the number of cells must be a power of two up to 256, not %d", n)
	}
	cells := make(Cells, len(addresses))
	for i, address := range addresses {
		var err error
		if cells[i], err = New(address, options); err != nil {
			return nil, err
		}
	}
	return cells, nil
}

// For returns the client of the cell that an order belongs to. Other cells refuse the order with other_cell.
func (c Cells) For(orderID string) *Client {
	return c[int(sha256.Sum256([]byte(orderID))[0])*len(c)/256]
}
