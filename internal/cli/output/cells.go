package output

import (
	"errors"
	"fmt"
	"io"

	"pawl/internal/cell"
)

// Cell is one of several cells that a command is for.
type Cell struct {
	Cell string `json:"cell,omitempty"` // such as 1/4; empty: it is not known
	URL  string `json:"url"`            // without a password
}

func (c Cell) String() string {
	if c.Cell == "" {
		return c.URL
	}
	return "cell " + c.Cell + ", " + c.URL
}

// CellErrors are the errors of a command for several cells.
type CellErrors []error

func (e CellErrors) Error() string { return errors.Join(e...).Error() }

// EachCell runs do for each cell, and prints the cell above what do prints. An error does not keep it from the other
// cells. It is an error if they are not all cells, each once. The error is a CellErrors.
func EachCell(out io.Writer, f Format, cells []Cell, do func(i int) error) error {
	var failed CellErrors
	for i, c := range cells {
		err := printCell(out, f, c, i > 0)
		if err == nil {
			err = do(i)
		}
		if err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", c, err))
		}
	}
	if err := Together(cells); err != nil {
		failed = append(failed, err)
	}
	if failed == nil {
		return nil
	}
	return failed
}

// Together returns an error if these are not all cells, each once. It is nil while a cell is not known.
func Together(cells []Cell) error {
	found := make([]cell.Cell, len(cells))
	for i, c := range cells {
		var err error
		if found[i], err = cell.Parse(c.Cell); err != nil {
			return nil //nolint:nilerr // it could not be asked
		}
	}
	return cell.Together(found)
}

func printCell(out io.Writer, f Format, c Cell, another bool) error {
	if f == JSON {
		return Line(out, c)
	}
	if another {
		fmt.Fprintln(out)
	}
	_, err := fmt.Fprintln(out, c)
	return err
}
