package httpapi

import (
	"bytes"
	"cmp"
	_ "embed"
	"fmt"
	"html/template"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"
)

//go:embed docs.html
var docsHTML string

var docsTemplate = template.Must(template.New("docs").Parse(docsHTML))

// The pages hold no script and load nothing, so that they can be read anywhere.
const pagePolicy = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

func page(body []byte) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		header := w.Header()
		header.Set("Content-Type", "text/html; charset=utf-8")
		header.Set("Content-Security-Policy", pagePolicy)
		header.Set("Referrer-Policy", "no-referrer")
		w.Write(body) //nolint:errcheck // the caller has gone
	}
}

// problemPage explains one code. It is where the type of a problem leads to.
func (s *server) problemPage(w http.ResponseWriter, r *http.Request) error {
	at := slices.IndexFunc(kinds, func(k kind) bool { return string(k.code) == r.PathValue("code") })
	if at < 0 {
		return newProblem("unknown_route", "")
	}
	page(render("problem", problemRow(&kinds[at])))(w, r)
	return nil
}

// docsPage is the OpenAPI document as a page.
func (s *server) docsPage() []byte {
	document := s.api.OpenAPI()
	content := docs{Title: document.Info.Title, Version: document.Info.Version, About: strings.Split(document.Info.Description, "\n\n")}
	for _, tag := range document.Tags {
		content.Groups = append(content.Groups, docsGroup{tag.Name, strings.TrimSuffix(tag.Description, "."), s.operationsOf(tag.Name)})
	}
	components := document.Components.Schemas.Map()
	for _, name := range slices.Sorted(maps.Keys(components)) {
		content.Types = append(content.Types, docsType{name, components[name].Description, fieldsOf(components[name]), words(components[name].Enum)})
	}
	for i := range kinds {
		content.Problems = append(content.Problems, problemRow(&kinds[i]))
	}
	return render("docs", content)
}

func render(name string, content any) []byte {
	var b bytes.Buffer
	if err := docsTemplate.ExecuteTemplate(&b, name, content); err != nil {
		panic("httpapi: page " + name + ": " + err.Error()) // all of it is known at start
	}
	return b.Bytes()
}

// What the templates show.
type (
	docs struct {
		Title, Version string
		About          []string
		Groups         []docsGroup
		Types          []docsType
		Problems       []docsProblem
	}
	docsGroup struct {
		Name, About string
		Operations  []docsOperation
	}
	docsOperation struct {
		ID, Method, Path, Summary, About string
		Parameters                       []docsField
		Body                             docsField
		Answers                          []docsAnswer
	}
	docsField struct {
		Name, Place, Type, Link, About, Limits string
		Required                               bool
	}
	docsAnswer struct {
		Status, About, Type, Link string
		Headers                   []string
	}
	docsType struct {
		Name, About string
		Fields      []docsField
		Values      []string
	}
	docsProblem struct {
		Code, Title, Advice string
		Status              int
	}
)

func problemRow(k *kind) docsProblem { return docsProblem{string(k.code), k.title, k.advice, k.status} }

func (s *server) operationsOf(tag string) (out []docsOperation) {
	for _, op := range s.documented {
		if slices.Contains(op.Tags, tag) {
			out = append(out, operationOf(op))
		}
	}
	return out
}

func operationOf(op *huma.Operation) docsOperation {
	out := docsOperation{ID: op.OperationID, Method: op.Method, Path: op.Path, Summary: op.Summary, About: op.Description}
	for _, p := range op.Parameters {
		field := fieldOf(p.Name, p.Schema, p.Required)
		field.Place = p.In
		out.Parameters = append(out.Parameters, field)
	}
	if op.RequestBody != nil {
		out.Body = fieldOf("body", contentOf(op.RequestBody.Content), op.RequestBody.Required)
	}
	for _, status := range slices.Sorted(maps.Keys(op.Responses)) {
		response := op.Responses[status]
		body := fieldOf("", contentOf(response.Content), false)
		out.Answers = append(out.Answers, docsAnswer{
			status, response.Description, body.Type, body.Link, slices.Sorted(maps.Keys(response.Headers)),
		})
	}
	return out
}

func contentOf(content map[string]*huma.MediaType) *huma.Schema {
	for _, media := range content {
		return media.Schema
	}
	return nil
}

func fieldsOf(s *huma.Schema) (out []docsField) {
	names := slices.Sorted(maps.Keys(s.Properties))
	required := func(name string) int { return slices.Index(s.Required, name) }
	slices.SortStableFunc(names, func(a, b string) int { // required ones first, in the order of the type
		return cmp.Compare(uint(required(a)), uint(required(b)))
	})
	for _, name := range names {
		out = append(out, fieldOf(name, s.Properties[name], required(name) >= 0))
	}
	return out
}

// fieldOf describes a field by its schema, which may refer to another or be nil.
func fieldOf(name string, s *huma.Schema, required bool) docsField {
	field := docsField{Name: name, Required: required}
	if s == nil {
		return field
	}
	field.About = s.Description
	field.Type = s.Type
	switch {
	case s.Type == huma.TypeArray:
		element := fieldOf("", s.Items, false)
		field.Type, field.Link = "list of "+element.Type, element.Link
	case s.Ref != "":
		field.Link = s.Ref[strings.LastIndexByte(s.Ref, '/')+1:]
		field.Type = field.Link
	case len(s.OneOf) > 0:
		field.Type = "number or string"
	case len(s.Enum) > 0:
		field.Type = strings.Join(words(s.Enum), ", ")
	}
	if s.Nullable {
		field.Type += " or null"
	}
	field.Limits = limitsOf(s)
	return field
}

// limitsOf puts the limits of a value into words.
func limitsOf(s *huma.Schema) string {
	var limits []string
	note := func(format string, limit any) {
		if value := reflect.ValueOf(limit); !value.IsNil() {
			limits = append(limits, fmt.Sprintf(format, value.Elem()))
		}
	}
	if s.Format == "date-time" {
		limits = append(limits, "a time (RFC 3339)")
	}
	note("at least %.f", s.Minimum)
	note("at most %.f", s.Maximum)
	note("at most %d characters", s.MaxLength)
	note("at most %d entries", s.MaxProperties)
	if s.Default != nil {
		limits = append(limits, fmt.Sprintf("%v when left out", s.Default))
	}
	return strings.Join(limits, ", ")
}

func words(values []any) (out []string) {
	for _, value := range values {
		if word, ok := value.(string); ok {
			out = append(out, word)
		}
	}
	return out
}
