package policy

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Problems is everything that is wrong with a source, in the order of the text. It is
// the error of Parse. Of the text it repeats nothing but names of keys: a value may be
// a secret in the wrong place.
type Problems []Problem

// Problem is one thing that is wrong, and what is wanted there.
type Problem struct {
	Line, Column int    // from 1
	Path         string // as charge.retry.cap or approval[0].currency; empty: the whole
	Text         string
}

func (p Problem) Error() string {
	return fmt.Sprintf("line %d, column %d: %s", p.Line, p.Column, p.Says())
}

// Says is the problem without its place, for those who name the place in their own way.
func (p Problem) Says() string {
	if p.Path == "" {
		return p.Text
	}
	return p.Path + ": " + p.Text
}

func (p Problems) Error() string {
	lines := make([]string, len(p))
	for i, problem := range p {
		lines[i] = problem.Error()
	}
	return strings.Join(lines, "\n")
}

func (p Problems) sort() {
	slices.SortStableFunc(p, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
}
