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

var docsTemplate = template.Must(template.New("docs").Funcs(template.FuncMap{
	"split": strings.Split, "trim": strings.TrimSuffix, "members": membersOf, "parameters": parametersOf, "type": typeOf, "link": linkOf, "limits": limitsOf,
	"names": func(h map[string]*huma.Param) string { return strings.Join(slices.Sorted(maps.Keys(h)), ", ") },
}).Parse(docsHTML))

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
	content := docs{OpenAPI: s.api.OpenAPI(), Documented: s.documented}
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

// What the templates show, besides the document itself.
type (
	docs struct {
		*huma.OpenAPI
		Documented []*huma.Operation // in the order of the routes
		Problems   []docsProblem
	}
	docsField struct {
		*huma.Schema
		Name, Place string
		Needed      bool
	}
	docsProblem struct {
		Code, Title, Advice string
		Status              int
	}
)

func problemRow(k *kind) docsProblem { return docsProblem{string(k.code), k.title, k.advice, k.status} }

func parametersOf(op *huma.Operation) (out []docsField) {
	for _, p := range op.Parameters {
		out = append(out, docsField{p.Schema, p.Name, p.In, p.Required})
	}
	return out
}

func membersOf(s *huma.Schema) (out []docsField) {
	names := slices.Sorted(maps.Keys(s.Properties))
	required := func(name string) int { return slices.Index(s.Required, name) }
	slices.SortStableFunc(names, func(a, b string) int { // required ones first, in the order of the type
		return cmp.Compare(uint(required(a)), uint(required(b)))
	})
	for _, name := range names {
		out = append(out, docsField{s.Properties[name], name, "", required(name) >= 0})
	}
	return out
}

// linkOf is the component that a schema, or each element of a list, refers to.
func linkOf(s *huma.Schema) string {
	if s.Type == huma.TypeArray {
		return linkOf(s.Items)
	}
	return s.Ref[strings.LastIndexByte(s.Ref, '/')+1:]
}

func typeOf(s *huma.Schema) (text string) {
	switch {
	case s.Type == huma.TypeArray:
		text = "list of " + typeOf(s.Items)
	case s.Ref != "":
		text = linkOf(s)
	case len(s.OneOf) > 0:
		text = "number or string"
	case len(s.Enum) > 0:
		text = fmt.Sprint(s.Enum[0])
		for _, word := range s.Enum[1:] {
			text += fmt.Sprint(", ", word)
		}
	default:
		text = s.Type
	}
	if s.Nullable {
		text += " or null"
	}
	return text
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
