// Package output prints the results of commands: tables for people, JSON for programs.
package output

import (
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"slices"
	"strings"
	"text/tabwriter"
	"unicode"

	"github.com/spf13/pflag"
)

// Format is the format of the output.
type Format string

// All formats.
const (
	Table Format = "table"
	JSON  Format = "json"
	CSV   Format = "csv" // only where AllowCSV was called
)

// AddTo adds the flag -o, with the default Table. It may be JSON, or one of the formats that AllowCSV adds.
func (f *Format) AddTo(flags *pflag.FlagSet) {
	*f = Table
	flags.VarP(&choice{f, []string{string(Table), string(JSON)}}, "output", "o", "`table` or json")
}

// AllowCSV lets the flag that AddTo added be CSV, too.
func AllowCSV(flags *pflag.FlagSet) {
	flag := flags.Lookup("output")
	flag.Usage = "`table`, json or csv"
	if c, ok := flag.Value.(*choice); ok {
		c.formats = append(c.formats, string(CSV))
	}
}

// Formats are the values of the flag that AddTo added.
func Formats(flags *pflag.FlagSet) []string {
	c, _ := flags.Lookup("output").Value.(*choice)
	return c.formats
}

// choice is the value of the flag, one of some formats.
type choice struct {
	*Format
	formats []string
}

// Set implements pflag.Value.
func (c *choice) Set(value string) error {
	if !slices.Contains(c.formats, value) {
		return fmt.Errorf("must be %s", strings.Join(c.formats, " or "))
	}
	*c.Format = Format(value)
	return nil
}

// String implements pflag.Value.
func (c *choice) String() string { return string(*c.Format) }

// Type implements pflag.Value.
func (c *choice) Type() string { return "format" }

// Indented prints a value as indented JSON.
func Indented(out io.Writer, value any) error {
	encoder := newEncoder(out)
	encoder.SetIndent("", "  ")
	return encoder.Encode(value)
}

// Line prints a value as a line of JSON.
func Line(out io.Writer, value any) error { return newEncoder(out).Encode(value) }

func newEncoder(out io.Writer) *json.Encoder {
	encoder := json.NewEncoder(out)
	encoder.SetEscapeHTML(false) // URLs of databases have &
	return encoder
}

// Rows is a table. On a terminal, words for states have colors.
type Rows struct {
	writer  *tabwriter.Writer
	colored bool
}

// NewRows begins a table, with a line of titles if there are any.
func NewRows(out io.Writer, titles ...any) Rows {
	rows := Rows{tabwriter.NewWriter(out, 0, 0, 2, ' ', 0), Colored(out)}
	if len(titles) > 0 {
		rows.Add(titles...)
	}
	return rows
}

// Add writes a line. Its cells are cleaned: see Clean.
func (r Rows) Add(cells ...any) {
	for i, cell := range cells {
		if i > 0 {
			fmt.Fprint(r.writer, "\t")
		}
		text := Clean(fmt.Sprint(cell))
		if r.colored { // every cell, because the width of a cell includes its color
			text = color(text)
		}
		fmt.Fprint(r.writer, text)
	}
	fmt.Fprintln(r.writer)
}

// Flush prints the table.
func (r Rows) Flush() error { return r.writer.Flush() }

// Columns describes a table of values.
type Columns[T any] struct {
	Titles []any // nil: no line of titles
	Of     func(*T) []any
}

// Print prints each value as a line of JSON or as a row of a table. It returns the first error in values; then it
// prints no table.
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

// All iterates over values without errors.
func All[T any](values []T) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for _, value := range values {
			if !yield(value, nil) {
				return
			}
		}
	}
}

// Clean makes a text one printable line. Identifiers and reasons come from callers, and could contain control sequences
// for terminals.
func Clean(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, strings.Join(strings.Fields(text), " "))
}
