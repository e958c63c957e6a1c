package httpapi

import (
	"github.com/danielgtaylor/huma/v2"

	"pawl/fsm"
)

// Schemas of the types that JSON Schema can't be derived from.

// named puts a schema among the components, so that generated clients have a type
// for it, and returns the reference.
func named(r huma.Registry, name string, s *huma.Schema) *huma.Schema {
	if _, known := r.Map()[name]; !known {
		r.Map()[name] = s
	}
	return &huma.Schema{Ref: "#/components/schemas/" + name}
}

// Schema lists the states of the machine.
func (state) Schema(r huma.Registry) *huma.Schema {
	s := &huma.Schema{
		Type:        huma.TypeString,
		Description: "Where the order is. completed, failed and canceled are final.",
	}
	for _, known := range fsm.States() {
		s.Enum = append(s.Enum, string(known))
	}
	s.PrecomputeMessages()
	return named(r, "Status", s)
}

// Schema lists the codes of the table of problems.
func (problemCode) Schema(r huma.Registry) *huma.Schema {
	s := &huma.Schema{Type: huma.TypeString, Description: "What happened, for programs. Stable."}
	for i := range kinds {
		s.Enum = append(s.Enum, string(kinds[i].Code))
	}
	return named(r, "ProblemCode", s)
}

// Schema is that of a decimal in a string.
func (amount) Schema(r huma.Registry) *huma.Schema {
	return named(r, "Decimal", &huma.Schema{
		Type: huma.TypeString, Pattern: `^(0|[1-9][0-9]*)(\.[0-9]+)?$`, Examples: []any{"99.99"},
		Description: "A decimal number as text, so that no program rounds it.",
	})
}

// Schema is that of a number of seconds, with or without their unit.
func (waitTime) Schema(huma.Registry) *huma.Schema {
	s := &huma.Schema{Type: huma.TypeString, Pattern: `^([1-5]?[0-9]|60)s?$`, PatternDescription: "0 to 60 seconds", Examples: []any{"20s"}}
	s.PrecomputeMessages()
	return s
}

// Schema is that of a map.
func (stringMap) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeObject, AdditionalProperties: &huma.Schema{Type: huma.TypeString}}
}

// Schema is that of an object of which nothing more is known.
func (object) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeObject, AdditionalProperties: true}
}

const (
	amountPattern    = `^[0-9]{1,15}(\.[0-9]{1,4})?$`
	anAmount         = "a decimal with up to 15 digits before the decimal point and 4 after it"
	amountBoundLimit = 20
)

// Schema is that of a decimal in a string that an amount can be.
func (amountBound) Schema(huma.Registry) *huma.Schema {
	s := &huma.Schema{Type: huma.TypeString, Pattern: amountPattern, MinLength: new(1), MaxLength: new(amountBoundLimit)}
	s.PrecomputeMessages()
	return s
}

// amountInput documents what parseAmount reads.
type amountInput struct{}

// Schema takes a decimal in a string, or a number.
func (amountInput) Schema(r huma.Registry) *huma.Schema {
	return &huma.Schema{OneOf: []*huma.Schema{
		amount{}.Schema(r),
		named(r, "Number", &huma.Schema{
			Type: huma.TypeNumber, Format: "double", Minimum: new(0.0), // without the format, Go clients send a float32
			Description: "A decimal number. Programs that keep it in a float may round it.",
		}),
	}}
}

// metadataMap documents what decoder.metadata reads.
type metadataMap struct{}

// Schema is that of a map with its limits.
func (metadataMap) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{
		Type: huma.TypeObject, MaxProperties: new(maxPairs),
		Extensions:           map[string]any{"propertyNames": map[string]any{"minLength": 1, "maxLength": maxKey}},
		AdditionalProperties: &huma.Schema{Type: huma.TypeString, MaxLength: new(maxValue)},
	}
}
