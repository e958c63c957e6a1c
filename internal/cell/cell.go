// Package cell divides orders among cells. A cell is an installation of its own, with its own database; cells share
// nothing. The id of an order decides its cell, so a service refuses the orders of other cells without asking anybody,
// and no order can be in two of them.
package cell

import (
	"crypto/sha256"
	"fmt"
	"math/bits"
	"strconv"
	"strings"
)

// Most is the largest number of cells: the first byte of a hash has no more values.
const Most = 256

// Cell is one of a number of cells, which is a power of two up to Most. Its text is 0/4 for the first of four.
type Cell struct {
	Number int // from 0
	Of     int
}

// All is the cell of an installation that has all orders.
var All = Cell{0, 1}

// Parse reads the text of a cell.
func Parse(text string) (Cell, error) {
	number, of, _ := strings.Cut(text, "/")
	k, errK := strconv.Atoi(number)
	n, errN := strconv.Atoi(of)
	if c := (Cell{k, n}); errK == nil && errN == nil && c.valid() && c.String() == text {
		return c, nil
	}
	return Cell{}, fmt.Errorf("must be a cell, such as 0/4 for the first of four; their number is a power of two up to %d", Most)
}

func (c Cell) valid() bool {
	return c.Of >= 1 && c.Of <= Most && bits.OnesCount(uint(c.Of)) == 1 && c.Number >= 0 && c.Number < c.Of
}

func (c Cell) String() string { return fmt.Sprintf("%d/%d", c.Number, c.Of) }

// Halves returns the two cells into which a cell is divided. It must be of fewer than Most.
func (c Cell) Halves() [2]Cell {
	return [2]Cell{{c.Number * 2, c.Of * 2}, {c.Number*2 + 1, c.Of * 2}}
}

// Whole returns the cell that the cell is one half of, or itself if there is only one.
func (c Cell) Whole() Cell {
	return Cell{c.Number / 2, max(c.Of/2, 1)}
}

// Divided is the text of both halves of a cell, such as 0+1/4: a database that has them, and of which a copy will get
// one.
func (c Cell) Divided() string {
	return fmt.Sprintf("%d+%d/%d", c.Number*2, c.Number*2+1, c.Of*2)
}

// Has reports whether an order belongs to the cell.
func (c Cell) Has(orderID string) bool { return c.Of == 1 || Of(orderID, c.Of) == c }

// Together returns an error unless each order belongs to exactly one of some cells. Their numbers may differ, as while
// cells are divided one after the other.
func Together(cells []Cell) error {
	var owners [Most]int // by the first byte of the hash
	finest := 1
	for _, c := range cells {
		finest = max(finest, c.Of)
		for first := c.Number * Most / c.Of; first < (c.Number+1)*Most/c.Of; first++ {
			owners[first]++
		}
	}
	for first, n := range owners {
		switch orders := OfHash(byte(first), finest); {
		case n == 0:
			return fmt.Errorf("the orders of cell %s are in none of these cells", orders)
		case n > 1:
			return fmt.Errorf("the orders of cell %s are in %d of these cells", orders, n)
		}
	}
	return nil
}

// Of returns the cell of an order among a number of cells: the highest bits of the first byte of the SHA-256 of its id.
// Twice the number divides each cell into two, and no order moves between others. This never changes: clients and
// proxies calculate the same.
func Of(orderID string, of int) Cell { return OfHash(sha256.Sum256([]byte(orderID))[0], of) }

// OfHash is Of for the first byte of the SHA-256 of the id.
func OfHash(first byte, of int) Cell { return Cell{int(first) * of / Most, of} }
