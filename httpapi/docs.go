package httpapi

import (
	"bytes"
	"cmp"
	_ "embed"
	"fmt"
	"html/template"
	"maps"
	"net/http"
	"path"
	"reflect"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"
)

//go:embed docs.html
var docsHTML string

var docsTemplate = template.Must(template.New("docs").Funcs(template.FuncMap{
	"split": strings.Split, "trim": strings.TrimSuffix, "base": path.Base,
	"members": membersOf, "limits": limitsOf,
}).Parse(docsHTML + loginHTML))

// The pages hold no script and load nothing, so that they can be read anywhere.
const pagePolicy = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

func writePage(w http.ResponseWriter, body []byte) {
	header := w.Header()
	header.Set("Content-Type", "text/html; charset=utf-8")
	header.Set("Content-Security-Policy", pagePolicy)
	header.Set("Referrer-Policy", "no-referrer")
	w.Write(body) //nolint:errcheck // the caller has gone
}

// docsOrigin stands in the page for where the service is, which only a request tells.
const docsOrigin = "http://localhost:3000"

// docs answers with a page in which the commands go to where the reader found it.
func docs(body func() []byte) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		scheme := "http://"
		if r.TLS != nil || r.Header.Get("X-Forwarded-Proto") == "https" {
			scheme = "https://"
		}
		origin := template.HTMLEscapeString(scheme + r.Host)
		writePage(w, bytes.ReplaceAll(body(), []byte(docsOrigin), []byte(origin)))
	}
}

// problemPage explains one code. It is where the type of a problem leads to.
func (s *server) problemPage(w http.ResponseWriter, r *http.Request) error {
	at := slices.IndexFunc(kinds, func(k kind) bool { return string(k.Code) == r.PathValue("code") })
	if at < 0 {
		return newProblem("unknown_route", "")
	}
	var sample bytes.Buffer
	if err := writeJSON(&sample, sampleProblem(kinds[at].Code)); err != nil {
		return err
	}
	writePage(w, render("problem", struct {
		kind
		Sample string
	}{kinds[at], indented(sample.String())}))
	return nil
}

// docsPage is the OpenAPI document as a page. Its operations are in the order of the routes.
func (s *server) docsPage() []byte {
	type shown struct {
		*huma.Operation
		Sample  string
		Samples map[string]string
	}
	page := struct {
		*huma.OpenAPI
		Documented []shown
		Problems   []kind
	}{OpenAPI: s.api.OpenAPI(), Problems: kinds}
	for _, op := range s.documented {
		page.Documented = append(page.Documented, shown{op, s.sampleRequest(op), s.sampleAnswers(op)})
	}
	return render("docs", page)
}

func render(name string, content any) []byte {
	var b bytes.Buffer
	if err := docsTemplate.ExecuteTemplate(&b, name, content); err != nil {
		panic("httpapi: page " + name + ": " + err.Error()) // all of it is known at start
	}
	return b.Bytes()
}

// membersOf lists the members of an object as if they were parameters.
func membersOf(s *huma.Schema) (out []*huma.Param) {
	names := slices.Sorted(maps.Keys(s.Properties))
	required := func(name string) int { return slices.Index(s.Required, name) }
	slices.SortStableFunc(names, func(a, b string) int { // required ones first, in the order of the type
		return cmp.Compare(uint(required(a)), uint(required(b)))
	})
	for _, name := range names {
		out = append(out, &huma.Param{Name: name, Required: required(name) >= 0, Schema: s.Properties[name]})
	}
	return out
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
