package httpapi

import (
	"fmt"
	"os"
	"slices"
	"testing"

	"go.yaml.in/yaml/v4"
)

// described is the part of an OpenAPI document that a client is made of. What it says to people (descriptions, examples) is
// left out.
type described struct {
	Info       struct{ Version string }
	Paths      map[string]map[string]*describedOperation // path → method
	Components struct{ Schemas map[string]*describedSchema }
	Security   []map[string][]string
}

type describedOperation struct {
	OperationID string `yaml:"operationId"`
	Parameters  []describedParameter
	RequestBody *describedBody `yaml:"requestBody"`
	Responses   map[string]describedResponse
	Security    []map[string][]string // nil: that of the document
}

type describedParameter struct {
	Name, In string
	Required bool
	Explode  bool
	Schema   *describedSchema
}

type describedBody struct {
	Required bool
	Content  map[string]describedMedia
}

type describedResponse struct {
	Content map[string]describedMedia
	Headers map[string]any
}

type describedMedia struct{ Schema *describedSchema }

type describedSchema struct {
	Ref                  string `yaml:"$ref"`
	Type                 any
	Format, Pattern      string
	Enum                 []string
	Default              any
	Properties           map[string]*describedSchema
	Required             []string
	AdditionalProperties any `yaml:"additionalProperties"` // false, true or nil
	Items                *describedSchema
	OneOf                []*describedSchema `yaml:"oneOf"`
	PropertyNames        *describedSchema   `yaml:"propertyNames"`
	Values               *describedSchema   `yaml:"-"`       // additionalProperties, where it is a schema
	Rest                 map[string]any     `yaml:",inline"` // limits, what is for people, and what the check does not know
}

// limits are the keywords that narrow what a value may be, and whether a larger number narrows it further.
var limits = map[string]bool{
	"minimum": true, "exclusiveMinimum": true, "minLength": true, "minItems": true, "minProperties": true,
	"maximum": false, "exclusiveMaximum": false, "maxLength": false, "maxItems": false, "maxProperties": false,
}

var forPeople = []string{"description", "title", "examples", "example", "writeOnly", "readOnly", "deprecated"}

// UnmarshalYAML reads a schema, and refuses one with keywords that the check of what breaks would pass over.
func (s *describedSchema) UnmarshalYAML(node *yaml.Node) error {
	type plain describedSchema
	if err := node.Decode((*plain)(s)); err != nil {
		return err
	}
	for keyword := range s.Rest {
		if _, limit := limits[keyword]; !limit && !slices.Contains(forPeople, keyword) {
			return fmt.Errorf("line %d: the check of what breaks a client does not know the keyword %s", node.Line, keyword)
		}
	}
	if _, schema := s.AdditionalProperties.(map[string]any); !schema {
		return nil
	}
	s.AdditionalProperties = nil
	var values struct {
		Schema *describedSchema `yaml:"additionalProperties"`
	}
	err := node.Decode(&values)
	s.Values = values.Schema
	return err
}

// describe reads an OpenAPI document.
func describe(t *testing.T, text []byte) *described {
	t.Helper()
	document := new(described)
	if err := yaml.Unmarshal(text, document); err != nil {
		t.Fatal(err)
	}
	return document
}

func describeFile(t *testing.T, name string) *described {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return describe(t, text)
}
