package remote

import (
	"fmt"
	"time"

	"pawl/cli/output"
)

// list prints values as they come: lines of JSON, or rows of a table.
type list[T any] struct {
	s    *session
	rows output.Rows
	row  func(*T) []any
	n    int // values so far
}

func newList[T any](s *session, titles []any, row func(*T) []any) *list[T] {
	l := &list[T]{s: s, row: row}
	if s.format == output.Table {
		l.rows = output.NewRows(s.out, titles...)
	}
	return l
}

func (l *list[T]) add(value *T) error {
	l.n++
	if l.s.format == output.JSON {
		return output.Line(l.s.out, value)
	}
	l.rows.Add(l.row(value)...)
	return nil
}

func (l *list[T]) flush() error {
	if l.s.format == output.JSON {
		return nil
	}
	return l.rows.Flush()
}

// field is a fact about what a command shows.
type field struct{ name, value string }

// fields prints facts, each in a line. Those without a value are left out.
func (s *session) fields(all ...field) error {
	rows := output.NewRows(s.out)
	for _, f := range all {
		if f.value != "" {
			rows.Add(f.name, f.value)
		}
	}
	return rows.Flush()
}

// printDryRun says in a table that what it shows was not done. In JSON the order has dryRun.
func (s *session) printDryRun(dryRun bool) (err error) {
	if dryRun && s.format == output.Table {
		_, err = fmt.Fprintln(s.out, "dry run: it applies, and nothing was done")
	}
	return err
}

// dash stands where there is nothing, so that columns can be counted.
func dash[T ~string](text T) string {
	if text == "" {
		return "-"
	}
	return string(text)
}

// moment writes a time; nothing if there is none.
func moment(at time.Time) string {
	if at.IsZero() {
		return ""
	}
	return at.UTC().Format(time.RFC3339)
}
