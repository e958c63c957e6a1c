package httpapi

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// changes collects what breaks clients between two documents. A client is what was generated from the old one, too: so
// names of operations and schemas count, and the type of a field may not even get wider.
type changes struct {
	was, is *described
	seen    map[string]bool // schemas that were compared, by direction
	broken  []string
}

// breaking lists what breaks clients of the API that was, each with its place.
func breaking(was, is *described) []string {
	c := &changes{was: was, is: is, seen: map[string]bool{}}
	for path, methods := range sorted(was.Paths) {
		for method, old := range sorted(methods) {
			at := strings.ToUpper(method) + " " + path
			if now := is.Paths[path][method]; now == nil {
				c.report(at, "the operation is gone")
			} else {
				c.operation(at, old, now)
			}
		}
	}
	for name := range sorted(was.Components.Schemas) {
		if is.Components.Schemas[name] == nil {
			c.report(name, "the schema is gone")
		}
	}
	return c.broken
}

// sorted goes through a map in the order of its keys.
func sorted[V any](m map[string]V) func(func(string, V) bool) {
	return func(yield func(string, V) bool) {
		for _, key := range slices.Sorted(maps.Keys(m)) {
			if !yield(key, m[key]) {
				return
			}
		}
	}
}

func (c *changes) report(at, what string, values ...any) {
	c.broken = append(c.broken, at+": "+fmt.Sprintf(what, values...))
}

func (c *changes) operation(at string, was, is *describedOperation) {
	if was.OperationID != is.OperationID {
		c.report(at, "its name was %s", was.OperationID)
	}
	c.security(at, was, is)
	c.parameters(at, was.Parameters, is.Parameters)
	c.body(at, was.RequestBody, is.RequestBody)
	for status, old := range sorted(was.Responses) {
		if now, there := is.Responses[status]; there {
			c.response(at+" "+status, old, now)
		} else {
			c.report(at+" "+status, "the status is gone")
		}
	}
	for status := range sorted(is.Responses) {
		if _, there := was.Responses[status]; !there && status < "400" {
			c.report(at+" "+status, "a status that is no error is new")
		}
	}
}

// security wants every way to be let in to remain one.
func (c *changes) security(at string, was, is *describedOperation) {
	now := is.Security
	if now == nil {
		now = c.is.Security
	}
	old := was.Security
	if old == nil {
		old = c.was.Security
	}
	if len(now) == 0 {
		return
	}
	if len(old) == 0 {
		old = []map[string][]string{{}}
	}
	for _, way := range old {
		if !slices.ContainsFunc(now, func(other map[string][]string) bool { return reflect.DeepEqual(way, other) }) {
			c.report(at, "who was let in with %v is so no longer", slices.Sorted(maps.Keys(way)))
		}
	}
}

func (c *changes) parameters(at string, was, is []describedParameter) {
	for _, old := range was {
		i := slices.IndexFunc(is, old.sameAs)
		if i < 0 {
			c.report(at, "the parameter %s is gone", old.Name)
			continue
		}
		if is[i].Required && !old.Required {
			c.report(at, "the parameter %s is required now", old.Name)
		}
		if is[i].Explode != old.Explode {
			c.report(at, "lists in the parameter %s are written otherwise", old.Name)
		}
		c.schema(at+" "+old.Name, old.Schema, is[i].Schema, sent)
	}
	for _, now := range is {
		if now.Required && !slices.ContainsFunc(was, now.sameAs) {
			c.report(at, "the parameter %s is new and required", now.Name)
		}
	}
}

func (p describedParameter) sameAs(other describedParameter) bool {
	return p.Name == other.Name && p.In == other.In
}

func (c *changes) body(at string, was, is *describedBody) {
	switch {
	case was == nil && is != nil && is.Required:
		c.report(at, "a body is required now")
	case was != nil && is == nil:
		c.report(at, "it takes no body any more")
	case was != nil:
		if is.Required && !was.Required {
			c.report(at, "a body is required now")
		}
		c.media(at+" body", was.Content, is.Content, sent)
	}
}

func (c *changes) response(at string, was, is describedResponse) {
	for name := range sorted(was.Headers) {
		if _, there := is.Headers[name]; !there {
			c.report(at, "the header %s is gone", name)
		}
	}
	c.media(at, was.Content, is.Content, received)
}

func (c *changes) media(at string, was, is map[string]describedMedia, way direction) {
	for name, old := range sorted(was) {
		if now, there := is[name]; there {
			c.schema(at, old.Schema, now.Schema, way)
		} else {
			c.report(at, "the media type %s is gone", name)
		}
	}
}

// direction is which way a value goes: what clients send may only be allowed more, what they receive promise more.
type direction string

const sent, received direction = "sent", "received"

