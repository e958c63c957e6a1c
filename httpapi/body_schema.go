package httpapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"
)

// schemas are those by which bodies are read, by type. Each is made once, however many services there are.
var schemas sync.Map

// schemaOf is the schema of the type that documents a body, by which it is read: the same that huma makes for the
// document.
func schemaOf(t reflect.Type) *huma.Schema {
	made, known := schemas.Load(t)
	if !known {
		registry := huma.NewMapRegistry("#/components/schemas/", huma.DefaultSchemaNamer)
		made, _ = schemas.LoadOrStore(t, resolved(registry, registry.Schema(t, true, "")))
	}
	schema, _ := made.(*huma.Schema)
	return schema
}

// resolved is a schema without references to others.
func resolved(registry huma.Registry, s *huma.Schema) *huma.Schema {
	if s.Ref != "" {
		s = registry.SchemaFromRef(s.Ref)
	}
	for name, property := range s.Properties {
		s.Properties[name] = resolved(registry, property)
	}
	if s.Items != nil {
		s.Items = resolved(registry, s.Items)
	}
	return s
}

// fields are the members of an object, as its schema says: string, int64, time.Time,
// []any, fields, or json.RawMessage for what has no schema. A member that was left out
// reads as the zero value. The names that the schema does not have are under ignoredNames.
type fields map[string]any

// ignoredNames is no name of a schema.
const ignoredNames = ""

func (f fields) has(name string) bool      { _, given := f[name]; return given }
func (f fields) text(name string) string   { value, _ := f[name].(string); return value }
func (f fields) integer(name string) int64 { value, _ := f[name].(int64); return value }
func (f fields) optionalInteger(name string) *int32 {
	if !f.has(name) {
		return nil
	}
	return new(int32(f.integer(name)))
}
func (f fields) time(name string) time.Time { value, _ := f[name].(time.Time); return value }
func (f fields) list(name string) []any     { value, _ := f[name].([]any); return value }
func (f fields) texts(name string) (texts []string) {
	for _, value := range f.list(name) {
		text, _ := value.(string)
		texts = append(texts, text)
	}
	return texts
}
func (f fields) object(name string) fields { value, _ := f[name].(fields); return value }
func (f fields) ignored() []string         { value, _ := f[ignoredNames].([]string); return value }

// readFields reads a body by a schema. Check may be nil; it looks at what the schema does
// not say.
func readFields(data []byte, s *huma.Schema, check func(d *decoder, got fields)) (fields, error) {
	got := fields{}
	ignored, err := decode(data, slices.Collect(maps.Keys(s.Properties)), func(d *decoder, name string) {
		if name == "requestId" || name == "onBehalfOf" { // they are names, like an id
			got[name] = d.visibleText("/" + name)
			return
		}
		got[name] = d.value("/"+name, s.Properties[name])
	}, func(d *decoder) {
		for _, name := range s.Required {
			d.require(got.has(name), "/"+name)
		}
		if check != nil {
			check(d, got)
		}
	})
	if len(ignored) > 0 {
		got[ignoredNames] = ignored
	}
	return got, err
}

// value reads a value by its schema, which has the shapes that types of this package make.
func (d *decoder) value(pointer string, s *huma.Schema) any {
	switch {
	case len(s.Enum) > 0:
		return d.word(pointer, s.Enum)
	case s.Format == "date-time":
		return d.time(pointer)
	case s.Type == huma.TypeString && s.MinLength != nil:
		return d.text(pointer, *s.MaxLength)
	case s.Type == huma.TypeString:
		return d.anyText(pointer)
	case s.Type == huma.TypeInteger:
		return d.integer(pointer, int64(*s.Minimum), int64(*s.Maximum))
	case s.Type == huma.TypeArray:
		return d.list(pointer, s)
	case len(s.Properties) > 0:
		return d.object(pointer, s)
	}
	return json.RawMessage(bytes.Clone(d.skip()))
}

// word reads one of some strings.
func (d *decoder) word(pointer string, known []any) string {
	raw, ok := d.stringOf(pointer)
	word := string(raw)
	if ok && !slices.Contains(known, any(word)) {
		d.fault(pointer, "unknown_word", "must be one of "+words(known))
	}
	return word
}

func words(known []any) string {
	var list []string
	for _, word := range known {
		list = append(list, fmt.Sprint(word))
	}
	return strings.Join(list, ", ")
}

// anyText reads any string, or null for none: a provider that answers must not be turned
// away for how it fills in what is not needed.
func (d *decoder) anyText(pointer string) string {
	if d.kind() == 'n' {
		d.skip()
		return ""
	}
	raw, _ := d.stringOf(pointer)
	return string(raw)
}

func (d *decoder) list(pointer string, s *huma.Schema) (list []any) {
	if d.kind() != '[' {
		d.fault(pointer, "wrong_type", "must be an array")
		d.skip()
		return nil
	}
	for d.next(); d.more(']'); {
		list = append(list, d.value(pointer+"/"+strconv.Itoa(len(list)), s.Items))
	}
	d.next()
	if len(list) < *s.MinItems || len(list) > *s.MaxItems {
		d.fault(pointer, "out_of_range", "must have from "+strconv.Itoa(*s.MinItems)+" to "+strconv.Itoa(*s.MaxItems)+" entries, not "+strconv.Itoa(len(list)))
	}
	return list
}

// object reads an object within the body, which knows all its names.
func (d *decoder) object(pointer string, s *huma.Schema) fields {
	if d.kind() != '{' {
		d.fault(pointer, "wrong_type", "must be a JSON object")
		d.skip()
		return nil
	}
	got := fields{}
	d.members(func(raw []byte) {
		name := string(raw)
		if property, known := s.Properties[name]; known {
			got[name] = d.value(pointer+"/"+name, property)
			return
		}
		d.fault(pointer+"/"+pointerEscape.Replace(name), unknownField, "is not a known field")
		d.skip()
	})
	return got
}
