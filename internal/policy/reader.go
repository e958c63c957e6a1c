package policy

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"

	"pawl/internal/spelling"
)

// reader reads values from a document and collects all mistakes.
type reader struct{ problems Problems }

const noAlias = "aliases are not supported; write the value out"

func (r *reader) add(at *yaml.Node, path, text string) {
	r.problems = append(r.problems, Problem{max(at.Line, 1), max(at.Column, 1), path, text})
}

// mapping is a YAML mapping with known and unique keys.
type mapping struct {
	*reader
	path   string
	node   *yaml.Node
	keys   map[string]*yaml.Node
	values map[string]*yaml.Node
}

// mapping reads a mapping with some of the known keys. It omits invalid entries.
func (r *reader) mapping(n *yaml.Node, path string, known []string) mapping {
	m := mapping{reader: r, path: path, node: n, keys: map[string]*yaml.Node{}, values: map[string]*yaml.Node{}}
	if n.Kind != yaml.MappingNode || n.ShortTag() != "!!map" {
		r.wants(n, path, "a mapping with the keys "+strings.Join(known, ", "))
		return m
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		switch {
		case key.Kind != yaml.ScalarNode || !slices.Contains(known, key.Value):
			r.add(key, path, unknownKey(key, known))
		case m.keys[key.Value] != nil:
			r.add(key, m.pathOf(key.Value), fmt.Sprintf("duplicate key, first in line %d", m.keys[key.Value].Line))
		default:
			m.keys[key.Value], m.values[key.Value] = key, value
		}
	}
	return m
}

