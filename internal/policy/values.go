package policy

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"
)

// scalar is the text of a value of one of the given types. ok is false where there is
// none, or none that fits.
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

// kind is what a value has to be.
type kind[T any] struct {
	want  string   // for people
	tags  []string // types of YAML
	parse func(text string) (value T, fits bool)
}

// Types of YAML.
var (
	isText   = []string{"!!str"}
	isWhole  = []string{"!!int"}
	isNumber = []string{"!!int", "!!float"}
	isTruth  = []string{"!!bool"}
)

// read replaces the default in *into by a value of that kind, and reports whether it did.
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
		return n, err == nil && strconv.Itoa(n) == text && n >= least && n <= most // 010 is eight to some
	}})
}

func (m mapping) number(key string, into *float64, least, most float64) {
	read(m, key, into, kind[float64]{fmt.Sprintf("a number from %g to %g", least, most), isNumber, func(text string) (float64, bool) {
		n, err := strconv.ParseFloat(text, 64)
		return n, err == nil && n >= least && n <= most // NaN is neither
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
	maxText = 255   // characters of an item, a customer, a code; what an order may have
	maxList = 1_000 // entries of a list
)

// texts is a list of texts, nil where the key is not given.
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

// list is the entries of a list, which has one at least.
func (m mapping) list(key, want string) []*yaml.Node {
	n := m.values[key]
	switch {
	case n == nil:
	case n.Kind != yaml.SequenceNode || n.ShortTag() != "!!seq":
		m.wants(n, m.pathOf(key), want)
	case len(n.Content) == 0 || len(n.Content) > maxList:
		m.wants(n, m.pathOf(key), fmt.Sprintf("from 1 to %d entries, or leave the key out", maxList))
	default:
		return n.Content
	}
	return nil
}

// short is a duration as people write it: 24h, not 24h0m0s.
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
