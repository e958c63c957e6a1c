// Package output prints what commands found: tables for people, JSON for programs.
package output

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"strings"
	"text/tabwriter"
	"unicode"

	"github.com/spf13/pflag"
)

// Format is what a command prints.
type Format string

// The formats that there are. The zero value of Format is Table.
const (
	Table Format = "table"
	JSON  Format = "json"
)

// AddTo gives a command the flag -o.
func (f *Format) AddTo(flags *pflag.FlagSet) {
	*f = Table
	flags.VarP(f, "output", "o", "`table` or json")
}

// Set reads the value of the flag.
func (f *Format) Set(value string) error {
	if value != string(Table) && value != string(JSON) {
		return errors.New("want table or json")
	}
	*f = Format(value)
	return nil
}

// String is the value of the flag.
func (f *Format) String() string { return string(*f) }

// Type names the values of the flag.
func (f *Format) Type() string { return "format" }

// Indented prints one value, with lines for people who read along.
func Indented(out io.Writer, value any) error {
	encoder := newEncoder(out)
	encoder.SetIndent("", "  ")
	return encoder.Encode(value)
}

// Line prints one value of many, in a line.
func Line(out io.Writer, value any) error { return newEncoder(out).Encode(value) }

func newEncoder(out io.Writer) *json.Encoder {
	encoder := json.NewEncoder(out)
	encoder.SetEscapeHTML(false) // the address of a database has &
	return encoder
}

// Rows are the lines of a table, in columns.
type Rows struct{ writer *tabwriter.Writer }

// NewRows begins a table, with a line of titles if there are any.
func NewRows(out io.Writer, titles ...any) Rows {
	rows := Rows{tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)}
	if len(titles) > 0 {
		rows.Add(titles...)
	}
	return rows
}

// Add writes a line. Texts of others can't speak to the terminal: see Clean.
func (r Rows) Add(cells ...any) {
	texts := make([]string, len(cells))
	for i, cell := range cells {
		texts[i] = Clean(fmt.Sprint(cell))
	}
	fmt.Fprintln(r.writer, strings.Join(texts, "\t"))
}

// Flush prints the table.
func (r Rows) Flush() error { return r.writer.Flush() }

// Columns are those of a table of values.
type Columns[T any] struct {
	Titles []any // nil: it has no line of titles
	Of     func(*T) []any
}

// Print prints values as they come: each as a line of JSON, or as a row of a table. It returns the first error among
// them, and prints no table then.
func (c Columns[T]) Print(out io.Writer, f Format, values iter.Seq2[T, error]) error {
	if f == JSON {
		c.Titles = nil // the table stays empty
	}
	rows := NewRows(out, c.Titles...)
	for value, err := range values {
		if err == nil && f == JSON {
			err = Line(out, &value)
		} else if err == nil {
			rows.Add(c.Of(&value)...)
		}
		if err != nil {
			return err
		}
	}
	return rows.Flush()
}

// All goes through values that are all there.
func All[T any](values []T) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for _, value := range values {
			if !yield(value, nil) {
				return
			}
		}
	}
}

// Clean makes one line of a text, without what a terminal would not print: identifiers and reasons come from others.
func Clean(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, strings.Join(strings.Fields(text), " "))
}