func (c *changes) schema(at string, was, is *describedSchema, way direction) {
	if was == nil || is == nil {
		if was != is {
			c.report(at, "its schema came or went")
		}
		return
	}
	if was.Ref != is.Ref {
		c.report(at, "it was %s, and is %s", cmp.Or(refName(was), "unnamed"), cmp.Or(refName(is), "unnamed"))
		return
	}
	if name := refName(was); name != "" {
		at = name
		old, now := c.was.Components.Schemas[name], c.is.Components.Schemas[name]
		if key := name + " " + string(way); old == nil || now == nil || c.seen[key] { // one that is gone is reported as such
			return
		} else {
			c.seen[key] = true
		}
		was, is = old, now
	}
	c.values(at, was, is)
	if way == sent {
		c.narrowed(at, was, is)
	}
	c.members(at, was, is, way)
	c.parts(at, was, is, way)
}

func refName(s *describedSchema) string { return s.Ref[strings.LastIndexByte(s.Ref, '/')+1:] }

// values compares what holds for both directions.
func (c *changes) values(at string, was, is *describedSchema) {
	if !reflect.DeepEqual(was.Type, is.Type) {
		c.report(at, "its type was %v, and is %v", was.Type, is.Type)
	}
	if was.Format != is.Format {
		c.report(at, "its format was %q, and is %q", was.Format, is.Format)
	}
	if was.Pattern != is.Pattern {
		c.report(at, "its pattern was %q, and is %q", was.Pattern, is.Pattern)
	}
	if (was.Enum == nil) != (is.Enum == nil) {
		c.report(at, "a list of its values came or went")
	}
	for _, value := range was.Enum {
		if is.Enum != nil && !slices.Contains(is.Enum, value) {
			c.report(at, "the value %s is gone", value)
		}
	}
}

// narrowed compares what only matters to who sends a value.
func (c *changes) narrowed(at string, was, is *describedSchema) {
	for keyword, larger := range sorted(limits) {
		old, now := was.Rest[keyword], is.Rest[keyword]
		if now == nil {
			continue
		}
		if order := cmp.Compare(number(now), number(old)); old == nil || larger && order > 0 || !larger && order < 0 {
			c.report(at, "its %s was %v, and is %v", keyword, old, now)
		}
	}
	if is.AdditionalProperties == false && was.AdditionalProperties != false {
		c.report(at, "fields that are not known are refused now")
	}
	if !reflect.DeepEqual(was.Default, is.Default) {
		c.report(at, "its default was %v, and is %v", was.Default, is.Default)
	}
}

func number(limit any) float64 {
	value := reflect.ValueOf(limit)
	switch {
	case !value.IsValid():
		return 0
	case value.CanInt():
		return float64(value.Int())
	}
	return value.Float()
}

// members compares the fields of an object.
func (c *changes) members(at string, was, is *describedSchema, way direction) {
	for name, old := range sorted(was.Properties) {
		now := is.Properties[name]
		if now == nil {
			c.report(at+"."+name, "the field is gone")
			continue
		}
		required, before := slices.Contains(is.Required, name), slices.Contains(was.Required, name)
		if way == sent && required && !before {
			c.report(at+"."+name, "the field is required now")
		}
		if way == received && before && !required {
			c.report(at+"."+name, "the field can be missing now")
		}
		c.schema(at+"."+name, old, now, way)
	}
	for _, name := range is.Required {
		if way == sent && was.Properties[name] == nil {
			c.report(at+"."+name, "the field is new and required")
		}
	}
}

// parts compares what a schema is made of beside its fields.
func (c *changes) parts(at string, was, is *describedSchema, way direction) {
	c.schema(at+"[]", was.Items, is.Items, way)
	c.schema(at+".*", was.Values, is.Values, way)
	c.schema(at+" names", was.PropertyNames, is.PropertyNames, way)
	c.forms(at, was, is, way)
}

// forms wants each form that could be sent to be accepted still, and each that is received to be one that was before.
func (c *changes) forms(at string, was, is *describedSchema, way direction) {
	fit := func(old, now *describedSchema) bool {
		trial := &changes{was: c.was, is: c.is, seen: map[string]bool{}}
		trial.schema(at, old, now, way)
		return trial.broken == nil
	}
	if way == sent {
		for i, old := range was.OneOf {
			if !slices.ContainsFunc(is.OneOf, func(now *describedSchema) bool { return fit(old, now) }) {
				c.report(at, "form %d of it is gone", i+1)
			}
		}
		return
	}
	for i, now := range is.OneOf {
		if !slices.ContainsFunc(was.OneOf, func(old *describedSchema) bool { return fit(old, now) }) {
			c.report(at, "form %d of it is new", i+1)
		}
	}
}
