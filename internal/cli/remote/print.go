package remote

import (
	"fmt"
	"iter"
	"time"

	"pawl/internal/cli/output"
)

// first are the first values; all of them with a limit of 0.
func first[T any](limit int, values iter.Seq2[T, error]) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		n := 0
		for value, err := range values {
			if n++; !yield(value, err) || n == limit {
				return
			}
		}
	}
}

// show prints the one value that a command is about, if the service has answered with it: as JSON, or as table does.
func show[T any](s *session, value *T, err error, table func(*T) error) error {
	switch {
	case err != nil:
		return err
	case s.format == output.JSON:
		return output.Indented(s.out, value)
	default:
		return table(value)
	}
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
