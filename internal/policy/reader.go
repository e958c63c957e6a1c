package policy

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
)

// reader takes values out of a document and notes all that is wrong on the way.
type reader struct{ problems Problems }

const noAlias = "aliases are not supported; write the value out"

func (r *reader) add(at *yaml.Node, path, text string) {
	r.problems = append(r.problems, Problem{max(at.Line, 1), max(at.Column, 1), path, text})
}

// mapping is a YAML mapping whose keys are known and given once.
type mapping struct {
	*reader
	path   string
	node   *yaml.Node
	keys   map[string]*yaml.Node
	values map[string]*yaml.Node
}

// mapping reads a mapping with some of the given keys. What is wrong with it is left out.
func (r *reader) mapping(n *yaml.Node, path string, known []string) mapping {
	m := mapping{reader: r, path: path, node: n, keys: map[string]*yaml.Node{}, values: map[string]*yaml.Node{}}
	if n.Kind != yaml.MappingNode || n.ShortTag() != "!!map" {
		r.wants(n, path, "keys with values: "+strings.Join(known, ", "))
		return m
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		switch {
		case key.Kind != yaml.ScalarNode || !slices.Contains(known, key.Value):
			r.add(key, path, unknownKey(key, known))
		case m.keys[key.Value] != nil:
			r.add(key, m.pathOf(key.Value), fmt.Sprintf("given twice, first in line %d", m.keys[key.Value].Line))
		default:
			m.keys[key.Value], m.values[key.Value] = key, value
		}
	}
	return m
}

var plainKey = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_-]{0,39}$`)

// unknownKey names the key only if it looks like one: it may be a value whose colon
// lacks its blank.
func unknownKey(key *yaml.Node, known []string) string {
	if key.Kind != yaml.ScalarNode || !plainKey.MatchString(key.Value) {
		return "unknown key; want one of " + strings.Join(known, ", ")
	}
	for _, k := range known {
		if strings.EqualFold(k, strings.NewReplacer("_", "", "-", "").Replace(key.Value)) {
			return fmt.Sprintf("unknown key %s; want %s", key.Value, k)
		}
	}
	return fmt.Sprintf("unknown key %s; want one of %s", key.Value, strings.Join(known, ", "))
}

// pathOf is the path of a key.
func (m mapping) pathOf(key string) string {
	if m.path == "" {
		return key
	}
	return m.path + "." + key
}

// at is where to show what is wrong with a key, or with its absence.
func (m mapping) at(keys ...string) *yaml.Node {
	for _, key := range keys {
		if value := m.values[key]; value != nil {
			return value
		}
	}
	return m.node
}

// wants says what a value should have been.
func (r *reader) wants(n *yaml.Node, path, what string) {
	if n.Kind == yaml.AliasNode {
		what = noAlias
	} else if n.ShortTag() == "!!null" && n.Kind == yaml.ScalarNode {
		what = "no value; leave the key out, or give " + what
	} else {
		what = "want " + what
	}
	r.add(n, path, what)
}
