package policy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"
)

// maxSource is far more than any policy needs, and little enough to parse at every start.
const maxSource = 256 << 10

// document parses a source of one YAML document. It returns nil where there is none to
// go on with, and has said why then.
func (r *reader) document(source []byte) *yaml.Node {
	if problem, bad := unreadable(source); bad {
		r.problems = append(r.problems, problem)
		return nil
	}
	loader, err := yaml.NewLoader(bytes.NewReader(source))
	if err != nil {
		r.syntax(err)
		return nil
	}
	var first, second yaml.Node
	switch err := loader.Load(&first); {
	case errors.Is(err, io.EOF):
		// An empty file is a mistake in a template or a half-written one, and the ledger
		// for every step would take it for paid.
		r.problems = append(r.problems, Problem{1, 1, "", "the policy is empty; {} says: the ledger for every step"})
		return nil
	case err != nil:
		r.syntax(err)
		return nil
	}
	switch err := loader.Load(&second); {
	case errors.Is(err, io.EOF):
		return first.Content[0]
	case err != nil:
		r.syntax(err)
	default:
		r.add(&second, "", "want one YAML document; this is a second one")
	}
	return nil
}

// syntax takes over what the YAML library found. Later stages of it repeat values.
func (r *reader) syntax(err error) {
	problem := Problem{Line: 1, Column: 1, Text: "not YAML"}
	if at, ok := errors.AsType[*yaml.LoadError](err); ok {
		problem.Line, problem.Column = max(at.Mark.Line, 1), max(at.Mark.Column, 1)
		switch at.Stage {
		case yaml.ScannerStage, yaml.ParserStage:
			problem.Text = "not YAML: " + at.Message
		case yaml.ComposerStage:
			problem.Text = noAlias
		default:
		}
	}
	r.problems = append(r.problems, problem)
}

// unreadable finds what is no text at all, and text that a database would not store.
func unreadable(source []byte) (Problem, bool) {
	if len(source) > maxSource {
		return Problem{1, 1, "", fmt.Sprintf("want at most %d KiB", maxSource>>10)}, true
	}
	line, column := 1, 1
	for i := 0; i < len(source); {
		char, size := utf8.DecodeRune(source[i:])
		switch {
		case char == utf8.RuneError && size == 1:
			return Problem{line, column, "", "want text in UTF-8"}, true
		case char < ' ' && char != '\n' && char != '\r' && char != '\t', char == 0x7f:
			return Problem{line, column, "", "a control character; want text"}, true
		case char == '\n':
			line, column = line+1, 0
		}
		i, column = i+size, column+1
	}
	return Problem{}, false
}