var plainKey = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_-]{0,39}$`)

// unknownKey names the key only if it looks like one: it may be a value with a colon.
func unknownKey(key *yaml.Node, known []string) string {
	if key.Kind != yaml.ScalarNode || !plainKey.MatchString(key.Value) {
		return "unknown key; must be one of " + strings.Join(known, ", ")
	}
	if k := spelling.Meant(strings.NewReplacer("_", "", "-", "").Replace(key.Value), known); k != "" {
		return fmt.Sprintf("unknown key %s; did you mean %s?", key.Value, k)
	}
	return fmt.Sprintf("unknown key %s; must be one of %s", key.Value, strings.Join(known, ", "))
}

// pathOf is the path of a key.
func (m mapping) pathOf(key string) string {
	if m.path == "" {
		return key
	}
	return m.path + "." + key
}

// at is the node of the first of these keys that is present, or of the mapping.
func (m mapping) at(keys ...string) *yaml.Node {
	for _, key := range keys {
		if value := m.values[key]; value != nil {
			return value
		}
	}
	return m.node
}

// wrong reports a mistake in the value of a key.
func (m mapping) wrong(key, text string) { m.add(m.at(key), m.pathOf(key), text) }

// wants reports what a value must be.
func (r *reader) wants(n *yaml.Node, path, what string) {
	if n.Kind == yaml.AliasNode {
		what = noAlias
	} else if n.ShortTag() == "!!null" && n.Kind == yaml.ScalarNode {
		what = "has no value; remove the key, or set " + what
	} else {
		what = "must be " + what
	}
	r.add(n, path, what)
}

// maxSource is far more than any policy needs, and small enough to parse at every start.
const maxSource = 256 << 10

// document parses a source of one YAML document. It returns nil after reporting an error.
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
		// An empty file is a mistake, such as a half-written file. With the ledger for every step, all orders would
		// count as paid.
		r.problems = append(r.problems, Problem{1, 1, "", "the policy is empty; to use the ledger for every step, write {}"})
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
		r.add(&second, "", "must be one YAML document; this is a second one")
	}
	return nil
}

// syntax reports an error of the YAML library, without its text if that may repeat values.
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

// unreadable finds invalid UTF-8 and characters that can't be stored.
func unreadable(source []byte) (Problem, bool) {
	if len(source) > maxSource {
		return Problem{1, 1, "", fmt.Sprintf("must be at most %d KiB", maxSource>>10)}, true
	}
	line, column := 1, 1
	for i := 0; i < len(source); {
		char, size := utf8.DecodeRune(source[i:])
		switch {
		case char == utf8.RuneError && size == 1:
			return Problem{line, column, "", "must be UTF-8"}, true
		case char < ' ' && char != '\n' && char != '\r' && char != '\t', char == 0x7f:
			return Problem{line, column, "", "must not contain control characters"}, true
		case char == '\n':
			line, column = line+1, 0
		}
		i, column = i+size, column+1
	}
	return Problem{}, false
}

// scalar returns the text of a value with one of the given tags. ok is false if it is missing or has another tag.
func (m mapping) scalar(key, want string, tags ...string) (text string, ok bool) {
	n := m.values[key]
	if n == nil {
		return "", false
	}
	return m.text(n, m.pathOf(key), want, tags...)
}

func (r *reader) text(n *yaml.Node, path, want string, tags ...string) (text string, ok bool) {
	if n.Kind != yaml.ScalarNode || !slices.Contains(tags, n.ShortTag()) {
		r.wants(n, path, want)
		return "", false
	}
	return n.Value, true
}

// kind describes the valid values of a key.
type kind[T any] struct {
	want  string   // for people
	tags  []string // YAML tags
	parse func(text string) (value T, fits bool)
}

// YAML tags.
var (
	isText   = []string{"!!str"}
	isWhole  = []string{"!!int"}
	isNumber = []string{"!!int", "!!float"}
	isTruth  = []string{"!!bool"}
)

// read sets *into to a value of that kind, and reports whether it did.
func read[T any](m mapping, key string, into *T, of kind[T]) bool {
	text, ok := m.scalar(key, of.want, of.tags...)
	if !ok {
		return false
	}
	value, fits := of.parse(text)
	if !fits {
		m.wants(m.values[key], m.pathOf(key), of.want)
		return false
	}
	*into = value
	return true
}

func (m mapping) duration(key string, into *time.Duration, least, most time.Duration) {
	want := fmt.Sprintf("a duration from %s to %s, such as 90s, 15m or 24h", short(least), short(most))
	read(m, key, into, kind[time.Duration]{want, isText, func(text string) (time.Duration, bool) {
		d, err := time.ParseDuration(text)
		return d, err == nil && d >= least && d <= most && !strings.ContainsAny(text, "+-") && text != "0"
	}})
}

func (m mapping) wholeNumber(key string, into *int, least, most int) {
	read(m, key, into, kind[int]{fmt.Sprintf("a whole number from %d to %d", least, most), isWhole, func(text string) (int, bool) {
		n, err := strconv.Atoi(text)
		return n, err == nil && strconv.Itoa(n) == text && n >= least && n <= most // some parsers read 010 as eight
	}})
}

func (m mapping) number(key string, into *float64, least, most float64) {
	read(m, key, into, kind[float64]{fmt.Sprintf("a number from %g to %g", least, most), isNumber, func(text string) (float64, bool) {
		n, err := strconv.ParseFloat(text, 64)
		return n, err == nil && n >= least && n <= most // false for NaN
	}})
}

// word is one of the given words, or the default.
func (m mapping) word(key, otherwise string, words ...string) string {
	read(m, key, &otherwise, kind[string]{strings.Join(words, " or "), isText, func(text string) (string, bool) {
		return text, slices.Contains(words, text)
	}})
	return otherwise
}

const (
	maxText = 255   // characters of an item, a customer or a code, as in orders
	maxList = 1_000 // entries of a list
)

// texts is a list of texts, or nil if the key is missing.
func (m mapping) texts(key string) (all []string) {
	want := fmt.Sprintf("text in quotes, of 1 to %d characters", maxText)
	for i, n := range m.list(key, "a list of texts") {
		path := fmt.Sprintf("%s[%d]", m.pathOf(key), i)
		text, ok := m.text(n, path, want, "!!str")
		switch {
		case !ok:
		case text == "" || utf8.RuneCountInString(text) > maxText:
			m.wants(n, path, want)
		case slices.Contains(all, text):
			m.add(n, path, "given twice")
		default:
			all = append(all, text)
		}
	}
	return all
}

// list returns the entries of a non-empty list.
func (m mapping) list(key, want string) []*yaml.Node {
	n := m.values[key]
	switch {
	case n == nil:
	case n.Kind != yaml.SequenceNode || n.ShortTag() != "!!seq":
		m.wants(n, m.pathOf(key), want)
	case len(n.Content) == 0 || len(n.Content) > maxList:
		m.wants(n, m.pathOf(key), fmt.Sprintf("a list of 1 to %d entries, or be left out", maxList))
	default:
		return n.Content
	}
	return nil
}

// short formats a duration without zero units: 24h, not 24h0m0s.
func short(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// Problems are all mistakes in a source, in the order of the text. It is the error of Parse. It repeats only names of
// keys, because a value may be a misplaced secret.
type Problems []Problem

// Problem is one mistake, and how to correct it.
type Problem struct {
	Line, Column int    // from 1
	Path         string // such as charge.retry.cap or approval[0].currency; empty: the whole policy
	Text         string
}

func (p Problem) Error() string {
	return fmt.Sprintf("line %d, column %d: %s", p.Line, p.Column, p.Message())
}

// Message is the text of the problem without its position.
func (p Problem) Message() string {
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
